"""What a backend has to be able to do, and what it may be able to do besides."""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, runtime_checkable

import torch
from torch import fx

from ..graph._graph import Graph
from ..program._program import Program

Values = Mapping[str, torch.Tensor]
Stage = Literal["exported", "compiled"]


@dataclass(frozen=True)
class Compiled:
    """What a backend made of a program.

    Attributes:
        graph: the graph that really runs.
        handle: the backend's own, to run it.
        origins: by the name of a node of `graph`, the names of the exported nodes that it computes, where the backend
            says so itself; the others' are found by the values around them.
        same: by the name of a value of `graph`, the exported value that has its numbers, where their names differ.
        notes: what a reader of the numbers has to know: a precision that the backend chose itself.
        products: what the factors of matrix products and convolutions are rounded to, relative, where the backend
            rounds them further than their type does (TF32: 2**-11); 0 where it does not.
        steps: gives the graphs that the backend made on its way from the program to `graph`, by name, where it shows
            them; read when somebody asks.
    """

    graph: Graph
    handle: Any
    origins: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    same: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    products: float = 0.0
    steps: Callable[[], Mapping[str, Graph]] = dict


class Backend(Protocol):
    """Compiles a program, and runs what it compiled.

    Attributes:
        name: what `compare(backend=…)` calls it.
        stages: `("exported",)` if it runs the program as it stands alone, `("compiled",)` if it always makes another
            graph of it, both if it can do both; `compile` is asked for these alone.
    """

    name: str
    stages: tuple[Stage, ...]

    def compile(self, program: Program, *, optimize: bool) -> Compiled:
        """Make `program` ready to run.

        Args:
            program: its ONNX model is what runs; backends of torch take the exported program.
            optimize: as the backend runs it for its users; otherwise, node by node as it stands.

        Raises:
            BackendError: the backend's library, device or an operator is missing.
        """
        ...

    def run(self, compiled: Compiled, inputs: Values, watch: Collection[str] = ()) -> Values:
        """Run what was compiled.

        Args:
            compiled: what `compile` returned.
            inputs: the tensors that the graph takes, by name, on the CPU.
            watch: names of values in `compiled.graph` to return besides the outputs. Watching must not change what
                runs; a backend that can't promise this is found out by the comparison of the outputs.

        Returns:
            the outputs and the watched values by name, on the CPU; a value that can't be had (it is no tensor) is left
            out.

        Raises:
            BackendError: running fails.
        """
        ...


@runtime_checkable
class Observes(Protocol):
    """A backend that can show values one after the other, so that not all of them are in memory at once."""

    def observe(self, compiled: Compiled, inputs: Values, *, buffer: int) -> Iterator[tuple[str, torch.Tensor]]:
        """Run what was compiled, and give each value of its graph: name and tensor, each after those that it needs.

        Args:
            compiled: what `compile` returned.
            inputs: as `Backend.run` takes them.
            buffer: bytes of values that may be held at a time; one value or one node's are held however large.
        """
        ...


Should = Callable[[str], torch.Tensor | None]


@runtime_checkable
class Isolates(Protocol):
    """A backend that can run each node on what its inputs should be, not on what the nodes before it made."""

    def isolate(
        self, compiled: Compiled, inputs: Values, given: Should, *, buffer: int
    ) -> Iterator[tuple[str, torch.Tensor]]:
        """Run what was compiled, every node on given inputs; see `isolate` for the backends that can't.

        Args:
            compiled: what `compile` returned.
            inputs: as `Backend.run` takes them.
            given: what a value of `compiled.graph` should be, by its name there: in the form, shape and dtype that the
                backend shows it in. None leaves what was computed, and so does what does not fit: the nodes before it
                and those that read it are one group then. It is asked in the order in which the values are made.
            buffer: bytes of values, given ones too, that may be held at a time, where the backend can keep to it; one
                node's are held however large.

        Returns:
            each value's name and what its node made of the given inputs, in the form in which the backend shows it,
            after those that the node needs.

        Raises:
            BackendError: running fails.
        """
        ...


@runtime_checkable
class Profiles(Protocol):
    """A backend that knows how long each node takes."""

    def profile(self, compiled: Compiled, inputs: Values) -> Mapping[str, float]:
        """The seconds that each node of `compiled.graph` takes, by its name, in an undisturbed run that is warm."""
        ...


