"""Plants faults of ten kinds in a sound ONNX model: each in the place of one node, and larger than rounding.

A fault is nodes that take one node's place, so that it can be measured alone, and two of them planted in one model.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from random import Random
from typing import Any

import numpy as np
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper

from support.faults.plants import Draft, attribute, change_epsilon, drop_bias, drop_input, run, run_nodes, swap_inputs

# A fault is off by so many roundings (the type's epsilon, of 8-bit integers half a step) of the largest number that its
# node makes. A sum of a hundred products in float32 is off by less than ten.
LEAST = 30
HALF_STEP = 0.5 / 127
TRIES = 4  # of each place: what is drawn may be too small a change
INFINITE = 1e30  # masks have numbers beyond it for infinity
MICROSOFT = "com.microsoft"


class NoPlaceError(Exception):
    """A fault of the kind can't be planted in the node."""


@dataclass(frozen=True, eq=False)
class Fault:
    """The replacement of one node of a sound model.

    Attributes:
        kind: one of `KINDS`.
        node: the sound node's name.
        value: the first of the node's values, which is wrong; of integers, the wrong number may be a reader's.
        nodes: take its place, in order; the last one makes the value.
        weights: what they read besides.
        off: how many roundings the value is off, on sound inputs.
        since: the first call of the model in which it is wrong.
    """

    kind: str
    node: str
    value: str
    nodes: tuple[NodeProto, ...]
    weights: tuple[TensorProto, ...]
    off: float
    since: int = 0

    @property
    def culprits(self) -> frozenset[str]:
        """The names of the nodes that may be called wrong."""
        return frozenset({self.node, *(node.name for node in self.nodes)})

    @property
    def text(self) -> str:
        """The fault in one line."""
        made = "; ".join(helper.printable_node(node) for node in self.nodes)
        return f"{self.kind} in {self.node}, off by {self.off:.3g} roundings: {made}"


class FaultPlace:
    """A node of the sound model, and the nodes that replace it.

    Args:
        node: the node.
        values: what the model computes, by name, with its weights.
        weights: the names of the weights among them.
        earlier: the names of values that are made before the node.
        random: what is drawn is drawn from it.
    """

    def __init__(
        self,
        node: NodeProto,
        values: Mapping[str, np.ndarray],
        weights: Collection[str],
        earlier: Sequence[str],
        random: Random,
    ) -> None:
        self.sound, self.values, self.held, self.earlier, self.random = node, values, weights, earlier, random
        self.value = node.output[0]
        self.nodes: list[NodeProto] = []
        self.weights: dict[str, np.ndarray] = {}
        self.since = 0

    @property
    def right(self) -> np.ndarray:
        """The values that the node computes in the sound model."""
        return self.values[self.value]

    def needs(self, fits: object) -> None:
        """Raise NoPlaceError unless a condition holds."""
        if not fits:
            raise NoPlaceError(self.sound.name)

    def give(self, array: np.ndarray) -> str:
        """Add a weight and return its name."""
        name = f"planted_weight_{len(self.weights)}_of_{self.sound.name}"
        self.weights[name] = array
        return name

    def number(self, number: float) -> str:
        """Add a weight of one number, of the value's type, and return its name."""
        return self.give(np.array(number, self.right.dtype))

    def add(self, op: str, *reads: str, makes: str = "", **attributes: Any) -> str:
        """Append a node and return the name of its result, which is `makes` or a new one."""
        name = f"planted_{len(self.nodes)}_in_{self.sound.name}"
        made = makes or f"{name}_value"
        self.nodes.append(helper.make_node(op, list(reads), [made], name=name, **attributes))
        return made

    def end(self, op: str, *reads: str, **attributes: Any) -> None:
        """Append the node that computes the value; it takes over the sound node's name, unless that is still used."""
        self.add(op, *reads, makes=self.value, **attributes)
        if self.sound.name not in {node.name for node in self.nodes}:
            self.nodes[-1].name = self.sound.name

    def keep(self, *, makes: str = "", **reads: str) -> NodeProto:
        """Append the node itself, possibly with another output, or other inputs: `at_0` is the first."""
        node = NodeProto()
        node.CopyFrom(self.sound)
        node.output[0] = makes or node.output[0]
        for place, name in reads.items():
            node.input[int(place.removeprefix("at_"))] = name
        self.nodes.append(node)
        return node

    def kept(self, **reads: str) -> str:
        """Append the node itself and return the new name of its value."""
        self.needs(len([name for name in self.sound.output if name]) == 1)
        return self.keep(makes=f"sound_{self.value}", **reads).output[0]


