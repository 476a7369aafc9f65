"""The command line, as `python -m filch`."""

from filch.compare.__main__ import main

if __name__ == "__main__":
    main()
