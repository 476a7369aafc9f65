"""The contract of backends: every one of ours keeps it, and each way of breaking it is found."""

import sys
from dataclasses import replace
from pathlib import Path
from unittest import SkipTest, TestCase

import pytest
import torch
from torch import nn

from filch.export import BackendError
from filch.export.backends import CompiledVariant, Script, Switch, get_backend
from filch.export.backends.testing import BackendContract
from support.models.small import module_of
from support.processes.gpu import ort_cuda

EAGER, REFERENCE = get_backend("eager"), get_backend("reference")
RELU, GEMM = Switch("rule", "relu"), Switch("rule", "gemm")


class Sound:
    """One with all abilities, none of them broken."""

    name = "sound"
    stages = ("exported",)
    library = "onnx"

    def compile(self, program, *, optimize):
        return replace(REFERENCE.compile(program, optimize=optimize), handle=program)

    def run(self, compiled, inputs, watch=()):
        program = compiled.handle
        return REFERENCE.run(REFERENCE.compile(program, optimize=False), inputs, watch)

    def observe(self, compiled, inputs, *, buffer):
        values = self.run(compiled, inputs, compiled.graph.producer)
        yield from ((name, values[name]) for name in compiled.graph.producer)

    def isolate(self, compiled, inputs, given, *, nodes=None, buffer):
        made = REFERENCE.compile(compiled.handle, optimize=False)
        yield from REFERENCE.isolate(made, inputs, given, nodes=nodes, buffer=buffer)

    def profile(self, compiled, inputs):
        return dict.fromkeys(compiled.graph.node_indices, 0.5)

    def compile_without(self, program, off):
        if unknown := {*off} - {RELU, GEMM}:
            raise BackendError(f"unknown: {unknown}")
        return CompiledVariant(self.compile(program, optimize=True), (RELU, GEMM), str(len(off)))

    def script(self, *, optimize):
        return REFERENCE.script(optimize=optimize)

    def run_in(self, interpreter, program, inputs):
        if not Path(interpreter).exists():
            raise BackendError(f"there is no {interpreter}")
        made = self.compile(program, optimize=True)
        return "1.0", [self.run(made, call) for call in inputs]

    def reference(self, compiled, inputs):
        return EAGER.run(EAGER.compile(compiled.handle, optimize=False), inputs, compiled.graph.producer)


class TestSound(BackendContract):
    def make_backend(self):
        return Sound()


class TestEager(BackendContract):
    def make_backend(self):
        return get_backend("eager")


class TestReference(BackendContract):
    def make_backend(self):
        return get_backend("reference")


class TestOnnxRuntime(BackendContract):
    def make_backend(self):
        return get_backend("onnxruntime-cpu")


class TestOpenVino(BackendContract):
    def make_backend(self):
        return get_backend("openvino")


class TestInductor(BackendContract):
    def make_backend(self):
        return get_backend("inductor")


def net(self, ids, scale):
    """Several inputs and outputs of several dtypes, one of them an input, layers of other kinds."""
    x = self.norm(self.conv(self.embedding(ids).transpose(1, 2))) * scale
    return x.softmax(-1), x.argmax(-1), x > 0, scale


class OfNet(BackendContract):
    def make_model(self):
        with torch.random.fork_rng(devices=()):
            torch.manual_seed(0)
            model = module_of(
                net, embedding=nn.Embedding(16, 8), conv=nn.Conv1d(8, 8, 3, padding=1), norm=nn.LayerNorm(6)
            )
            return model.eval(), (torch.randint(16, (2, 6)), torch.rand(6))


class TestNetOnEager(OfNet, TestEager): ...


class TestNetOnReference(OfNet, TestReference): ...


class TestNetOnOnnxRuntime(OfNet, TestOnnxRuntime): ...


class TestNetOnOpenVino(OfNet, TestOpenVino): ...


class TestNetOnInductor(OfNet, TestInductor): ...


@pytest.mark.gpu
class TestNetOnEagerOnCuda(OfNet):
    rtol = atol = 2e-3  # cuDNN rounds the inputs of convolutions to TF32 by default

    def make_backend(self):
        return get_backend("eager", device="cuda")


@pytest.mark.gpu
class TestNetOnInductorOnCuda(OfNet):
    rtol = atol = 2e-3  # as above
    test_the_script_runs_without_filch = None  # it has none: `device` is implemented by Filch

    def make_backend(self):
        return get_backend("inductor", device="cuda")


@pytest.mark.gpu
class TestNetOnOnnxRuntimeOnCuda(OfNet):
    def make_backend(self):
        return ort_cuda(tf32=False)


def of(**methods):
    """A class that is broken in these attributes; a method `f` may call the sound one by `Sound.f`."""
    return type("Broken", (Sound,), methods)


