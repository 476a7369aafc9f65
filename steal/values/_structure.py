"""Any nesting of Python values as JSON plus a list of tensors, and back.

The JSON form (`Spec`) is plain for what JSON can say (`null`, booleans, strings, small integers, finite floats) and an
object with one tag otherwise, e.g. `{"tuple": [...]}` or `{"tensor": 3}`. Tensors are handed out to, and asked back
from, whoever holds them. What is met again is `{"same": n}`, where the first has `"shared": n` among its entries.
"""

from typing import Any

import torch

from ._children import children
from ._decode import decode
from ._encode import encode
from ._foreign import Foreign, Get, Put, Skipped, Spec, skipped, type_name
from ._statistics import Statistics

__all__ = [
    "Foreign", "Get", "Put", "Skipped", "Spec", "children", "decode", "encode", "skipped", "structure", "tensors",
    "type_name",
]  # fmt: skip


def tensors(value: Any) -> dict[str, torch.Tensor]:
    """All tensors of a nested value by path, in order; the same paths whether or not a class could be rebuilt.

    A tensor that is not dense gives its parts (`.indices`, `.values`).

    >>> list(tensors({"mask": torch.zeros(2), "pair": (torch.ones(1), 3)}))
    ["['mask']", "['pair'][0]"]
    """
    found: dict[str, torch.Tensor] = {}

    def put(tensor: torch.Tensor, path: str) -> Spec:
        found[path] = tensor
        return {"tensor": None}

    encode(value, put, exact=False)
    return found


def structure(value: Any) -> Spec:
    """How a value is nested, and all that it holds besides the numbers of its tensors; equal for values built alike."""
    return encode(value, lambda _tensor, _path: {"tensor": None}, exact=False)


def left_out(value: Any) -> dict[str, Skipped | Statistics]:
    """What stands for tensors that a nested value was stored without, by path; in what is shared, by the first path."""
    found: dict[str, Skipped | Statistics] = {}
    left: list[tuple[str, Any]] = [("", value)]
    seen: dict[int, Any] = {}  # with what has the identity, as that may be given to another object otherwise
    while left:
        path, part = left.pop()
        if isinstance(part, Skipped | Statistics):
            found[path] = part
        elif id(part) not in seen and (parts := children(part)) is not None:
            seen[id(part)] = part
            left += reversed([(path + step, child) for step, _, child in parts[1]])
    return dict(sorted(found.items()))
