"""Where stolen tensors are put while the model runs."""

from typing import Protocol

import torch

from ._key import Key
from ._records import ModuleInfo, Record
from ._structure import Spec


class Store(Protocol):
    """Takes tensors as the model makes them, and keeps the numbers that they have at that moment."""

    def put(self, tensor: torch.Tensor, name: str) -> Spec:
        """Keep a copy of `tensor`; `name` says to a person what it is. Returns what stands for it in a spec."""

    def get(self, reference: Spec) -> torch.Tensor:
        """The tensor that `put` returned `reference` for, on the CPU."""

    def add(self, key: Key, record: Record) -> None:
        """Say that the value of `key` is complete: its tensors were all put before."""

    def close(self, modules: dict[str, ModuleInfo]) -> None:
        """Finish; nothing is put afterwards."""


class MemoryStore:
    """Keeps copies in main memory."""

    def __init__(self) -> None:
        self._tensors: list[torch.Tensor] = []

    def put(self, tensor: torch.Tensor, name: str) -> Spec:  # noqa: ARG002  the name is for files
        with torch.inference_mode(mode=False):  # a copy made in it could not be given to a model that trains
            self._tensors.append(tensor.detach().to("cpu", copy=True))
        return len(self._tensors) - 1

    def get(self, reference: Spec) -> torch.Tensor:
        return self._tensors[reference]

    def add(self, key: Key, record: Record) -> None:
        """Nothing to do: the records are the capture's own."""

    def close(self, modules: dict[str, ModuleInfo]) -> None:
        """Nothing to do."""
