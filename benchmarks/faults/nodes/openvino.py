"""Plants faults in the model that OpenVINO read, and finds the executed layer that each of them is in."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from random import Random
from typing import Any
from unittest import mock

import numpy as np
import openvino as ov
import torch

from filch.export import Program
from filch.export.backends import get_backend

from .compiled import CompiledPlant, handing_out
from .plants import flipped, is_off, is_tolerated, other

FLOAT32 = {"INFERENCE_PRECISION_HINT": "f32"}  # the default is bfloat16 where the CPU has it
CHOICES = {"ERF": "TANH", "TANH": "ERF", "INSIDE_SQRT": "OUTSIDE_SQRT"}
Change = Callable[[list[Any], Random], Any]


def change_weight(ops: list[Any], random: Random) -> Any:
    """Flip one bit of a constant, for one of its readers."""
    op, place = random.choice([(op, place) for op in ops for place in op.inputs() if _weight(place) is not None])
    changed = ov.opset13.constant(flipped(np.array(_weight(place).data), random))
    place.replace_source_output(changed.output(0))
    return op


def _weight(place: Any) -> Any:
    node = place.get_source_output().get_node()
    floating = node.get_type_name() == "Constant" and node.get_element_type() == ov.Type.f32
    return node if floating and node.data.size > 1 else None


def change_attribute(ops: list[Any], random: Random) -> Any:
    """Change a number, a flag or a name."""
    op, name, old = random.choice(
        [
            (op, name, value)
            for op in ops
            for name, value in op.get_attributes().items()
            if isinstance(value, bool | int | float | list) or value in CHOICES
        ]
    )
    new = CHOICES[old] if isinstance(old, str) else other(old, random)
    if isinstance(old, list):  # OpenVINO divides by strides, and the process ends
        new = [item if item or not before else before + 1 for item, before in zip(new, old, strict=True)]
    op.set_attribute(name, new)
    return op


def halve_bias(ops: list[Any], random: Random) -> Any:
    """Make an addition add half of its constant; OpenVINO removes additions of zero."""
    places = [place for op in ops if op.get_type_name() == "Add" for place in op.inputs() if _weight(place) is not None]
    place = random.choice(places)
    place.replace_source_output(ov.opset13.constant(_weight(place).data / np.float32(2)).output(0))
    return place.get_node()


KINDS: Mapping[str, Change] = {"weight bit": change_weight, "halved bias": halve_bias, "attribute": change_attribute}


class OpenVinoPlants:
    """Plants faults in a model that OpenVINO read, in operations that depend on the inputs.

    A fault counts if it changes what the executed layer makes.
    """

    kinds = KINDS

    def __init__(self, program: Program, inputs: Mapping[str, torch.Tensor]) -> None:
        self._program = program
        self._inputs = {name: tensor.numpy() for name, tensor in inputs.items()}
        self._backend = get_backend("openvino", config=FLOAT32)
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "sound.onnx"
            program.save(file)
            self._sound = ov.Core().read_model(file).clone()
        self.clean = self._compiled(self._sound)[0]

    def plant(self, kind: str, random: Random) -> CompiledPlant | None:
        """Return a fault of a kind; None if none was found."""
        for _ in range(40):
            model = self._sound.clone()
            try:
                op = KINDS[kind](_living(model), random)
                model.validate_nodes_and_infer_types()
                ends = self._ends(model, op)
                pairs = list(zip(self._values(self._sound, ends), self._values(model, ends), strict=True))
            except IndexError:  # there is no such place
                return None
            except RuntimeError:  # OpenVINO refuses it
                continue
            if any(is_off(*pair) or not is_tolerated(*pair) for pair in pairs):
                backend, made = self._compiled(model)
                layers = _layer_of(made.handle.plain.model().get_runtime_model(), op)
                node = next(node for node in made.graph.nodes if layers & {*node.attributes["layers"]})
                return CompiledPlant(kind, node.name, f"{op.get_type_name()} {op.get_friendly_name()}", backend)
        return None

    def _compiled(self, model: ov.Model) -> Any:
        with mock.patch.object(ov.Core, "read_model", return_value=model.clone()):
            made = self._backend.compile(self._program, optimize=True)
        return handing_out(self._backend, made), made

    def _ends(self, model: ov.Model, op: Any) -> list[str]:
        """Return the operations at which the executed layer that computes this one ends."""
        runtime = ov.Core().compile_model(model, "CPU", FLOAT32).get_runtime_model()
        layers = _layer_of(runtime, op)
        inside = {name for layer in runtime.get_ops() if layer.get_friendly_name() in layers for name in _names(layer)}
        ops = [item for item in model.get_ordered_ops() if item.get_friendly_name() in inside]
        return [item.get_friendly_name() for item in ops if not {*map(_name, _users(item))} <= inside]

    def _values(self, model: ov.Model, names: list[str]) -> list[np.ndarray]:
        """Return the results of operations of a model."""
        watched = model.clone()
        ops = {op.get_friendly_name(): op for op in watched.get_ordered_ops()}
        asked = watched.add_outputs([ops[name].output(0) for name in names])
        found = ov.Core().compile_model(watched, "CPU", FLOAT32)(self._inputs)
        return [np.array(found[watched.outputs.index(port)]) for port in asked]


def _living(model: ov.Model) -> list[Any]:
    """Return the operations whose results depend on the inputs."""
    found: set[str] = set()
    living = []
    for op in model.get_ordered_ops():
        sources = {place.get_source_output().get_node().get_friendly_name() for place in op.inputs()}
        if op.get_type_name() == "Parameter" or sources & found:
            found.add(op.get_friendly_name())
            living += [] if op.get_type_name() in ("Parameter", "Result") else [op]
    return living


def _layer_of(runtime: ov.Model, op: Any) -> set[str]:
    """Return the executed layers that have an operation's name, else those that have its users' names."""
    named = {layer.get_friendly_name() for layer in runtime.get_ops() if op.get_friendly_name() in _names(layer)}
    return named or {name for user in _users(op) for name in _layer_of(runtime, user)}


def _names(layer: Any) -> list[str]:
    info = layer.get_rt_info()
    return info["originalLayersNames"].astype(str).split(",") if info["layerType"].astype(str) != "Const" else []


def _name(op: Any) -> str:
    return op.get_friendly_name()


def _users(op: Any) -> list[Any]:
    return [place.get_node() for port in op.outputs() for place in port.get_target_inputs()]
