"""Plants faults in a sound ONNX model, one node each, and keeps those that change what their node makes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from random import Random
from typing import Any

import numpy as np
import onnxruntime as ort
import torch
from filch.compare import compare_tensors
from onnx import AttributeProto, ModelProto, NodeProto, TensorProto, helper, numpy_helper

__all__ = ["KINDS", "Plant", "Planter", "run"]

Values = Mapping[str, np.ndarray]

_TRIES = 60  # most swaps of inputs are refused for their types or shapes
_SMALL = 8  # elements of a constant that is a setting rather than data
_HIGH_BITS = {np.dtype("float16"): range(6, 15), np.dtype("float32"): range(17, 31)}
_OTHER_TYPES = (TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.DOUBLE, TensorProto.INT32, TensorProto.INT64, TensorProto.BOOL)
_MUL = "planted_mul"


@dataclass(frozen=True)
class Plant:
    """One fault in a model.

    Args:
        kind: One of `KINDS`.
        node: The name of the one node that is wrong.
        value: What that node makes.
        text: What was done.
        model: The model with the fault.
        tolerated: Whether `compare_tensors` lets the wrong value pass although it is off by 1 %.
    """

    kind: str
    node: str
    value: str
    text: str
    model: ModelProto
    tolerated: bool


class Draft:
    """A copy of the sound model in which one node is about to be changed.

    Args:
        model: The sound model.
        values: What its nodes make, and its weights.
        random: Decides where and how much.
    """

    def __init__(self, model: ModelProto, values: Values, random: Random) -> None:
        self.model = ModelProto()
        self.model.CopyFrom(model)
        self.values = values
        self.random = random
        self.nodes = self.model.graph.node
        self.weights = {tensor.name: tensor for tensor in self.model.graph.initializer}

    def pick(self, fits: Callable[[NodeProto], Any]) -> NodeProto | None:
        """A node that fits, if there is one."""
        found = [node for node in self.nodes if fits(node)]
        return self.random.choice(found) if found else None

    def size(self, name: str) -> int:
        """How many elements a value has; 0 if it is not known."""
        return self.values[name].size if name in self.values else 0

    def rank(self, name: str) -> int:
        """How many dimensions a value has."""
        return self.values[name].ndim

    def give(self, node: NodeProto, position: int, array: np.ndarray) -> None:
        """Let `node` alone read `array` at one of its inputs."""
        name = node.input[position]
        readers = sum(list(other.input).count(name) for other in self.nodes)
        if name not in self.weights or readers > 1:
            name = node.input[position] = f"{name}_of_{node.name}"
            self.weights[name] = self.model.graph.initializer.add()
        self.weights[name].CopyFrom(numpy_helper.from_array(array, name))


Change = tuple[NodeProto, str]  # the node that was changed, and how


def _epsilon(draft: Draft) -> Change | None:
    """Another epsilon, in a norm's attribute or in the constant that an Add reads."""

    def position(node: NodeProto) -> int | None:
        small = (i for i, name in enumerate(node.input) if draft.size(name) == 1 and 0 < draft.values[name].item() < 1e-2)
        return next(small, None) if node.op_type == "Add" else None

    node = draft.pick(lambda node: _attribute(node, "epsilon") or position(node) is not None)
    if node is None:
        return None
    attribute, new = _attribute(node, "epsilon"), draft.random.choice((1e-4, 1e-3, 1e-2, 1e-1))
    if attribute:
        attribute.f = new
    else:
        draft.give(node, position(node), np.full_like(draft.values[node.input[position(node)]], new))
    return node, f"epsilon {new:g}"


def _axis(draft: Draft) -> Change | None:
    """Another axis, in an attribute or among the axes that the node reads."""
    reads = lambda node: node.op_type.startswith(("Reduce", "Squeeze", "Unsqueeze")) and draft.size(_input(node, 1)) == 1  # noqa: E731
    node = draft.pick(lambda node: draft.values.get(_input(node, 0)) is not None and (_attribute(node, "axis") or reads(node)))
    if node is None:
        return None
    rank = max(draft.rank(node.input[0]), draft.rank(node.output[0]), 1)
    attribute = _attribute(node, "axis")
    old = attribute.i if attribute else draft.values[node.input[1]].item()
    axis = draft.random.choice([axis for axis in range(-rank, rank) if axis not in (old, old - rank, old + rank)] or [0])
    if attribute:
        attribute.i = axis
    else:
        draft.give(node, 1, np.full_like(draft.values[node.input[1]], axis))
    return node, f"axis {axis}"


def _bit(draft: Draft) -> Change | None:
    """One high bit of one weight, for one of its readers."""
    flips = lambda name: name in draft.weights and draft.size(name) and draft.values[name].dtype in _HIGH_BITS  # noqa: E731
    node = draft.pick(lambda node: any(map(flips, node.input)))
    if node is None:
        return None
    position = draft.random.choice([i for i, name in enumerate(node.input) if flips(name)])
    array = draft.values[node.input[position]].copy()
    bit, index = draft.random.choice(_HIGH_BITS[array.dtype]), draft.random.randrange(array.size)
    array.reshape(-1).view(f"uint{8 * array.itemsize}")[index] ^= 1 << bit
    draft.give(node, position, array)
    return node, f"bit {bit} of element {index} of {node.input[position]}"