def compiling(change):
    """One whose `compile` gives what `change` makes of the sound `Compiled`."""
    return of(compile=lambda self, program, *, optimize: change(Sound.compile(self, program, optimize=optimize)))


def running(change):
    """One whose `run` gives what `change` makes of the sound values, the inputs and what is watched."""

    def run(self, compiled, inputs, watch=()):
        return change({**Sound.run(self, compiled, inputs, watch)}, compiled, inputs, watch)

    return of(run=run)


def observing(change):
    return of(observe=lambda self, *args, **kwargs: iter(change([*Sound.observe(self, *args, **kwargs)])))


def scripted(code, takes="onnx", imports=()):
    return of(script=lambda self, *, optimize: Script(takes, imports, code, "onnx"))


def changing_the_program(self, program, *, optimize):
    program.model.graph.remove(program.model.graph[-1], safe=False)
    return Sound.compile(self, program, optimize=optimize)


class Cached(Sound):
    """Runs on the inputs that it saw first."""

    def run(self, compiled, inputs, watch=()):
        self.first = getattr(self, "first", inputs)
        return super().run(compiled, self.first, watch)


class InOneBuffer(Sound):
    """Gives its results in the same memory each time."""

    def run(self, compiled, inputs, watch=()):
        held = self.__dict__.setdefault("held", {})
        found = super().run(compiled, inputs, watch)
        return {name: held.setdefault(name, torch.empty_like(found[name])).copy_(found[name]) for name in found}


class OneProgram(Sound):
    """Runs what it compiled last."""

    def compile(self, program, *, optimize):
        self.last = program
        return super().compile(program, optimize=optimize)

    def run(self, compiled, inputs, watch=()):
        return super().run(replace(compiled, handle=self.last), inputs, watch)


class WrongWithout(Sound):
    """Gives zeros if a step is left out."""

    def compile_without(self, program, off):
        found = super().compile_without(program, off)
        return replace(found, compiled=replace(found.compiled, notes=tuple(map(str, off))))

    def run(self, compiled, inputs, watch=()):
        return {name: tensor * (not compiled.notes) for name, tensor in super().run(compiled, inputs, watch).items()}


class BrokenByAnError(Sound):
    """After a run that failed, gives zeros."""

    failed = False

    def run(self, compiled, inputs, watch=()):
        try:
            found = super().run(compiled, inputs, watch)
        except BackendError:
            self.failed = True
            raise
        return {name: tensor * (not self.failed) for name, tensor in found.items()}


def reading_memory(values, compiled, inputs, watch):
    """What a backend computes that takes the address of an input and not its strides."""
    flat = {
        name: torch.as_strided(tensor, tensor.shape, torch.empty(tensor.shape).stride())
        for name, tensor in inputs.items()
    }
    return Sound().run(compiled, flat, watch)


def writing_into_inputs(values, compiled, inputs, watch):
    for tensor in inputs.values():
        tensor.zero_()
    return values


def drifting(values, compiled, inputs, watch):
    return {name: tensor + torch.rand(()) * 1e-6 for name, tensor in values.items()}


def raising(error, method):
    def call(self, *args, **kwargs):
        try:
            return getattr(Sound, method)(self, *args, **kwargs)
        except BackendError as found:
            raise error from found

    return of(**{method: call})


def ignoring_what_is_given(self, compiled, inputs, given, *, nodes=None, buffer):
    return Sound.isolate(self, compiled, inputs, lambda _: None, nodes=nodes, buffer=buffer)


def giving_to_whoever_makes_it(self, compiled, inputs, given, *, nodes=None, buffer):
    for name, tensor in Sound.isolate(self, compiled, inputs, given, nodes=nodes, buffer=buffer):
        there = given(name)
        yield name, tensor if there is None else there


GEMM_SCRIPT = "def run(path, names, inputs):\n    return [0 * x[:, :2] for x in inputs.values()]"
WITH_FILCH = "def run(path, names, inputs):\n    import filch.export\n    return []"