Change = Callable[[FaultPlace], None]


def drafted(change: Callable[[Draft], NodeProto]) -> Change:
    """Return the change that `plants` makes in one node."""

    def plant(place: FaultPlace) -> None:
        near = {name: place.values[name] for name in (*place.sound.input, *place.sound.output) if name in place.values}
        weights = [numpy_helper.from_array(near[name], name) for name in place.sound.input if name in place.held]
        alone = helper.make_model(helper.make_graph([place.sound], "alone", [], [], weights))
        draft = Draft(alone, near, place.random, lambda _: True)
        try:
            node = change(draft)
        except IndexError as error:
            raise NoPlaceError(place.sound.name) from error
        for position, name in enumerate(node.input):
            array = numpy_helper.to_array(draft.weights[name]) if name in draft.weights else None
            if array is not None and not (name in near and same(near[name], array)):
                node.input[position] = place.give(array)
        place.nodes.append(node)

    return plant


def same(right: np.ndarray, wrong: np.ndarray) -> bool:
    """Return whether two arrays are equal bit for bit."""
    return right.dtype == wrong.dtype and right.shape == wrong.shape and right.tobytes() == wrong.tobytes()


def lose_precision(place: FaultPlace) -> None:
    """Cast the inputs, the results or both to a type with fewer bits, and back to float32.

    The node itself stays in float32: what it would be in the other type, ONNX Runtime may compute in float32, too, and
    then it takes the casts out.
    """
    low = place.random.choice((TensorProto.FLOAT16, TensorProto.BFLOAT16))
    how = place.random.choice(("inputs", "result", "both"))
    reads = {}
    if how != "result":
        for position, name in enumerate(place.sound.input):
            if name and place.values[name].dtype == place.right.dtype:
                reads[f"at_{position}"] = rounded(place, name, low)
    if how == "inputs":
        place.keep(**reads)
    else:
        rounded(place, place.kept(**reads), low, last=True)


def sum_coarsely(place: FaultPlace) -> None:
    """Compute a MatMul as four sums, and add these in a type with fewer bits."""
    low = place.random.choice((TensorProto.FLOAT16, TensorProto.BFLOAT16))
    left, right = place.sound.input
    count, total = place.values[left].shape[-1], ""
    place.needs(count >= 4 and place.values[right].ndim > 1)
    for part in np.array_split(np.arange(count), 4):
        reads = (place.add("Gather", left, at := place.give(part), axis=-1), place.add("Gather", right, at, axis=-2))
        made = rounded(place, place.add("MatMul", *reads), low)
        total = rounded(place, place.add("Add", total, made), low, last=part[-1] == count - 1) if total else made


def rounded(place: FaultPlace, name: str, low: int, *, last: bool = False) -> str:
    """Add casts to a type with fewer bits and back; return the name of the result."""
    half = place.add("Cast", name, to=low)
    full = helper.np_dtype_to_tensor_dtype(place.right.dtype)
    if not last:
        return place.add("Cast", half, to=full)
    place.end("Cast", half, to=full)
    return place.value


def polynomial(place: FaultPlace, x: str, *factors: float) -> str:
    """Add the nodes of `x * (a + x * (b + …))`; return the name of the result."""
    made = place.add("Mul", x, place.number(factors[-1]))
    for factor in reversed(factors[:-1]):
        made = place.add("Mul", x, place.add("Add", made, place.number(factor)))
    return made


