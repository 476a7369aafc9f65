"""Record what Inductor generates for a graph: its kernels, their buffers, and the operations that they compute.

Inductor passes this information to private functions of torch while it compiles. Only this module uses them; if one is
missing in a version of torch, the error names it.
"""

import contextlib
import re
import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest import mock

import torch
from torch import fx
from torch.utils import _pytree as pytree

from ..._errors import BackendError

_PROVENANCE_FUNCTION = "set_kernel_post_grad_provenance_tracing"
# The modules that import the function by its name.
_PROVENANCE_MODULES = ("torch._inductor.debug", "torch._inductor.codegen.cpp", "torch._inductor.codegen.triton")
# Operations that call a library function which writes to its arguments; Inductor does not record their provenance.
_UNRECORDED = ("ScatterFallback", "IndexPutFallback")
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
        aot_graph: the graph from AOTAutograd: functional, not optimized.
        graph: Inductor's graph, after its passes and before code generation.
        kernels: the kernels in the order in which they run.
        exact: maps the name of a written buffer to the operation of `graph` whose result it holds, if there is one.
        module: the generated code.
        backward: whether it computes gradients.
    """

    aot_graph: fx.Graph
    graph: fx.Graph
    kernels: tuple[Kernel, ...]
    exact: dict[str, str]
    module: ModuleType
    backward: bool


@contextlib.contextmanager
def record_lowering(
    given: fx.GraphModule, callback: Callable[[LoweredGraph, Call], Call], *, backward: bool
) -> Iterator[None]:
    """Call `callback` with what Inductor generates for `given` inside of the block, and the generated function.

    The result of `callback` runs instead of the generated function.

    Raises:
        BackendError: this version of torch lacks a private function that is needed.
    """
    original = fx.Graph()
    output: Any = original.graph_copy(given.graph, {}, return_output_node=True)
    if output is not None:
        original.output(output[0]).meta.update(output[1].meta)
    lowering_type = _private("torch._inductor.graph", "GraphLowering")
    compile_to_module = lowering_type.compile_to_module
    recorded: dict[int, Kernel] = {}

    def compiled(graph: Any) -> ModuleType:
        module: Any = compile_to_module(graph)  # each file of generated code has a `call`
        lowered = _lowered(original, graph, module, recorded, backward=backward)
        module.call = callback(lowered, module.call)
        return module  # type: ignore[no-any-return]

    with _ONE_AT_A_TIME, contextlib.ExitStack() as stack:
        for name in _PROVENANCE_MODULES:
            function = _recording(_private(name, _PROVENANCE_FUNCTION), recorded)
            stack.enter_context(mock.patch.object(import_module(name), _PROVENANCE_FUNCTION, function))
        for name in _UNRECORDED:
            call = _private("torch._inductor.ir", name)
            stack.enter_context(mock.patch.object(call, "codegen", _with_comment(call.codegen)))
        stack.enter_context(mock.patch.object(lowering_type, "compile_to_module", compiled))
        yield


def _private(module: str, name: str) -> Any:
    try:
        return getattr(import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise BackendError(
            f"backend 'inductor' can't see the kernels of torch {torch.__version__}: it has no {module}.{name}; "
            "versions from 2.11 on have it"
        ) from error


def _recording(record: Callable[..., int | None], recorded: dict[int, Kernel]) -> Callable[..., int | None]:
    """Wrap the function that Inductor calls for each kernel, to record the kernels."""

    def recording(schedule: Any, kernel_name: str, is_extern: bool = False) -> int | None:  # noqa: FBT001, FBT002  torch's
        handle = record(schedule, kernel_name, is_extern)
        if handle is not None:
            reads, writes, origins = _of_extern(schedule) if is_extern else _of_fused(schedule)
            kept = tuple(name for name in dict.fromkeys(reads) if name not in writes)
            name = f"{kernel_name}:{handle}"
            recorded[handle] = Kernel(name, kernel_name, kept, tuple(writes), tuple(dict.fromkeys(origins)))
        return handle

    return recording


def _with_comment(codegen: Callable[[Any, Any], None]) -> Callable[[Any, Any], None]:
    """Wrap a code generator so that it writes the comment of other calls, because Inductor records provenance then."""

    def with_comment(node: Any, wrapper: Any) -> None:
        node.codegen_comment(wrapper)
        codegen(node, wrapper)

    return with_comment


Provenance = tuple[Sequence[str], Sequence[str], Sequence[str]]


def _of_extern(node: Any) -> Provenance:
    exact = _operation(node) or (_last(node.origins) if node.get_mutation_names() else None)
    return _read(node), _written(node), [item.name for item in ([exact] if exact is not None else node.origins)]


def _operation(node: Any) -> fx.Node | None:
    """Return the operation that a library call computes; its other origins belong to its inputs."""
    own = [item for item in node.origins if item.target == getattr(node, "op_overload", None)]
    return node.origin_node if node.origin_node is not None else own[0] if own else None


def _last(origins: Collection[fx.Node]) -> fx.Node | None:
    """Return the operation that computes the result of several; None if there is not exactly one."""
    read = {item for node in origins for item in node.all_input_nodes}
    last = [node for node in origins if node not in read]
    return last[0] if len(last) == 1 else None


def _written_over(node: fx.Node) -> fx.Node | None:
    """Return the input that an operation copies and overwrites, if it has an in-place variant, or None.

    The copy has the shape and type of the result.
    """
    packet = str(getattr(node.target, "overloadpacket", "")).removeprefix("aten.")
    source = node.args[0] if node.args and hasattr(torch.ops.aten, f"{packet}_") else None
    return source if isinstance(source, fx.Node) and _shape_of(source) == _shape_of(node) else None


def _read(node: Any) -> list[str]:
    """Return the names of the inputs of an operation without a loop of its own."""
    given = pytree.tree_leaves(list(node.inputs))
    return [item.get_name() for item in given if hasattr(item, "get_name")]


def _written(operation: Any) -> list[str]:
    """Return the names of the outputs of an operation, and the new names of the inputs to which it writes."""
    return [buffer.get_name() for buffer in operation.get_outputs()]


def _of_fused(schedule: Sequence[Any]) -> Provenance:
    # Others are markers between reductions.
    nodes = [node for node in schedule if getattr(node, "node", None) is not None]
    reads = [dep.name for node in nodes for dep in node.read_writes.reads]
    writes = [name for node in nodes for name in node.get_buffer_names()]
    return reads, writes, [item.name for node in nodes for item in node.node.origins]


def _lowered(
    given: fx.Graph, graph: Any, module: ModuleType, recorded: dict[int, Kernel], *, backward: bool
) -> LoweredGraph:
    code = _code_of(module)
    lines = {int(match[2]): _line(code, match) for match in _HANDLE.finditer(code)}
    sources = {match[1]: _line(code, match) for match in _SOURCE.finditer(code)}
    written = {match[2]: match[1] for match in _TRITON.finditer(code)}
    kernels = [
        replace(
            kernel,
            line=lines[handle],
            code=f"{module.__file__}:{sources.get(kernel.op, lines[handle] + 1)}",
            source_file=written.get(kernel.op, "") or _compiled_from(getattr(module, kernel.op, None)),
        )
        for handle, kernel in sorted(recorded.items())
        if handle in lines
    ]
    unstored = graph.removed_buffers | graph.inplaced_to_remove  # only the kernel itself uses them
    buffers = {
        name: buffer
        for name, buffer in graph.name_to_buffer.items()
        if name not in unstored and type(getattr(buffer, "layout", None)).__name__ != _SEVERAL
    }
    place: dict[str, str] = graph.scheduler.mutation_real_name
    exact = {**_layout_copies(graph.operations, place), **_exact(graph, buffers, place)}
    defined = {*re.findall(r"^\s*(\w+) = ", code, re.MULTILINE), *graph.graph_inputs}
    whole = tuple(
        _without_freed(kernel, code, defined, buffers)
        for kernel in _with_current_names(_with_items(kernels, buffers), place)
    )
    return LoweredGraph(given, graph.module.graph, whole, exact, module, backward)


def _with_current_names(kernels: Sequence[Kernel], place: Mapping[str, str]) -> Iterator[Kernel]:
    """Yield the kernels in order, with the names that the buffers have before and after each kernel."""
    now: dict[str, str] = {}
    for kernel in kernels:
        reads = dict.fromkeys(now.get(name, name) for name in kernel.reads)
        left = {place.get(name, name): name for name in kernel.writes}
        now |= left
        yield replace(kernel, reads=tuple(reads), writes=tuple(left.values()), variables=tuple(left))


def _exact(graph: Any, buffers: Mapping[str, Any], place: Mapping[str, str]) -> dict[str, str]:
    """Return the name of the operation whose result a buffer holds, for each time that it is written.

    Inductor records what a buffer holds in the end. It may record the same operation for the kernel that allocates the
    buffer: the zeros for a scatter, for example.
    """
    mutated = {*place, *place.values()}
    made = {
        name: node for name, buffer in buffers.items() if name not in mutated and (node := buffer.get_origin_node())
    }
    left: dict[tuple[str, fx.Node], str] = {}
    for operation in graph.operations:
        for name in mutated.intersection(_written(operation)):
            first = place.get(name, name)
            end = graph.try_get_buffer(first).get_origin_node()
            node = end if end in operation.origins else _last(operation.origins)
            if node is not None:
                source = _written_over(node) if left.get((first, node)) == first else None
                made |= {first: source} if source is not None else {}
                left[first, node] = name
    made |= {name: node for (_, node), name in left.items()}
    buffers = {name: graph.try_get_buffer(place.get(name, name)) for name in made}
    return {name: node.name for name, node in made.items() if _is_of_its_type(buffers[name], node)}


def _compiled_from(function: Any) -> str:
    """Return the C++ file next to the library from which a kernel was loaded, or `""`."""
    library = getattr(getattr(function, "__self__", None), "__file__", None)
    source = Path(library).with_suffix(".cpp") if library else None
    return str(source) if source is not None and source.is_file() else ""


def _layout_copies(operations: Sequence[Any], place: Mapping[str, str]) -> dict[str, str]:
    """Return the buffers with copies of a library function's inputs in the layout that it needs."""
    found: dict[str, str] = {}
    now: dict[str, str] = {}
    for operation in operations:
        inputs = pytree.tree_leaves(list(getattr(operation, "inputs", ())))
        node = _operation(operation) if inputs else None
        given = node.all_input_nodes if node is not None else []
        if len(given) == len(inputs):
            for buffer, source in zip(inputs, given, strict=True):
                copied = type(buffer).__name__ == "ComputedBuffer" and _shape(buffer) == _shape_of(source)
                if copied and _is_of_its_type(buffer, source):
                    found[now.get(buffer.get_name(), buffer.get_name())] = source.name  # pyright: ignore[reportArgumentType]  names of buffers are never None
        now |= {place[name]: name for name in _written(operation) if name in place}
    return found