BROKEN = {
    "no name": ("test_name_and_stages", of(name="")),
    "an unknown stage": ("test_name_and_stages", of(stages=("compiling",))),
    "stages in a list": ("test_name_and_stages", of(stages=["exported"])),
    "no Compiled": (
        "test_compiled_graph_has_the_interface_of_the_program",
        of(compile=lambda self, program, *, optimize: program),
    ),
    "an output lost": (
        "test_compiled_graph_has_the_interface_of_the_program",
        compiling(lambda made: replace(made, graph=replace(made.graph, outputs=()))),
    ),
    "an input renamed": (
        "test_compiled_graph_has_the_interface_of_the_program",
        compiling(lambda made: replace(made, graph=replace(made.graph, inputs=("z",)))),
    ),
    "nodes out of order": (
        "test_compiled_names_exist",
        compiling(lambda made: replace(made, graph=replace(made.graph, nodes=made.graph.nodes[::-1]))),
    ),
    "origins of no node": ("test_compiled_names_exist", compiling(lambda made: replace(made, origins={"no": ()}))),
    "origins that are no nodes": (
        "test_compiled_names_exist",
        compiling(lambda made: replace(made, origins={made.graph.nodes[0].name: ("no",)})),
    ),
    "an unknown value that is the same": (
        "test_compiled_names_exist",
        compiling(lambda made: replace(made, value_aliases={"no": made.graph.outputs[0]})),
    ),
    "the same as an unknown value": (
        "test_compiled_names_exist",
        compiling(lambda made: replace(made, value_aliases={made.graph.nodes[0].outputs[0]: "no"})),
    ),
    "steps that are no graphs": (
        "test_compiled_names_exist",
        compiling(lambda made: replace(made, intermediate_graphs=lambda: {"first": "graph"})),
    ),
    "compile changes the program": ("test_compile_does_not_change_the_program", of(compile=changing_the_program)),
    "wrong numbers": (
        "test_outputs_are_close_to_eager_pytorch",
        running(lambda values, *_: {name: tensor * 1.01 for name, tensor in values.items()}),
    ),
    "another dtype": (
        "test_outputs_are_close_to_eager_pytorch",
        running(lambda values, *_: {name: tensor.double() for name, tensor in values.items()}),
    ),
    "arrays": (
        "test_outputs_are_close_to_eager_pytorch",
        running(lambda values, *_: {name: tensor.numpy() for name, tensor in values.items()}),
    ),
    "no outputs": ("test_outputs_are_close_to_eager_pytorch", running(lambda *_: {})),
    "more than the outputs": (
        "test_outputs_are_close_to_eager_pytorch",
        running(lambda values, compiled, inputs, watch: {**values, **inputs}),
    ),
    "the first inputs": ("test_outputs_depend_on_the_inputs", Cached),
    "no strides": ("test_inputs_need_not_be_contiguous", running(reading_memory)),
    "inputs written into": ("test_inputs_are_not_modified", running(writing_into_inputs)),
    "one buffer for results": ("test_results_are_not_overwritten", InOneBuffer),
    "drift": ("test_runs_are_deterministic", running(drifting)),
    "one program": ("test_programs_do_not_interfere", OneProgram),
    "nothing watched": (
        "test_watched_values_are_close_to_eager_pytorch",
        of(run=lambda self, compiled, inputs, watch=(): Sound.run(self, compiled, inputs)),
    ),
    "unknown values watched": (
        "test_watched_values_are_close_to_eager_pytorch",
        running(lambda values, *_: {**values, "no": torch.ones(1)}),
    ),
    "watched values without outputs": (
        "test_watched_values_are_close_to_eager_pytorch",
        running(
            lambda values, compiled, inputs, watch: {
                name: values[name] for name in watch if name not in compiled.graph.outputs
            }
        ),
    ),
    "wrong watched values": (
        "test_watched_values_are_close_to_eager_pytorch",
        running(lambda values, compiled, *_: {n: t if n in compiled.graph.outputs else -t for n, t in values.items()}),
    ),
    "outputs changed by watching": (
        "test_watching_does_not_change_the_outputs",
        running(lambda values, compiled, inputs, watch: {n: t + 1e-6 if watch else t for n, t in values.items()}),
    ),
    "an exception of the library": ("test_an_unknown_operator_is_a_backend_error", raising(KeyError("op"), "compile")),
    "an error without a message": ("test_an_unknown_operator_is_a_backend_error", raising(BackendError(""), "compile")),
    "an exception of a run": ("test_a_wrong_shape_is_a_backend_error", raising(ValueError("shape"), "run")),
    "wrong shapes taken": (
        "test_a_wrong_shape_is_a_backend_error",
        of(run=lambda self, compiled, inputs, watch=(): {name: torch.ones(3, 2) for name in compiled.graph.outputs}),
    ),
    "broken by an error": ("test_a_wrong_shape_is_a_backend_error", BrokenByAnError),
    "a value observed twice": (
        "test_observe_shows_each_value_once_and_in_order",
        observing(lambda shown: [*shown, shown[-1]]),
    ),
    "observed backwards": ("test_observe_shows_each_value_once_and_in_order", observing(lambda shown: shown[::-1])),
    "no output observed": ("test_observe_shows_each_value_once_and_in_order", observing(lambda shown: shown[:-1])),
    "wrong values observed": (
        "test_observe_shows_each_value_once_and_in_order",
        observing(lambda shown: [(name, tensor + 1) for name, tensor in shown]),
    ),
    "outputs changed by observing": (
        "test_observe_does_not_change_the_outputs",
        observing(lambda shown: [(name, tensor + 1e-6) for name, tensor in shown]),
    ),
    "given in vain": ("test_isolated_nodes_read_the_given_values", of(isolate=ignoring_what_is_given)),
    "given to its own node": ("test_isolated_nodes_read_the_given_values", of(isolate=giving_to_whoever_makes_it)),
    "no times": ("test_profile_gives_seconds_by_node", of(profile=lambda *_: {})),
    "times of unknown nodes": ("test_profile_gives_seconds_by_node", of(profile=lambda *_: {"no": 1.0})),
    "times below zero": (
        "test_profile_gives_seconds_by_node",
        of(profile=lambda self, compiled, inputs: dict.fromkeys(compiled.graph.node_indices, -1.0)),
    ),
    "unknown steps switched off": (
        "test_switched_off_steps_do_not_change_the_results",
        of(compile_without=lambda self, program, off: Sound.compile_without(self, program, ())),
    ),
    "a new fingerprint each time": (
        "test_switched_off_steps_do_not_change_the_results",
        of(
            compile_without=lambda self, program, off: replace(
                Sound.compile_without(self, program, off), fingerprint=str(object())
            )
        ),
    ),
    "wrong with a step switched off": ("test_switched_off_steps_do_not_change_the_results", WrongWithout),
    "a script without run": ("test_the_script_runs_without_filch", scripted("def main(): pass")),
    "a script with filch": ("test_the_script_runs_without_filch", scripted(WITH_FILCH)),
    "a script that gives zeros": ("test_the_script_runs_without_filch", scripted(GEMM_SCRIPT)),
    "a torch script that does nothing": (
        "test_the_script_runs_without_filch",
        scripted("def run(function, inputs):\n    return inputs['x']", takes="torch"),
    ),
    "zeros of another interpreter": (
        "test_another_interpreter_gives_the_same_results",
        of(run_in=lambda self, *args: ("1.0", [{n: 0 * t for n, t in Sound.run_in(self, *args)[1][0].items()}])),
    ),
    "a missing interpreter taken": (
        "test_another_interpreter_gives_the_same_results",
        of(run_in=lambda self, interpreter, program, inputs: Sound.run_in(self, sys.executable, program, inputs)),
    ),
    "references of unknown values": (
        "test_references_are_close_to_the_values",
        of(reference=lambda *_: {"no": torch.ones(1)}),
    ),
    "wrong references": (
        "test_references_are_close_to_the_values",
        of(reference=lambda self, *args: {name: -tensor for name, tensor in Sound.reference(self, *args).items()}),
    ),
}


