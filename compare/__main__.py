"""The entry point of the command line: `filch`, `python -m filch` and `python -m filch.compare`."""

import gc
import sys


def main() -> None:
    """Run the command line, with Python's garbage collector off until all is imported.

    The objects that torch creates on import live until the process ends. Each collection would visit them, and so
    would the last one at exit: a third of the time of a short command.
    """
    gc.disable()
    try:
        from .cli._app import main as run  # noqa: PLC0415  Ctrl-C may come while it is imported

        run()
    except KeyboardInterrupt:
        sys.stderr.write("filch: interrupted\n")
        sys.exit(130)


if __name__ == "__main__":
    main()