@dataclass(frozen=True, order=True)
class Switch:
    """One thing that a backend does to a program, or with it, and can leave.

    Attributes:
        kind: what it is: `graph transformer`, `rewrite rule`, `setting` …
        name: what the backend calls it.
        shows: whether it can be seen in the compiled graph if it is left; what a kernel does inside can't.
    """

    kind: str
    name: str
    shows: bool = field(default=True, compare=False)


@dataclass(frozen=True)
class Switched:
    """What a backend made of a program with some things left.

    Attributes:
        compiled: as `Backend.compile` returns it, to be run likewise.
        switches: what was done and could have been left, in the order in which it is done: what changed the graph;
            where the backend says that of several things together only, all of them.
        fingerprint: of the graph that runs: another one if that is another graph.
    """

    compiled: Compiled
    switches: tuple[Switch, ...]
    fingerprint: str


@runtime_checkable
class Switches(Protocol):
    """A backend that can leave single steps of what it does to a program."""

    def switched(self, program: Program, off: Collection[Switch]) -> Switched:
        """Compile `program` as the backend runs it for its users, but without some steps.

        Args:
            program: as for `Backend.compile`.
            off: what is to be left: of the `switches` that it said before, or what a user has named.

        Raises:
            BackendError: it knows no such step, or can't compile the program without.
        """
        ...


@runtime_checkable
class RunsElsewhere(Protocol):
    """A backend that can run a program in other interpreters, which have other versions of its library."""

    def run_in(self, interpreter: str, program: Program, inputs: Sequence[Values]) -> tuple[str, list[Values]]:
        """Run `program` as the backend runs it for its users.

        Args:
            interpreter: a Python that has the library; nothing else is needed there.
            program: as for `Backend.compile`.
            inputs: for each call, as `Backend.run` takes them.

        Returns:
            the library's version, and the outputs of each call by name.

        Raises:
            BackendError: there is no such interpreter, or it can't run the program.
        """
        ...


@runtime_checkable
class Refers(Protocol):
    """A backend that knows what values of its compiled graph should be that the exported graph does not have."""

    def reference(self, compiled: Compiled, inputs: Values) -> Values:
        """What these values are in eager PyTorch, by their names in `compiled.graph`, on the CPU.

        Args:
            compiled: what `compile` returned.
            inputs: as `Backend.run` takes them.
        """
        ...


@dataclass(frozen=True)
class Script:
    """How a backend is run without Filch: code that needs its library alone.

    Attributes:
        takes: what it runs: an ONNX file (`onnx`) or a Python function of tensors (`torch`).
        imports: the lines that import what `code` needs.
        code: the function `run`. Of the path of an ONNX file, the names of outputs and the inputs by name, which are
            numpy arrays, it returns the outputs in a list; of a function and its arguments by name, what that returns.
        module: the library's import name; it has a `__version__`.
    """

    takes: Literal["onnx", "torch"]
    imports: tuple[str, ...]
    code: str
    module: str


@runtime_checkable
class Scripted(Protocol):
    """A backend that others can run as it is run here, without Filch."""

    def script(self, *, optimize: bool) -> Script:
        """The code that does it.

        Args:
            optimize: see `Backend.compile`.

        Raises:
            BackendError: an option of this backend can't be written down.
        """
        ...


@dataclass(frozen=True)
class BackwardRun:
    """One backward pass of a compiled graph.

    Attributes:
        graph: as AOTAutograd made it, node by node.
        compiled: the kernels that Inductor made of it.
        values: what it was given, what the kernels stored and what it returned while that was watched, by name.
        expected: what the nodes of `graph` are in eager PyTorch on the same inputs, by name.
        outputs: the gradients, by the names of `graph.outputs`.
    """

    graph: Graph
    compiled: Compiled
    values: Values
    expected: Values
    outputs: Values


@runtime_checkable
class CompilesTorch(Protocol):
    """A backend that compiles a torch graph itself, not only what was exported of a model."""

    def compile_graph(self, module: fx.GraphModule, inputs: Sequence[Any]) -> Compiled:
        """Compile a graph as it stands.

        Args:
            module: takes and returns flat values; its weights are among its inputs.
            inputs: what it is first called with.

        Returns:
            what was made. Its `handle` is called as `module` is, undisturbed, and gradients flow through it;
            `handle.watch_backward(see)` calls `see` with the `BackwardRun` of the first pass back. `run` takes the
            inputs by the names of the graph's placeholders.
        """
        ...
