"""The forms in which an optimised graph holds exported values under new names: reshaped, permuted, cast, blocked.

An optimiser that changes a value's layout leaves the operators behind that lead back to the exported one, or has them
in front; a node that it moved keeps its name. So what a new value stands for follows from the graph alone, without
looking at any number: the numbers are what is judged.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Protocol

import torch

from ..graph._graph import Graph
from ..graph._nodes import Dim, Node
from ._nchwc import CHANNELS_LAST, DOMAIN, WIDENED, Unblocked, held_by

Kind = tuple[torch.dtype, torch.Size]
Perm = tuple[int, ...]
_RESHAPES = frozenset({"Reshape", "Squeeze", "Unsqueeze", "Flatten"})
_COPIES = frozenset({"Identity", "MemcpyFromHost", "MemcpyToHost"})
_MIXES = frozenset({"MatMul", "Gemm", "Conv", "ConvTranspose", "Einsum", "Reshape", "Expand", "Flatten"})
_COPIED = "/duplicated"  # how ONNX Runtime ends the name of a DequantizeLinear's copy
_TO_UNSIGNED = "qdq_s8_to_u8_quant"  # how it begins the name of a value that it moved from int8 to uint8
VIEWS = _RESHAPES | _COPIES | {"Transpose", "Cast", f"{DOMAIN}ReorderInput", f"{DOMAIN}ReorderOutput"}


def kind_of(tensor: torch.Tensor) -> Kind:
    """What a tensor is, whatever is in it."""
    return tensor.dtype, tensor.shape


class Step(Protocol):
    """What turns one form of a tensor into another, and back."""

    def __call__(self, tensor: torch.Tensor, /) -> torch.Tensor:
        """Do it."""
        ...

    def back(self, tensor: torch.Tensor, before: torch.Tensor) -> torch.Tensor | None:
        """Undo it: what becomes `tensor`, in the shape and dtype of `before`; None if numbers were lost."""


@dataclass(frozen=True)
class Permuted:
    """The tensor with its dimensions in another order."""

    perm: Perm

    def __call__(self, tensor: torch.Tensor) -> torch.Tensor:
        """Do it."""
        return tensor.permute(self.perm)

    def back(self, tensor: torch.Tensor, before: torch.Tensor) -> torch.Tensor:  # noqa: ARG002  nothing is unknown
        """See `Step.back`."""
        return tensor.permute(_inverse(self.perm))


@dataclass(frozen=True)
class Reshaped:
    """The tensor in another shape; a 0 keeps a dimension, -1 takes what is left, as ONNX has it."""

    shape: tuple[int, ...]

    def __call__(self, tensor: torch.Tensor) -> torch.Tensor:
        """Do it."""
        return tensor.reshape([dim or tensor.shape[place] for place, dim in enumerate(self.shape)])

    def back(self, tensor: torch.Tensor, before: torch.Tensor) -> torch.Tensor:
        """See `Step.back`."""
        return tensor.reshape(before.shape)


@dataclass(frozen=True)
class Typed:
    """The tensor rounded to another floating-point type."""

    dtype: torch.dtype

    def __call__(self, tensor: torch.Tensor) -> torch.Tensor:
        """Do it."""
        return tensor.to(self.dtype)

    def back(self, tensor: torch.Tensor, before: torch.Tensor) -> torch.Tensor | None:
        """See `Step.back`."""
        return tensor.to(before.dtype) if torch.promote_types(tensor.dtype, before.dtype) == before.dtype else None


@dataclass(frozen=True)
class Signed:
    """The int8 numbers that ONNX Runtime moved to uint8, as its kernels want them."""

    def __call__(self, tensor: torch.Tensor) -> torch.Tensor:
        """Do it."""
        return (tensor.to(torch.int16) - 128).to(torch.int8)

    def back(self, tensor: torch.Tensor, before: torch.Tensor) -> torch.Tensor:
        """See `Step.back`."""
        return (tensor.to(torch.int16) + 128).to(before.dtype)


@dataclass(frozen=True)
class Form:
    """A value of a compiled graph that is an exported one in another form.

    Attributes:
        value: the exported value's name.
        steps: what turns the compiled value into it, in this order.
    """

    value: str
    steps: tuple[Step, ...] = ()

    def undo(self, tensor: torch.Tensor) -> torch.Tensor:
        """The exported value's form of `tensor`; as it is if its shape does not allow it, so that it is seen."""
        try:
            for step in self.steps:
                tensor = step(tensor)
        except (RuntimeError, IndexError):
            return tensor
        return tensor.contiguous()

    def redo(self, tensor: torch.Tensor, kind: Kind) -> torch.Tensor | None:
        """The compiled form of `tensor`, which has the exported one.

        Args:
            tensor: what `undo` is to make of the result.
            kind: what the compiled value is.

        Returns:
            None if `tensor` is not of the exported value's dtype and shape, or has no such form.
        """
        dtype, shape = kind
        held = [torch.empty(shape, dtype=dtype, device="meta")]
        try:
            for step in self.steps:
                held.append(step(held[-1]))
            if kind_of(tensor) != kind_of(held[-1]):
                return None
            made: torch.Tensor | None = tensor
            for step, before in zip(reversed(self.steps), held[-2::-1], strict=True):
                made = None if made is None else step.back(made, before)
        except (RuntimeError, IndexError):
            return None
        return made


