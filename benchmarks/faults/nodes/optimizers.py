"""Replaces what one of ONNX Runtime's optimizers does by something wrong; all the others are sound."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper

from filch.export import Program
from filch.export.backends import Backend, CompiledVariant, Switch, get_backend
from filch.export.backends.onnxruntime._backend import OnnxRuntimeBackend
from filch.export.graph._from_onnx import graph_from_onnx

FACTOR = 1.5


@dataclass(frozen=True)
class FaultyOptimizers(OnnxRuntimeBackend):
    """ONNX Runtime with faulty optimizers: the values that they add to the graph are 1.5 times too large.

    An optimizer that is left out, or has nothing to change in the graph as the others leave it, does no harm.

    Attributes:
        faulty: the optimizers.
    """

    faulty: tuple[Switch, ...] = ()

    def compile_without(self, program: Program, off: Collection[Switch]) -> CompiledVariant:
        made = super().compile_without(program, off)
        right = onnx.load(made.compiled.handle.path)
        effects: dict[str, None] = {}
        for one in self.faulty:
            if one not in off:
                without = super().compile_without(program, [*off, one])
                effects |= dict.fromkeys(brought_in(right, onnx.load(without.compiled.handle.path)))
        for name in effects:
            enlarge(right, name)
        return self._running(made, right) if effects else made

    def _running(self, made: CompiledVariant, model: ModelProto) -> CompiledVariant:
        path = Path(made.compiled.handle.path)
        onnx.save(model, path)
        session = self._session(path, ort.GraphOptimizationLevel.ORT_DISABLE_ALL)
        held = (session, made)  # the file goes with what was compiled
        graph = graph_from_onnx(ir.load(path))
        order = range(len(graph.nodes))
        handle = replace(made.compiled.handle, graph=graph, start=lambda: held[0], running=session, order=order)
        return replace(made, compiled=replace(made.compiled, graph=graph, handle=handle))


def faulty(*names: str, program: Program, **options: str) -> FaultyOptimizers:
    """Return a backend whose optimizers of these names, which changed the program's graph, are wrong."""
    sound = get_backend("onnxruntime-cpu", **options)
    known = {one.name: one for one in sound.compile_without(program, ()).switches}
    return FaultyOptimizers(**{**vars(sound), "faulty": tuple(known[name] for name in names)})


def candidates(program: Program, backend: Backend) -> list[Switch]:
    """Return the optimizers that change the graph while all others are enabled."""
    whole = backend.compile_without(program, ())
    found = {one: backend.compile_without(program, [one]).fingerprint for one in whole.switches}
    return [one for one, seen in found.items() if seen != whole.fingerprint]


def brought_in(model: ModelProto, without: ModelProto) -> list[str]:
    """Return the floating-point values that only one of two graphs computes in this way."""
    floats = _floats(model)
    known = {_told(node) for node in without.graph.node}
    held = {weight.name for weight in without.graph.initializer}
    made = [name for node in model.graph.node if _told(node) not in known for name in node.output if name in floats]
    weights = [weight.name for weight in model.graph.initializer if weight.data_type == TensorProto.FLOAT]
    return [*made, *(name for name in weights if name not in held)]


def enlarge(model: ModelProto, name: str) -> None:
    for weight in model.graph.initializer:
        if weight.name == name:
            weight.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(weight) * np.float32(FACTOR), name))
            return
    place, node = next((place, node) for place, node in enumerate(model.graph.node) if name in node.output)
    node.output[list(node.output).index(name)] = f"{name}_right"
    model.graph.initializer.append(numpy_helper.from_array(np.float32(FACTOR), f"{name}_factor"))
    wrong = helper.make_node("Mul", [f"{name}_right", f"{name}_factor"], [name], name=f"{name}_wrong")
    model.graph.node.insert(place + 1, wrong)


def _told(node: NodeProto) -> tuple[object, ...]:
    return node.op_type, node.domain, tuple(node.input), tuple(node.output)


def _floats(model: ModelProto) -> set[str]:
    """Return the float32 values of ONNX Runtime; onnx can't infer shapes of its own operators."""
    probe = ModelProto()
    probe.CopyFrom(model)
    del probe.graph.output[:]
    names = dict.fromkeys(name for node in model.graph.node for name in node.output if name)
    probe.graph.output.extend(helper.make_empty_tensor_value_info(name) for name in names)
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = ort.InferenceSession(probe.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return {entry.name for entry in session.get_outputs() if entry.type == "tensor(float)"}
