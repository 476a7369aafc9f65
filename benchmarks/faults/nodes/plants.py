"""Plants faults in a sound ONNX model, one node each, and keeps those that change what their node makes."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from functools import partial
from itertools import permutations
from random import Random
from typing import Any

import numpy as np
import onnxruntime as ort
import torch
from onnx import AttributeProto, ModelProto, NodeProto, TensorProto, helper, numpy_helper

from filch.compare import compare_tensors

HIGH_BITS = {np.dtype("float16"): range(6, 15), np.dtype("float32"): range(17, 31)}
TYPES = [TensorProto.DataType.Value(name) for name in ("FLOAT", "FLOAT16", "DOUBLE", "INT32", "INT64", "BOOL")]
STRINGS = {b"none": b"tanh", b"tanh": b"none", b"NOTSET": b"SAME_UPPER", b"Relu": b"Tanh", b"Tanh": b"Relu"}
SIMPLE = (AttributeProto.FLOAT, AttributeProto.INT, AttributeProto.STRING, AttributeProto.INTS)
OTHERS = ("axis", "epsilon", "perm", "value", "value_float", "value_int", "value_ints")
MUL = "planted_mul"
CPU, CUDA = "CPUExecutionProvider", "CUDAExecutionProvider"
Fits = Callable[[NodeProto], object]


@dataclass(frozen=True, eq=False)
class Plant:
    """A model in which one node, the maker of `value`, is wrong; `tolerated` if `compare_tensors` calls that close."""

    kind: str
    node: str
    value: str
    text: str
    model: ModelProto
    tolerated: bool


class Draft:
    """A copy of the sound model, in which one node is about to be changed."""

    def __init__(self, model: ModelProto, values: Mapping[str, np.ndarray], random: Random, may: Fits) -> None:
        self.model, self.may = deepcopy(model), may
        self.nodes = self.model.graph.node
        self.weights = {tensor.name: tensor for tensor in self.model.graph.initializer}
        self.values, self.random = values, random
        self.floats = {name for name, array in values.items() if array.size and array.dtype in HIGH_BITS}
        self.epsilons = {name for name in self.floats if values[name].size == 1 and 0 < values[name].item() < 0.01}

    def pick(self, fits: Fits) -> NodeProto:
        return self.random.choice([node for node in self.nodes if self.may(node) and fits(node)])

    def give(self, node: NodeProto, position: int, array: np.ndarray) -> None:
        """Give `array` to `node` alone, as one of its inputs."""
        name = node.input[position]
        if name not in self.weights or sum(list(other.input).count(name) for other in self.nodes) > 1:
            name = node.input[position] = f"{name}_of_{node.name}"
            self.weights[name] = self.model.graph.initializer.add()
        self.weights[name].CopyFrom(numpy_helper.from_array(array, name))


def change_epsilon(draft: Draft, choices: Sequence[float] = (1e-4, 1e-3, 1e-2, 1e-1)) -> NodeProto:
    """Change the epsilon in a norm's attribute, or in the constant that an Add reads."""
    reads = lambda node: node.op_type == "Add" and draft.epsilons & set(node.input)  # noqa: E731
    node = draft.pick(lambda node: attribute(node, "epsilon") or reads(node))
    new = draft.random.choice(choices)
    if reads(node):
        position = next(i for i, name in enumerate(node.input) if name in draft.epsilons)
        draft.give(node, position, np.full_like(draft.values[node.input[position]], new))
    else:
        attribute(node, "epsilon").f = new
    return node


def change_axis(draft: Draft) -> NodeProto:
    """Change the axis in an attribute, or among the axes that the node reads."""
    reads = lambda node: node.op_type.startswith(("Reduce", "Squeeze", "Unsqueeze")) and len(node.input) > 1  # noqa: E731
    node = draft.pick(lambda node: attribute(node, "axis") or reads(node))
    rank = max(draft.values[name].ndim for name in (node.input[0], node.output[0]))
    axis = draft.random.randrange(-rank, rank + 1)
    if reads(node):
        draft.give(node, 1, np.full_like(draft.values[node.input[1]], axis))
    else:
        attribute(node, "axis").i = axis
    return node


def flip_bit(draft: Draft) -> NodeProto:
    """Flip a high bit of one weight, for one of its readers."""
    weights = draft.floats & draft.weights.keys()
    node = draft.pick(lambda node: weights & set(node.input))
    position = draft.random.choice([i for i, name in enumerate(node.input) if name in weights])
    draft.give(node, position, flipped(draft.values[node.input[position]], draft.random))
    return node


def flipped(array: np.ndarray, random: Random) -> np.ndarray:
    """Return a copy with one bit flipped."""
    made = array.copy()
    bits, bit = made.reshape(-1).view(f"uint{8 * made.itemsize}"), random.choice(HIGH_BITS[made.dtype])
    bits[random.randrange(made.size)] ^= 1 << bit
    return made


