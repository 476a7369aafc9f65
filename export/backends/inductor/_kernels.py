"""Record what Inductor generates for a graph: its kernels, their buffers, and the operations that they compute.

Inductor passes this information to private functions of torch while it compiles. Only this module uses them; if one is
missing in a version of torch, the error names it.
"""

import contextlib
import re
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple
from unittest import mock

import torch
from torch import fx

from filch.steal.private import _torch
from filch.steal.private._torch import pytree

from ..._errors import BackendError

_TUPLE_LAYOUT = "MultiOutputLayout"  # of a buffer that is not one tensor but several
# In the generated code: the comment before a call, the definition of a kernel, and that of one with a file of its own.
_HANDLE = re.compile(r"\[Provenance debug handles\] (\S+):(\d+)$", re.MULTILINE)
_SOURCE = re.compile(r"^(\w+) = async_compile\.", re.MULTILINE)
_TRITON = re.compile(r"^# kernel path: (\S+)\n(?:#.*\n|\n)*(\w+) = async_compile\.", re.MULTILINE)
_ONE_AT_A_TIME = threading.RLock()  # the patched functions are shared by the process

Call = Callable[[list[Any]], Any]  # flat inputs to flat outputs; empties the list, so that inputs can be freed


@dataclass(frozen=True)
class Kernel:
    """One call in the code that Inductor generated.

    Attributes:
        name: the name of the function and the number of the call: `cpp_fused_add_relu_0:3`.
        op: the name of the function (`cpp_fused_add_relu_0`, `extern_kernels.addmm`).
        reads: the names of the buffers and of the graph's inputs that it reads.
        writes: the names of the buffers that it writes; a buffer gets a new name each time that it is written.
        origins: the names of the operations of Inductor's own graph that it computes.
        line: the line of the comment before the call.
        code: `file:line` of its source in the generated code, or of its call if its source is not generated.
        source_file: the separate file of its source; "" if there is none.
        variables: the names of the variables that hold the written buffers in the generated code.
    """

    name: str
    op: str
    reads: tuple[str, ...]
    writes: tuple[str, ...]
    origins: tuple[str, ...]
    line: int = 0
    code: str = ""
    source_file: str = ""
    variables: tuple[str, ...] = ()


@dataclass(frozen=True)
class LoweredGraph:
    """One graph that Inductor compiled.

    Attributes:
        aot_module: the graph from AOTAutograd, functional and not optimized, with its constants and subgraphs.
        graph: Inductor's graph, after its passes and before code generation.
        kernels: the kernels in the order in which they run.
        operations: maps the name of a written buffer to the operation of `graph` whose result it holds, if there is
            one.
        module: the generated code.
        backward: whether it computes gradients.
    """

    aot_module: fx.GraphModule
    graph: fx.Graph
    kernels: tuple[Kernel, ...]
    operations: dict[str, str]
    module: ModuleType
    backward: bool

    @property
    def aot_graph(self) -> fx.Graph:
        """The graph from AOTAutograd."""
        return self.aot_module.graph


@contextlib.contextmanager
def record_lowering(
    aot_module: fx.GraphModule, callback: Callable[[LoweredGraph, Call], Call], *, backward: bool
) -> Iterator[None]:
    """Call `callback` with what Inductor generates for `aot_module` inside of the block, and the generated function.

    The result of `callback` runs instead of the generated function.

    Raises:
        PrivateNameError: this version of torch lacks a private function that is needed.
    """
    aot_graph = fx.Graph()  # a copy, because Inductor changes the graph
    output: Any = aot_graph.graph_copy(aot_module.graph, {}, return_output_node=True)
    if output is not None:
        aot_graph.output(output[0]).meta.update(output[1].meta)
    copied = fx.GraphModule(aot_module, aot_graph)
    lowering_type = _torch.GraphLowering
    compile_to_module = lowering_type.compile_to_module
    recorded: dict[int, Kernel] = {}

    def compile_and_call_back(lowering: Any) -> ModuleType:
        module: Any = compile_to_module(lowering)  # each file of generated code has a `call`
        lowered = _lowered_graph(copied, lowering, module, recorded, backward=backward)
        module.call = callback(lowered, module.call)
        return module  # type: ignore[no-any-return]

    with _ONE_AT_A_TIME, contextlib.ExitStack() as stack:
        for name in _torch.KERNEL_FUNCTIONS:
            place = _torch.NAMES.places[name].replace(":", ".")
            stack.enter_context(mock.patch(place, _recording(_torch.NAMES.find(name), recorded)))
        # They call a library function that writes to its arguments; Inductor does not record their provenance.
        for operation_type in (_torch.ScatterFallback, _torch.IndexPutFallback):
            stack.enter_context(mock.patch.object(operation_type, "codegen", _with_comment(operation_type.codegen)))
        stack.enter_context(mock.patch.object(lowering_type, "compile_to_module", compile_and_call_back))
        yield


