"""Each node is run on what its inputs should be: it shows its own fault, and none that it was handed."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from random import Random

import onnx
import onnx_ir as ir
import pytest
import torch
from onnx import parser
from torch import nn

from faults.nodes.compiled import OrtPlants
from filch.export import BackendError, Program, export, lower, optimize
from filch.export.backends import Isolates, backend_names, get_backend, isolate
from filch.export.backends._forms import Cast, Form, Permute, Reshape, Uint8ToInt8
from filch.export.backends._nchwc import Unblock
from filch.steal import ModuleInfo
from filch.steal.values._arguments import argument_tensors
from support.faults.fakes import PlantedBackend
from support.models.small import module_of
from support.models.zoo import ZOO
from support.processes.compilers import needs_compiler
from support.thorough import slow

Values = dict[str, torch.Tensor]
EVERYTHING = 2**40
BASIC = {"level": "basic"}  # a level above, products have their activation inside
AT_HAND = [name for name in backend_names() if name in ("eager", "reference", "onnxruntime-cpu", "openvino")]

CONTROL = """
<ir_version: 10, opset_import: ["": 18]>
parts (float[4,3] x) => (float[4,3] inner, float[4,3] last)
<float two = {2.0}, float zero = {0.0}, int64 three = {3}, bool yes = {1}, int64[2] halves = {2, 2}> {
    h = Mul(x, two)
    total = ReduceSum <keepdims = 0> (h)
    positive = Greater(total, zero)
    inner = If(positive) <
        then_branch = yes_branch () => (float[4,3] a) { a = Tanh(h) },
        else_branch = no_branch () => (float[4,3] b) { b = Cos(h) }
    >
    top, bottom = Split(inner, halves)
    swapped = Concat <axis = 0> (bottom, top)
    last = Loop(three, yes, swapped) <body = step (int64 i, bool on, float[4,3] state)
        => (bool still, float[4,3] next) { still = Identity(on) shifted = Add(state, h) next = Tanh(shifted) }>
}
"""


class Convolutions(nn.Module):
    """Of 18 channels, which fill no block; the first output is read by what makes the second."""

    def __init__(self):
        super().__init__()
        self.first = nn.Conv2d(3, 18, 3, padding=1)
        self.second = nn.Conv2d(18, 18, 3, padding=1)
        self.third = nn.Conv2d(18, 32, 3)

    def forward(self, x):
        hidden = torch.relu(self.first(x))
        hidden = torch.sigmoid(self.second(hidden)) + hidden
        return hidden, nn.functional.max_pool2d(self.third(hidden), 2).mean((2, 3))


class Recurrent(nn.Module):
    """A node with three outputs."""

    def __init__(self):
        super().__init__()
        self.lstm = nn.LSTM(8, 8, batch_first=True)

    def forward(self, x):
        steps, (state, _) = self.lstm(x)
        return steps * 2, state


def small():
    """Two kernels of Inductor's own with a library's between, and a view of what is stored."""
    return module_of(
        lambda self, x: torch.softmax(torch.tanh(self.linear(self.norm(x))).view(-1, 2, 8) * 0.5, -1),
        norm=nn.LayerNorm(16),
        linear=nn.Linear(16, 16),
    )


def exported(model, *args, **kwargs):
    program = export(model.eval(), args, kwargs)
    taken = argument_tensors(ModuleInfo.of(model).parameters, args, kwargs)
    return program, {value: taken[path] for value, path in program.inputs.items()}


def control():
    made = parser.parse_model(CONTROL)
    onnx.checker.check_model(made)
    return Program(ir.from_proto(made)), {"x": torch.rand(4, 3)}


def quantised():
    program, inputs = exported(Convolutions(), torch.randn(2, 3, 8, 8))
    return lower(optimize(program), "int8", calibration=[inputs]), inputs


def of_zoo(name):
    model, args, kwargs = ZOO[name]()
    return exported(model, *args, **kwargs)


MODELS: dict[str, Callable[[], tuple[Program, Values]]] = {
    "control": control,
    "convolutions": lambda: exported(Convolutions(), torch.randn(2, 3, 8, 8)),
    "llama": partial(of_zoo, "llama"),
    "quantised": quantised,
    "recurrent": lambda: exported(Recurrent(), torch.randn(2, 5, 8)),
    "resnet": partial(of_zoo, "resnet"),
    "small": lambda: exported(small(), torch.randn(4, 16)),
}


@cache
def subject(name):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return MODELS[name]()


def observed(backend, made, inputs):
    """What is computed, each node on what those before it made."""
    found = backend.run(made, inputs, made.graph.producer)
    return {name: tensor.clone() for name, tensor in found.items() if name in made.graph.producer}


def isolated(backend, name, made, given, buffer=EVERYTHING):
    program, inputs = subject(name)
    how = {"optimize": "compiled" in backend.stages, "buffer": buffer}
    found = isolate(backend, program, made, inputs, given.get, **how)
    return {name: tensor.clone() for name, tensor in found if name in made.graph.producer}


def differing(one, other):
    """The names of values of other bits."""
    assert one.keys() == other.keys()
    return {name for name, tensor in one.items() if bits(tensor) != bits(other[name])}


def bits(tensor):
    return tensor.dtype, tensor.shape, tensor.contiguous().cpu().numpy().tobytes()


def compiled(backend, name):
    return backend.compile(subject(name)[0], optimize="compiled" in backend.stages)


@slow
@pytest.mark.parametrize(
    ("name", "level", "buffer"),
    [
        ("control", "all", 1), ("control", "all", EVERYTHING), ("convolutions", "all", 2**12),
        ("convolutions", "all", EVERYTHING), ("llama", "extended", 2**15), ("llama", "extended", EVERYTHING),
        ("quantised", "all", 2**13), ("quantised", "disable", EVERYTHING), ("recurrent", "disable", EVERYTHING),
        ("resnet", "all", 2**15),
    ],
)  # fmt: skip
def test_onnx_runtime_given_its_own_values_computes_the_same_bits(name, level, buffer):
    """Fused nodes, blocked channels, integers, subgraphs, sequences and nodes of several outputs included."""
    backend = get_backend("onnxruntime-cpu", level=level)
    made = compiled(backend, name)
    values = observed(backend, made, subject(name)[1])

    assert not differing(isolated(backend, name, made, values, buffer), values)


def test_blocked_channels_are_given():
    """Else the test above would show nothing of them."""
    backend = get_backend("onnxruntime-cpu", level="all")
    made = compiled(backend, "convolutions")
    inputs = subject("convolutions")[1]
    values, specs = observed(backend, made, inputs), made.handle.specs_of(inputs)
    blocked = {name for name, form in made.handle.forms.items() if any(isinstance(s, Unblock) for s in form.transforms)}

    assert blocked & values.keys()
    assert all(made.handle.to_ort_values({name: values[name]}, specs) for name in blocked & values.keys())


@pytest.mark.parametrize("buffer", [1, EVERYTHING])
def test_values_are_given_in_the_shapes_of_each_run(buffer):
    """Also the values of some nodes, after all were observed with fewer and with more rows."""
    rows = torch.export.Dim("rows")
    program = export(small().eval(), (torch.randn(4, 16),), dynamic_shapes={"x": {0: rows}})
    backend = get_backend("onnxruntime-cpu")
    made = backend.compile(program, optimize=False)
    runs = [{"x": torch.randn(count, 16)} for count in (3, 5, 4)]
    values = [observed(backend, made, inputs) for inputs in runs]
    last = made.graph.nodes[-1]

    for inputs, known in zip(runs, values, strict=True):
        given = {name: tensor * 2 for name, tensor in known.items()}
        found = isolate(backend, program, made, inputs, given.get, optimize=False, nodes={last.name}, buffer=buffer)
        expected = torch.softmax(given[last.reads[0]], -1)
        assert torch.allclose(dict(found)[last.outputs[0]], expected)


@pytest.mark.parametrize(
    ("name", "backend"),  # of a foreign file, eager has no exported program
    [*(("small", name) for name in AT_HAND), *(("control", name) for name in AT_HAND if name != "eager")],
)
def test_what_is_given_is_what_the_nodes_read_that_read_it_and_no_other(name, backend):
    """One value after the other is given wrong: those that are made of it directly change, subgraphs' too."""
    engine = get_backend(backend)
    made = compiled(engine, name)
    values = observed(engine, made, subject(name)[1])
    assert not differing(isolated(engine, name, made, values), values)

    floats = [name for name, tensor in values.items() if tensor.is_floating_point() and name in made.graph.consumers]
    tried = [value for value in floats if value not in made.graph.constant_values]
    assert tried
    for value in tried:
        changed = differing(isolated(engine, name, made, {**values, value: -values[value] - 1}), values)
        read = {out for node in made.graph.consumers[value] for out in node.outputs}
        assert changed, value
        assert changed <= read, value


