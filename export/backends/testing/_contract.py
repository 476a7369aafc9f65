"""The tests of what `Backend`, and each ability that a backend may have besides, promises."""

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
from torch.utils._pytree import tree_leaves

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
    _held: ClassVar[dict[str, Any]]

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        cls._held = {}

    def make_backend(self) -> Backend:
        """The backend that is tested."""
        raise NotImplementedError("say which backend is tested: def make_backend(self): return MyBackend()")

    def make_model(self) -> tuple[nn.Module, tuple[torch.Tensor, ...]]:
        """A model that the backend can run, and what it is called with; a small multilayer perceptron.

        Its results depend on its inputs and on its parameters, and it draws no random numbers.
        """
        with torch.random.fork_rng(devices=()):
            torch.manual_seed(0)
            return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2)).eval(), (torch.randn(3, 4),)

    # Every backend.

    def test_name_and_stages(self) -> None:
        """`name` is a non-empty text, `stages` a non-empty tuple of `"exported"` and `"compiled"`."""
        backend = self.make_backend()
        _require(isinstance(backend.name, str) and backend.name, f"its name is {backend.name!r}")
        known = get_args(Stage)
        stages = backend.stages
        _require(isinstance(stages, tuple) and stages, f"its stages are {stages!r}, which is no tuple of {known}")
        _require({*stages} <= {*known}, f"its stages {stages!r} are not all among {known}")

    def test_compiled_graph_has_the_interface_of_the_program(self) -> None:
        """The compiled graph has the inputs and, in order, the outputs of the program, or aliases of them."""
        exported = self._case.program.graph
        for stage, compiled in self._stages():
            _require(isinstance(compiled, Compiled), f"{stage}: `compile` gave a {type(compiled).__name__}")
            graph = compiled.graph
            _require({*graph.inputs} <= {*exported.inputs}, f"{stage}: it takes {graph.inputs}, not {exported.inputs}")
            known_as = tuple(map(compiled.exported_name, graph.outputs))
            _require(known_as == exported.outputs, f"{stage}: its outputs are {known_as}, not {exported.outputs}")

    def test_compiled_names_exist(self) -> None:
        """`origins` and `value_aliases` name nodes and values of the two graphs; each node follows its inputs."""
        exported = self._case.program.graph
        for stage, compiled in self._stages():
            graph = compiled.graph
            there = {*graph.inputs, *graph.constants}
            for node in graph.nodes:
                late = {*node.reads} - there
                _require(not late, f"{stage}: node {node.name!r} reads {sorted(late)}, which no earlier node computes")
                there |= {*node.outputs}
            _require({*graph.outputs} <= there, f"{stage}: nothing makes {sorted({*graph.outputs} - there)}")
            _require(len(graph.places) == len(graph.nodes), f"{stage}: two nodes have one name")
            _known(f"{stage}: `origins` is for nodes", compiled.origins, graph.places)
            origins = {name for names in compiled.origins.values() for name in names}
            _known(f"{stage}: `origins` names exported nodes", origins, exported.places)
            _known(f"{stage}: `value_aliases` is for values", compiled.value_aliases, graph.known)
            _known(f"{stage}: `value_aliases` names exported values", compiled.value_aliases.values(), exported.known)
            graphs = compiled.intermediate_graphs().values()
            _require(all(isinstance(item, Graph) for item in graphs), f"{stage}: `intermediate_graphs` are no graphs")

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
            found = self._backend.run(compiled, self._case.inputs)
            _require(
                found.keys() == {*compiled.graph.outputs},
                f"{stage}: a run gives {sorted(found)}, not the outputs {sorted(compiled.graph.outputs)}",
            )
            self._close(stage, compiled, found, self._case.expected)

    def test_outputs_depend_on_the_inputs(self) -> None:
        """A second call with other inputs returns the outputs for these."""
        for stage, compiled in self._stages():
            self._backend.run(compiled, self._case.inputs)
            found = self._backend.run(compiled, self._case.other_inputs)
            self._close(f"{stage}, other inputs", compiled, found, self._case.others_expected)

    def test_inputs_need_not_be_contiguous(self) -> None:
        """Inputs may have any strides."""
        inputs = {name: _scattered(tensor) for name, tensor in self._case.inputs.items()}
        for stage, compiled in self._stages():
            found = self._backend.run(compiled, inputs)
            self._close(f"{stage}, inputs that are not contiguous", compiled, found, self._case.expected)

    def test_inputs_are_not_modified(self) -> None:
        """`run`, `observe` and `isolate` do not write into the inputs."""
        for stage, compiled in self._stages():
            inputs = copy.deepcopy(self._case.inputs)
            self._backend.run(compiled, inputs)
            self._backend.run(compiled, inputs, compiled.graph.producer)
            _same_bits(f"{stage}: after a run, input", inputs, self._case.inputs)
            if isinstance(self._backend, Observes):
                for _ in self._backend.observe(compiled, inputs, buffer=_ALL):
                    pass
                _same_bits(f"{stage}: after `observe`, input", inputs, self._case.inputs)
            if isinstance(self._backend, Isolates):
                for _ in self._backend.isolate(compiled, inputs, lambda _: None, buffer=_ALL):
                    pass
                _same_bits(f"{stage}: after `isolate`, input", inputs, self._case.inputs)

    def test_results_are_not_overwritten(self) -> None:
        """A later run does not write into the tensors that an earlier one returned."""
        for stage, compiled in self._stages():
            found = self._backend.run(compiled, self._case.inputs, compiled.graph.producer)
            before = copy.deepcopy({**found})
            self._backend.run(compiled, self._case.other_inputs, compiled.graph.producer)
            _same_bits(f"{stage}: after another run, value", found, before)

    def test_runs_are_deterministic(self) -> None:
        """Two runs on the same inputs return the same bits."""
        if not self.deterministic:
            raise SkipTest("the backend does not promise it")
        for stage, compiled in self._stages():
            first, second = (self._backend.run(compiled, self._case.inputs) for _ in range(2))
            _same_bits(f"{stage}: in a second run, output", second, first)

    def test_programs_do_not_interfere(self) -> None:
        """Compiling a second program does not change the results of the first."""
        other = _Case(*self._other_model())
        for stage in self._backend.stages:
            first = self._backend.compile(self._case.program, optimize=stage == "compiled")
            second = self._backend.compile(other.program, optimize=stage == "compiled")
            for compiled, case in ((first, self._case), (second, other), (first, self._case)):
                found = self._backend.run(compiled, case.inputs)
                self._close(f"{stage}, with two programs", compiled, found, case.expected)

    def test_watched_values_are_close_to_eager_pytorch(self) -> None:
        """Watched values have the numbers of the exported values of the same name; `"exported"` shows some."""
        for stage, compiled in self._stages():
            graph = compiled.graph
            found = self._backend.run(compiled, self._case.inputs, graph.producer)
            _known(f"{stage}: a watched run gives values", found, graph.producer.keys() | {*graph.outputs})
            _complete(f"{stage}: a watched run", graph.outputs, found)
            inner = graph.producer.keys() - {*graph.outputs}
            _require(
                stage == "compiled" or not inner or inner & found.keys(), f"{stage}: no value but outputs is watched"
            )
            self._close(f"{stage}, watched", compiled, found, self._case.values)

    def test_watching_does_not_change_the_outputs(self) -> None:
        """The outputs are the same bits with and without `watch`."""
        if not self.deterministic:
            raise SkipTest("two runs of this backend differ anyhow")
        for stage, compiled in self._stages():
            plain = self._backend.run(compiled, self._case.inputs)
            watched = self._backend.run(compiled, self._case.inputs, compiled.graph.producer)
            outputs = {name: watched[name] for name in compiled.graph.outputs if name in watched}
            _same_bits(f"{stage}: in a watched run, output", outputs, plain)

    def test_an_unknown_operator_is_a_backend_error(self) -> None:
        """`compile` or `run` raises a BackendError with a message."""
        program = _unknown_operator()

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
            found = self._backend.run(compiled, self._case.inputs)
            self._close(f"{stage}, after a run that failed", compiled, found, self._case.expected)

    # Optional abilities.

    def test_observe_shows_each_value_once_and_in_order(self) -> None:
        """See `Observes`: each value after those that it is computed from, whatever the buffer is."""
        backend = self._backend
        if not isinstance(backend, Observes):
            raise _lacks(Observes)
        for stage, compiled in self._stages():
            for buffer in (1, _ALL):
                shown = list(backend.observe(compiled, self._case.inputs, buffer=buffer))
                self._in_order(f"{stage}: `observe`", compiled.graph, [name for name, _ in shown])
                made = compiled.graph.producer.keys() & {*compiled.graph.outputs}
                _complete(f"{stage}: `observe`", made, dict(shown))
                self._close(f"{stage}, observed", compiled, dict(shown), self._case.values)

    def test_observe_does_not_change_the_outputs(self) -> None:
        """The outputs are the same bits with `observe` and with `run`."""
        backend = self._backend
        if not isinstance(backend, Observes):
            raise _lacks(Observes)
        if not self.deterministic:
            raise SkipTest("two runs of this backend differ anyhow")
        for stage, compiled in self._stages():
            plain = self._backend.run(compiled, self._case.inputs)
            shown = dict(backend.observe(compiled, self._case.inputs, buffer=_ALL))
            outputs = {name: shown[name] for name in compiled.graph.outputs if name in shown}
            _same_bits(f"{stage}: in an observed run, output", outputs, plain)

    def test_isolated_nodes_read_the_given_values(self) -> None:
        """See `Isolates`: a given value changes the nodes that read it, and not the node that makes it."""
        backend = self._backend
        if not isinstance(backend, Isolates):
            raise _lacks(Isolates)
        for stage, compiled in self._stages():
            graph = compiled.graph
            plain = dict(backend.isolate(compiled, self._case.inputs, lambda _: None, buffer=_ALL))
            self._in_order(f"{stage}: `isolate`", graph, [*plain])
            self._close(f"{stage}, isolated", compiled, plain, self._case.values)
            # Comparisons and the like may give the same whatever they read.
            shown = {name: tensor for name, tensor in plain.items() if tensor.is_floating_point() and tensor.numel()}
            for name, tensor in shown.items():
                ramp = torch.arange(1, tensor.numel() + 1).reshape(tensor.shape)  # softmax(x + 1) is softmax(x)
                given = {name: (tensor + ramp).to(tensor.dtype)}
                found = dict(backend.isolate(compiled, self._case.inputs, given.get, buffer=_ALL))
                _same_bits(f"{stage}: with a given value, its own node's result", {name: found[name]}, plain)
                readers = [made for node in graph.consumers.get(name, ()) for made in node.outputs if made in shown]
                _require(
                    not readers or any(not torch.equal(found[made], plain[made]) for made in readers),
                    f"{stage}: isolated, {readers} do not depend on what is given for {name!r}",
                )

    def test_profile_gives_seconds_by_node(self) -> None:
        """See `Profiles`: the keys are nodes of the compiled graph, the values are seconds."""
        backend = self._backend
        if not isinstance(backend, Profiles):
            raise _lacks(Profiles)
        for stage, compiled in self._stages():
            times = backend.profile(compiled, self._case.inputs)
            _require(times, f"{stage}: `profile` is empty")
            _known(f"{stage}: `profile` has times of nodes", times, compiled.graph.places)
            wrong = {name: time for name, time in times.items() if not 0 <= time < math.inf}
            _require(not wrong, f"{stage}: `profile` has values that are no times: {wrong}")

    def test_switched_off_steps_do_not_change_the_results(self) -> None:
        """See `Switches`: the first few steps can be left out one by one; an unknown step is a BackendError."""
        backend = self._backend
        if not isinstance(backend, Switches):
            raise _lacks(Switches)
        whole = backend.compile_without(self._case.program, ())
        again = backend.compile_without(self._case.program, ())
        _require(whole.fingerprint == again.fingerprint, "`compile_without` gives the same graph two fingerprints")
        for off in ((), *((switch,) for switch in whole.switches[:3])):
            made: CompiledVariant = backend.compile_without(self._case.program, off)
            found = self._backend.run(made.compiled, self._case.inputs)
            self._close(f"without {off}", made.compiled, found, self._case.expected)
        unknown = Switch("setting", "no_step_is_called_so")
        _refused("an unknown step", backend.compile_without, self._case.program, (unknown,))

    def test_the_script_runs_without_filch(self) -> None:
        """See `ProvidesScript`: the script defines `run`, does not import Filch, and computes the same outputs."""
        backend = self._backend
        if not isinstance(backend, ProvidesScript):
            raise _lacks(ProvidesScript)
        for stage in self._backend.stages:
            script = backend.script(optimize=stage == "compiled")
            _require(isinstance(script, Script), f"{stage}: `script` gave a {type(script).__name__}")
            imports = "\n".join(script.imports)
            _require("filch" not in _modules(imports + "\n" + script.code), f"{stage}: the script imports filch")
            _require(hasattr(import_module(script.module), "__version__"), f"{stage}: {script.module} has no version")
            names: dict[str, Any] = {}
            exec(f"{imports}\n{script.code}", names)  # noqa: S102  what the backend under test has written
            _require(callable(names.get("run")), f"{stage}: the script defines no function `run`")
            if script.takes == "onnx":
                self._close_outputs(f"{stage}, by its script", self._run_file(names["run"]))
            else:
                x = torch.arange(6.0)
                found = names["run"](lambda x: torch.relu(x - 3) * 2, {"x": x})
                torch.testing.assert_close(found, torch.relu(x - 3) * 2, rtol=self.rtol, atol=self.atol)

    def test_another_interpreter_gives_the_same_results(self) -> None:
        """See `RunsOtherVersions`: this interpreter gives the same outputs; a missing one is a BackendError."""
        backend = self._backend
        if not isinstance(backend, RunsOtherVersions):
            raise _lacks(RunsOtherVersions)
        version, found = backend.run_in(sys.executable, self._case.program, [self._case.inputs])
        _require(isinstance(version, str) and version, f"`run_in` gives the version {version!r}")
        _require(len(found) == 1, f"`run_in` gives {len(found)} results of one call")
        self._close_outputs("in another interpreter", [found[0][name] for name in self._case.program.graph.outputs])
        with tempfile.TemporaryDirectory() as folder:
            missing = str(Path(folder, "python"))
            _refused("a missing interpreter", backend.run_in, missing, self._case.program, [])

    def test_references_are_close_to_the_values(self) -> None:
        """See `ProvidesReferences`: the references are close to what the graph computes."""
        backend = self._backend
        if not isinstance(backend, ProvidesReferences):
            raise _lacks(ProvidesReferences)
        for stage, compiled in self._stages():
            said = backend.reference(compiled, self._case.inputs)
            _known(f"{stage}: `reference` is about values", said, compiled.graph.known)
            found = self._backend.run(compiled, self._case.inputs, [*said])
            for name in said.keys() & found.keys():
                self._one_close(f"{stage}, against its own reference", name, found[name], said[name])

    @property
    def _backend(self) -> Backend:
        return self._once("backend", self.make_backend)

    @property
    def _case(self) -> "_Case":
        return self._once("case", lambda: _Case(*self.make_model()))

    def _once(self, what: str, make: Callable[[], T]) -> T:
        """What all tests of the class share; compiling may take long."""
        if what not in self._held:
            self._held[what] = make()
        return self._held[what]  # type: ignore[no-any-return]

    def _stages(self) -> Iterator[tuple[Stage, Compiled]]:
        for stage in self._backend.stages:
            yield stage, self._once(stage, partial(self._compile, stage))

    def _compile(self, stage: Stage) -> Compiled:
        return self._backend.compile(self._case.program, optimize=stage == "compiled")

    def _other_model(self) -> tuple[nn.Module, tuple[torch.Tensor, ...]]:
        model, args = self.make_model()
        with torch.no_grad():
            for parameter in model.parameters():
                if parameter.is_floating_point():
                    parameter.mul_(-0.5)
        return model, args

    def _close(self, where: str, compiled: Compiled, found: Values, expected: Values) -> None:
        """Check what is found against the exported values that it is said to be, as far as these are known."""
        for name, tensor in found.items():
            known = expected.get(compiled.exported_name(name))
            if known is not None:
                self._one_close(where, name, tensor, known)

    def _close_outputs(self, where: str, found: Any) -> None:
        outputs = self._case.program.graph.outputs
        for name, value in zip(outputs, found, strict=True):
            tensor = value if isinstance(value, torch.Tensor) else array_to_torch(value)
            self._one_close(where, name, tensor, self._case.expected[name])

    def _one_close(self, where: str, name: str, actual: Any, expected: torch.Tensor) -> None:
        _require(isinstance(actual, torch.Tensor), f"{where}: {name!r} is a {type(actual).__name__} and no tensor")
        torch.testing.assert_close(
            actual.detach(), expected, rtol=self.rtol, atol=self.atol, msg=lambda text: f"{where}: {name!r}: {text}"
        )

    def _in_order(self, where: str, graph: Graph, names: list[str]) -> None:
        _require(len({*names}) == len(names), f"{where} shows a value twice: {names}")
        _known(f"{where} shows", names, graph.producer.keys() | {*graph.outputs})
        place = {name: index for index, name in enumerate(names)}
        for name, node in graph.producer.items():
            late = [read for read in node.reads if name in place and place.get(read, -1) > place[name]]
            _require(not late, f"{where} shows {name!r} before {late}, of which it is made")

    def _run_file(self, run: Callable[..., Any]) -> Any:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, "model.onnx")
            self._case.program.save(path, original=False)
            inputs = {name: torch_to_array(tensor) for name, tensor in self._case.inputs.items()}
            return run(path, list(self._case.program.graph.outputs), inputs)


