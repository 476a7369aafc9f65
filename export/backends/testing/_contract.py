"""Tests of the protocol `Backend` and of the optional protocols."""

import ast
import copy
import math
import sys
import tempfile
from collections.abc import Callable, Container, Iterable, Iterator
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any, ClassVar, TypeVar, get_args
from unittest import SkipTest

import onnx
import torch
from onnx import helper
from onnx_ir import serde
from torch import nn

from filch.steal.private._torch import pytree

from ..._errors import BackendError
from ...common._arrays import array_to_torch, torch_to_array
from ...exporting._export import export
from ...graph._fingerprint import fingerprint
from ...graph._graph import Graph
from ...program._program import Program
from .._backend import (
    Backend,
    Compiled,
    CompiledVariant,
    Isolates,
    Observes,
    Profiles,
    ProvidesReferences,
    ProvidesScript,
    RunsOtherVersions,
    Script,
    Stage,
    Switch,
    Switches,
    Values,
)
from .._eager import EagerBackend

T = TypeVar("T")
_ALL = 2**40  # bytes: a buffer that holds everything


class BackendContract:
    """Tests of a backend, to be inherited by a test class that defines `make_backend`.

    They check the protocol `Backend`, and each optional protocol that the backend implements (`Observes`, `Isolates`,
    `Profiles`, `Switches`, `ProvidesScript`, `RunsOtherVersions`, `ProvidesReferences`); tests of the others are
    skipped. pytest collects the class if its name begins with `Test`, and unittest if it also inherits from
    `unittest.TestCase`.

    >>> from filch.export.backends import get_backend
    >>> class TestReference(BackendContract):
    ...     def make_backend(self):
    ...         return get_backend("reference")

    Attributes:
        rtol: the relative tolerance of comparisons with eager PyTorch, as `torch.testing.assert_close` takes it.
        atol: the absolute tolerance.
        deterministic: whether the backend promises the same bits for the same inputs.
    """

    rtol: float = 1e-4
    atol: float = 1e-5
    deterministic: bool = True
    _shared_objects: ClassVar[dict[str, Any]]

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        cls._shared_objects = {}

    def make_backend(self) -> Backend:
        """Return the backend to test."""
        raise NotImplementedError("define which backend to test: def make_backend(self): return MyBackend()")

    def make_model(self) -> tuple[nn.Module, tuple[torch.Tensor, ...]]:
        """Return a model that the backend can run, and its arguments: by default a small multilayer perceptron.

        The outputs have to depend on the inputs and the parameters, and not on random numbers.
        """
        with torch.random.fork_rng(devices=()):
            torch.manual_seed(0)
            return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2)).eval(), (torch.randn(3, 4),)

    # Every backend.

    def test_name_and_stages(self) -> None:
        """`name` is a non-empty string, `stages` a non-empty tuple of `"exported"` and `"compiled"`."""
        backend = self.make_backend()
        _require(isinstance(backend.name, str) and backend.name, f"its name is {backend.name!r}")
        known, stages = get_args(Stage), backend.stages
        _require(isinstance(stages, tuple) and stages, f"its stages are {stages!r}, not a tuple of {known}")
        _require({*stages} <= {*known}, f"its stages {stages!r} are not all among {known}")

    def test_compiled_graph_has_the_interface_of_the_program(self) -> None:
        """The compiled graph has the inputs and, in order, the outputs of the program, or aliases of them."""
        exported = self._case.program.graph
        for stage, compiled in self._stages():
            _require(isinstance(compiled, Compiled), f"{stage}: `compile` returned a {type(compiled).__name__}")
            graph = compiled.graph
            _require({*graph.inputs} <= {*exported.inputs}, f"{stage}: it takes {graph.inputs}, not {exported.inputs}")
            outputs = tuple(map(compiled.exported_name, graph.outputs))
            _require(outputs == exported.outputs, f"{stage}: its outputs are {outputs}, not {exported.outputs}")

    def test_compiled_names_exist(self) -> None:
        """`origins` and `value_aliases` name nodes and values of the two graphs; each node follows its inputs."""
        exported = self._case.program.graph
        for stage, compiled in self._stages():
            graph = compiled.graph
            defined = {*graph.inputs, *graph.constants}
            for node in graph.nodes:
                early = {*node.reads} - defined
                _require(
                    not early, f"{stage}: node {node.name!r} reads {sorted(early)}, which no earlier node computes"
                )
                defined |= {*node.outputs}
            _require({*graph.outputs} <= defined, f"{stage}: no node computes {sorted({*graph.outputs} - defined)}")
            _require(len(graph.node_indices) == len(graph.nodes), f"{stage}: two nodes have the same name")
            _known(f"{stage}: `origins` has nodes", compiled.origins, graph.node_indices)
            origins = {name for names in compiled.origins.values() for name in names}
            _known(f"{stage}: `origins` has exported nodes", origins, exported.node_indices)
            _known(f"{stage}: `value_aliases` has values", compiled.value_aliases, graph.known)
            _known(f"{stage}: `value_aliases` has exported values", compiled.value_aliases.values(), exported.known)
            graphs = compiled.intermediate_graphs().values()
            _require(
                all(isinstance(item, Graph) for item in graphs), f"{stage}: an intermediate graph is not a `Graph`"
            )

    def test_compile_does_not_change_the_program(self) -> None:
        """`compile` leaves the model of the program unchanged."""
        program = self._case.program
        before = fingerprint(program.model)
        for stage in self._backend.stages:
            self._backend.compile(program, optimize=stage == "compiled")
            _require(fingerprint(program.model) == before, f"{stage}: `compile` changed the program's model")
            _require(not program.is_changed(), f"{stage}: `compile` changed the program's graph or weights")

    def test_outputs_are_close_to_eager_pytorch(self) -> None:
        """`run` returns all outputs by name, and nothing else, on the CPU, with the dtypes and numbers of the model."""
        for stage, compiled in self._stages():
            values = self._backend.run(compiled, self._case.inputs)
            _require(
                values.keys() == {*compiled.graph.outputs},
                f"{stage}: a run returns {sorted(values)}, not the outputs {sorted(compiled.graph.outputs)}",
            )
            self._close(stage, compiled, values, self._case.expected)

    def test_outputs_depend_on_the_inputs(self) -> None:
        """A second call with other inputs returns the outputs for these."""
        for stage, compiled in self._stages():
            self._backend.run(compiled, self._case.inputs)
            values = self._backend.run(compiled, self._case.other_inputs)
            self._close(f"{stage}, other inputs", compiled, values, self._case.others_expected)

    def test_inputs_need_not_be_contiguous(self) -> None:
        """Inputs may have any strides."""
        inputs = {name: torch.stack([tensor, tensor], -1)[..., 0] for name, tensor in self._case.inputs.items()}
        for stage, compiled in self._stages():
            values = self._backend.run(compiled, inputs)
            self._close(f"{stage}, inputs that are not contiguous", compiled, values, self._case.expected)

    def test_inputs_are_not_modified(self) -> None:
        """`run`, `observe` and `isolate` do not write into the inputs."""
        for stage, compiled in self._stages():
            inputs = copy.deepcopy(self._case.inputs)
            self._backend.run(compiled, inputs)
            self._backend.run(compiled, inputs, compiled.graph.producer)
            _same_bits(f"{stage}: after a run, input", inputs, self._case.inputs)
            if isinstance(self._backend, Observes):
                list(self._backend.observe(compiled, inputs, buffer=_ALL))
            if isinstance(self._backend, Isolates):
                list(self._backend.isolate(compiled, inputs, lambda _: None, buffer=_ALL))
            _same_bits(f"{stage}: after `observe` or `isolate`, input", inputs, self._case.inputs)

    def test_results_are_not_overwritten(self) -> None:
        """A later run does not write into the tensors that an earlier one returned."""
        for stage, compiled in self._stages():
            values = self._backend.run(compiled, self._case.inputs, compiled.graph.producer)
            before = copy.deepcopy({**values})
            self._backend.run(compiled, self._case.other_inputs, compiled.graph.producer)
            _same_bits(f"{stage}: after another run, value", values, before)

    def test_runs_are_deterministic(self) -> None:
        """Two runs on the same inputs return the same bits."""
        if not self.deterministic:
            raise SkipTest("the backend does not promise it")
        for stage, compiled in self._stages():
            first, second = (self._backend.run(compiled, self._case.inputs) for _ in range(2))
            _same_bits(f"{stage}: in a second run, output", second, first)

    def test_programs_do_not_interfere(self) -> None:
        """Compiling a second program does not change the results of the first."""
        model, args = self.make_model()
        with torch.no_grad():
            for parameter in model.parameters():
                if parameter.is_floating_point():
                    parameter.mul_(-0.5)
        other = _ContractCase(model, args)
        for stage in self._backend.stages:
            first = self._backend.compile(self._case.program, optimize=stage == "compiled")
            second = self._backend.compile(other.program, optimize=stage == "compiled")
            for compiled, case in ((first, self._case), (second, other), (first, self._case)):
                values = self._backend.run(compiled, case.inputs)
                self._close(f"{stage}, with two programs", compiled, values, case.expected)

    def test_watched_values_are_close_to_eager_pytorch(self) -> None:
        """Watched values are close to the exported values of the same name; `"exported"` returns some of them."""
        for stage, compiled in self._stages():
            graph = compiled.graph
            values = self._backend.run(compiled, self._case.inputs, graph.producer)
            _known(f"{stage}: a watched run returns values", values, graph.producer.keys() | {*graph.outputs})
            missing = {*graph.outputs} - values.keys()
            _require(not missing, f"{stage}: a watched run lacks {sorted(missing)}")
            inner = graph.producer.keys() - {*graph.outputs}
            if stage == "exported" and inner:
                _require(inner & values.keys(), f"{stage}: a watched run returns only outputs")
            self._close(f"{stage}, watched", compiled, values, self._case.values)

    def test_watching_does_not_change_the_outputs(self) -> None:
        """The outputs are the same bits with and without `watch`."""
        if not self.deterministic:
            raise SkipTest("the backend does not promise it")
        for stage, compiled in self._stages():
            plain = self._backend.run(compiled, self._case.inputs)
            watched = self._backend.run(compiled, self._case.inputs, compiled.graph.producer)
            _same_outputs(f"{stage}: in a watched run", compiled, watched, plain)

    def test_an_unknown_operator_is_a_backend_error(self) -> None:
        """`compile` or `run` raises a BackendError with a message."""
        graph = helper.make_graph(
            [helper.make_node("NoSuchOperator", ["x"], ["y"], "node", domain="filch.testing")],
            "unknown",
            [helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [2])],
            [helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, [2])],
        )
        opsets = [helper.make_opsetid("", 20), helper.make_opsetid("filch.testing", 1)]
        program = Program(serde.deserialize_model(helper.make_model(graph, opset_imports=opsets, ir_version=10)))

        def attempt(stage: Stage) -> None:
            compiled = self._backend.compile(program, optimize=stage == "compiled")
            self._backend.run(compiled, {"x": torch.ones(2)})

        for stage in self._backend.stages:
            _refused(f"{stage}: a program with an unknown operator", attempt, stage)

    def test_a_wrong_shape_is_a_backend_error(self) -> None:
        """A run that fails raises a BackendError; the next run works."""
        wrong = {name: torch.cat([tensor, tensor], -1) for name, tensor in self._case.inputs.items() if tensor.ndim}
        wrong = {**self._case.inputs, **wrong}
        for stage, compiled in self._stages():
            _refused(f"{stage}: inputs of wrong shapes", self._backend.run, compiled, wrong)
            values = self._backend.run(compiled, self._case.inputs)
            self._close(f"{stage}, after a run that failed", compiled, values, self._case.expected)

    # Optional protocols.

    def test_observe_shows_each_value_once_and_in_order(self) -> None:
        """See `Observes`: each value follows those that it is computed from, with any `buffer`."""
        backend = self._backend_with(Observes)
        for stage, compiled in self._stages():
            for buffer in (1, _ALL):
                items = list(backend.observe(compiled, self._case.inputs, buffer=buffer))
                self._in_order(f"{stage}: `observe`", compiled.graph, [name for name, _ in items])
                missing = (compiled.graph.producer.keys() & {*compiled.graph.outputs}) - dict(items).keys()
                _require(not missing, f"{stage}: `observe` lacks {sorted(missing)}")
                self._close(f"{stage}, observed", compiled, dict(items), self._case.values)

    def test_observe_does_not_change_the_outputs(self) -> None:
        """The outputs are the same bits with `observe` and with `run`."""
        backend = self._backend_with(Observes)
        if not self.deterministic:
            raise SkipTest("the backend does not promise it")
        for stage, compiled in self._stages():
            plain = self._backend.run(compiled, self._case.inputs)
            observed = dict(backend.observe(compiled, self._case.inputs, buffer=_ALL))
            _same_outputs(f"{stage}: in an observed run", compiled, observed, plain)

    def test_isolated_nodes_read_the_given_values(self) -> None:
        """See `Isolates`: a reference changes what the nodes that read it compute, not the node that computes it."""
        backend = self._backend_with(Isolates)
        for stage, compiled in self._stages():
            graph = compiled.graph
            plain = dict(backend.isolate(compiled, self._case.inputs, lambda _: None, buffer=_ALL))
            self._in_order(f"{stage}: `isolate`", graph, [*plain])
            self._close(f"{stage}, isolated", compiled, plain, self._case.values)
            last = graph.nodes[-1]
            selected = dict(backend.isolate(compiled, self._case.inputs, plain.get, nodes={last.name}, buffer=_ALL))
            _same_bits(f"{stage}: isolated alone, value", {name: selected[name] for name in last.outputs}, plain)
            # Comparisons, for example, may return the same for different inputs.
            floats = {name: tensor for name, tensor in plain.items() if tensor.is_floating_point() and tensor.numel()}
            for name, tensor in floats.items():
                ramp = torch.arange(1, tensor.numel() + 1).reshape(tensor.shape)  # softmax(x + 1) is softmax(x)
                references = {name: (tensor + ramp).to(tensor.dtype)}
                values = dict(backend.isolate(compiled, self._case.inputs, references.get, buffer=_ALL))
                _same_bits(f"{stage}: with a reference for it, value", {name: values[name]}, plain)
                results = [out for node in graph.consumers.get(name, ()) for out in node.outputs if out in floats]
                _require(
                    not results or any(not torch.equal(values[out], plain[out]) for out in results),
                    f"{stage}: isolated, {results} do not depend on the reference of {name!r}",
                )

    def test_profile_gives_seconds_by_node(self) -> None:
        """See `Profiles`: the keys are nodes of the compiled graph, the values are seconds."""
        backend = self._backend_with(Profiles)
        for stage, compiled in self._stages():
            times = backend.profile(compiled, self._case.inputs)
            _require(times, f"{stage}: `profile` is empty")
            _known(f"{stage}: `profile` has times of nodes", times, compiled.graph.node_indices)
            wrong = {name: time for name, time in times.items() if not 0 <= time < math.inf}
            _require(not wrong, f"{stage}: `profile` has negative or infinite times: {wrong}")

    def test_switched_off_steps_do_not_change_the_results(self) -> None:
        """See `Switches`: the first three steps can be turned off one by one; an unknown step is a BackendError."""
        backend = self._backend_with(Switches)
        whole = backend.compile_without(self._case.program, ())
        again = backend.compile_without(self._case.program, ())
        _require(
            whole.fingerprint == again.fingerprint, "`compile_without` returns two fingerprints for the same graph"
        )
        for off in ((), *((switch,) for switch in whole.switches[:3])):
            variant: CompiledVariant = backend.compile_without(self._case.program, off)
            values = self._backend.run(variant.compiled, self._case.inputs)
            self._close(f"without {off}", variant.compiled, values, self._case.expected)
        unknown = Switch("setting", "unknown_step")
        _refused("an unknown step", backend.compile_without, self._case.program, (unknown,))

    def test_the_script_runs_without_filch(self) -> None:
        """See `ProvidesScript`: the script defines `run`, does not import Filch, and computes the same outputs."""
        backend = self._backend_with(ProvidesScript)
        for stage in self._backend.stages:
            script = backend.script(optimize=stage == "compiled")
            _require(isinstance(script, Script), f"{stage}: `script` returned a {type(script).__name__}")
            imports = "\n".join(script.imports)
            _require("filch" not in _modules(imports + "\n" + script.code), f"{stage}: the script imports filch")
            _require(hasattr(import_module(script.module), "__version__"), f"{stage}: {script.module} has no version")
            names: dict[str, Any] = {}
            exec(f"{imports}\n{script.code}", names)  # noqa: S102  written by the backend under test
            _require(callable(names.get("run")), f"{stage}: the script defines no function `run`")
            if script.takes == "onnx":
                self._close_outputs(f"{stage}, run by its script", self._run_file(names["run"]))
            else:
                x = torch.arange(6.0)
                result = names["run"](lambda x: torch.relu(x - 3) * 2, {"x": x})
                torch.testing.assert_close(result, torch.relu(x - 3) * 2, rtol=self.rtol, atol=self.atol)

    def test_another_interpreter_gives_the_same_results(self) -> None:
        """See `RunsOtherVersions`: this interpreter returns the same outputs; a missing one is a BackendError."""
        backend = self._backend_with(RunsOtherVersions)
        version, values = backend.run_in(sys.executable, self._case.program, [self._case.inputs])
        _require(isinstance(version, str) and version, f"`run_in` returns the version {version!r}")
        _require(len(values) == 1, f"`run_in` returns {len(values)} results for one call")
        self._close_outputs("in another interpreter", [values[0][name] for name in self._case.program.graph.outputs])
        with tempfile.TemporaryDirectory() as folder:
            missing = str(Path(folder, "python"))
            _refused("a missing interpreter", backend.run_in, missing, self._case.program, [])

    def test_references_are_close_to_the_values(self) -> None:
        """See `ProvidesReferences`: the references are close to what the graph computes."""
        backend = self._backend_with(ProvidesReferences)
        for stage, compiled in self._stages():
            references = backend.reference(compiled, self._case.inputs)
            _known(f"{stage}: `reference` returns values", references, compiled.graph.known)
            values = self._backend.run(compiled, self._case.inputs, [*references])
            for name in references.keys() & values.keys():
                self._one_close(f"{stage}, compared with its own reference", name, values[name], references[name])

    @property
    def _backend(self) -> Backend:
        """The backend, which all tests of the class share."""
        return self._shared("backend", self.make_backend)

    @property
    def _case(self) -> "_ContractCase":
        """The program and its inputs, which all tests of the class share."""
        return self._shared("case", lambda: _ContractCase(*self.make_model()))

    def _backend_with(self, protocol: type) -> Any:
        """Return the backend, or skip the test if it does not implement an optional protocol."""
        if not isinstance(self._backend, protocol):
            raise SkipTest(f"the backend does not implement the optional protocol {protocol.__name__}")
        return self._backend

    def _shared(self, name: str, make: Callable[[], T]) -> T:
        """Return an object that all tests of the class share, because compiling may take long."""
        if name not in self._shared_objects:
            self._shared_objects[name] = make()
        return self._shared_objects[name]  # type: ignore[no-any-return]

    def _stages(self) -> Iterator[tuple[Stage, Compiled]]:
        """Yield each stage with the program as compiled for it."""
        for stage in self._backend.stages:
            compile_stage = partial(self._backend.compile, self._case.program, optimize=stage == "compiled")
            yield stage, self._shared(stage, compile_stage)

    def _close(self, where: str, compiled: Compiled, values: Values, expected: Values) -> None:
        """Check that compiled values are close to the exported values that they equal, where these are known."""
        for name, tensor in values.items():
            known = expected.get(compiled.exported_name(name))
            if known is not None:
                self._one_close(where, name, tensor, known)

    def _close_outputs(self, where: str, values: Any) -> None:
        """Check that outputs, in the order of the program's, are close to those of the model."""
        outputs = self._case.program.graph.outputs
        for name, value in zip(outputs, values, strict=True):
            expected = self._case.expected[name]
            tensor = value if isinstance(value, torch.Tensor) else array_to_torch(value)
            if expected.dtype == torch.bfloat16 and not isinstance(value, torch.Tensor):
                tensor = tensor.bfloat16()  # see `Script.code`
            self._one_close(where, name, tensor, expected)

    def _one_close(self, where: str, name: str, actual: Any, expected: torch.Tensor) -> None:
        """Check that one value is close to the expected one."""
        _require(isinstance(actual, torch.Tensor), f"{where}: {name!r} is a {type(actual).__name__}, not a tensor")
        torch.testing.assert_close(
            actual.detach(), expected, rtol=self.rtol, atol=self.atol, msg=lambda text: f"{where}: {name!r}: {text}"
        )

    def _in_order(self, where: str, graph: Graph, names: list[str]) -> None:
        """Check that values of the graph were yielded once each, and after those that they are computed from."""
        _require(len({*names}) == len(names), f"{where} yields a value twice: {names}")
        _known(f"{where} yields values", names, graph.producer.keys() | {*graph.outputs})
        position = {name: index for index, name in enumerate(names)}
        for name, node in graph.producer.items():
            late = [read for read in node.reads if name in position and position.get(read, -1) > position[name]]
            _require(not late, f"{where} yields {name!r} before {late}, from which it is computed")

    def _run_file(self, run: Callable[..., Any]) -> Any:
        """Return the outputs that the function of a script returns for the program in a file."""
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, "model.onnx")
            self._case.program.save(path, original=False)
            inputs = {name: torch_to_array(tensor) for name, tensor in self._case.inputs.items()}
            return run(path, list(self._case.program.graph.outputs), inputs)


