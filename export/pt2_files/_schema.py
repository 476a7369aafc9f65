"""Readers for torch's schema of exported programs, without the fields that contain code or become code in torch."""

import re
from collections.abc import Callable
from functools import cache, partial
from typing import Any

import torch

from filch.steal.private._torch import schema

from ._archive import StoredError
from ._expressions import expression, symbol_name
from ._fields import (
    Reader,
    boolean,
    deferred,
    dict_of,
    empty,
    enum_of,
    expect,
    identifier,
    integer,
    list_of,
    members_of,
    number,
    optional,
    optional_identifier,
    path,
    record,
    size,
    text,
    union,
)

MAJOR = 8  # version of the schema
_DEVICES = {"cpu", "cuda", "meta", "mps", "xpu"}
_FRAME = re.compile(r'File "([^"]+)", line (\d{1,9}), in (\S+)')
# The schema's names of dtypes are attributes of torch in lower case, with these exceptions.
_DTYPE_NAMES = {"byte": "uint8", "char": "int8", "complexhalf": "chalf", "complexfloat": "cfloat"}
_DTYPE_NAMES |= {"complexdouble": "cdouble"}
DTYPES: dict[schema.ScalarType, torch.dtype] = {
    kind: dtype
    for kind in schema.ScalarType
    for name in [kind.name.lower().replace("float8e", "float8_e")]
    if isinstance(dtype := getattr(torch, _DTYPE_NAMES.get(name, name), None), torch.dtype)
}
_NODES = 20_000  # torch creates about 1,000 nodes a second
_ENTRIES = 10_000  # items of a list argument
_STACK = 100_000  # characters of a call stack

_Target = Callable[[str], str]


def read_program(data: Any, target: _Target) -> schema.ExportedProgram:
    """Convert JSON to the input of torch's deserializer, without example inputs and guards.

    Args:
        data: the parsed JSON.
        target: returns the name of an allowed operator, and raises `StoredError` for any other.

    Raises:
        StoredError: the data contain something that is refused.
    """
    version = data.get("schema_version") if isinstance(data, dict) else None
    major = version.get("major") if isinstance(version, dict) else None
    if major != MAJOR or schema.SCHEMA_VERSION[0] != MAJOR:
        raise StoredError(
            f"its schema has the version {major!r:.20}, torch's has {schema.SCHEMA_VERSION[0]}, and Filch reads {MAJOR}"
        )
    return _program(target)(data)  # type: ignore[no-any-return]


def read_payloads(data: Any) -> dict[str, schema.PayloadMeta]:
    """Convert JSON to the metadata of each weight, by name.

    Raises:
        StoredError: the data contain something that is refused.
    """
    meta = record(
        schema.PayloadMeta, path_name=path, is_param=boolean, use_pickle=boolean, tensor_meta=optional(_tensor())
    )
    return record(schema.PayloadConfig, config=dict_of(path, meta))(data).config  # type: ignore[no-any-return]


@cache
def _program(target: _Target) -> Reader:
    """Return the reader of a program, with this reader of the names of operators."""
    bound = optional(_bound)
    return record(
        schema.ExportedProgram,
        graph_module=_module(target),
        opset_version=dict_of(text, integer),
        range_constraints=dict_of(symbol_name, record(schema.RangeConstraint, min_val=bound, max_val=bound)),
        schema_version=record(schema.SchemaVersion, major=integer, minor=integer),
        verifiers=list_of(lambda data: "TRAINING" if data == "TRAINING" else "ATEN"),
        torch_version=text,
    )


def _module(target: _Target) -> Reader:
    """Return the reader of the program's graph module, without its module calls.

    These describe the structures of inputs and outputs, which may name classes.
    """
    signature = record(schema.GraphSignature, input_specs=list_of(_input()), output_specs=list_of(_output()))
    reader = record(schema.GraphModule, graph=_graph(target), signature=signature, module_call_graph=lambda _: [])
    return lambda data: reader({**data, "module_call_graph": []} if isinstance(data, dict) else data)