class _Case:
    """A program, two calls of it, and what eager PyTorch makes of them, by the exported names."""

    def __init__(self, model: nn.Module, args: tuple[torch.Tensor, ...]) -> None:
        self.program = export(model, args)
        graph = self.program.graph
        self.inputs: Values = dict(zip(graph.inputs, args, strict=True))
        self.other_inputs: Values = {name: _other(tensor) for name, tensor in self.inputs.items()}
        self.expected: Values = _results(model, args, graph)
        self.others_expected: Values = _results(model, tuple(self.other_inputs.values()), graph)
        eager = EagerBackend()
        made = eager.compile(self.program, optimize=False)
        self.values: Values = {**eager.run(made, self.inputs, graph.producer), **self.expected}


def _results(model: nn.Module, args: tuple[torch.Tensor, ...], graph: Graph) -> Values:
    with torch.no_grad():
        found = tree_leaves(model(*args))
    return dict(zip(graph.outputs, found, strict=True))


def _other(tensor: torch.Tensor) -> torch.Tensor:
    """Other numbers, which are as good an input."""
    if tensor.is_floating_point():
        return tensor * -0.5
    return tensor.flip(-1) if tensor.ndim else tensor


def _scattered(tensor: torch.Tensor) -> torch.Tensor:
    """The same numbers, each apart from the next in memory."""
    return torch.stack([tensor, tensor], -1)[..., 0]