def tanh_gelu(place: FaultPlace) -> None:
    """Replace the exact Gelu by its tanh approximation, as fusions do."""
    place.needs(not attribute(place.sound, "approximate"))
    inside = {"domain": MICROSOFT} if place.sound.domain else {"approximate": "tanh"}
    place.end("FastGelu" if place.sound.domain else "Gelu", *place.sound.input, **inside)


def quick_gelu(place: FaultPlace) -> None:
    """Replace Gelu by `x * sigmoid(1.702 x)`."""
    x, *bias = [name for name in place.sound.input if name]
    x = place.add("Add", x, *bias) if bias else x
    place.end("Mul", x, place.add("Sigmoid", place.add("Mul", x, place.number(1.702))))


def other_alpha(place: FaultPlace) -> None:
    """Replace an alpha of 1 by 1.702 (Silu by CLIP's Gelu), and 1.702 by 1.7."""
    old = attribute(place.sound, "alpha")
    place.needs(old)
    attribute(place.keep(), "alpha").f = 1.7 if old.f > 1 else 1.702


def steep_sigmoid(place: FaultPlace) -> None:
    """Replace Sigmoid by `sigmoid(1.702 x)`, which turns Silu into CLIP's Gelu."""
    place.end("Sigmoid", place.add("Mul", place.sound.input[0], place.number(1.702)))


def hard_sigmoid(place: FaultPlace) -> None:
    """Replace Sigmoid by three straight lines."""
    place.end("HardSigmoid", place.sound.input[0], alpha=1 / 6, beta=0.5)


def rational_tanh(place: FaultPlace) -> None:
    """Replace Tanh by Padé's `x (27 + x²) / (27 + 9 x²)`, clipped to -1 and 1."""
    x = place.sound.input[0]
    square = place.add("Mul", x, x)
    above = place.add("Mul", x, place.add("Add", square, place.number(27)))
    below = place.add("Add", place.add("Mul", square, place.number(9)), place.number(27))
    place.end("Clip", place.add("Div", above, below), place.number(-1), place.number(1))


def old_erf(place: FaultPlace) -> None:
    """Replace Erf by formula 7.1.25 of Abramowitz and Stegun, which is within 2.5e-5."""
    x = place.sound.input[0]
    below = place.add("Add", place.add("Mul", place.add("Abs", x), place.number(0.47047)), place.number(1))
    sum_ = polynomial(place, place.add("Reciprocal", below), 0.3480242, -0.0958798, 0.7478556)
    bell = place.add("Exp", place.add("Neg", place.add("Mul", x, x)))
    one_less = place.add("Sub", place.number(1), place.add("Mul", sum_, bell))
    place.end("Mul", place.add("Sign", x), one_less)


def short_exp(place: FaultPlace) -> None:
    """Replace Exp by the sixteenth power of the cubic Taylor polynomial of x / 16."""
    x = place.add("Mul", place.sound.input[0], place.number(1 / 16))
    made = place.add("Add", polynomial(place, x, 1, 1 / 2, 1 / 6), place.number(1))
    place.end("Pow", made, place.number(16))


def other_comparison(place: FaultPlace) -> None:
    """Replace `<=` by `<`, and so on."""
    op = place.sound.op_type
    place.keep().op_type = op.removesuffix("OrEqual") if op.endswith("OrEqual") else f"{op}OrEqual"


def shift_numbers(place: FaultPlace) -> None:
    """Shift the beginning and end of a triangle, a range or a slice by one."""
    step, op = place.random.choice((-1, 1)), place.sound.op_type
    at = (1,) if op == "Trilu" else (0, 1) if op == "Range" else (1, 2)
    place.needs(len(place.sound.input) > at[-1])
    moved = {f"at_{i}": place.values[place.sound.input[i]] + step for i in at}
    place.keep(**{key: place.give(np.asarray(array, np.int64)) for key, array in moved.items()})