def _recording(record: Callable[..., int | None], recorded: dict[int, Kernel]) -> Callable[..., int | None]:
    """Wrap the function that Inductor calls for each kernel, to record the kernels."""

    def recording(schedule: Any, kernel_name: str, is_extern: bool = False) -> int | None:  # noqa: FBT001, FBT002  torch's
        handle = record(schedule, kernel_name, is_extern)
        if handle is not None:  # it is None where torch's provenance tracking is off
            function = _extern_provenance if is_extern else _fused_provenance
            provenance = function(schedule)
            reads = tuple(name for name in dict.fromkeys(provenance.reads) if name not in provenance.writes)
            origins = tuple(dict.fromkeys(provenance.origins))
            name = f"{kernel_name}:{handle}"
            recorded[handle] = Kernel(name, kernel_name, reads, tuple(provenance.writes), origins)
        return handle

    return recording


def _with_comment(codegen: Callable[[Any, Any], None]) -> Callable[[Any, Any], None]:
    """Wrap a code generator so that it writes the comment of other calls, because Inductor records provenance then."""

    def with_comment(operation: Any, wrapper: Any) -> None:
        operation.codegen_comment(wrapper)
        codegen(operation, wrapper)

    return with_comment


class _Provenance(NamedTuple):
    """The names of the buffers that a kernel reads and writes, and of the FX nodes that it computes."""

    reads: Sequence[str]
    writes: Sequence[str]
    origins: Sequence[str]


def _extern_provenance(operation: Any) -> _Provenance:
    """Return the provenance of a call of a library function: of one FX node if it is known, else of all its origins."""
    node = _fx_node(operation) or (_result_node(operation.origins) if operation.get_mutation_names() else None)
    origins = operation.origins if node is None else [node]
    return _Provenance(_input_names(operation), _output_names(operation), [item.name for item in origins])


def _fused_provenance(schedule: Sequence[Any]) -> _Provenance:
    """Return the provenance of a generated kernel from the operations that Inductor has fused into it."""
    items = [item for item in schedule if getattr(item, "node", None) is not None]  # others separate reductions
    reads = [dep.name for item in items for dep in item.read_writes.reads]
    writes = [name for item in items for name in item.get_buffer_names()]
    return _Provenance(reads, writes, [node.name for item in items for node in item.node.origins])


def _fx_node(operation: Any) -> fx.Node | None:
    """Return the FX node that a library call computes; its other origins belong to its inputs."""
    origin: fx.Node | None = operation.origin_node
    if origin is not None:
        return origin
    operator = getattr(operation, "op_overload", None)
    same_operator: Iterator[fx.Node] = (node for node in operation.origins if node.target == operator)
    return next(same_operator, None)


def _result_node(nodes: Collection[fx.Node]) -> fx.Node | None:
    """Return the only one of some FX nodes that none of the others reads; None if there is not exactly one."""
    read = {item for node in nodes for item in node.all_input_nodes}
    unread = [node for node in nodes if node not in read]
    return unread[0] if len(unread) == 1 else None


def _overwritten_input(node: fx.Node) -> fx.Node | None:
    """Return the input that an operation copies and overwrites, if it has an in-place variant, or None.

    The copy has the shape and type of the result.
    """
    packet = str(getattr(node.target, "overloadpacket", "")).removeprefix("aten.")
    source = node.args[0] if node.args and hasattr(torch.ops.aten, f"{packet}_") else None
    return source if isinstance(source, fx.Node) and _shape_of(source) == _shape_of(node) else None


def _input_names(operation: Any) -> list[str]:
    """Return the names of the inputs of an operation without a loop of its own."""
    return [item.get_name() for item in pytree.tree_leaves(list(operation.inputs)) if hasattr(item, "get_name")]


