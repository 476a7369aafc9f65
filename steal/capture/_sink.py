"""A store that passes each record to a function instead of keeping it."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch

from .._errors import DumpError
from .._key import Key
from .._records import Origin
from ..values._foreign import Spec
from ..values._raw import no_modes_or_grad
from ..values._structure import decode


class SinkStore:
    """Calls `sink` with each record (see `Store`); tensors are kept only until their record is complete."""

    error: DumpError | None = None

    def __init__(self, sink: Callable[[Key, Any], object]) -> None:
        self._sink = sink
        self._tensors: dict[int, torch.Tensor] = {}
        self._count = 0

    def put(self, tensor: torch.Tensor, key: Key, path: str) -> int:  # noqa: ARG002  names are for files
        """See `Store.put`."""
        self._count += 1
        with no_modes_or_grad():
            self._tensors[self._count] = tensor.detach().clone()
        return self._count

    def extend(self, first: int, tail: int, dim: int) -> int:
        """See `Store.extend`."""
        raise NotImplementedError(f"a sink gets whole tensors, not {first} extended by {tail} along {dim}")

    def get(self, reference: int) -> torch.Tensor:
        """See `Store.get`."""
        return self._tensors[reference]

    view = get

    def add(self, key: Key, spec: Spec, origin: Origin) -> None:  # noqa: ARG002  as above
        """Pass the value to the sink, and release its tensors."""
        with no_modes_or_grad():  # the sink's operations must not affect the model
            self._sink(key, decode(spec, self._tensors.pop))

    def rows(self, start: int) -> Iterable[Sequence[Any]]:  # noqa: ARG002  there are none
        """Return no rows, as nothing is kept."""
        return ()

    def add_failure(self, key: Key, exception: str) -> None:
        """Do nothing: the recorder keeps the failures."""

    def flush(self) -> int:
        """Do nothing: no record is pending."""
        return 0

    def close(self) -> None:
        """Do nothing."""