@pytest.mark.parametrize("backend", AT_HAND)
def test_what_does_not_fit_is_not_given(backend):
    """Another type, another shape: what was computed stays."""
    engine = get_backend(backend)
    check_unfit(engine, compiled(engine, "small"))


def check_unfit(backend, made):
    values = observed(backend, made, subject("small")[1])
    wide = {name: 2 * tensor.double() for name, tensor in values.items()}
    more = {name: 2 * torch.stack([tensor]) for name, tensor in values.items()}
    assert not differing(isolated(backend, "small", made, wide), values)
    assert not differing(isolated(backend, "small", made, more), values)


STEPS = {
    "blocked": (Unblock(5, 4), torch.randn(2, 8, 3, 3)),
    "permuted": (Permute((1, 2, 0)), torch.randn(2, 3, 4)),
    "reshaped": (Reshape((0, -1)), torch.randn(2, 3, 4)),
    "typed": (Cast(torch.float16), torch.randn(3)),
    "signed": (Uint8ToInt8(), torch.arange(256, dtype=torch.uint8)),
}


@pytest.mark.parametrize("names", [[name] for name in STEPS] + [["blocked", "permuted"]])
def test_what_turns_a_value_into_the_exported_form_has_a_way_back(names):
    """There and back again is where it was; several steps in their order."""
    held = STEPS[names[0]][1]
    steps = [STEPS[name][0] for name in names[:-1]] + [
        Permute((2, 0, 3, 1)) if names[-1] == "permuted" and len(names) > 1 else STEPS[names[-1]][0]
    ]
    form = Form("value", tuple(steps))
    wanted = form.to_exported(held)

    back = form.to_compiled(wanted, (held.dtype, held.shape))

    assert back is not None
    assert back.dtype == held.dtype
    assert bits(form.to_exported(back)) == bits(wanted)


