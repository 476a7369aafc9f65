"""The tensors, the placeholders and the structure of a nested value."""

from typing import Any

import torch

from ._children import children
from ._encode import encode
from ._foreign import Skipped, Spec
from ._statistics import Statistics


def tensors(value: Any) -> dict[str, torch.Tensor]:
    """Return all tensors of a nested value by path, in order; the paths don't depend on which classes are imported.

    A sparse, nested or quantized tensor is represented by its parts (`.indices`, `.values`).

    >>> list(tensors({"mask": torch.zeros(2), "pair": (torch.ones(1), 3)}))
    ["['mask']", "['pair'][0]"]
    """
    tensors_by_path: dict[str, torch.Tensor] = {}

    def put(tensor: torch.Tensor, path: str) -> Spec:
        tensors_by_path[path] = tensor
        return {"tensor": None}

    encode(value, put, exact=False)
    return tensors_by_path


def structure(value: Any) -> Spec:
    """Return the JSON form of a value with all tensors replaced by one placeholder; equal for values built alike."""
    return encode(value, lambda _tensor, _path: {"tensor": None}, exact=False)


def missing_tensors(value: Any) -> dict[str, Skipped | Statistics]:
    """Return the placeholders of tensors that were not stored, by path; for shared objects, by the first path."""
    placeholders: dict[str, Skipped | Statistics] = {}
    pending: list[tuple[str, Any]] = [("", value)]
    seen: dict[int, Any] = {}  # by id, with the object, so that its id is not reused
    while pending:
        path, part = pending.pop()
        if isinstance(part, Skipped | Statistics):
            placeholders[path] = part
        elif id(part) not in seen and (parts := children(part)) is not None:
            seen[id(part)] = part
            pending += reversed([(path + step, child) for step, _, child in parts[1]])
    return dict(sorted(placeholders.items()))
