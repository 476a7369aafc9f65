"""`PairedValue`: a value of a program, and the values of the reference that it is."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import torch

Evidence = Literal["given", "name", "operands", "numbers"]


@dataclass(frozen=True)
class PairedValue:
    """A value of a program, and the values of the reference that it is.

    Attributes:
        value: the name of the value.
        sources: the names of the reference's values: one, or several that are joined along the last dimension.
        evidence: what shows that they are the same: they are inputs or outputs that correspond, have the same name, are
            computed or read in the same way, or nothing but their numbers.
        shape: the shape of the value, if that of the reference's value is another one.
    """

    value: str
    sources: tuple[str, ...]
    evidence: Evidence
    shape: torch.Size | None = None

    @property
    def source(self) -> str | None:
        """The name of the reference's value; None if there are several."""
        return self.sources[0] if len(self.sources) == 1 else None

    def reference(self, values: Mapping[str, torch.Tensor]) -> torch.Tensor | None:
        """Return the numbers of the reference in the shape of the value; None if `values` lacks some of them."""
        parts = [values[name] for name in self.sources if name in values]
        if len(parts) < len(self.sources):
            return None
        tensor = parts[0] if len(parts) == 1 else torch.cat(parts, -1)
        return tensor if self.shape is None else tensor.reshape(self.shape)


@dataclass(frozen=True)
class Pairs:
    """The values of a program that are those of another one.

    Attributes:
        by_value: the pairs by the names of the program's values.
        same_weights: the names of the nodes with a quantized weight whose numbers the reference's weights have.
    """

    by_value: Mapping[str, PairedValue]
    same_weights: frozenset[str] = frozenset()

    def references(self, values: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Return the numbers of the reference for each value, as far as `values` has them."""
        found = {name: pair.reference(values) for name, pair in self.by_value.items()}
        return {name: tensor for name, tensor in found.items() if tensor is not None}
