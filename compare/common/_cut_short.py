"""Tell a line of Filch's own that a kill cut short from the text of somebody else."""


def is_cut_short(line: bytes, key: str) -> bool:
    """Return whether a line without an end is the beginning of a JSON object whose first entry is `key`."""
    start = f'{{"{key}":'.encode()
    return line[: len(start)] == start[: len(line)]