def roll_mask(place: FaultPlace) -> None:
    """Roll the last axis of a boolean mask by one."""
    place.needs(place.right.dtype == np.bool_ and place.right.ndim > 1)
    order = np.roll(np.arange(place.right.shape[-1]), place.random.choice((-1, 1)))
    place.end("Gather", place.kept(), place.give(order), axis=-1)


def leave_bias(place: FaultPlace) -> None:
    """Remove the weight of an addition."""
    weights = [name for name in place.sound.input if name in place.held and place.values[name].size > 1]
    place.needs(place.sound.op_type != "Add" or weights)
    drafted(drop_bias)(place)


def zero_bias(place: FaultPlace) -> None:
    """Set the bias of a norm to zero if it can't be removed."""
    place.keep(at_2=place.give(np.zeros_like(place.values[place.sound.input[2]])))


def first_call(place: FaultPlace) -> None:
    """Return the value of the first call in each call."""
    place.since = 1
    place.end("Identity", place.give(place.right))


def reuse_buffer(place: FaultPlace) -> None:
    """Return an earlier value of the same shape and type."""
    right = place.right
    fits = [x for x in place.earlier if (place.values[x].shape, place.values[x].dtype) == (right.shape, right.dtype)]
    place.needs(fits and right.ndim > 1)
    place.end("Identity", place.random.choice(fits))


def rescale(place: FaultPlace) -> None:
    """Make a scale two or four times too large or small, or shift a zero point by a quarter of the range."""
    at = place.random.randrange(1, len(place.sound.input))
    old = place.values[place.sound.input[at]]
    if at == 1:
        new = old * np.array(place.random.choice((0.25, 0.5, 2, 4)), old.dtype)
    else:
        place.needs(old.dtype.itemsize == 1)
        new = np.where(old.astype(int) > 0, old - np.array(64, old.dtype), old + np.array(64, old.dtype))
    place.keep(**{f"at_{at}": place.give(new)})


def add_noise(place: FaultPlace) -> None:
    """Add noise that changes with each run, of 1e-5 to 1e-2 of the value's numbers."""
    place.needs(place.right.dtype.kind == "f" and place.right.ndim > 1 and scale(place.right))
    sound = place.kept()
    noise = place.add("RandomNormalLike", sound, scale=10 ** place.random.uniform(-5, -2) * scale(place.right))
    place.end("Add", sound, noise)


def overflow_half(place: FaultPlace) -> None:
    """Add a detour through float16 that is zero, except that numbers beyond its range give NaN."""
    full, size = helper.np_dtype_to_tensor_dtype(place.right.dtype), scale(place.right)
    place.needs(place.right.dtype.kind == "f" and place.right.ndim > 1 and size)
    sound = place.kept()
    half = place.add("Cast", place.add("Mul", sound, place.number(2 * 65504 / size)), to=TensorProto.FLOAT16)
    large = place.add("Cast", half, to=full)
    zero = place.add("Sub", large, large) if place.random.randrange(2) else place.add("Mul", large, place.number(0))
    place.end("Add", sound, zero)


def overflow_softmax(place: FaultPlace) -> None:
    """Compute Softmax of large logits without subtracting the maximum: exact except for rounding and overflow."""
    axis = attribute(place.sound, "axis")
    power = place.add("Exp", place.add("Add", place.sound.input[0], place.number(90)))
    axes = place.give(np.array([-1 if axis is None else axis.i]))
    place.end("Div", power, place.add("ReduceSum", power, axes, keepdims=1))


def overflow_sigmoid(place: FaultPlace) -> None:
    """Replace Sigmoid by `exp(x + c) / (exp(x + c) + exp(c))`, where exp overflows."""
    power = place.add("Exp", place.add("Add", place.sound.input[0], place.number(88)))
    place.end("Div", power, place.add("Add", power, place.number(np.exp(88.0))))


