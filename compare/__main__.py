"""The entry point of the command line: `filch`, `python -m filch` and `python -m filch.compare`."""

import gc
import os
import sys


def main() -> None:
    """Run the command line, with Python's garbage collector off until all is imported.

    The objects that torch creates on import live until the process ends. Each collection would visit them, and so
    would the last one at exit: a third of the time of a short command.

    Torch's threads wait for each other asleep. Spinning, they take the processor from the one that they wait for, if
    other processes need it too: an addition of 0.03 ms then takes 8 ms.
    """
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # read when torch is imported
    gc.disable()
    try:
        from .cli._app import main as run  # noqa: PLC0415  Ctrl-C may come while it is imported

        run()
    except KeyboardInterrupt:
        sys.stderr.write("filch: interrupted\n")
        sys.exit(130)


if __name__ == "__main__":
    main()