def test_numbers_that_would_be_rounded_have_no_way_back():
    """A float32 value is not given where the graph holds it in float16."""
    assert Form("value", (Cast(torch.float32),)).to_compiled(torch.randn(3), (torch.float16, torch.Size([3]))) is None


def sigmoid_for_tanh(wrong, model):
    """Make the Tanh of the model a Sigmoid, if it is to be wrong."""
    for node in model.graph.node if wrong else ():
        if node.op_type == "Tanh":
            node.op_type = "Sigmoid"


def test_a_backend_that_cannot_isolate_is_given_the_program_cut():
    """What it makes of that is wrong in the same node alone."""
    program, inputs = subject("small")
    sound, wrong = (PlantedBackend(partial(sigmoid_for_tanh, fault), BASIC) for fault in (False, True))
    assert not isinstance(wrong, Isolates)
    values = observed(sound, sound.compile(program, optimize=True), inputs)
    made = wrong.compile(program, optimize=True)
    (own,) = (node.outputs for node in made.graph.nodes if node.op == "Tanh")

    assert {*own} < differing(observed(wrong, made, inputs), values)
    assert {*own} == differing(isolated(wrong, "small", made, values), values)


def test_a_backend_that_refuses_the_cut_program_says_so():
    """In its own words."""

    class Refusing(PlantedBackend):
        def compile(self, program, *, optimize):
            if any(value.name == "linear" for value in program.model.graph.inputs):
                raise BackendError("this one takes no such program")
            return super().compile(program, optimize=optimize)

    backend = Refusing(partial(sigmoid_for_tanh, False), BASIC)
    made = compiled(backend, "small")
    values = observed(backend, made, subject("small")[1])

    with pytest.raises(BackendError, match="takes no such program"):
        isolated(backend, "small", made, values)


@cache
def inductor():
    """What plants faults in Inductor's kernels; it is imported once it is needed."""
    from faults.nodes.inductor import InductorPlants

    return InductorPlants(*subject("small"))


@needs_compiler
def test_inductors_kernels_read_what_is_given_in_their_buffers():
    """Their own values change nothing, nor do those that do not fit; a wrong one changes what is made of it."""
    backend = inductor().clean
    made = compiled(backend, "small")
    values = observed(backend, made, subject("small")[1])
    assert not differing(isolated(backend, "small", made, values), values)
    check_unfit(backend, made)
    read = [name for name in values if name in made.graph.consumers]
    assert read
    for value in read:
        changed = differing(isolated(backend, "small", made, {**values, value: -values[value] - 1}), values)
        assert changed
        assert changed <= {out for node in made.graph.consumers[value] for out in node.outputs}


def ort_planter():
    """What plants faults in a graph that ONNX Runtime optimized."""
    return OrtPlants(*subject("convolutions"), get_backend("onnxruntime-cpu", level="all"))


@pytest.mark.parametrize(
    ("name", "planter_of", "kind", "buffer"),
    [
        *(
            ("convolutions", ort_planter, kind, size)
            for kind in ("weight bit", "activation")
            for size in (2**12, EVERYTHING)
        ),
        pytest.param("small", inductor, "library call", EVERYTHING, marks=needs_compiler),
    ],
)
def test_a_wrong_node_of_a_compiled_graph_is_wrong_alone(name, planter_of, kind, buffer):
    """Given what a sound one computed, in ONNX Runtime or Inductor; of what was handed on, others are wrong, too."""
    program, inputs = subject(name)
    planter = planter_of()
    sound = observed(planter.clean, planter.clean.compile(program, optimize=True), inputs)
    plant = planter.plant(kind, Random(0))  # noqa: S311  no secret
    made = plant.backend.compile(program, optimize=True)
    (own,) = (node.outputs for node in made.graph.nodes if node.name == plant.node)

    assert {*own} < differing(observed(plant.backend, made, inputs), sound)
    assert {*own} == differing(isolated(plant.backend, name, made, sound, buffer), sound)