def forms(
    exported: Graph, compiled: Graph, numbers: Callable[[str], Sequence[int] | None], block: int
) -> dict[str, Form]:
    """What the new values of a compiled graph stand for, by name; those that are nothing exported are left out.

    Args:
        exported: the graph that was compiled.
        compiled: what became of it.
        numbers: the content of a constant of `compiled` (the shape that a Reshape takes).
        block: how many channels ONNX Runtime puts side by side on this processor.
    """
    return _Reading(exported, compiled, numbers, block).found


class _Reading:
    """One reading of a compiled graph: first from each value onwards, then from what is before it.

    What comes after a value says what it has to be, whatever made it; so this goes first.
    """

    def __init__(
        self, exported: Graph, compiled: Graph, numbers: Callable[[str], Sequence[int] | None], block: int
    ) -> None:
        self._exported, self._compiled, self._numbers, self._block = exported, compiled, numbers, block
        self._named = {node.name: node for node in exported.nodes}
        self._base = cache(self._permutation_of)
        self.found: dict[str, Form] = {}
        for node in reversed(compiled.nodes):
            self._add(node, lambda node, place: self._named_after(node.outputs[place]) or self._after(node, place))
        for node in compiled.nodes:
            self._add(node, self._before)

    def _add(self, node: Node, find: Callable[[Node, int], Form | None]) -> None:
        for place, name in enumerate(node.outputs):
            if name and name not in self._exported.known and name not in self.found:
                form = find(node, place)
                if form is not None:
                    self.found[name] = form

    def _form(self, name: str) -> Form | None:
        return Form(name) if name in self._exported.known else self.found.get(name)

    def _named_after(self, name: str) -> Form | None:
        """A copy, or a value in float32 because the processor has no kernel for its type."""
        if name.removesuffix(_COPIED) in self._exported.known:
            return Form(name.removesuffix(_COPIED))
        value = name.removeprefix(WIDENED)
        if value not in self._exported.known:
            return None
        steps = self._typed(self._type_of(value) or "float16")
        return None if steps is None else Form(value, steps)

    def _after(self, node: Node, place: int) -> Form | None:
        """By a node that reads it and only changes its form."""
        name = node.outputs[place]
        for user in self._compiled.consumers.get(name, ()):
            then = self._form(user.outputs[0]) if user.op in VIEWS and user.inputs[0] == name else None
            steps = None if then is None else self._does(user)
            if then is not None and steps is not None:
                return Form(then.value, (*steps, *then.steps))
            reader = self._named.get(user.name.removesuffix(_COPIED))
            if user.op == "DequantizeLinear" and reader is not None and reader.op == user.op:
                return Form(reader.inputs[0], self._signs(name))
        return None

    def _signs(self, name: str) -> tuple[Step, ...]:
        return (Signed(),) if name.startswith(_TO_UNSIGNED) else ()

    def _before(self, node: Node, place: int) -> Form | None:
        """By what the node reads, or by its name."""
        if node.op in VIEWS and (source := self._form(node.inputs[0])) is not None:
            steps = self._undoes(node)
            return None if steps is None else Form(source.value, (*steps, *source.steps))
        if node.op.startswith(DOMAIN):
            value = held_by(node, self._exported)
            return None if value is None else self._blocked(value)
        return self._moved(node, place)

    def _does(self, node: Node) -> tuple[Step, ...] | None:
        """What a node that only changes the form does."""
        if node.op in _COPIES:
            return ()
        if node.op == "Transpose":
            return (Permuted(tuple(node.attributes["perm"])),) if "perm" in node.attributes else None
        if node.op == "Cast":
            return self._typed(self._compiled.values[node.outputs[0]].dtype or self._type_of(node.outputs[0]))
        if node.op in _RESHAPES:
            shape = (
                self._numbers(node.inputs[1]) if node.op == "Reshape" and not node.attributes.get("allowzero") else None
            )
            return self._shaped(node.outputs[0]) if shape is None else (Reshaped(tuple(shape)),)
        if node.op == f"{DOMAIN}ReorderOutput":
            last = (Permuted(CHANNELS_LAST),) if node.attributes.get("channels_last") else ()
            return (Unblocked(node.attributes["channels"], self._block), *last)
        return None

    def _undoes(self, node: Node) -> tuple[Step, ...] | None:
        """What turns the result of such a node back into what it read."""
        if node.op in _COPIES:
            return ()
        if node.op == "Transpose":
            return (Permuted(_inverse(tuple(node.attributes["perm"]))),) if "perm" in node.attributes else None
        if node.op == "Cast":
            return self._typed(self._type_of(node.inputs[0]) or ("float16" if WIDENED in node.outputs[0] else None))
        if node.op in _RESHAPES:
            return self._shaped(node.inputs[0])
        if node.op == f"{DOMAIN}ReorderInput":
            return self._unblocks(self._shape(node.inputs[0]), channels_last=bool(node.attributes.get("channels_last")))
        return None

    def _typed(self, dtype: str | None) -> tuple[Step, ...] | None:
        found = getattr(torch, dtype or "", None)
        return (Typed(found),) if isinstance(found, torch.dtype) and found.is_floating_point else None

    def _type_of(self, name: str) -> str | None:
        form = self._form(name)
        held = None if form is None else self._exported.values.get(form.value)
        return None if held is None else held.dtype

    def _shaped(self, name: str) -> tuple[Step, ...] | None:
        """To the shape of a value, of which one dimension may not be known yet."""
        held = self._shape(name)
        if held is None:
            return None
        shape = tuple(dim if isinstance(dim, int) else -1 for dim in held)
        return (Reshaped(shape),) if shape.count(-1) < 2 and 0 not in shape else None

    def _shape(self, name: str) -> Sequence[Dim] | None:
        """Of a compiled value, where it is that of an exported one or a constant says it."""
        node, form = self._compiled.producer.get(name), self._form(name)
        if form is not None and all(isinstance(step, Typed) for step in form.steps):
            held = self._exported.values.get(form.value)
            return None if held is None else held.shape
        return self._numbers(node.inputs[1]) if node is not None and node.op == "Reshape" else None

    def _blocked(self, value: str) -> Form | None:
        steps = self._unblocks(self._shape(value))
        return None if steps is None else Form(value, (*steps, *(self._typed(self._type_of(value)) or ())))

    def _unblocks(self, shape: Sequence[Dim] | None, *, channels_last: bool = False) -> tuple[Step, ...] | None:
        channels = None if shape is None or len(shape) < 3 else shape[-1 if channels_last else 1]
        if not isinstance(channels, int) or channels < 1:
            return None
        return (Unblocked(channels, self._block), *((Permuted(CHANNELS_LAST),) if channels_last else ()))

    def _moved(self, node: Node, place: int) -> Form | None:
        """A node that was moved past a Transpose, a Cast or a reordering has its name, and its inputs' form."""
        origin = self._named.get(node.name)
        if origin is None or origin.op != node.op or place >= len(origin.outputs):
            return None
        value = origin.outputs[place]
        held = [self._form(name) for name in node.inputs]
        if any(form is not None and any(isinstance(step, Unblocked) for step in form.steps) for form in held):
            return self._blocked(value)
        perms = set(self._relative(origin, held))
        if len(perms) != 1:
            return None
        (perm,) = perms
        shape = self._exported.values[value].shape
        straight = perm == tuple(range(len(perm)))
        if not straight and (node.op in _MIXES or shape is None or len(shape) != len(perm)):
            return None
        rounded = any(isinstance(step, Typed) for form in held if form is not None for step in form.steps)
        typed = self._typed(self._type_of(value)) if rounded else ()
        order = () if straight else (Permuted(_inverse(perm)),)
        return Form(value, (*self._signs(node.outputs[place]), *order, *(typed or ())))

    def _relative(self, origin: Node, held: Sequence[Form | None]) -> Iterator[Perm]:
        """For each input of the exported node, in which order of its dimensions the compiled one reads it."""
        for name, form in zip(origin.inputs, held, strict=False):
            if form is None or {name, form.value} & self._exported.constant_values:
                continue
            if any(isinstance(step, Reshaped) for step in form.steps):
                continue
            known, before = self._base(name), self._base(form.value)
            if known is None or before is None or known[0] != before[0]:
                continue
            order = before[1]
            for step in reversed(form.steps):
                if isinstance(step, Permuted):
                    order = _then(order, _inverse(step.perm))
            yield _then(_inverse(known[1]), order)

    def _permutation_of(self, name: str) -> tuple[str, Perm] | None:
        """The value behind the exported Transposes that make `name`, and the order of its dimensions in `name`."""
        shape = self._exported.values[name].shape if name in self._exported.values else None
        if shape is None:
            return None
        order, node = tuple(range(len(shape))), self._exported.producer.get(name)
        while node is not None and node.op == "Transpose" and "perm" in node.attributes:
            order = _then(tuple(node.attributes["perm"]), order)
            name, node = node.inputs[0], self._exported.producer.get(node.inputs[0])
        return name, order


def _inverse(perm: Perm) -> Perm:
    return tuple(perm.index(place) for place in range(len(perm)))


def _then(first: Perm, second: Perm) -> Perm:
    """The one permutation that is `first`, and then `second`."""
    return tuple(first[place] for place in second)
