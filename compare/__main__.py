"""Where the command line begins: `filch`, `python -m filch` and `python -m filch.compare`."""

import gc


def main() -> None:
    """Run the command line, without Python's garbage collector until all is imported.

    What torch makes as it is imported stays until the process ends. Collections would visit it again and again, and
    once more at the end: a third of the time of a short command.
    """
    gc.disable()
    from .cli._app import main as run  # noqa: PLC0415  what takes long is to import it

    gc.freeze()
    gc.enable()
    run()


if __name__ == "__main__":
    main()
