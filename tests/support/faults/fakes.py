"""Backends that are wrong on purpose."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import onnx
import onnxruntime as ort
import torch

from filch.export import Program
from filch.export.backends import Compiled, ReferenceLookup, Stage, get_backend
from filch.export.graph._cutting import AGAIN

Fault = Callable[[torch.Tensor], torch.Tensor | None]


@dataclass
class WrongBackend:
    """ONNX Runtime with some of its values changed or missing.

    Attributes:
        faults: by value name, what becomes of the value; None leaves it out.
        observed_only: whether the undisturbed run tells the truth.
    """

    faults: Mapping[str, Fault] = field(default_factory=dict)
    observed_only: bool = False
    name: str = "wrong"
    stages: tuple[Stage, ...] = ("exported",)

    def compile(self, program: Program, *, optimize: bool) -> Compiled:
        return get_backend("onnxruntime-cpu").compile(program, optimize=optimize)

    def run(
        self, compiled: Compiled, inputs: Mapping[str, torch.Tensor], watch: Collection[str] = ()
    ) -> Mapping[str, torch.Tensor]:
        found = dict(get_backend("onnxruntime-cpu").run(compiled, inputs, watch))
        if self.observed_only and not watch and not any(name.endswith(AGAIN) for name in found):
            return found
        for value, fault in self.faults.items():
            for name in (value, value + AGAIN):  # as it is called where what reads it is given another one
                if name in found:
                    changed = fault(found.pop(name))
                    found |= {} if changed is None else {name: changed}
        return found


@dataclass
class PlantedBackend:
    """ONNX Runtime that runs a changed version of the file of its optimized graph.

    Attributes:
        plant: changes the optimized model in place.
        options: those of the backend.
    """

    plant: Callable[[onnx.ModelProto], None]
    options: Mapping[str, str] = field(default_factory=dict)
    name: str = "planted"
    stages: tuple[Stage, ...] = ("exported", "compiled")
    kept: list[Compiled] = field(default_factory=list)

    def compile(self, program: Program, *, optimize: bool) -> Compiled:
        backend = get_backend("onnxruntime-cpu", **self.options)
        made = backend.compile(program, optimize=optimize)
        self.kept.append(made)  # its files live as long as it does
        if not optimize:
            return made
        model = onnx.load(made.handle.path)
        self.plant(model)
        onnx.save(model, made.handle.path)
        options = ort.SessionOptions()
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
        session = ort.InferenceSession(made.handle.path, options, providers=["CPUExecutionProvider"])
        return replace(made, handle=replace(made.handle, start=lambda: session, running=session))

    def run(
        self, compiled: Compiled, inputs: Mapping[str, torch.Tensor], watch: Collection[str] = ()
    ) -> Mapping[str, torch.Tensor]:
        return get_backend("onnxruntime-cpu").run(compiled, inputs, watch)


class IsolatingPlantedBackend(PlantedBackend):
    """A `PlantedBackend` that runs each node of the changed graph in isolation."""

    def isolate(
        self, compiled: Compiled, inputs: Mapping[str, torch.Tensor], references: ReferenceLookup, **options: Any
    ) -> Iterator[tuple[str, torch.Tensor]]:
        return get_backend("onnxruntime-cpu").isolate(compiled, inputs, references, **options)
