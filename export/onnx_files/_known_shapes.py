"""The shapes of the integers that an ONNX graph computes from inputs of declared shapes and from constants."""

import math
from collections.abc import Mapping, Sequence

from onnx import NodeProto, TensorProto, TypeProto, ValueInfoProto, checker, defs, helper, numpy_helper, shape_inference

from ._graphs import subgraphs

_READ = 64  # elements of the largest constant that is read
_INTEGERS = frozenset({TensorProto.INT64, TensorProto.INT32, TensorProto.BOOL})
_MISFITS = (shape_inference.InferenceError, checker.ValidationError, defs.SchemaError)


class KnownShapes:
    """The shapes that the inputs of a graph and its constants determine, node by node.

    Of what nodes compute, only integers are followed: shapes and indices, of which a graph has few.

    Args:
        opsets: the version of each set of operators, by domain.
    """

    def __init__(self, opsets: Mapping[str, int]) -> None:
        self._versions = {"": defs.onnx_opset_version(), **opsets}
        self._opsets = [helper.make_opsetid(domain, version) for domain, version in self._versions.items()]
        self._types: dict[str, TypeProto] = {}
        self._constants: dict[str, TensorProto] = {}  # small ones

    def shape(self, name: str) -> tuple[int, ...] | None:
        """Return the shape of a value; None if it is not known."""
        known = self._types.get(name)
        return None if known is None else tuple(dim.dim_value for dim in known.tensor_type.shape.dim)

    def content(self, name: str) -> list[int] | None:
        """Return the elements of a small constant; None for any other value."""
        tensor = self._constants.get(name)
        return None if tensor is None else numpy_helper.to_array(tensor).reshape(-1).tolist()

    def add_input(self, value: ValueInfoProto) -> None:
        """Add an input of the whole graph: runtimes refuse another shape than the declared one."""
        self._set(value.name, value.type)

    def add_constant(self, name: str, tensor: TensorProto) -> None:
        """Add an initializer, or the value of a `Constant`."""
        self._set(name, helper.make_tensor_type_proto(tensor.data_type, tensor.dims))
        is_read = tensor.data_type in _INTEGERS and tensor.data_location != TensorProto.EXTERNAL
        if is_read and math.prod(tensor.dims) <= _READ:
            self._constants[name] = tensor

    def add_outputs(self, node: NodeProto) -> None:
        """Add what a node computes from integers of known shapes, and forget what has these names in another graph."""
        for name, inferred in {**dict.fromkeys(node.output), **self._inferred(node)}.items():
            is_integer = inferred is not None and inferred.tensor_type.elem_type in _INTEGERS
            self._set(name, inferred if is_integer else None)
        for name, read in zip(node.output, node.input, strict=False) if node.op_type == "Shape" else ():
            if (shape := self.shape(read)) is not None:  # which is then the content of the output
                ends = {attribute.name: attribute.i for attribute in node.attribute}
                self.add_constant(name, vector(shape[ends.get("start") : ends.get("end")]))

    def _inferred(self, node: NodeProto) -> Mapping[str, TypeProto]:
        """Return the types of what a node computes from integers of known shapes alone, by name; else none."""
        types = {name: self._types[name] for name in node.input if name in self._types}
        are_integers = all(item.tensor_type.elem_type in _INTEGERS for item in types.values())
        are_all_known = types.keys() == {*filter(None, node.input)}
        if not (types and are_all_known and are_integers) or next(subgraphs(node), None) is not None:
            return {}
        contents = {name: self._constants[name] for name in types if name in self._constants}
        try:
            schema = defs.get_schema(node.op_type, self._versions.get(node.domain, 1), node.domain)
            return shape_inference.infer_node_outputs(schema, node, types, contents, opset_imports=self._opsets)
        except _MISFITS:  # the backend reports what is wrong with the node
            return {}

    def _set(self, name: str, known: TypeProto | None) -> None:
        """Set the type of a value, if all its dimensions are numbers; else forget what is known of it."""
        self._constants.pop(name, None)
        self._types.pop(name, None)
        dims = () if known is None else known.tensor_type.shape.dim
        if known is not None and known.tensor_type.HasField("shape") and all(dim.HasField("dim_value") for dim in dims):
            self._types[name] = known


def vector(numbers: Sequence[int]) -> TensorProto:
    """Return a constant with these elements."""
    return helper.make_tensor("", TensorProto.INT64, [len(numbers)], numbers)