def _graph(target: _Target) -> Reader:
    """Return the reader of a graph, with this reader of the names of operators."""
    argument = _argument(target)
    named = record(
        schema.NamedArgument, name=optional_identifier, arg=argument, kind=optional(enum_of(schema.ArgumentKind))
    )
    node = record(
        schema.Node,
        target=target,
        inputs=list_of(named),
        outputs=list_of(argument),
        metadata=_metadata,
        is_hop_single_tensor_return=optional(boolean),
        name=optional(identifier),
    )
    return record(
        schema.Graph,
        inputs=list_of(argument),
        outputs=list_of(argument),
        nodes=list_of(node, _NODES),
        tensor_values=dict_of(identifier, _tensor()),
        sym_int_values=dict_of(identifier, _symbolic(schema.SymInt, as_int=integer)),
        sym_float_values=dict_of(identifier, _symbolic(schema.SymFloat, as_float=number)),
        sym_bool_values=dict_of(identifier, _symbolic(schema.SymBool, as_bool=boolean)),
        is_single_tensor_return=boolean,
        custom_obj_values=empty,
    )


def _argument(target: _Target) -> Reader:
    """Return the reader of an operator's argument, which may be a graph."""
    tensor, device = _named(schema.TensorArgument), _device()
    sym_int = union(schema.SymIntArgument, as_name=identifier, as_int=integer)
    sym_float = union(schema.SymFloatArgument, as_name=identifier, as_float=number)
    sym_bool = union(schema.SymBoolArgument, as_name=identifier, as_bool=boolean)
    maybe_tensor = union(schema.OptionalTensorArgument, as_tensor=tensor, as_none=boolean)
    graph = record(schema.GraphArgument, name=identifier, graph=deferred(cache(lambda: _graph(target))))
    short_list = partial(list_of, most=_ENTRIES)
    reader = union(
        schema.Argument,
        as_none=boolean,
        as_tensor=tensor,
        as_tensors=short_list(tensor),
        as_int=integer,
        as_ints=short_list(integer),
        as_float=number,
        as_floats=short_list(number),
        as_string=text,
        as_strings=short_list(text),
        as_sym_int=sym_int,
        as_sym_ints=short_list(sym_int),
        as_scalar_type=enum_of(schema.ScalarType, DTYPES),
        as_memory_format=enum_of(schema.MemoryFormat),
        as_layout=enum_of(schema.Layout, {schema.Layout.Strided}),
        as_device=device,
        as_bool=boolean,
        as_bools=short_list(boolean),
        as_sym_bool=sym_bool,
        as_sym_bools=short_list(sym_bool),
        as_graph=graph,
        as_optional_tensors=short_list(maybe_tensor),
        as_operator=target,
        as_sym_float=sym_float,
        as_sym_floats=short_list(sym_float),
        as_optional_tensor=maybe_tensor,
        # Without `ComplexValue`, torch has no `as_complex`, and `union` leaves this reader out.
        as_complex=record(getattr(schema, "ComplexValue", schema.Device), real=number, imag=number),
        as_nested_tensors=short_list(short_list(tensor)),
        as_int_lists=short_list(short_list(integer)),
        as_float_lists=short_list(short_list(number)),
        as_string_to_argument=dict_of(identifier, deferred(lambda: reader)),
    )
    return reader


def _input() -> Reader:
    """Return the reader of an input of the program: what it is, and the name of the weight."""
    tensor, user = _named(schema.TensorArgument), record(schema.UserInputSpec, arg=_argument(_no_operator))
    constant = union(
        schema.ConstantValue, as_none=boolean, as_int=integer, as_float=number, as_string=text, as_bool=boolean
    )
    return union(
        schema.InputSpec,
        user_input=user,
        parameter=record(schema.InputToParameterSpec, arg=tensor, parameter_name=path),
        buffer=record(schema.InputToBufferSpec, arg=tensor, buffer_name=path, persistent=boolean),
        tensor_constant=record(schema.InputToTensorConstantSpec, arg=tensor, tensor_constant_name=path),
        constant_input=record(schema.InputToConstantInputSpec, name=identifier, value=constant),
        token=record(schema.InputTokenSpec, arg=_named(schema.TokenArgument)),
    )


