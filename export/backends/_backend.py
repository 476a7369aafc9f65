"""The interface of a backend: the required `Backend`, and the optional protocols."""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, runtime_checkable

import torch
from torch import fx

from filch.steal._tf32 import Product

from .._errors import BackendError
from ..graph._graph import Graph
from ..program._program import Program

Values = Mapping[str, torch.Tensor]
Stage = Literal["exported", "compiled"]
ReferenceLookup = Callable[[str], torch.Tensor | None]  # see `references` in `Isolates.isolate`


@dataclass(frozen=True)
class Compiled:
    """A program that a backend has compiled.

    Attributes:
        graph: the graph that runs.
        handle: the backend's own object, used to run the graph.
        origins: maps the name of a node of `graph` to the names of the exported nodes that it computes, where the
            backend reports them. The origins of other nodes are inferred from the values that they read and write.
        value_aliases: maps the name of a value of `graph` to the exported value that it equals, if their names differ.
        notes: remarks for the report, for example a precision that the backend chose itself.
        tf32: the products whose float32 factors the backend may round to TF32.
        intermediate_graphs: returns the graphs between the program and `graph` by name, if the backend exposes any.
            Called only when they are needed.
    """

    graph: Graph
    handle: Any
    origins: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    value_aliases: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    tf32: frozenset[Product] = frozenset()
    intermediate_graphs: Callable[[], Mapping[str, Graph]] = dict

    def exported_name(self, name: str) -> str:
        """Return the name that a value of `graph` has in the exported graph."""
        return self.value_aliases.get(name, name)


class Backend(Protocol):
    """Compiles a program and runs the result.

    Attributes:
        name: the name in `compare(backend=…)`.
        stages: `("exported",)` if it only runs the program as it stands, `("compiled",)` if it always makes another
            graph of it, both if it can do either. `compile` is called for these stages only.
    """

    name: str
    stages: tuple[Stage, ...]

    def compile(self, program: Program, *, optimize: bool) -> Compiled:
        """Make `program` ready to run.

        Args:
            program: its ONNX model is what runs; backends that run PyTorch take the exported program.
            optimize: True compiles as the backend does for its users; False runs the program node by node, unoptimized.

        Raises:
            BackendError: the backend's library, device or an operator is missing.
        """
        ...

    def run(self, compiled: Compiled, inputs: Values, watch: Collection[str] = ()) -> Values:
        """Run a compiled program.

        Args:
            compiled: the result of `compile`.
            inputs: the inputs of the graph by name, on the CPU.
            watch: names of values in `compiled.graph` to return besides the outputs. Watching must not change what
                runs: `compare` reports a backend whose outputs change.

        Returns:
            the outputs and the watched values by name, on the CPU, without those that are not tensors.

        Raises:
            BackendError: running fails.
        """
        ...


class NotCompiledError(BackendError):
    """A backend can't compile a program with its transformations.

    Attributes:
        switches: the transformations that it had applied before it failed, as of `CompiledVariant`.
    """

    def __init__(self, message: str, switches: tuple["Switch", ...] = ()) -> None:
        super().__init__(message)
        self.switches = switches


@runtime_checkable
class Observes(Protocol):
    """A backend that can return values one by one, so that they need not all be in memory at once."""

    def observe(self, compiled: Compiled, inputs: Values, *, buffer: int) -> Iterator[tuple[str, torch.Tensor]]:
        """Run a compiled program and yield the name and tensor of each value, after the values that it depends on.

        Args:
            compiled: the result of `compile`.
            inputs: see `Backend.run`.
            buffer: how many bytes of values may be in memory at a time. A single value, or the outputs of a single
                node, may exceed it.
        """
        ...


@runtime_checkable
class Isolates(Protocol):
    """A backend that can run each node on reference inputs, instead of what the nodes before it computed."""

    def isolate(
        self,
        compiled: Compiled,
        inputs: Values,
        references: ReferenceLookup,
        *,
        nodes: Collection[str] | None = None,
        buffer: int,
    ) -> Iterator[tuple[str, torch.Tensor]]:
        """Run a compiled program, each node on reference inputs.

        The function `isolate` does so for backends without this method.

        Args:
            compiled: the result of `compile`.
            inputs: see `Backend.run`.
            references: returns the reference of a value of `compiled.graph`, by its name there, in the layout, shape
                and dtype in which the backend returns the value. If it returns None, or a tensor of another shape or
                dtype, the computed value is kept: the node that computes it and those that read it then run as one.
                It is called in the order in which the values are computed.
            nodes: the names of the nodes of `compiled.graph` to run; None is all. Each value that they read and that no
                other of them computes has a reference, or is an input or weight. A backend may run further nodes.
            buffer: how many bytes of values, references included, may be in memory at a time, if the backend can
                limit that. The outputs of a single node may exceed it.

        Returns:
            the name of each value and what its node computed from the references, in the form in which the backend
            returns it, after the values that the node depends on.

        Raises:
            BackendError: running fails.
        """
        ...


@runtime_checkable
class Profiles(Protocol):
    """A backend that can measure the time of each node."""

    def profile(self, compiled: Compiled, inputs: Values) -> Mapping[str, float]:
        """Return the seconds that each node of `compiled.graph` takes, by name, in a warm run that watches nothing."""
        ...


@dataclass(frozen=True, order=True)
class Switch:
    """A step of the compilation, or a setting, that can be turned off.

    Attributes:
        kind: `graph transformer`, `rewrite rule`, `setting` …
        name: the backend's name for it.
        changes_graph: whether turning it off can change the compiled graph; False if it only affects kernels.
    """

    kind: str
    name: str
    changes_graph: bool = field(default=True, compare=False)