def _output_names(operation: Any) -> list[str]:
    """Return the names of the outputs of an operation, and the new names of the inputs to which it writes."""
    return [buffer.get_name() for buffer in operation.get_outputs()]


def _lowered_graph(
    aot_module: fx.GraphModule, lowering: Any, module: ModuleType, recorded: dict[int, Kernel], *, backward: bool
) -> LoweredGraph:
    """Return what Inductor made of a graph, with the recorded kernels and their generated code.

    Args:
        aot_module: the graph from AOTAutograd.
        lowering: Inductor's `GraphLowering` of it.
        module: the generated code.
        recorded: the recorded kernels by their provenance handles, which are in comments of the code.
        backward: whether the graph computes gradients.
    """
    if module.__file__ is None:
        raise BackendError("the code that Inductor generated has no file")
    code = Path(module.__file__).read_text("utf-8")
    unstored = lowering.removed_buffers | lowering.inplaced_to_remove  # only the kernel itself uses them
    buffers = {
        name: buffer
        for name, buffer in lowering.name_to_buffer.items()
        if name not in unstored and type(getattr(buffer, "layout", None)).__name__ != _TUPLE_LAYOUT
    }
    # A buffer gets a new name each time that it is written; this maps it to the first one.
    first_names: dict[str, str] = lowering.scheduler.mutation_real_name
    kernels = _with_items(_with_code(recorded, module, code), buffers)
    defined = {*re.findall(r"^\s*(\w+) = ", code, re.MULTILINE), *lowering.graph_inputs}
    named_kernels = _with_current_names(kernels, first_names)
    alive = tuple(_without_freed(kernel, code, defined, buffers) for kernel in named_kernels)
    copies = _layout_copies(lowering.operations, first_names)
    operations = {**copies, **_stored_operations(lowering, buffers, first_names)}
    return LoweredGraph(aot_module, lowering.module.graph, alive, operations, module, backward)


def _with_code(recorded: Mapping[int, Kernel], module: ModuleType, code: str) -> list[Kernel]:
    """Return the recorded kernels that the code calls, in order, with where it calls and defines them."""
    call_lines = {int(match[2]): _line(code, match) for match in _HANDLE.finditer(code)}
    definition_lines = {match[1]: _line(code, match) for match in _SOURCE.finditer(code)}
    triton_files = {match[2]: match[1] for match in _TRITON.finditer(code)}
    return [
        replace(
            kernel,
            line=call_lines[handle],
            code=f"{module.__file__}:{definition_lines.get(kernel.op, call_lines[handle] + 1)}",
            source_file=triton_files.get(kernel.op, "") or _cpp_file(getattr(module, kernel.op, None)),
        )
        for handle, kernel in sorted(recorded.items())
        if handle in call_lines
    ]


def _with_items(kernels: Sequence[Kernel], buffers: Mapping[str, Any]) -> Iterator[Kernel]:
    """Yield the kernels, with the buffers that have no kernel of their own among those that they write.

    These are the items of a kernel's result, and concatenations of buffers that are adjacent in memory.
    """
    writer = {name: index for index, kernel in enumerate(kernels) for name in kernel.writes}
    added: dict[int, list[str]] = {}  # by the index of the kernel
    for name, buffer in buffers.items():
        if name not in writer and type(buffer).__name__ in ("MultiOutput", "ConcatKernel"):
            sources = [writer[source] for source in _input_names(buffer) if source in writer]
            if sources:
                writer[name] = max(sources)  # it is complete when the last of them has run
                added.setdefault(writer[name], []).append(name)
    for index, kernel in enumerate(kernels):
        yield replace(kernel, writes=(*kernel.writes, *added.get(index, ())))


def _with_current_names(kernels: Iterable[Kernel], first_names: Mapping[str, str]) -> Iterator[Kernel]:
    """Yield the kernels in order, with the names that the buffers have before and after each kernel."""
    current: dict[str, str] = {}  # by first name
    for kernel in kernels:
        reads = dict.fromkeys(current.get(name, name) for name in kernel.reads)
        written = {first_names.get(name, name): name for name in kernel.writes}
        current |= written
        yield replace(kernel, reads=tuple(reads), writes=tuple(written.values()), variables=tuple(written))