def _unknown_operator() -> Program:
    graph = helper.make_graph(
        [helper.make_node("NoSuchOperator", ["x"], ["y"], "node", domain="filch.testing")],
        "unknown",
        [helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [2])],
        [helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, [2])],
    )
    opsets = [helper.make_opsetid("", 20), helper.make_opsetid("filch.testing", 1)]
    return Program(serde.deserialize_model(helper.make_model(graph, opset_imports=opsets, ir_version=10)))


def _modules(code: str) -> set[str]:
    """The packages that a script imports."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.Import):
            found |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found.add((node.module or "").partition(".")[0])
    return found


def _lacks(ability: type) -> SkipTest:
    return SkipTest(f"the backend lacks the optional ability {ability.__name__}")


def _require(condition: object, message: str) -> None:
    if not condition:
        raise AssertionError(message)


def _known(what: str, names: Iterable[str], known: Container[str]) -> None:
    unknown = sorted({name for name in names if name not in known})
    _require(not unknown, f"{what} that do not exist: {unknown}")


def _complete(what: str, wanted: Iterable[str], found: Container[str]) -> None:
    missing = sorted({name for name in wanted if name not in found})
    _require(not missing, f"{what} lacks {missing}")


def _same_bits(what: str, found: Values, expected: Values) -> None:
    for name, tensor in found.items():
        same = tensor.dtype == expected[name].dtype and tensor.shape == expected[name].shape
        _require(
            same and torch.equal(_bytes(tensor), _bytes(expected[name])),
            f"{what} {name!r} has other bits",
        )


def _bytes(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().reshape(-1).view(torch.uint8)


def _refused(what: str, call: Callable[..., Any], *args: Any) -> None:
    try:
        call(*args)
    except BackendError as error:
        _require(str(error).strip(), f"{what}: the BackendError has no message")
    except Exception as error:
        raise AssertionError(f"{what}: a {type(error).__name__} and no BackendError: {error}") from error
    else:
        raise AssertionError(f"{what}: no BackendError")
