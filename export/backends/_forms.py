"""Find the values of an optimized graph that are exported values, reshaped, permuted, cast or blocked.

An optimizer that changes the layout of a value inserts operators before or after it that convert between the layouts,
and a node that it moves keeps its name. So the mapping follows from the graph alone. The numbers are not used: they
are what the comparison judges.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Protocol

import torch

from ..graph._graph import Graph
from ..graph._nodes import Dim, Node
from ._backend import ReferenceLookup
from ._nchwc import CHANNELS_LAST, DOMAIN, FLOAT32_PREFIX, Unblock, exported_output

TensorSpec = tuple[torch.dtype, torch.Size]
Perm = tuple[int, ...]
_COPIED = "/duplicated"  # suffix of the name of a copied DequantizeLinear in ONNX Runtime
_GATED = "com.microsoft::QuickGelu"  # x * Sigmoid(alpha * x)
_TO_UNSIGNED = "qdq_s8_to_u8_quant"  # prefix of the name of a value that it converted from int8 to uint8


def spec_of(tensor: torch.Tensor) -> TensorSpec:
    """Return the dtype and shape of a tensor."""
    return tensor.dtype, tensor.shape


def fitting_reference(references: ReferenceLookup, name: str, computed: torch.Tensor) -> torch.Tensor | None:
    """Return the reference of a value; None if it has none, or one of another dtype or shape than was computed."""
    reference = references(name)
    return reference if reference is not None and spec_of(reference) == spec_of(computed) else None


class Transform(Protocol):
    """A change of the form of a tensor, and its inverse."""

    def __call__(self, tensor: torch.Tensor, /) -> torch.Tensor:
        """Transform a tensor."""
        ...

    def inverse(self, tensor: torch.Tensor, like: torch.Tensor) -> torch.Tensor | None:
        """Return what is transformed into `tensor`, with the shape and dtype of `like`; None if numbers were lost."""


@dataclass(frozen=True)
class Permute:
    """Permutes the dimensions."""

    perm: Perm

    def __call__(self, tensor: torch.Tensor) -> torch.Tensor:
        """See `Transform.__call__`."""
        return tensor.permute(self.perm)

    def inverse(self, tensor: torch.Tensor, like: torch.Tensor) -> torch.Tensor:  # noqa: ARG002  `perm` suffices
        """See `Transform.inverse`."""
        return tensor.permute(_inverse(self.perm))


@dataclass(frozen=True)
class Reshape:
    """Reshapes; as in ONNX, 0 keeps a dimension and -1 is inferred."""

    shape: tuple[int, ...]

    def __call__(self, tensor: torch.Tensor) -> torch.Tensor:
        """See `Transform.__call__`."""
        return tensor.reshape([dim or tensor.shape[index] for index, dim in enumerate(self.shape)])

    def inverse(self, tensor: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
        """See `Transform.inverse`."""
        return tensor.reshape(like.shape)


@dataclass(frozen=True)
class Cast:
    """Casts to another floating-point dtype."""

    dtype: torch.dtype

    def __call__(self, tensor: torch.Tensor) -> torch.Tensor:
        """See `Transform.__call__`."""
        return tensor.to(self.dtype)

    def inverse(self, tensor: torch.Tensor, like: torch.Tensor) -> torch.Tensor | None:
        """See `Transform.inverse`."""
        return tensor.to(like.dtype) if torch.promote_types(tensor.dtype, like.dtype) == like.dtype else None


@dataclass(frozen=True)
class Uint8ToInt8:
    """Converts uint8 back to int8: ONNX Runtime adds 128 to int8 values, because its kernels take uint8."""

    def __call__(self, tensor: torch.Tensor) -> torch.Tensor:
        """See `Transform.__call__`."""
        return (tensor.to(torch.int16) - 128).to(torch.int8)

    def inverse(self, tensor: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
        """See `Transform.inverse`."""
        return (tensor.to(torch.int16) + 128).to(like.dtype)


@dataclass(frozen=True)
class Form:
    """How a value of a compiled graph is converted to an exported value.

    Attributes:
        value: the name of the exported value.
        transforms: how to get the compiled value to the exported one, in this order.
    """

    value: str
    transforms: tuple[Transform, ...] = ()

    def has(self, kind: type) -> bool:
        """Return whether one of the transforms is of this type."""
        return any(isinstance(transform, kind) for transform in self.transforms)

    def to_exported(self, tensor: torch.Tensor) -> torch.Tensor:
        """Convert the compiled value. One of a wrong shape is returned as it is, for the comparison to report."""
        try:
            for transform in self.transforms:
                tensor = transform(tensor)
        except (RuntimeError, IndexError):
            return tensor
        return tensor.contiguous()

    def to_compiled(self, tensor: torch.Tensor, spec: TensorSpec) -> torch.Tensor | None:
        """Convert an exported value to the form of the compiled one.

        Args:
            tensor: the exported value.
            spec: dtype and shape of the compiled value.

        Returns:
            the result, which `to_exported` converts to `tensor`; None if there is none, or if `tensor` does not have
            the dtype and shape of the exported value.
        """
        dtype, shape = spec
        forms = [torch.empty(shape, dtype=dtype, device="meta")]
        try:
            for transform in self.transforms:
                forms.append(transform(forms[-1]))
            if spec_of(tensor) != spec_of(forms[-1]):
                return None
            result: torch.Tensor | None = tensor
            for transform, like in zip(reversed(self.transforms), forms[-2::-1], strict=True):
                result = None if result is None else transform.inverse(result, like)
        except (RuntimeError, IndexError):
            return None
        return result


class FormFinder:
    """Finds the forms of the values of a compiled graph that the exported graph does not have by name.

    A form is found by the name of the value, by the nodes that read it, or by the node that computes it. The readers
    determine which value they expect, whatever computes it. So they are tried first.

    Args:
        exported: the graph that was compiled.
        compiled: the optimized graph.
        numbers: returns the content of a constant of `compiled`, by name (the shape of a Reshape).
        block: the number of channels in a block of ONNX Runtime on this processor.

    Attributes:
        forms: the forms of the values that only the compiled graph has, by name, if they are exported values.
    """

    def __init__(
        self, exported: Graph, compiled: Graph, numbers: Callable[[str], Sequence[int] | None], block: int
    ) -> None:
        self._exported, self._compiled, self._numbers, self._block = exported, compiled, numbers, block
        self._exported_nodes = {node.name: node for node in exported.nodes}
        self._transpose_source = cache(self._before_transposes)
        self.forms: dict[str, Form] = {}
        for node in reversed(compiled.nodes):  # from the last reader to the first
            self._add_outputs(node, self._by_name_or_readers)
        for node in compiled.nodes:
            self._add_outputs(node, self._by_inputs)

    def _add_outputs(self, node: Node, find: Callable[[Node, int], Form | None]) -> None:
        """Add the forms that `find` returns for a node and the indices of its outputs, unless they are known."""
        for index, name in enumerate(node.outputs):
            if name and self._form(name) is None and (form := find(node, index)) is not None:
                self.forms[name] = form

    def _form(self, name: str) -> Form | None:
        """Return the form of a compiled value, as far as it is known; an exported value has no transforms."""
        return Form(name) if name in self._exported.known else self.forms.get(name)

    def _by_name_or_readers(self, node: Node, index: int) -> Form | None:
        return self._by_value_name(node.outputs[index]) or self._by_readers(node.outputs[index])

    def _by_value_name(self, name: str) -> Form | None:
        """Find a copy by its name, or a value in float32 because the processor has no kernel for its dtype."""
        if name.removesuffix(_COPIED) in self._exported.known:
            return Form(name.removesuffix(_COPIED))
        value = name.removeprefix(FLOAT32_PREFIX)
        if value not in self._exported.known:
            return None
        transforms = self._cast_to(self._type_of(value) or "float16")  # the prefix is that of float16 values
        return None if transforms is None else Form(value, transforms)

    def _by_readers(self, name: str) -> Form | None:
        """Find the form of a value by a node that reads it and only changes its form, or that dequantizes it.

        A node that dequantizes and has the name of an exported one reads what that reads.
        """
        for user in self._compiled.consumers.get(name, ()):
            result = self._form(user.outputs[0]) if _is_view(user) and user.inputs[0] == name else None
            transforms = None if result is None else self._transforms_of(user)
            if result is not None and transforms is not None:
                return Form(result.value, (*transforms, *result.transforms))
            exported_node = self._exported_nodes.get(user.name.removesuffix(_COPIED))
            if user.operator.quantization == "dequantize" and exported_node is not None and exported_node.op == user.op:
                return Form(exported_node.inputs[0], self._uint8_to_int8(name))
        return None

    def _uint8_to_int8(self, name: str) -> tuple[Transform, ...]:
        """Return the conversion of a value that ONNX Runtime has converted from int8; none for any other value."""
        return (Uint8ToInt8(),) if name.startswith(_TO_UNSIGNED) else ()

    def _by_inputs(self, node: Node, index: int) -> Form | None:
        """Find a form by the inputs of the node that computes the value, or by the name of the node."""
        if _is_view(node) and (source := self._form(node.inputs[0])) is not None:
            transforms = self._transforms_of(node, inverse=True)
            return None if transforms is None else Form(source.value, (*transforms, *source.transforms))
        if node.op.startswith(DOMAIN):
            value = exported_output(node, self._exported)
            return None if value is None else self._blocked(value)
        return self._by_node_name(node, index) or self._gated(node)

    def _gated(self, node: Node) -> Form | None:
        """Find the product of a blocked value and its sigmoid, which ONNX Runtime fuses into a node of another name."""
        source = self._form(node.inputs[0]) if node.op == _GATED else None
        if source is None or not source.has(Unblock):
            return None
        readers = self._exported.consumers.get(source.value, ())
        products = [user for user in readers if any(self._is_sigmoid(name, source.value) for name in user.inputs)]
        return Form(products[0].outputs[0], source.transforms) if len(products) == 1 else None

    def _is_sigmoid(self, name: str, value: str) -> bool:
        """Whether an exported value is the sigmoid of another one, or of its product with a factor."""
        node = self._exported.producer.get(name)
        if node is None or node.op != "Sigmoid":
            return False
        scaled = self._exported.producer.get(node.inputs[0])
        return value == node.inputs[0] or (scaled is not None and scaled.op == "Mul" and value in scaled.inputs)

    def _transforms_of(self, node: Node, *, inverse: bool = False) -> tuple[Transform, ...] | None:
        """Return the transforms of a node that only changes the form, or with `inverse` those that undo it.

        None if the node is another one, its shape or dtype is not known, or it casts to integers.
        """
        target = node.inputs[0] if inverse else node.outputs[0]
        match node.operator.movement:
            case "copy":
                return ()
            case "permute" if "perm" in node.attributes:
                perm = tuple(node.attributes["perm"])
                return (Permute(_inverse(perm) if inverse else perm),)
            case "cast" if inverse:
                kept_in_float32 = FLOAT32_PREFIX in node.outputs[0]
                return self._cast_to(self._type_of(target) or ("float16" if kept_in_float32 else None))
            case "cast":
                return self._cast_to(self._compiled.values[target].dtype or self._type_of(target))
            case "reshape":
                # With `allowzero`, 0 is a size; a `Reshape` object would keep the dimension.
                is_given = node.op == "Reshape" and not inverse and not node.attributes.get("allowzero")
                shape = self._numbers(node.inputs[1]) if is_given else None
                return self._reshape_to(target) if shape is None else (Reshape(tuple(shape)),)
        channels_last = bool(node.attributes.get("channels_last"))
        if node.op == f"{DOMAIN}ReorderOutput" and not inverse:  # from blocks
            return self._unblock(node.attributes["channels"], channels_last=channels_last)
        if node.op == f"{DOMAIN}ReorderInput" and inverse:  # into blocks
            return self._unblocks(self._shape(target), channels_last=channels_last)
        return None

    def _cast_to(self, dtype: str | None) -> tuple[Transform, ...] | None:
        """Return a cast to a floating-point dtype; None for another one, or one that is not known."""
        target = getattr(torch, dtype or "", None)
        return (Cast(target),) if isinstance(target, torch.dtype) and target.is_floating_point else None

    def _type_of(self, name: str) -> str | None:
        """Return the dtype of the exported value that a compiled one is; None if it is not known."""
        form = self._form(name)
        value = None if form is None else self._exported.values.get(form.value)
        return None if value is None else value.dtype

    def _reshape_to(self, name: str) -> tuple[Transform, ...] | None:
        """Return a reshape to the shape of a value, of which one dimension may be unknown; None if more are.

        Also None for a dimension of 0, which `Reshape` would keep.
        """
        dims = self._shape(name)
        if dims is None:
            return None
        shape = tuple(dim if isinstance(dim, int) else -1 for dim in dims)
        return (Reshape(shape),) if shape.count(-1) < 2 and 0 not in shape else None

    def _shape(self, name: str) -> Sequence[Dim] | None:
        """Return the shape of a compiled value, if it is that of an exported value or a constant input of a Reshape.

        None if it is neither.
        """
        node, form = self._compiled.producer.get(name), self._form(name)
        if form is not None and all(isinstance(transform, Cast) for transform in form.transforms):
            value = self._exported.values.get(form.value)
            return None if value is None else value.shape
        return self._numbers(node.inputs[1]) if node is not None and node.op == "Reshape" else None

    def _blocked(self, value: str) -> Form | None:
        """Return the form of an exported value that is stored in blocks; the cast is for float16 kept in float32."""
        transforms = self._unblocks(self._shape(value))
        return None if transforms is None else Form(value, (*transforms, *(self._cast_to(self._type_of(value)) or ())))

    def _unblocks(self, shape: Sequence[Dim] | None, *, channels_last: bool = False) -> tuple[Transform, ...] | None:
        """Return the conversion of a blocked value to a shape; None if its number of channels is not known."""
        # As `[N, C, …]`, or `[N, …, C]` with `channels_last`: fewer than three dimensions are not stored in blocks.
        channels = None if shape is None or len(shape) < 3 else shape[-1 if channels_last else 1]
        is_known = isinstance(channels, int) and channels > 0
        return self._unblock(channels, channels_last=channels_last) if is_known else None

    def _unblock(self, channels: Any, *, channels_last: bool) -> tuple[Transform, ...]:
        return (Unblock(channels, self._block), *((Permute(CHANNELS_LAST),) if channels_last else ()))

    def _by_node_name(self, node: Node, index: int) -> Form | None:
        """Find the form of a node that was moved past a Transpose, a Cast or a reordering: it keeps its name.

        If its inputs are permuted in the same way, as far as it is known, so is its result, unless it mixes dimensions.
        """
        origin = self._exported_nodes.get(node.name)
        if origin is None or origin.op != node.op or index >= len(origin.outputs):  # another node of this name
            return None
        value = origin.outputs[index]
        forms = [self._form(name) for name in node.inputs]
        if any(form is not None and form.has(Unblock) for form in forms):
            return self._blocked(value)
        perms = set(self._permutations(origin, forms))
        if len(perms) != 1:  # unknown, or not the same for all inputs
            return None
        (perm,) = perms
        shape = self._exported.values[value].shape
        is_identity = perm == tuple(range(len(perm)))
        if not is_identity and (_mixes_dimensions(node) or shape is None or len(shape) != len(perm)):
            return None
        is_cast = any(form is not None and form.has(Cast) for form in forms)
        cast = self._cast_to(self._type_of(value)) if is_cast else ()
        permute = () if is_identity else (Permute(_inverse(perm)),)
        return Form(value, (*self._uint8_to_int8(node.outputs[index]), *permute, *(cast or ())))

    def _permutations(self, origin: Node, forms: Sequence[Form | None]) -> Iterator[Perm]:
        """Yield, for each input of an exported node, the permutation in which the compiled node reads it.

        Inputs whose permutation is not known, and constants, are left out.

        Args:
            origin: the exported node.
            forms: the forms of the inputs of the compiled node.
        """
        for name, form in zip(origin.inputs, forms, strict=False):
            if form is None or {name, form.value} & self._exported.constant_values or form.has(Reshape):
                continue
            exported_read, compiled_read = self._transpose_source(name), self._transpose_source(form.value)
            if exported_read is None or compiled_read is None or exported_read[0] != compiled_read[0]:
                continue  # they do not read the same value
            order = compiled_read[1]  # from the value that both read to, finally, what the compiled node reads
            for transform in reversed(form.transforms):
                if isinstance(transform, Permute):
                    order = _compose(order, _inverse(transform.perm))
            yield _compose(_inverse(exported_read[1]), order)

    def _before_transposes(self, name: str) -> tuple[str, Perm] | None:
        """Return the value before the exported Transposes that compute `name`, and the permutation between the two.

        None if the rank of the value is not known.
        """
        shape = self._exported.values[name].shape if name in self._exported.values else None
        if shape is None:
            return None
        order, node = tuple(range(len(shape))), self._exported.producer.get(name)
        while node is not None and node.operator.movement == "permute" and "perm" in node.attributes:
            order = _compose(tuple(node.attributes["perm"]), order)
            name, node = node.inputs[0], self._exported.producer.get(node.inputs[0])
        return name, order


def _inverse(perm: Perm) -> Perm:
    """Return the permutation that undoes another one."""
    return tuple(perm.index(index) for index in range(len(perm)))


def _is_view(node: Node) -> bool:
    """Return whether a node only changes the form of a value."""
    reorders = node.op in (f"{DOMAIN}ReorderInput", f"{DOMAIN}ReorderOutput")
    return reorders or node.operator.movement in ("copy", "cast", "reshape", "permute")


def _mixes_dimensions(node: Node) -> bool:
    """Return whether a node combines or replaces dimensions, so that it does not permute its result as its input."""
    return node.operator.product is not None or node.operator.movement in ("reshape", "expand")


def _compose(first: Perm, second: Perm) -> Perm:
    """Compose two permutations: `first`, then `second`."""
    return tuple(first[index] for index in second)