@dataclass(frozen=True)
class CompiledVariant:
    """A program compiled with some steps turned off.

    Attributes:
        compiled: see `Backend.compile`.
        switches: the steps that were applied and can be turned off, in the order in which they are applied. If the
            backend reports only that one of several steps had an effect, all of them.
        fingerprint: identifies the graph that runs: different graphs have different fingerprints.
    """

    compiled: Compiled
    switches: tuple[Switch, ...]
    fingerprint: str


@runtime_checkable
class Switches(Protocol):
    """A backend that can turn off single steps of the compilation."""

    def compile_without(self, program: Program, off: Collection[Switch]) -> CompiledVariant:
        """Compile `program` as the backend does for its users, but with some steps turned off.

        Args:
            program: see `Backend.compile`.
            off: the steps to turn off: from the `switches` of an earlier result, or named by a user.

        Raises:
            BackendError: there is no such step, or the program can't be compiled without it.
        """
        ...


@runtime_checkable
class RunsOtherVersions(Protocol):
    """A backend that can run a program in other Python interpreters, which have other versions of its library."""

    def run_in(self, interpreter: str, program: Program, inputs: Sequence[Values]) -> tuple[str, list[Values]]:
        """Run `program` in another interpreter, compiled as the backend does for its users.

        Args:
            interpreter: path of a Python interpreter that has the library; it needs nothing else.
            program: see `Backend.compile`.
            inputs: one mapping per call; see `Backend.run`.

        Returns:
            the version of the library, and the outputs of each call by name.

        Raises:
            BackendError: there is no such interpreter, or it can't run the program.
        """
        ...


@runtime_checkable
class ProvidesReferences(Protocol):
    """A backend that can compute references for values that only its compiled graph has."""

    def reference(self, compiled: Compiled, inputs: Values) -> Values:
        """Return what these values are in eager PyTorch, by their names in `compiled.graph`, on the CPU.

        Args:
            compiled: the result of `compile`.
            inputs: see `Backend.run`.
        """
        ...


@dataclass(frozen=True)
class Script:
    """Code that runs a backend without Filch.

    Attributes:
        takes: what the code runs: an ONNX file (`onnx`) or a Python function of tensors (`torch`).
        imports: the import statements that `code` needs.
        code: the function `run`. For `onnx`, it takes the path of the file, the names of the outputs and the inputs by
            name as numpy arrays, and returns the outputs in a list; bfloat16, which NumPy lacks, may be float32. For
            `torch`, it takes a function and its arguments by name, and returns what the function returns.
        module: the import name of the backend's library, which has a `__version__`.
    """

    takes: Literal["onnx", "torch"]
    imports: tuple[str, ...]
    code: str
    module: str


@runtime_checkable
class ProvidesScript(Protocol):
    """A backend that can write a script which runs a program in the same way without Filch."""

    def script(self, *, optimize: bool) -> Script:
        """Return the code.

        Args:
            optimize: see `Backend.compile`.

        Raises:
            BackendError: an option of this backend can't be written as code.
        """
        ...


@dataclass(frozen=True)
class BackwardRun:
    """One backward pass of a compiled graph.

    Attributes:
        graph: the backward graph of AOTAutograd.
        compiled: the kernels that Inductor generated for it.
        values: its inputs, what the kernels stored and the outputs of the watched run, by name.
        reference: runs `graph` in eager PyTorch on the same inputs, and returns what its nodes compute, by name.
        outputs: the gradients of the run without watched values, by the names of `graph.outputs`.
        module: the graph as a module.
        arguments: the arguments of the module, by name.
        isolate: runs each kernel on references instead of what those before it stored (see `Isolates.isolate`), and
            returns what it stores, by name.
    """

    graph: Graph
    compiled: Compiled
    values: Values
    reference: Callable[[], Values]
    outputs: Values
    module: fx.GraphModule
    arguments: Mapping[str, Any]
    isolate: Callable[[ReferenceLookup], Values]


@runtime_checkable
class CompilesTorch(Protocol):
    """A backend that can compile any torch graph, not only exported programs."""

    def compile_graph(self, module: fx.GraphModule, inputs: Sequence[Any], *, own_random: bool = False) -> Compiled:
        """Compile a torch graph.

        Args:
            module: its inputs and outputs are flat, and its weights are among its inputs.
            inputs: the inputs of the first call.
            own_random: whether kernels draw random numbers as they do for any user; else PyTorch draws them, the same
                ones as in eager PyTorch with the same seed.

        Returns:
            the compiled graph. `run` takes the inputs by the names of the graph's placeholders. Its `handle` is called
            as `module` is and supports autograd; `handle.watch_backward(callback)` calls `callback` with the
            `BackwardRun` of the first backward pass.
        """
        ...


@runtime_checkable
class SwitchesTorch(Protocol):
    """A backend that can compile any torch graph, and turn off single steps of the compilation."""

    def compile_graph_without(
        self, module: fx.GraphModule, inputs: Sequence[Any], off: Collection[Switch]
    ) -> CompiledVariant:
        """Compile a torch graph with some steps turned off.

        Args:
            module: see `CompilesTorch.compile_graph`.
            inputs: see there.
            off: see `Switches.compile_without`.

        Raises:
            BackendError: there is no such step, or the graph can't be compiled without it.
        """
        ...
