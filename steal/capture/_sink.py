"""A store that keeps nothing: each record is handed on as soon as it is complete."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch

from .._errors import DumpError
from .._key import Key
from .._records import Origin
from ..values._foreign import Spec
from ..values._raw import no_modes_or_grad
from ..values._structure import decode


class PassingStore:
    """Calls `sink` with each record (see `Store`); a tensor is held until its record is complete."""

    error: DumpError | None = None

    def __init__(self, sink: Callable[[Key, Any], object]) -> None:
        self._sink = sink
        self._held: dict[int, torch.Tensor] = {}
        self._count = 0

    def put(self, tensor: torch.Tensor, key: Key, path: str) -> int:  # noqa: ARG002  names are for files
        """See `Store.put`."""
        self._count += 1
        with no_modes_or_grad():
            self._held[self._count] = tensor.detach().clone()
        return self._count

    def extend(self, first: int, tail: int, dim: int) -> int:
        """See `Store.extend`."""
        raise NotImplementedError(f"tensors are handed on whole, and {first} would go on with {tail} along {dim}")

    def get(self, reference: int) -> torch.Tensor:
        """See `Store.get`."""
        return self._held[reference]

    view = get

    def add(self, key: Key, spec: Spec, origin: Origin) -> None:  # noqa: ARG002  as above
        """Hand the value on, and let go of its tensors."""
        with no_modes_or_grad():  # what the sink computes is none of the model's business
            self._sink(key, decode(spec, self._held.pop))

    def rows(self, start: int) -> Iterable[Sequence[Any]]:  # noqa: ARG002  there are none
        """None: nothing is kept."""
        return ()

    def add_failure(self, key: Key, exception: str) -> None:
        """Nothing to do: the capture knows."""

    def flush(self) -> int:
        """Nothing to wait for."""
        return 0

    def close(self) -> None:
        """Nothing to do."""