def _without_freed(kernel: Kernel, code: str, defined: Collection[str], tensors: Collection[str]) -> Kernel:
    """Return the kernel without written buffers whose memory another buffer reuses, or that are not tensors.

    Args:
        kernel: the kernel.
        code: the generated code, which deletes a variable when its memory is reused.
        defined: the names of all its variables.
        tensors: the names of the buffers that are tensors.
    """
    preceding = "\n".join(code.splitlines()[: kernel.line])
    freed = set(re.findall(r"\bdel (\w+)", preceding))
    pairs = zip(kernel.variables, kernel.writes, strict=True)
    alive = {
        variable: name for variable, name in pairs if name in tensors and variable in defined and variable not in freed
    }
    return replace(kernel, writes=tuple(alive.values()), variables=tuple(alive))


def _stored_operations(lowering: Any, buffers: Mapping[str, Any], first_names: Mapping[str, str]) -> dict[str, str]:
    """Return the name of the operation whose result a buffer holds, for each time that it is written.

    Inductor records what a buffer holds in the end. It may record the same operation for the kernel that allocates the
    buffer: the zeros for a scatter, for example.
    """
    mutated = {*first_names, *first_names.values()}
    nodes = {
        name: node for name, buffer in buffers.items() if name not in mutated and (node := buffer.get_origin_node())
    }
    last_names: dict[tuple[str, fx.Node], str] = {}  # by first name and node
    for operation in lowering.operations:
        for name in mutated.intersection(_output_names(operation)):
            first = first_names.get(name, name)
            end = lowering.try_get_buffer(first).get_origin_node()
            node = end if end in operation.origins else _result_node(operation.origins)
            if node is None:
                continue
            if last_names.get((first, node)) == first and (source := _overwritten_input(node)) is not None:
                nodes[first] = source  # recorded twice: the first time, the buffer got a copy of the input
            last_names[first, node] = name
    nodes |= {name: node for (_, node), name in last_names.items()}
    return {
        name: node.name
        for name, node in nodes.items()
        if _has_dtype_of(lowering.try_get_buffer(first_names.get(name, name)), node)
    }


def _layout_copies(operations: Sequence[Any], first_names: Mapping[str, str]) -> dict[str, str]:
    """Return the name of the operation that is copied, for each copy of a library function's input in another layout.

    Returns:
        a mapping by the name of the buffer that holds the copy.
    """
    copies: dict[str, str] = {}
    current: dict[str, str] = {}  # by first name
    for operation in operations:
        inputs = pytree.tree_leaves(list(getattr(operation, "inputs", ())))
        node = _fx_node(operation) if inputs else None
        sources = node.all_input_nodes if node is not None else []
        if len(sources) == len(inputs):  # so that they correspond by position
            for buffer, source in zip(inputs, sources, strict=True):
                is_copy = type(buffer).__name__ == "ComputedBuffer" and _shape(buffer.get_size()) == _shape_of(source)
                if is_copy and _has_dtype_of(buffer, source):
                    name: str = buffer.get_name()  # pyright: ignore[reportAssignmentType]  names of buffers are never None
                    copies[current.get(name, name)] = source.name
        current |= {first_names[name]: name for name in _output_names(operation) if name in first_names}
    return copies


def _cpp_file(function: Any) -> str:
    """Return the C++ file next to the library from which a kernel was loaded, or `""`."""
    library = getattr(getattr(function, "__self__", None), "__file__", None)
    source = Path(library).with_suffix(".cpp") if library else None
    return str(source) if source is not None and source.is_file() else ""


def _has_dtype_of(buffer: Any, node: fx.Node) -> bool:
    """Return whether a buffer has the dtype of an operation's result; another one holds the result cast.

    True if one of the dtypes is not known.
    """
    value, dtype = node.meta.get("val"), getattr(getattr(buffer, "layout", None), "dtype", None)
    return dtype is None or not isinstance(value, torch.Tensor) or value.dtype == dtype


def _shape(sizes: Iterable[Any]) -> list[str]:
    """Return sizes, which may be symbolic, as text."""
    return [str(size) for size in sizes]


def _shape_of(node: fx.Node) -> list[str] | None:
    """Return the sizes of a node's result as text; None if it is not a tensor."""
    value = node.meta.get("val")
    return _shape(value.shape) if isinstance(value, torch.Tensor) else None


def _line(code: str, match: re.Match[str]) -> int:
    """Return the number of the line in which a match begins."""
    return code.count("\n", 0, match.start()) + 1
