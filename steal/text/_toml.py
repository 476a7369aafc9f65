"""Escape text for TOML."""

_SPECIAL = {'"': '\\"', "\\": "\\\\"}


def for_toml(text: str) -> str:
    """Return text as a basic string of TOML, with its quotes."""
    escaped = (_SPECIAL.get(char, char if char.isprintable() else f"\\U{ord(char):08x}") for char in text)
    return f'"{"".join(escaped)}"'
