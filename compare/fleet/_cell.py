"""The cells of a fleet: one comparison each, described by text, with a content address."""

import hashlib
import json
import os
import platform
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cache
from itertools import product
from typing import Any, Literal, Self

import torch

from ._sources import backend_versions, find_sources

CellTolerance = float | Literal["default"] | None


@dataclass(frozen=True)
class CellOptions:
    """How the values of a cell are judged, and how its backend runs; see `compare`.

    Attributes:
        options: options of the backend, as text.
        tolerance: the largest harmonic error, `default` for that of each dtype, or None to judge by float64.
        lower_precision: whether values of a coarser dtype than the model's are allowed.
        limit: the time limit of one run of the backend in seconds; None is the default.
    """

    options: Mapping[str, str] = field(default_factory=dict)
    tolerance: CellTolerance = None
    lower_precision: bool = False
    limit: float | None = None


@dataclass(frozen=True)
class CellSpec:
    """One comparison: the text that a worker needs to run it.

    Attributes:
        factory: `path.py:factory` or `package.module:factory`; see `find_factory`.
        folder: the folder in which the worker runs, to which the path is relative.
        backend: the name of the backend.
        dtype: the dtype to which the model is cast; `""` casts nothing.
        device: the device on which the model runs in eager PyTorch; `""` moves nothing.
        sizes: the size of each dynamic dimension, for a cell of a sweep.
        export_sizes: the sizes that the factory is called with for the model to export, if it takes them.
        judged: how its values are judged.
    """

    factory: str
    folder: str
    backend: str
    dtype: str = ""
    device: str = ""
    sizes: Mapping[str, int] = field(default_factory=dict)
    export_sizes: Mapping[str, int] = field(default_factory=dict)
    judged: CellOptions = CellOptions()

    @property
    def labels(self) -> dict[str, str]:
        """Its model, dtype, device, sizes and backend, without those that it does not have."""
        sizes = {f"dim:{name}": str(size) for name, size in self.sizes.items()}
        labels = {"model": self.factory, "dtype": self.dtype, "device": self.device, **sizes, "backend": self.backend}
        return {title: label for title, label in labels.items() if label}

    @property
    def needs_gpu(self) -> bool:
        """Whether its model or its backend runs on a GPU, as far as their names say."""
        name = f"{self.device} {self.backend} {self.judged.options.get('device', '')}".lower()
        return any(word in name for word in ("cuda", "tensorrt", "gpu"))

    def to_dict(self) -> dict[str, Any]:
        """Return it as types that `json.dumps` accepts."""
        return asdict(self)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """Return the cell that `to_dict` describes."""
        return cls(**{**data, "judged": CellOptions(**data["judged"])})

    def key(self, device: str) -> str:
        """Return its content address, a SHA-256 in hexadecimal.

        It depends on what is computed: the source of the factory and of what that imports from the user's own tree, the
        versions of installed packages, and the options. Paths are no part of it, so that a moved folder keeps its keys.

        Args:
            device: the device or machine on which cells run.
        """
        sources = find_sources(self.factory, self.folder)
        place, _, function = self.factory.rpartition(":")
        content = {
            **self.to_dict(),
            "folder": "",
            "factory": function if place.endswith(".py") else self.factory,
            "sources": sources.hashes,
            "versions": sources.versions | backend_versions(self.backend),
            "run_on": (device, platform.machine()),
        }
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def matrix_cells(
    factories: Sequence[str],
    *,
    folder: str | os.PathLike[str],
    backends: Sequence[str],
    dtypes: Sequence[str] = (),
    devices: Sequence[str] = (),
    judged: CellOptions,
) -> list[CellSpec]:
    """Return a cell for each model, dtype, device and backend, in the order of `matrix`."""
    combinations = product(factories, dtypes or [""], devices or [""], backends)
    return [
        CellSpec(factory, str(folder), backend, dtype, device, judged=judged)
        for factory, dtype, device, backend in combinations
    ]


def sweep_cells(
    factory: str,
    sizes: Mapping[str, Sequence[int]],
    *,
    folder: str | os.PathLike[str],
    backends: Sequence[str],
    judged: CellOptions,
) -> list[CellSpec]:
    """Return a cell for each combination of sizes and each backend, in the order of `sweep`."""
    largest = {name: max(values) for name, values in sizes.items()}
    return [
        CellSpec(
            *(factory, str(folder), backend),
            sizes=dict(zip(sizes, combination, strict=True)),
            export_sizes=largest,
            judged=judged,
        )
        for combination, backend in product(product(*sizes.values()), backends)
    ]


@cache
def local_device() -> str:
    """Return the name of this machine's GPU, or `cpu`."""
    return torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu"