def _swap(draft: Draft) -> Change | None:
    """Two inputs in each other's place."""
    node = draft.pick(lambda node: len(set(node.input) - {""}) > 1)
    if node is None:
        return None
    i, j = sorted(draft.random.sample(range(len(node.input)), 2))
    node.input[i], node.input[j] = node.input[j], node.input[i]
    return node, f"inputs {i} and {j} swapped"


def _mul_after(draft: Draft) -> Change | None:
    """A Mul that takes over the name of what a node makes."""
    made = _floats(draft, lambda node: node.output)
    if not made:
        return None
    index, position = draft.random.choice(made)
    node = draft.nodes[index]
    name = node.output[position]
    node.output[position] = f"{name}_before"
    return _insert_mul(draft, index + 1, node.output[position], name)


def _mul_before(draft: Draft) -> Change | None:
    """A Mul in front of one input of one node."""
    read = _floats(draft, lambda node: node.input)
    if not read:
        return None
    index, position = draft.random.choice(read)
    node = draft.nodes[index]
    name = node.input[position]
    node.input[position] = f"{name}_for_{node.name}"
    return _insert_mul(draft, index, name, node.input[position])


def _insert_mul(draft: Draft, index: int, source: str, made: str) -> Change:
    factor = draft.random.uniform(1.001, 1.05)
    dtype = draft.values[source if source in draft.values else made].dtype
    draft.model.graph.initializer.append(numpy_helper.from_array(np.array(factor, dtype), f"{_MUL}_factor"))
    mul = helper.make_node("Mul", [source, f"{_MUL}_factor"], [made], name=_MUL)
    draft.nodes.insert(index, mul)
    return draft.nodes[index], f"{source} times {factor:.4f}"


def _bias(draft: Draft) -> Change | None:
    """A Gemm or Conv without its bias, or an Add that gives one of its inputs."""
    node = draft.pick(lambda node: node.op_type == "Add" or (node.op_type in ("Gemm", "Conv") and len(node.input) == 3))
    if node is None:
        return None
    dropped = 2 if node.op_type != "Add" else draft.random.randrange(2)
    text = f"{node.op_type} without {node.input.pop(dropped)}"
    if node.op_type == "Add":
        node.op_type = "Identity"
    return node, text


def _constant(draft: Draft) -> Change | None:
    """One number of a small Constant."""
    node = draft.pick(lambda node: node.op_type == "Constant" and 0 < draft.size(node.output[0]) <= _SMALL)
    if node is None:
        return None
    array = np.array(draft.values[node.output[0]])
    index = draft.random.randrange(array.size)
    old = array.flat[index]
    array.flat[index] = new = _other_number(old, draft.random)
    del node.attribute[:]
    node.attribute.append(helper.make_attribute("value", numpy_helper.from_array(array)))
    return node, f"{new} for {old}"


def _perm(draft: Draft) -> Change | None:
    """Another permutation of a Transpose."""
    node = draft.pick(lambda node: node.op_type == "Transpose" and _attribute(node, "perm"))
    if node is None:
        return None
    perm = _attribute(node, "perm").ints
    perm[:] = draft.random.sample(list(perm), len(perm))
    return node, f"perm {list(perm)}"


def _other_attribute(draft: Draft) -> Change | None:
    """Any other attribute: a type, a factor, a flag, pads."""
    fits = lambda item: item.name not in ("axis", "epsilon", "perm") and item.type in (1, 2, 3, 7)  # noqa: E731
    node = draft.pick(lambda node: node.op_type != "Constant" and any(map(fits, node.attribute)))
    if node is None:
        return None
    attribute = draft.random.choice([item for item in node.attribute if fits(item)])
    if attribute.name == "to":
        attribute.i = draft.random.choice(_OTHER_TYPES)
    elif attribute.type == AttributeProto.STRING:
        attribute.s = {b"none": b"tanh", b"tanh": b"none", b"NOTSET": b"SAME_UPPER"}.get(attribute.s, attribute.s)
    elif attribute.type == AttributeProto.FLOAT:
        attribute.f = _other_number(attribute.f, draft.random)
    elif attribute.type == AttributeProto.INT:
        attribute.i = int(_other_number(attribute.i, draft.random))
    elif attribute.ints:
        index = draft.random.randrange(len(attribute.ints))
        attribute.ints[index] = int(_other_number(attribute.ints[index], draft.random))
    return node, f"{attribute.name} {helper.get_attribute_value(attribute)}"


