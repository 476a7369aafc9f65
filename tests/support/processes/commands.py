"""Commands of `filch`, run in this process."""

import sys

from filch.compare.cli._app import main


def run(*arguments: str) -> int:
    """The exit code of a command."""
    before, sys.argv = sys.argv, ["filch", *arguments]
    try:
        main()
    except SystemExit as ended:
        return int(ended.code or 0)
    finally:
        sys.argv = before
    return 0