@pytest.mark.parametrize(("test", "backend"), BROKEN.values(), ids=BROKEN)
def test_a_broken_backend_fails(test, backend):
    """Each in the test that is about it."""

    class Contract(BackendContract):
        def make_backend(self):
            return backend()

    with pytest.raises(AssertionError, match=r"\w"):
        getattr(Contract(), test)()


def test_each_test_of_the_contract_can_fail():
    """None is without a backend that breaks it."""
    assert {test for test, _ in BROKEN.values()} == {name for name in vars(BackendContract) if name.startswith("test_")}


def test_a_contract_without_a_backend_says_what_to_write():
    """The one method that has to be written."""

    class Contract(BackendContract): ...

    with pytest.raises(NotImplementedError, match="def make_backend"):
        Contract().test_name_and_stages()


@pytest.mark.parametrize(("backend", "right"), [(Sound, True), (BROKEN["no name"][1], False)])
def test_unittest_runs_the_contract(backend, right):
    """In a class that is a TestCase, too."""

    class Contract(BackendContract, TestCase):
        def make_backend(self):
            return backend()

    found = Contract("test_name_and_stages").run()
    assert found.testsRun == 1
    assert found.wasSuccessful() == right


def test_what_a_backend_cannot_do_is_skipped():
    """Bits need not be the same where the backend does not promise it, and abilities are optional."""

    class Contract(BackendContract):
        deterministic = False

        def make_backend(self):
            return EAGER

    for test in ("test_runs_are_deterministic", "test_observe_does_not_change_the_outputs"):
        with pytest.raises(SkipTest):
            getattr(Contract(), test)()


@pytest.mark.parametrize("name", ["onnxruntime-cpu", "openvino", "reference"])
def test_bfloat16_outputs_leave_scripts_and_other_interpreters(name):
    """NumPy has no bfloat16: scripts return such outputs as float32, and `run_in` converts them back."""

    class Contract(BackendContract):
        def make_backend(self):
            return get_backend(name)

        def make_model(self):
            # Returns its input in bfloat16, too, which has its numbers: OpenVINO rounds others as the processor does.
            return module_of(lambda self, x: (x * 3, x.bfloat16())), (torch.randn(2, 3).bfloat16().float(),)

    contract = Contract()
    contract.test_the_script_runs_without_filch()
    if name == "onnxruntime-cpu":
        contract.test_another_interpreter_gives_the_same_results()