def swap_inputs(draft: Draft) -> NodeProto:
    node = draft.pick(lambda node: len(set(node.input) - {""}) > 1)
    i, j = draft.random.sample(range(len(node.input)), 2)
    node.input[i], node.input[j] = node.input[j], node.input[i]
    return node


def multiply(draft: Draft, end: str) -> NodeProto:
    """Add a Mul that takes over the name of a node's result, or that changes an input of one node."""
    node = draft.pick(lambda node: draft.floats & set(getattr(node, end)))
    names, index = getattr(node, end), list(draft.nodes).index(node)
    position = draft.random.choice([i for i, name in enumerate(names) if name in draft.floats])
    value, names[position] = names[position], f"{names[position]}_at_{node.name}"
    index, reads, makes = (index + 1, names[position], value) if end == "output" else (index, value, names[position])
    draft.nodes.insert(index, helper.make_node("Mul", [reads, ""], [makes], name=MUL))
    draft.give(draft.nodes[index], 1, np.array(draft.random.uniform(1.001, 1.05), draft.values[value].dtype))
    return draft.nodes[index]


def drop_bias(draft: Draft) -> NodeProto:
    """Remove the bias of a Gemm or Conv, or make an Add return one of its inputs."""
    node = draft.pick(lambda node: node.op_type == "Add" or (node.op_type in ("Gemm", "Conv") and len(node.input) == 3))
    node.input.pop(draft.random.randrange(2) if node.op_type == "Add" else 2)
    node.op_type = "Identity" if node.op_type == "Add" else node.op_type
    return node


def drop_input(draft: Draft) -> NodeProto:
    """Remove an optional input; the operator refuses to run without others."""
    node = draft.pick(lambda node: len(node.input) > 1)
    node.input[draft.random.choice([i for i, name in enumerate(node.input) if name])] = ""
    while not node.input[-1]:
        node.input.pop()
    return node


def change_constant(draft: Draft) -> NodeProto:
    """Change one number of a small Constant, which is a setting rather than data."""
    node = draft.pick(lambda node: node.op_type == "Constant" and 0 < draft.values[node.output[0]].size <= 8)
    old = draft.values[node.output[0]]
    new = np.array(other(old.reshape(-1).tolist(), draft.random), old.dtype).reshape(old.shape)
    del node.attribute[:]
    node.attribute.append(helper.make_attribute("value", numpy_helper.from_array(new)))
    return node


def change_attribute(draft: Draft, name: str = "") -> NodeProto:
    """Change this attribute, or any that other kinds do not: a type, a factor, a flag, a padding."""
    fits = lambda item: item.name == name if name else item.type in SIMPLE and item.name not in OTHERS  # noqa: E731
    node = draft.pick(lambda node: any(map(fits, node.attribute)))
    changed = draft.random.choice([item for item in node.attribute if fits(item)])
    old = helper.get_attribute_value(changed)
    choices = {"to": TYPES, "perm": list(permutations(old) if name else ())}.get(changed.name)
    new = draft.random.choice(choices) if choices else other(old, draft.random)
    changed.CopyFrom(helper.make_attribute(changed.name, new))
    return node


Kinds = Mapping[str, Callable[[Draft], NodeProto]]
KINDS: Kinds = {
    "epsilon": change_epsilon,
    "axis": change_axis,
    "weight bit": flip_bit,
    "swapped inputs": swap_inputs,
    "Mul takes the name": partial(multiply, end="output"),
    "Mul for one reader": partial(multiply, end="input"),
    "dropped bias": drop_bias,
    "constant": change_constant,
    "Transpose perm": partial(change_attribute, name="perm"),
    "other attribute": change_attribute,
}


