"""The entry point of the command line: `filch`, `python -m filch` and `python -m filch.compare`."""

import gc


def main() -> None:
    """Run the command line, with Python's garbage collector off until all is imported.

    The objects that torch creates on import live until the process ends. Each collection would visit them, and so
    would the last one at exit: a third of the time of a short command.
    """
    gc.disable()
    from .cli._app import main as run  # noqa: PLC0415  the import is the slow part

    gc.freeze()
    gc.enable()
    run()


if __name__ == "__main__":
    main()