def _output() -> Reader:
    """Return the reader of an output of the program: what it is, and the name of what it updates."""
    tensor, user = _named(schema.TensorArgument), record(schema.UserOutputSpec, arg=_argument(_no_operator))
    return union(
        schema.OutputSpec,
        user_output=user,
        loss_output=record(schema.LossOutputSpec, arg=tensor),
        buffer_mutation=record(schema.BufferMutationSpec, arg=tensor, buffer_name=path),
        gradient_to_parameter=record(schema.GradientToParameterSpec, arg=tensor, parameter_name=path),
        gradient_to_user_input=record(schema.GradientToUserInputSpec, arg=tensor, user_input_name=identifier),
        user_input_mutation=record(schema.UserInputMutationSpec, arg=tensor, user_input_name=identifier),
        token=record(schema.OutputTokenSpec, arg=_named(schema.TokenArgument)),
    )


def _named(cls: type[Any]) -> Reader:
    """Return the reader of an object that has only the name of a value."""
    return record(cls, name=identifier)


@cache
def _tensor() -> Reader:
    """Return the reader of a tensor's dtype, sizes, strides and device."""
    extent = _symbolic(schema.SymInt, as_int=size)
    return record(
        schema.TensorMeta,
        dtype=enum_of(schema.ScalarType, DTYPES),
        sizes=list_of(extent, _ENTRIES),
        requires_grad=boolean,
        device=_device(),
        strides=list_of(extent, _ENTRIES),
        storage_offset=extent,
        layout=enum_of(schema.Layout, {schema.Layout.Strided}),
    )


def _device() -> Reader:
    """Return the reader of a device."""
    return record(schema.Device, type=_device_type, index=optional(size))


def _symbolic(cls: type[Any], **plain: Reader) -> Reader:
    """Return the reader of a number that may be an expression of symbols; `plain` reads one that is not."""
    hint = union(schema.SymExprHint, as_int=integer, as_bool=boolean, as_float=number)
    return union(cls, as_expr=record(schema.SymExpr, expr_str=_expression, hint=optional(hint)), **plain)


def _expression(data: Any) -> Any:
    """Read an expression. Torch uses a parsed expression as it is, but evaluates a string as Python."""
    expect(isinstance(data, str), data, "a symbolic size")
    return expression(data)


def _bound(data: Any) -> int:
    """Read the smallest or largest value of a symbol."""
    expect(type(data) is int and data.bit_length() <= 64, data, "a bound of a size")
    return int(data)


def _device_type(data: Any) -> str:
    """Read the type of a device."""
    expect(data in _DEVICES, data, "a supported device")
    return str(data)


def _no_operator(data: Any) -> str:
    """Refuse an operator where only values are allowed."""
    raise StoredError(f"{data!r:.80} is an operator among the inputs or outputs")


def _metadata(data: Any) -> dict[str, str]:
    """Read a node's module stack and the locations in its stack trace.

    Torch writes locations into generated code as comments, which a line break would end: only printable text is kept.
    """
    metadata, members = {}, members_of(data)
    modules, lines = members.get("nn_module_stack"), members.get("stack_trace")
    if isinstance(modules, str) and len(modules) <= _STACK and modules.isprintable():
        metadata["nn_module_stack"] = modules
    if isinstance(lines, str) and len(lines) <= _STACK:
        frames = [frame for frame in _FRAME.findall(lines) if "".join(frame).isprintable()]
        metadata["stack_trace"] = "\n".join(f'  File "{file}", line {line}, in {name}' for file, line, name in frames)
    return metadata