def _is_of_its_type(buffer: Any, node: fx.Node) -> bool:
    """Return whether a buffer has the dtype of an operation's result; another one holds the result cast."""
    value, dtype = node.meta.get("val"), getattr(getattr(buffer, "layout", None), "dtype", None)
    return dtype is None or not isinstance(value, torch.Tensor) or value.dtype == dtype


def _shape(buffer: Any) -> list[str]:
    return [str(size) for size in buffer.get_size()]


def _shape_of(node: fx.Node) -> list[str] | None:
    value = node.meta.get("val")
    return [str(size) for size in value.shape] if isinstance(value, torch.Tensor) else None


def _line(code: str, match: re.Match[str]) -> int:
    return code.count("\n", 0, match.start()) + 1


def _code_of(module: ModuleType) -> str:
    if module.__file__ is None:
        raise BackendError("the code that Inductor generated has no file")
    return Path(module.__file__).read_text("utf-8")


_SEVERAL = "MultiOutputLayout"  # the layout of a tuple of tensors


def _without_freed(kernel: Kernel, code: str, defined: Collection[str], buffers: Collection[str]) -> Kernel:
    """Return the kernel without buffers that are not tensors or whose memory another buffer reuses."""
    preceding = "\n".join(code.splitlines()[: kernel.line])
    freed = set(re.findall(r"\bdel (\w+)", preceding))
    pairs = zip(kernel.variables, kernel.writes, strict=True)
    kept = {
        variable: name for variable, name in pairs if name in buffers and variable in defined and variable not in freed
    }
    return replace(kernel, writes=tuple(kept.values()), variables=tuple(kept))


def _with_items(kernels: Sequence[Kernel], buffers: dict[str, Any]) -> tuple[Kernel, ...]:
    """Add the buffers without a kernel of their own to the kernels.

    These are the items of a kernel's result, and concatenations of buffers that are adjacent in memory.
    """
    writer = {name: index for index, kernel in enumerate(kernels) for name in kernel.writes}
    added: dict[int, list[str]] = {}
    for name, buffer in buffers.items():
        if name not in writer and type(buffer).__name__ in ("MultiOutput", "ConcatKernel"):
            sources = [writer[source] for source in _read(buffer) if source in writer]
            if sources:
                writer[name] = max(sources)
                added.setdefault(writer[name], []).append(name)
    return tuple(
        replace(kernel, writes=(*kernel.writes, *added.get(index, ()))) for index, kernel in enumerate(kernels)
    )
