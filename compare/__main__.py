"""The entry point of the command line: `filch`, `python -m filch` and `python -m filch.compare`."""

import gc
import os
import sys


def main() -> None:
    """Run the command line, with Python's garbage collector off until all is imported.

    The objects that torch creates on import live until the process ends. Each collection would visit them, and so
    would the last one at exit: a third of the time of a short command.

    Torch's threads spin for some microseconds only before they wait asleep. Otherwise they take the processor from the
    one that they wait for, if other processes need it too; asleep from the start, they wake up late on an idle machine.
    """
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", "10000")  # read when torch is imported; by default 300,000
    gc.disable()
    try:
        from .cli._app import main as run  # noqa: PLC0415  Ctrl-C may come while it is imported

        run()
    except KeyboardInterrupt:
        sys.stderr.write("filch: interrupted\n")
        sys.exit(130)


if __name__ == "__main__":
    main()
