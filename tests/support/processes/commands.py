"""Commands of `filch`, run in this process."""

import sys

from filch.compare.cli._app import main


def run(*arguments: str) -> int:
    """Run a command and return its exit code."""
    before, sys.argv = sys.argv, ["filch", *arguments]
    try:
        main()
    except SystemExit as ended:
        return int(ended.code or 0)
    finally:
        sys.argv = before
    return 0