class _ContractCase:
    """A program, the inputs of two calls, and what eager PyTorch computes for them, by the exported names."""

    def __init__(self, model: nn.Module, args: tuple[torch.Tensor, ...]) -> None:
        self.program = export(model, args)
        graph = self.program.graph
        self.inputs: Values = dict(zip(graph.inputs, args, strict=True))
        self.other_inputs: Values = {name: _other(tensor) for name, tensor in self.inputs.items()}
        with torch.no_grad():
            results, other_results = model(*args), model(*self.other_inputs.values())
        self.expected: Values = dict(zip(graph.outputs, pytree.tree_leaves(results), strict=True))
        self.others_expected: Values = dict(zip(graph.outputs, pytree.tree_leaves(other_results), strict=True))
        compiled = EagerBackend().compile(self.program, optimize=False)
        self.values: Values = {**EagerBackend().run(compiled, self.inputs, graph.producer), **self.expected}


def _other(tensor: torch.Tensor) -> torch.Tensor:
    """Return an input with other numbers."""
    if tensor.is_floating_point():
        return tensor * -0.5
    return tensor.flip(-1) if tensor.ndim else tensor


def _modules(code: str) -> set[str]:
    """Return the packages that a script imports."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.Import):
            names |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names.add((node.module or "").partition(".")[0])
    return names


def _require(condition: object, message: str) -> None:
    """Fail with a message unless a condition holds."""
    if not condition:
        raise AssertionError(message)


def _known(what: str, names: Iterable[str], known: Container[str]) -> None:
    """Fail unless all names are known; `what` begins the message."""
    unknown = sorted({name for name in names if name not in known})
    _require(not unknown, f"{what} that do not exist: {unknown}")


def _same_outputs(where: str, compiled: Compiled, values: Values, plain: Values) -> None:
    """Check that the outputs among some values have the bits of those of an earlier, plain run."""
    outputs = {name: values[name] for name in compiled.graph.outputs if name in values}
    _same_bits(f"{where}, output", outputs, plain)


def _same_bits(what: str, values: Values, expected: Values) -> None:
    """Fail unless each value has the bits, dtype and shape of the expected one; `what` begins the message."""
    for name, tensor in values.items():
        one, other = (item.detach().reshape(-1).view(torch.uint8) for item in (tensor, expected[name]))
        same = tensor.dtype == expected[name].dtype and tensor.shape == expected[name].shape
        _require(same and torch.equal(one, other), f"{what} {name!r} has different bits")


def _refused(what: str, call: Callable[..., Any], *args: Any) -> None:
    """Fail unless a call raises a `BackendError` with a message; `what` begins the message."""
    try:
        call(*args)
    except BackendError as error:
        _require(str(error).strip(), f"{what}: the BackendError has no message")
    except Exception as error:
        raise AssertionError(f"{what}: a {type(error).__name__} instead of a BackendError: {error}") from error
    else:
        raise AssertionError(f"{what}: no BackendError")
