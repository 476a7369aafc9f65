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

from faults._expressions import Names, load

from . import plants
from .plants import Draft, attribute, change_epsilon, drop_bias, run, run_nodes

# A fault is off by so many roundings (the type's epsilon, of 8-bit integers half a step) of the largest number that its
# node makes. A sum of a hundred products in float32 is off by less than ten.
LEAST = 30
HALF_STEP = 0.5 / 127
TRIES = 4  # of each place: what is drawn may be too small a change
INFINITE = 1e30  # masks have numbers beyond it for infinity


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

    def add(self, op: str, *reads: str | float | np.ndarray, **attributes: Any) -> str:
        """Append a node and return the name of its result; numbers become weights of the value's type."""
        weights = (x if isinstance(x, str | np.ndarray) else np.array(x, self.right.dtype) for x in reads)
        given = [x if isinstance(x, str) else self.give(x) for x in weights]
        name = f"planted_{len(self.nodes)}_in_{self.sound.name}"
        self.nodes.append(helper.make_node(op, given, [f"{name}_value"], name=name, **attributes))
        return f"{name}_value"

    def names(self) -> Names:
        """Return the names for the expressions of `Variant`."""
        inputs, right = [name for name in self.sound.input if name], self.right
        alike = (name for name in self.earlier if name in self.values)
        return Names(
            add=self.add,
            alike=[x for x in alike if (self.values[x].shape, self.values[x].dtype) == (right.shape, right.dtype)],
            attribute=attribute,
            dtype=helper.np_dtype_to_tensor_dtype(right.dtype),
            give=self.give,
            inputs=inputs,
            keep=self.keep,
            kept=self.kept,
            node=self.sound,
            np=np,
            random=self.random,
            right=right,
            size=right.dtype.kind == "f" and scale(right),
            values=self.values,
            x=inputs[0] if inputs else "",
        )

    def end(self) -> None:
        """Let the last node compute the value; it takes over the sound node's name, unless that is still used."""
        self.nodes[-1].output[0] = self.value
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


def drafted(place: FaultPlace, change: Callable[[Draft], NodeProto]) -> None:
    """Make the change that `plants` makes in one node."""
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
        rounded(place, place.kept(**reads), low)
        place.end()


def sum_coarsely(place: FaultPlace) -> None:
    """Compute a MatMul as four sums, and add these in a type with fewer bits."""
    low = place.random.choice((TensorProto.FLOAT16, TensorProto.BFLOAT16))
    left, right = place.sound.input
    count, total = place.values[left].shape[-1], ""
    place.needs(count >= 4 and place.values[right].ndim > 1)
    for part in np.array_split(np.arange(count), 4):
        reads = (place.add("Gather", left, at := place.give(part), axis=-1), place.add("Gather", right, at, axis=-2))
        made = rounded(place, place.add("MatMul", *reads), low)
        total = rounded(place, place.add("Add", total, made), low) if total else made
    place.end()


def rounded(place: FaultPlace, name: str, low: int) -> str:
    """Add casts to a type with fewer bits and back; return the name of the result."""
    full = helper.np_dtype_to_tensor_dtype(place.right.dtype)
    return place.add("Cast", place.add("Cast", name, to=low), to=full)


def other_alpha(place: FaultPlace) -> None:
    """Replace an alpha of 1 by 1.702 (Silu by CLIP's Gelu), and 1.702 by 1.7."""
    old = attribute(place.sound, "alpha")
    place.needs(old)
    attribute(place.keep(), "alpha").f = 1.7 if old.f > 1 else 1.702


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


def leave_bias(place: FaultPlace) -> None:
    """Remove the weight of an addition."""
    weights = [name for name in place.sound.input if name in place.held and place.values[name].size > 1]
    place.needs(place.sound.op_type != "Add" or weights)
    drafted(place, drop_bias)


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


def other_epsilon(place: FaultPlace) -> None:
    """Change the epsilon of a norm."""
    drafted(place, partial(change_epsilon, choices=(1e-12, 1e-8, 1e-6, 1e-5, 1e-4, 1e-3)))


@dataclass(frozen=True)
class Variant:
    """What a kind of fault does to a node of some operators.

    In the expressions, `x` is the name of the first input, numbers and arrays become weights, and `random`, `values`
    and methods are those of `FaultPlace`.

    Attributes:
        operators: the operators; none for all.
        edit: the name of a function of this file.
        draft: the name of a function of `plants`.
        becomes: the nodes that take the node's place, as an expression; the last one computes the value.
        needs: the condition that a place has to meet.
        since: the first call of the model in which the value is wrong.
    """

    operators: Collection[str] = ()
    edit: str = ""
    draft: str = ""
    becomes: str = ""
    needs: str = "True"
    since: int = 0

    def change(self, place: FaultPlace) -> None:
        """Replace a node."""
        if self.edit:
            globals()[self.edit](place)
            return
        if self.draft:
            drafted(place, getattr(plants, self.draft))
            return
        names = place.names()
        place.needs(names.evaluate(self.needs))
        place.since = self.since
        names.evaluate(self.becomes)
        place.end()


NAN, NOISE, STALE, QDQ = "NaN from overflow", "non-determinism", "stale buffer", "wrong scale in QDQ"
_FILE = load(__file__, "kinds.toml")
KINDS: Mapping[str, Sequence[Variant]] = {
    kind: [
        Variant({op for group in row.pop("operators", ()) for op in _FILE["operators"].get(group, [group])}, **row)
        for row in rows
    ]
    for kind, rows in _FILE["kinds"].items()
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
        for variant in random.sample(KINDS[kind], len(KINDS[kind])) * TRIES:
            nodes = [node for node in self._open(variant.operators) if node.name not in taken]
            for node in random.sample(nodes, len(nodes)):
                fault = self._planted(kind, node, variant, random)
                if fault is not None and self._runs([*beside, fault]):
                    return fault
        return None

    def _open(self, ops: Collection[str]) -> list[NodeProto]:
        return [node for node in self.nodes if not ops or node.op_type in ops]

    def _planted(self, kind: str, node: NodeProto, variant: Variant, random: Random) -> Fault | None:
        values = self.calls[0]
        if not node.output[0] or node.output[0] not in values:
            return None
        if kind in (STALE, NOISE, NAN) and same(values[node.output[0]], self.calls[1][node.output[0]]):
            return None  # it does not depend on the inputs
        earlier = self._names[: self._names.index(node.output[0])] if kind == STALE else ()
        place = FaultPlace(node, values, self._weights, [name for name in earlier if name in values], random)
        try:
            variant.change(place)
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