# The operators of the nodes, none for all, and what is done to them.
Variants = Sequence[tuple[Collection[str], Change]]
COMPARISONS = ("Less", "LessOrEqual", "Greater", "GreaterOrEqual")
ORDERED = ("Sub", "Div", "Pow", "Mod", "MatMul", "Gemm", "FusedMatMul", "Where", "Concat")
NORMS = ("LayerNormalization", "SkipLayerNormalization", "BatchNormalization", "SimplifiedLayerNormalization")
SUMS = ("MatMul", "FusedMatMul", "Gemm", "FusedGemm", "Conv", "FusedConv", "ReduceMean", "ReduceSum", "Softmax", *NORMS)
EPSILONS = (1e-12, 1e-8, 1e-6, 1e-5, 1e-4, 1e-3)
NAN = "NaN from overflow"
NOISE = "non-determinism"
STALE = "stale buffer"
QDQ = "wrong scale in QDQ"
KINDS: Mapping[str, Variants] = {
    "wrong epsilon": [(("Add", *NORMS), drafted(partial(change_epsilon, choices=EPSILONS)))],
    "lower precision": [(SUMS, lose_precision), (("MatMul",), sum_coarsely)],
    "approximated activation": [
        (("Gelu",), tanh_gelu),
        (("Gelu", "BiasGelu", "FastGelu"), quick_gelu),
        (("QuickGelu",), other_alpha),
        (("Sigmoid",), hard_sigmoid),
        (("Sigmoid",), steep_sigmoid),
        (("Tanh",), rational_tanh),
        (("Erf",), old_erf),
        (("Exp",), short_exp),
    ],
    "swapped operands": [((*ORDERED, *COMPARISONS), drafted(swap_inputs)), (NORMS, drafted(swap_inputs))],
    "off-by-one mask": [
        (COMPARISONS, other_comparison),
        (("Trilu", "Range", "Slice"), shift_numbers),
        (("And", "Or", "Not", "Cast", "GatherND", "Expand", *COMPARISONS), roll_mask),
    ],
    "dropped bias": [
        (("Add", "Gemm", "Conv"), leave_bias),
        (("BatchNormalization",), zero_bias),
        (("FusedConv", "FusedGemm", "BiasGelu", "LayerNormalization", "SkipLayerNormalization"), drafted(drop_input)),
    ],
    STALE: [((), first_call), ((), reuse_buffer)],
    QDQ: [(("QuantizeLinear", "DequantizeLinear"), rescale)],
    NOISE: [((), add_noise)],
    NAN: [
        ((), overflow_half),
        (("Softmax",), overflow_softmax),
        (("Sigmoid",), overflow_sigmoid),
    ],
}


