"""Read the file of values that may stay without a judgment."""

import os

from filch.steal.files._untrusted import read_toml

from ._errors import CompareError


def read_accepted(path: str | os.PathLike[str]) -> dict[str, str]:
    """Return the reason for each value of a TOML file with lines like `logits = "drawn at random"`.

    Raises:
        FilchError: the file can't be read, or an entry is no name with a reason.
    """
    accepted: dict[str, str] = {}
    for name, reason in read_toml(path, "accepted values").items():
        if not isinstance(reason, str) or not reason.strip():
            raise CompareError(
                f'{os.fspath(path)!r}: expected lines like logits = "drawn at random", the name of a value and the '
                f"reason why it need not be judged, found {name!r} = {reason!r:.80}"
            )
        accepted[name] = reason
    return accepted
