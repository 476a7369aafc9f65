"""What Inductor made of a graph: its kernels, the buffers that they write, and the operations that they come from.

Inductor tells this on the way, to parts of torch that have no public name. All of them are reached here, and nowhere
else; a torch in which one is missing is refused by name.
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

_TELLS = "set_kernel_post_grad_provenance_tracing"
# All that import the function by its name; a module without it is another torch's.
_TOLD = ("torch._inductor.debug", "torch._inductor.codegen.cpp", "torch._inductor.codegen.triton")
# What calls a library that writes to what it is given, and tells nobody.
_SILENT = ("ScatterFallback", "IndexPutFallback")
_HANDLE = re.compile(r"\[Provenance debug handles\] (\S+):(\d+)$", re.MULTILINE)
_SOURCE = re.compile(r"^(\w+) = async_compile\.", re.MULTILINE)
_TRITON = re.compile(r"^# kernel path: (\S+)\n(?:#.*\n|\n)*(\w+) = async_compile\.", re.MULTILINE)
_ONE_AT_A_TIME = threading.RLock()  # what is patched is the whole process's

Call = Callable[[list[Any]], Any]  # flat inputs to flat outputs; empties the list, so that inputs can be freed


@dataclass(frozen=True)
class Kernel:
    """One call in the code that Inductor generated.

    Attributes:
        name: the function's and its number in the code: `cpp_fused_add_relu_0:3`.
        op: the function's (`cpp_fused_add_relu_0`, `extern_kernels.addmm`).
        reads: the names of the buffers and of the graph's inputs that it reads.
        writes: the names of the buffers that it writes; one that is written to once more has another name from then on.
        origins: the names of the operations of Inductor's own graph that it computes.
        line: of the comment before its call.
        code: `file:line` of its source in the generated code; of its call, if it is not generated.
        own: the file that its source was written to by itself; "" if it is not generated, or there is none.
        variables: by what names the generated code knows what it writes.
    """

    name: str
    op: str
    reads: tuple[str, ...]
    writes: tuple[str, ...]
    origins: tuple[str, ...]
    line: int = 0
    code: str = ""
    own: str = ""
    variables: tuple[str, ...] = ()


@dataclass(frozen=True)
class Lowered:
    """One graph that Inductor compiled.

    Attributes:
        given: the graph as AOTAutograd handed it over: functional, nothing optimised.
        graph: Inductor's own, after its passes and before code is generated.
        kernels: in the order in which they run.
        exact: by the name of what is written, the operation of `graph` whose numbers it is, if it is one's, by name.
        module: the generated code.
        backward: whether it computes gradients.
    """

    given: fx.Graph
    graph: fx.Graph
    kernels: tuple[Kernel, ...]
    exact: dict[str, str]
    module: ModuleType
    backward: bool


@contextlib.contextmanager
def lowering(given: fx.GraphModule, made: Callable[[Lowered, Call], Call], *, backward: bool) -> Iterator[None]:
    """Call `made` with what Inductor makes of `given` inside of the block, and with the generated function.

    What `made` returns runs in place of the generated function.

    Raises:
        BackendError: this version of torch does not tell.
    """
    before = fx.Graph()
    output: Any = before.graph_copy(given.graph, {}, return_output_node=True)
    if output is not None:
        before.output(output[0]).meta.update(output[1].meta)
    lowering_type = _part("torch._inductor.graph", "GraphLowering")
    compile_to_module = lowering_type.compile_to_module
    told: dict[int, Kernel] = {}

    def compiled(graph: Any) -> ModuleType:
        module: Any = compile_to_module(graph)  # each file of generated code has a `call`
        lowered = _lowered(before, graph, module, told, backward=backward)
        module.call = made(lowered, module.call)
        return module  # type: ignore[no-any-return]

    with _ONE_AT_A_TIME, contextlib.ExitStack() as stack:
        for name in _TOLD:
            stack.enter_context(mock.patch.object(import_module(name), _TELLS, _telling(_part(name, _TELLS), told)))
        for name in _SILENT:
            call = _part("torch._inductor.ir", name)
            stack.enter_context(mock.patch.object(call, "codegen", _commented(call.codegen)))
        stack.enter_context(mock.patch.object(lowering_type, "compile_to_module", compiled))
        yield


def _part(module: str, name: str) -> Any:
    try:
        return getattr(import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise BackendError(
            f"backend 'inductor' can't see the kernels of torch {torch.__version__}: it has no {module}.{name}; "
            "versions from 2.11 on have it"
        ) from error


def _telling(tell: Callable[..., int | None], told: dict[int, Kernel]) -> Callable[..., int | None]:
    """What Inductor calls for each kernel, which keeps what it is called with."""

    def telling(schedule: Any, kernel_name: str, is_extern: bool = False) -> int | None:  # noqa: FBT001, FBT002  torch's
        handle = tell(schedule, kernel_name, is_extern)
        if handle is not None:
            reads, writes, origins = _of_extern(schedule) if is_extern else _of_fused(schedule)
            kept = tuple(name for name in dict.fromkeys(reads) if name not in writes)
            name = f"{kernel_name}:{handle}"
            told[handle] = Kernel(name, kernel_name, kept, tuple(writes), tuple(dict.fromkeys(origins)))
        return handle

    return telling


def _commented(codegen: Callable[[Any, Any], None]) -> Callable[[Any, Any], None]:
    """What writes a call to the code, with the comment before it that other calls have: that is when Inductor tells."""

    def commented(node: Any, wrapper: Any) -> None:
        node.codegen_comment(wrapper)
        codegen(node, wrapper)

    return commented


Told = tuple[Sequence[str], Sequence[str], Sequence[str]]


def _of_extern(node: Any) -> Told:
    exact = _operation(node) or (_last(node.origins) if node.get_mutation_names() else None)
    return _read(node), _written(node), [item.name for item in ([exact] if exact is not None else node.origins)]


def _operation(node: Any) -> fx.Node | None:
    """The operation that a call of a library computes; its other origins are those of its inputs."""
    own = [item for item in node.origins if item.target == getattr(node, "op_overload", None)]
    return node.origin_node if node.origin_node is not None else own[0] if own else None


def _last(origins: Collection[fx.Node]) -> fx.Node | None:
    """The operation whose numbers come out where several are computed; None if that is not one."""
    read = {item for node in origins for item in node.all_input_nodes}
    last = [node for node in origins if node not in read]
    return last[0] if len(last) == 1 else None


def _written_over(node: fx.Node) -> fx.Node | None:
    """What an operation that has a form in place copies, to write over it; None if it has no such form, or copies none.

    The copy is what it makes of the same shape and type.
    """
    packet = str(getattr(node.target, "overloadpacket", "")).removeprefix("aten.")
    source = node.args[0] if node.args and hasattr(torch.ops.aten, f"{packet}_") else None
    return source if isinstance(source, fx.Node) and _shape_of(source) == _shape_of(node) else None


def _read(node: Any) -> list[str]:
    """The names of what an operation without a loop of its own is given."""
    given = pytree.tree_leaves(list(node.inputs))
    return [item.get_name() for item in given if hasattr(item, "get_name")]


def _written(operation: Any) -> list[str]:
    """The names of what an operation makes, and of what it is given and writes to, as they are from then on."""
    return [buffer.get_name() for buffer in operation.get_outputs()]


def _of_fused(schedule: Sequence[Any]) -> Told:
    nodes = [node for node in schedule if getattr(node, "node", None) is not None]  # not the marks between reductions
    reads = [dep.name for node in nodes for dep in node.read_writes.reads]
    writes = [name for node in nodes for name in node.get_buffer_names()]
    return reads, writes, [item.name for node in nodes for item in node.node.origins]


def _lowered(given: fx.Graph, graph: Any, module: ModuleType, told: dict[int, Kernel], *, backward: bool) -> Lowered:
    code = _code(module)
    lines = {int(found[2]): _line(code, found) for found in _HANDLE.finditer(code)}
    sources = {found[1]: _line(code, found) for found in _SOURCE.finditer(code)}
    written = {found[2]: found[1] for found in _TRITON.finditer(code)}
    kernels = [
        replace(
            kernel,
            line=lines[handle],
            code=f"{module.__file__}:{sources.get(kernel.op, lines[handle] + 1)}",
            own=written.get(kernel.op, "") or _compiled_from(getattr(module, kernel.op, None)),
        )
        for handle, kernel in sorted(told.items())
        if handle in lines
    ]
    unstored = graph.removed_buffers | graph.inplaced_to_remove  # nobody but the kernel itself would have read them
    held = {
        name: buffer
        for name, buffer in graph.name_to_buffer.items()
        if name not in unstored and type(getattr(buffer, "layout", None)).__name__ != _SEVERAL
    }
    place: dict[str, str] = graph.scheduler.mutation_real_name
    exact = {**_laid_out(graph.operations, place), **_exact(graph, held, place)}
    there = {*re.findall(r"^\s*(\w+) = ", code, re.MULTILINE), *graph.graph_inputs}
    whole = tuple(_living(kernel, code, there, held) for kernel in _in_turn(_with_parts(kernels, held), place))
    return Lowered(given, graph.module.graph, whole, exact, module, backward)


def _in_turn(kernels: Sequence[Kernel], place: Mapping[str, str]) -> Iterator[Kernel]:
    """The kernels in the order in which they run, each reading what a buffer then holds and writing what it leaves."""
    now: dict[str, str] = {}
    for kernel in kernels:
        reads = dict.fromkeys(now.get(name, name) for name in kernel.reads)
        left = {place.get(name, name): name for name in kernel.writes}
        now |= left
        yield replace(kernel, reads=tuple(reads), writes=tuple(left.values()), variables=tuple(left))


def _exact(graph: Any, held: Mapping[str, Any], place: Mapping[str, str]) -> dict[str, str]:
    """The operation whose numbers are in a buffer, for each time that it is written.

    Inductor says of a buffer what it holds in the end. What made the buffer may have been said to compute the same:
    zeros are there for a scatter alone.
    """
    mutated = {*place, *place.values()}
    made = {name: node for name, buffer in held.items() if name not in mutated and (node := buffer.get_origin_node())}
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
    """The C++ file beside the library that a kernel was loaded from."""
    library = getattr(getattr(function, "__self__", None), "__file__", None)
    source = Path(library).with_suffix(".cpp") if library else None
    return str(source) if source is not None and source.is_file() else ""


def _laid_out(operations: Sequence[Any], place: Mapping[str, str]) -> dict[str, str]:
    """The buffers that hold what a library is given, copied for it in the layout that it wants."""
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
                    found[now.get(buffer.get_name(), buffer.get_name())] = source.name  # pyright: ignore[reportArgumentType]  names of buffers are no None
        now |= {place[name]: name for name in _written(operation) if name in place}
    return found


def _is_of_its_type(buffer: Any, node: fx.Node) -> bool:
    """Whether a buffer holds what an operation makes, and not what another one is to read, cast for it."""
    value, dtype = node.meta.get("val"), getattr(getattr(buffer, "layout", None), "dtype", None)
    return dtype is None or not isinstance(value, torch.Tensor) or value.dtype == dtype


def _shape(buffer: Any) -> list[str]:
    return [str(size) for size in buffer.get_size()]


def _shape_of(node: fx.Node) -> list[str] | None:
    value = node.meta.get("val")
    return [str(size) for size in value.shape] if isinstance(value, torch.Tensor) else None


def _line(code: str, found: re.Match[str]) -> int:
    return code.count("\n", 0, found.start()) + 1


def _code(module: ModuleType) -> str:
    if module.__file__ is None:
        raise BackendError("Inductor keeps no file of the code that it generated")
    return Path(module.__file__).read_text("utf-8")


_SEVERAL = "MultiOutputLayout"  # of what is taken apart at once, and no tensor


def _living(kernel: Kernel, code: str, there: Collection[str], held: Collection[str]) -> Kernel:
    """The kernel without the buffers that are no tensors, or have no room: another of its own takes their place."""
    before = "\n".join(code.splitlines()[: kernel.line])
    gone = set(re.findall(r"\bdel (\w+)", before))
    pairs = zip(kernel.variables, kernel.writes, strict=True)
    living = {variable: name for variable, name in pairs if name in held and variable in there and variable not in gone}
    return replace(kernel, writes=tuple(living.values()), variables=tuple(living))


def _with_parts(kernels: Sequence[Kernel], held: dict[str, Any]) -> tuple[Kernel, ...]:
    """The kernels, with the buffers that have no kernel of their own.

    These are the items of what a kernel returns, and what is put together of several buffers that lie side by side.
    """
    writer = {name: index for index, kernel in enumerate(kernels) for name in kernel.writes}
    added: dict[int, list[str]] = {}
    for name, buffer in held.items():
        if name not in writer and type(buffer).__name__ in ("MultiOutput", "ConcatKernel"):
            sources = [writer[source] for source in _read(buffer) if source in writer]
            if sources:
                writer[name] = max(sources)
                added.setdefault(writer[name], []).append(name)
    return tuple(
        replace(kernel, writes=(*kernel.writes, *added.get(index, ()))) for index, kernel in enumerate(kernels)
    )
