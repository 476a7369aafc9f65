"""The versions that `filch --version` prints."""

from filch import __version__
from filch.steal.private._versions import installed, newest_tried


def version_lines() -> list[str]:
    """Return a line for Filch, Python and each package in use, which says if that version is newer than all tested."""
    versions = installed()
    width = max(map(len, versions))
    lines = [f"{'filch':<{width}}  {__version__}"]
    for name, version in versions.items():
        newest = newest_tried(name, version)
        note = "" if newest is None else f"  newer than any that was tested ({newest})"
        lines.append(f"{name:<{width}}  {version}{note}")
    return lines