KINDS: dict[str, Callable[[Draft], Change | None]] = {
    "epsilon": _epsilon,
    "axis": _axis,
    "weight bit": _bit,
    "swapped inputs": _swap,
    "Mul takes the name": _mul_after,
    "Mul for one reader": _mul_before,
    "dropped bias": _bias,
    "constant": _constant,
    "Transpose perm": _perm,
    "other attribute": _other_attribute,
}


class Planter:
    """Plants faults in one model.

    Args:
        model: It, sound.
        inputs: What it is run on, by the names of its inputs.
    """

    def __init__(self, model: ModelProto, inputs: Values) -> None:
        self._model = model
        self._inputs = inputs
        names = [name for node in model.graph.node for name in node.output if name]
        weights = {tensor.name: numpy_helper.to_array(tensor) for tensor in model.graph.initializer}
        self.values = {**inputs, **weights, **run(model, inputs, names)}
        self.drawn = 0

    def plant(self, kind: str, random: Random) -> Plant | None:
        """A fault of which the model still runs and its node makes something else; None if none was found."""
        for _ in range(_TRIES):
            draft = Draft(self._model, self.values, random)
            change = KINDS[kind](draft)
            if change is None:
                return None
            self.drawn += 1
            node, text = change
            plant = self._tell(kind, node, f"{node.op_type} {node.name}: {text}", draft.model)
            if plant is not None:
                return plant
        return None

    def _tell(self, kind: str, node: NodeProto, text: str, model: ModelProto) -> Plant | None:
        """The plant, if the wrong node's value is wrong; of a value that the sound model lacks, if its reader's is."""
        value = node.output[0]
        values = [value]
        if value not in self.values:
            values = [name for reader in model.graph.node if value in reader.input for name in reader.output if name]
        try:
            made = run(model, self._inputs, values)
            if any(made[name].shape != self.values[name].shape for name in values):
                # What the clean model says of shapes is no longer true, which a runtime that trusts it trips over.
                del model.graph.value_info[:]
            run(model, self._inputs, [])
        except Exception:  # noqa: BLE001  ONNX Runtime's exceptions have no common base; what it refuses is no plant
            return None
        pairs = [(self.values[name], made[name]) for name in values]
        tolerated = all(compare_tensors(torch.tensor(clean), torch.tensor(wrong)).close for clean, wrong in pairs)
        if tolerated and not any(is_material(clean, wrong) for clean, wrong in pairs):
            return None
        return Plant(kind, node.name, value, text, model, tolerated)


def is_material(clean: np.ndarray, wrong: np.ndarray) -> bool:
    """Whether an element is off by 1 % of itself and of the median element: plain, so that `compare` is judged by another."""
    if clean.shape != wrong.shape or clean.dtype != wrong.dtype:
        return True
    if clean.dtype.kind != "f":
        return bool((clean != wrong).any())
    with np.errstate(invalid="ignore", over="ignore"):
        size = np.abs(clean.astype(np.float64))
        typical = np.median(size[np.isfinite(size) & (size > 0)]) if (np.isfinite(size) & (size > 0)).any() else 0.0
        same = (clean == wrong) | (np.isnan(clean) & np.isnan(wrong))
        return bool((~same & ~(np.abs(wrong.astype(np.float64) - clean) <= 0.01 * (size + typical))).any())


def run(model: ModelProto, inputs: Values, names: list[str]) -> dict[str, np.ndarray]:
    """What a model makes as it stands: its outputs and `names`."""
    watched = ModelProto()
    watched.CopyFrom(model)
    here = {output.name for output in model.graph.output}
    watched.graph.output.extend(helper.ValueInfoProto(name=name) for name in dict.fromkeys(names) if name not in here)
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4
    session = ort.InferenceSession(watched.SerializeToString(), options, providers=["CPUExecutionProvider"])
    given = {entry.name: inputs[entry.name] for entry in session.get_inputs()}
    found = zip([entry.name for entry in session.get_outputs()], session.run(None, given), strict=True)
    return {name: array for name, array in found if isinstance(array, np.ndarray)}


def _floats(draft: Draft, names: Callable[[NodeProto], Any]) -> list[tuple[int, int]]:
    """The places, as node and position, at which floating-point values stand."""
    return [
        (index, position)
        for index, node in enumerate(draft.nodes)
        for position, name in enumerate(names(node))
        if draft.size(name) and draft.values[name].dtype.kind == "f"
    ]


def _attribute(node: NodeProto, name: str) -> AttributeProto | None:
    return next((item for item in node.attribute if item.name == name), None)


def _input(node: NodeProto, position: int) -> str:
    return node.input[position] if len(node.input) > position else ""


def _other_number(old: Any, random: Random) -> Any:  # noqa: ANN401  whatever a constant holds
    if isinstance(old, bool | np.bool_):
        return not old
    if isinstance(old, int | np.integer):
        return old - 1 if old > 2**30 else old + random.choice((-1, 1))
    with np.errstate(over="ignore"):  # twice the lowest number is -inf, and wrong too
        return old * random.choice((0.5, 0.99, 1.01, 2.0)) if old else 0.01