class Faults:
    """Plants faults in one sound model.

    Args:
        model: its nodes have names.
        inputs: of its first call, by name.
        later: of its second call.
        may: whether a node may be wrong.
    """

    def __init__(
        self,
        model: ModelProto,
        inputs: Mapping[str, np.ndarray],
        later: Mapping[str, np.ndarray],
        *,
        may: Callable[[NodeProto], bool] = lambda _: True,
    ) -> None:
        self.model, self.inputs = model, inputs
        self.nodes = [node for node in model.graph.node if node.name and may(node)]
        weights = {tensor.name: numpy_helper.to_array(tensor) for tensor in model.graph.initializer}
        names = [name for node in model.graph.node for name in node.output]
        self.calls = [{**weights, **given, **run(model, given, names)} for given in (inputs, later)]
        self._weights = weights.keys()
        self._names = names
        self._readers = {name: node for node in model.graph.node for name in node.input}

    def plant(
        self, kind: str, random: Random, *, beside: Collection[Fault] = (), spare: Collection[str] = ()
    ) -> Fault | None:
        """Return a fault of a kind; None if there is no place for one.

        Args:
            kind: one of `KINDS`.
            random: what is drawn is drawn from it.
            beside: faults that are there already: it is in another node.
            spare: names of other nodes that it is not in.
        """
        taken = {*spare, *(fault.node for fault in beside)}
        for ops, change in random.sample(KINDS[kind], len(KINDS[kind])) * TRIES:
            nodes = [node for node in self._open(ops) if node.name not in taken]
            for node in random.sample(nodes, len(nodes)):
                fault = self._planted(kind, node, change, random)
                if fault is not None and self._runs([*beside, fault]):
                    return fault
        return None

    def _open(self, ops: Collection[str]) -> list[NodeProto]:
        return [node for node in self.nodes if not ops or node.op_type in ops]

    def _planted(self, kind: str, node: NodeProto, change: Change, random: Random) -> Fault | None:
        values = self.calls[0]
        if not node.output[0] or node.output[0] not in values:
            return None
        if kind in (STALE, NOISE, NAN) and same(values[node.output[0]], self.calls[1][node.output[0]]):
            return None  # it does not depend on the inputs
        earlier = self._names[: self._names.index(node.output[0])] if kind == STALE else ()
        place = FaultPlace(node, values, self._weights, [name for name in earlier if name in values], random)
        try:
            change(place)
            off = self._off(kind, place)
        except Exception:  # noqa: BLE001  there is no place, or ONNX Runtime refuses it
            return None
        if np.isnan(off) != (kind == NAN) or off < LEAST:
            return None
        weights = tuple(numpy_helper.from_array(np.asarray(array), name) for name, array in place.weights.items())
        return Fault(kind, node.name, place.value, tuple(place.nodes), weights, off, place.since)

    def _off(self, kind: str, place: FaultPlace) -> float:
        """Return the error of the value on sound inputs, in units of rounding; quantized values are dequantized."""
        values, nodes, name = self.calls[place.since], list(place.nodes), place.value
        if place.sound.op_type == "QuantizeLinear":
            nodes.append(self._readers[name])
            name = nodes[-1].output[0]
        wrong = run_nodes(nodes, values | place.weights, self.model)[name]
        return roundings(values[name], wrong, HALF_STEP if kind == QDQ else None)

    def _runs(self, faults: Iterable[Fault]) -> bool:
        """Return whether the model runs and its results have the same shapes as before."""
        try:
            found = run(planted(self.model, faults), self.inputs, self._names)
        except Exception:  # noqa: BLE001  ONNX Runtime refuses it
            return False
        return all(array.shape == self.calls[0][name].shape for name, array in found.items())


def planted(model: ModelProto, faults: Iterable[Fault]) -> ModelProto:
    """Return the model with faults in it."""
    by_node = {fault.node: fault for fault in faults}
    made = ModelProto()
    made.CopyFrom(model)
    del made.graph.node[:]
    for node in model.graph.node:
        made.graph.node.extend(by_node[node.name].nodes if node.name in by_node else [node])
    for fault in by_node.values():
        made.graph.initializer.extend(fault.weights)
    return made


def scale(array: np.ndarray) -> float:
    """Return the largest number, without those that stand for infinity; 0 if there is none."""
    size = np.abs(array[np.isfinite(array)], dtype=np.float64)
    return float(np.max(size, initial=0.0, where=size < INFINITE))


def roundings(right: np.ndarray, wrong: np.ndarray, epsilon: float | None = None) -> float:
    """Return the error of a value, in units of `epsilon` (None is the type's own) of its largest number.

    Returns:
        inf if integers or booleans differ, or numbers are infinite for finite ones; NaN if there are new ones; 0 for
        another shape or type, which is a fault of another kind.
    """
    if right.shape != wrong.shape or right.dtype != wrong.dtype or right.dtype.kind not in "fiub":
        return 0.0
    if right.dtype.kind != "f":
        return 0.0 if np.array_equal(right, wrong) else float("inf")
    if np.any(np.isnan(wrong) & ~np.isnan(right)):
        return float("nan")
    finite, still = (np.abs(array) < INFINITE for array in (right, wrong))
    if not np.array_equal(finite, still):
        return float("inf")
    error = np.max(np.abs(wrong.astype(np.float64) - right), initial=0.0, where=finite)
    unit = scale(right) * (epsilon or float(np.finfo(right.dtype).eps))
    return float(error / unit) if unit else float("inf") if error else 0.0