class Planter:
    """Plants faults in the nodes of one sound model that `may` be wrong; it runs on `inputs` (by name)."""

    def __init__(
        self,
        model: ModelProto,
        inputs: Mapping[str, np.ndarray],
        *,
        kinds: Kinds = KINDS,
        may: Fits = lambda node: True,
        provider: str = CPU,
    ) -> None:
        self.provider = provider
        self.model, self.inputs, self.kinds, self.may, self.drawn = model, inputs, kinds, may, Counter[str]()
        weights = {tensor.name: numpy_helper.to_array(tensor) for tensor in model.graph.initializer}
        self.values = {**inputs, **weights, **self._run(model, [x for node in model.graph.node for x in node.output])}

    def plant(self, kind: str, random: Random) -> Plant | None:
        """Return a fault with which the model runs and the node's value is wrong; None if none was found."""
        for _ in range(80):  # most swapped inputs and other types are refused
            draft = Draft(self.model, self.values, random, self.may)
            self.drawn[kind] += 1
            try:
                node = self.kinds[kind](draft)
                pairs = self.right_and_wrong(draft, node)
            except IndexError:  # there is no such node
                return None
            except Exception:  # noqa: BLE001, S112  ONNX Runtime refuses it
                continue
            tolerated = all(is_tolerated(*pair) for pair in pairs)
            if not tolerated or any(is_off(*pair) for pair in pairs):
                return Plant(kind, node.name, node.output[0], helper.printable_node(node), draft.model, tolerated)
        return None

    def right_and_wrong(self, draft: Draft, node: NodeProto) -> list[tuple[np.ndarray, np.ndarray]]:
        """Return the node's value in both models; of a value that the sound model lacks, its reader's."""
        names = [node.output[0]]
        if names[0] not in self.values:
            names = [name for reader in draft.nodes if names[0] in reader.input for name in reader.output]
        elif node.name != MUL:  # a node alone takes no time, and most changes end here
            right, wrong = self.values[names[0]], self.run_alone(draft, node)
            if np.array_equal(right, wrong):
                return []
            if right.shape != wrong.shape:  # what is noted of shapes is no longer true, and runtimes trust it
                del draft.model.graph.value_info[:]
        made = self._run(draft.model, names) | self._run(draft.model, [])
        return [(self.values[name], made[name]) for name in names if name]

    def run_alone(self, draft: Draft, node: NodeProto) -> np.ndarray:
        weights = {name: numpy_helper.to_array(draft.weights[name]) for name in node.input if name in draft.weights}
        return run_nodes([node], self.values | weights, self.model, self.provider)[node.output[0]]

    def _run(self, model: ModelProto, names: list[str]) -> dict[str, np.ndarray]:
        return run(model, self.inputs, names, self.provider)


def run_nodes(
    nodes: Sequence[NodeProto], values: Mapping[str, np.ndarray], like: ModelProto, provider: str = CPU
) -> dict[str, np.ndarray]:
    """Return the results of the last of some nodes, by name, given `values` and the results of the others.

    Args:
        nodes: in order.
        values: by name, more than they read if one likes.
        like: has the versions of the operators.
        provider: see `run`.
    """
    reads, made = ({name for node in nodes for name in getattr(node, end)} for end in ("input", "output"))
    given = {name: values[name] for name in sorted(reads - made - {""})}
    types = [(name, helper.np_dtype_to_tensor_dtype(array.dtype), array.shape) for name, array in given.items()]
    ends = (
        [helper.make_tensor_value_info(*of) for of in types],
        [helper.make_empty_tensor_value_info(name) for name in nodes[-1].output],
    )
    graph = helper.make_graph(nodes, "alone", *ends)
    model = helper.make_model(graph, opset_imports=like.opset_import, ir_version=like.ir_version)
    return run(model, given, [], provider)


def run(
    model: ModelProto, inputs: Mapping[str, np.ndarray], names: list[str], provider: str = CPU
) -> dict[str, np.ndarray]:
    """Return a model's outputs and the values of `names`, computed by an execution provider, or else by the CPU's."""
    watched = deepcopy(model)
    wanted = dict.fromkeys(names).keys() - {"", *(output.name for output in model.graph.output)}
    watched.graph.output.extend(helper.make_empty_tensor_value_info(name) for name in sorted(wanted))
    options = ort.SessionOptions()
    options.graph_optimization_level, options.log_severity_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL, 4
    providers = [CPU] if provider == CPU else [(provider, {"use_tf32": "0"} if provider == CUDA else {}), CPU]
    session = ort.InferenceSession(watched.SerializeToString(), options, providers=providers)
    found = session.run(None, {entry.name: inputs[entry.name] for entry in session.get_inputs()})
    made = zip(session.get_outputs(), found, strict=True)
    return {entry.name: array for entry, array in made if isinstance(array, np.ndarray)}


def is_tolerated(right: np.ndarray, wrong: np.ndarray) -> bool:
    """Return whether `compare_tensors` calls two arrays close."""
    return compare_tensors(torch.tensor(wrong), torch.tensor(right)).close


def is_off(right: np.ndarray, wrong: np.ndarray) -> bool:
    """Return whether an element is off by 1 % of itself and of the median, without `compare_tensors`."""
    if right.shape != wrong.shape or right.dtype != wrong.dtype or right.dtype.kind != "f":
        return not np.array_equal(right, wrong)
    size = np.abs(right[np.isfinite(right) & (right != 0)], dtype=np.float64)
    return not np.allclose(wrong, right, rtol=0.01, atol=0.01 * np.median(size) if size.size else 0.0, equal_nan=True)


def attribute(node: NodeProto, name: str) -> AttributeProto | None:
    return next((item for item in node.attribute if item.name == name), None)


def other(old: Any, random: Random) -> Any:
    """Return another number or name, or a list with another element."""
    if isinstance(old, list):
        index = random.randrange(len(old))
        return [*old[:index], other(old[index], random), *old[index + 1 :]]
    if isinstance(old, bytes | bool):
        return STRINGS.get(old, old) if isinstance(old, bytes) else not old
    if isinstance(old, int):  # the largest and the lowest one stand for infinity
        return old // 2 if abs(old) > 2**30 else old + random.choice((-1, 1))
    return old * random.choice((0.5, 0.99, 1.01)) if old else 0.01
