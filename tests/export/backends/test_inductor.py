"""Inductor as a backend: its kernels, where they come from, and what is wrong in one of them."""

import contextlib
import re
from functools import cache
from pathlib import Path
from random import Random
from types import ModuleType, SimpleNamespace

import pytest
import torch
from torch import nn

from filch.compare import compare
from filch.export import BackendError, export
from filch.export.backends import get_backend
from filch.export.backends.inductor._kernels import Kernel
from filch.export.backends.inductor._options import InductorOptions
from filch.export.backends.inductor._wrapper import instrument
from filch.steal import steal_forward
from filch.steal.private import _torch
from support.models.small import capture_of, module_of, recorded
from support.processes.compilers import needs_compiler
from support.thorough import slow

pytestmark = needs_compiler


def block():
    """A bit of a network, in which several operations are fused and one is a call of a library."""

    def forward(self, x):
        hidden = torch.tanh(self.norm(self.first(x)))
        return (self.second(hidden) + x).relu(), hidden.transpose(0, 1).sum(1)

    return module_of(forward, first=nn.Linear(8, 16), norm=nn.LayerNorm(16), second=nn.Linear(16, 8))


class Case:
    """A stolen call of the model, and its program."""

    def __init__(self, rows=4):
        torch.manual_seed(0)
        self.model = block().eval()
        self.inputs = (torch.randn(rows, 8),)
        self.program = export(self.model, self.inputs)

    def steal(self, *inputs):
        with torch.no_grad(), steal_forward(self.model, submodules=True) as capture:
            self.model(*(inputs or self.inputs))
        return capture


@pytest.fixture(scope="module")
def case():
    return Case()


@pytest.fixture(scope="module")
def report(case):
    return compare(case.steal(), case.program, backend="inductor")


def _kernels(report):
    return {row.node: row for row in report.rows if row.stage == "compiled" and row.kind != "output"}


def test_a_clean_program_is_close(report):
    """Nothing differs, everything that Inductor stores was judged, and nothing was disturbed."""
    assert report.close, report
    assert report.undisturbed
    assert not report.diverged
    judged = {row.node for row in report.rows if row.stage == "compiled" and row.judged}
    assert judged == {*_kernels(report), *(row.node for row in report.rows if row.kind == "output")}


def deviations(self, x):
    """A deviation and a variance, which torch.onnx decomposes to a primitive that Inductor can't lower."""
    hidden = self.linear(x)
    return hidden.std(-1), hidden.var(0, correction=0)


def test_a_deviation_is_compiled():
    """As torch.compile does; all that is stored is judged."""
    torch.manual_seed(0)
    model, x = module_of(deviations, linear=nn.Linear(8, 16)).eval(), torch.randn(4, 8)
    capture = capture_of(model, x, submodules=True)

    report = compare(capture, export(model, (x,)), backend="inductor")

    assert report.close
    assert report.undisturbed
    assert all(row.judged and row.origins for row in _kernels(report).values())


class Items(nn.Module):
    """Operations with several results, of which some are decomposed."""

    def forward(self, x):
        largest, where = x.topk(3, -1)
        ordered, order = x.sort(-1)
        return largest.exp(), where + 1, ordered * 2, order, *torch.var_mean(x, -1), x.max(-1).indices


def test_the_results_of_an_operation_with_several_are_judged_by_the_models():
    """Each of `topk` and `sort` is a buffer of a library call."""
    model, x = Items(), torch.randn(4, 8)
    capture = capture_of(model, x, submodules=True)

    report = compare(capture, export(model, (x,)), backend="inductor")

    assert report.close, report.verdict()
    rows = [row for row in report.rows if row.kind != "output" and row.op.startswith("torch.ops.aten.")]
    assert {row.op.split(".")[3] for row in rows} == {"topk", "sort"}
    assert len(rows) == 4
    assert all(row.evidence in ("eager", "module") for row in rows)


def written_module():
    """Writes over what is there: calls of a library, generated loops, twice into one buffer, into a cache."""

    def forward(self, x, target):
        messages = self.linear(x)
        index = target[:, None].expand_as(messages)
        start = torch.tanh(messages)
        reduced = [
            start.scatter_reduce(0, index, messages, how, include_self=include_self)
            for how, include_self in [("sum", False), ("mean", True), ("amax", True)]
        ]
        empty = messages.new_zeros(5, 4).scatter_reduce(0, index, messages, "mean", include_self=False)
        added = start.index_add(0, target, messages * 0.5)
        put = start.clone()
        put[target > 0] = messages[2]
        twice = torch.relu(added).index_put((target[:2],), messages[:2] * 2)
        twice = twice.index_put((target[2:],), messages[2:] * 3, accumulate=True)
        self.cache[2:7] = messages
        return (
            *reduced,
            empty * 2,
            added.cumsum(0),
            start.scatter_add(0, index, messages).exp(),
            start.masked_scatter(messages > 0, x),
            put,
            twice,
            twice.sort(1)[0],
            torch.softmax(self.cache, 1),
        )

    return module_of(forward, linear=nn.Linear(4, 4), cache=torch.zeros(8, 4))


@cache
def written():
    """The stolen call of that model, its program and inputs, and what plants faults in what Inductor makes of it."""
    from faults.nodes.inductor import InductorPlants  # it asks for a compiler

    torch.manual_seed(0)
    model, inputs = written_module().eval(), (torch.randn(5, 4), torch.tensor([1, 0, 1, 3, 1]))
    capture, program = recorded(model, *inputs, submodules=True)
    named = dict(zip(program.graph.inputs, inputs, strict=True))
    return capture, program, named, InductorPlants(program, named)


@slow
def test_what_is_written_over_is_judged_as_what_it_is_at_that_time():
    """Zeros are not the sum that is made of them: all is judged, before and after, and nothing differs."""
    capture, program, inputs, planter = written()
    report = compare(capture, program, backend=planter.clean)
    assert not report.proof.is_wrong, report
    assert [gap.name for gap in report.proof.gaps] == ["buffer cache, after the call"]  # no output of the program
    assert report.undisturbed
    assert all(row.judged for row in _kernels(report).values())
    made = planter.clean.compile(program, optimize=True)
    assert made.graph.producer["scatter_reduce_3"].op == "aten.scatter_reduce_.two"
    assert made.graph.producer["index_put_1"].op == "aten.index_put_"
    given = planter.clean.run(made, inputs, made.graph.producer)
    isolated = dict(planter.clean.isolate(made, inputs, given.get, buffer=1))
    assert isolated.keys() == made.graph.producer.keys()
    assert all(torch.equal(given[name], tensor) for name, tensor in isolated.items())


@slow
@pytest.mark.parametrize(
    ("kind", "op"),
    [
        ("library call", r"aten\.scatter_reduce_\.two"),
        ("library call", r"aten\.index_put_"),
        ("kernel source", "cpp_fused_.*index_put_"),
    ],
)
def test_a_fault_in_what_writes_over_a_buffer_is_named(kind, op):
    """It is not that of the kernel that made the buffer."""
    capture, program, _, planter = written()
    plants = (planter.plant(kind, Random(seed)) for seed in range(50))  # noqa: S311  no secret
    plant = next(plant for plant in plants if plant is not None and re.match(op, plant.node))
    report = compare(capture, program, backend=plant.backend)
    assert report.first_divergence is not None, plant.text
    assert report.first_divergence.node == plant.node, f"{plant.text}\n{report.first_divergence}"
    assert report.undisturbed


def test_what_replaces_a_pattern_computes_its_operations():
    """Torch records them at its first result alone; the library call after it computes none of them."""

    def forward(self, x):
        x = self.first(x)
        return self.last(torch.softmax(x @ x.transpose(-2, -1) * 0.5, -1) @ x)

    torch.manual_seed(0)
    model = module_of(forward, first=nn.Linear(6, 8), last=nn.Linear(8, 3)).eval()
    report = compare(*recorded(model, torch.randn(1, 4, 8, 6)), backend="inductor")

    rows = {row.op: row for row in report.rows if row.kind != "output"}
    (attention,) = [row for op, row in rows.items() if "attention" in op]
    assert report.close
    assert {"MatMul", "Mul", "Softmax", "Transpose"} <= {*attention.operators}
    assert attention.source is not None and attention.source.rpartition(":")[0].endswith("test_inductor.py")
    (last,) = [row for row in report.rows if row.module == "last" and row.kind != "output"]
    assert "Softmax" not in last.operators


def test_an_output_that_is_none_is_no_output():
    """The others are judged, each as itself."""
    # Returns nothing where a caller may ask for something, before and after what it returns.
    model = module_of(lambda self, x: {"before": None, "sum": x.sum(1), "after": None, "product": x.prod(1)}).eval()
    x = torch.randn(4, 8)
    capture = capture_of(model, x)

    report = compare(capture, export(model, (x,)), backend="inductor")

    assert report.close
    assert [row.kind for row in report.rows].count("output") == 2


def test_every_kernel_says_what_it_computes_and_where_its_code_is(report, case):
    """Origins are nodes of the exported graph, all of them are in one, and the code's line is the kernel's."""
    origins = {name for row in _kernels(report).values() for name in row.origins}
    graph = case.program.graph
    assert origins >= {node.name for node in graph.nodes if not graph.constant_values.issuperset(node.outputs)}


def test_the_code_of_a_kernel_is_where_it_is_said_to_be(case):
    """The line holds the kernel's name; module and line of the model are those of what it computes last."""
    compiled = get_backend("inductor").compile(case.program, optimize=True)
    for node in compiled.graph.nodes:
        file, _, line = node.code.rpartition(":")
        with open(file, encoding="utf-8") as code:  # noqa: PTH123  a line of it
            assert node.op.rpartition(".")[2] in code.read().splitlines()[int(line) - 1]
    assert any("test_inductor.py:" in node.source for node in compiled.graph.nodes)
    assert {node.module for node in compiled.graph.nodes} >= {"first", "second"}
    assert any(node.op == "extern_kernels.addmm" for node in compiled.graph.nodes)


def test_watching_changes_no_bit(case):
    """The outputs of an observed run are those of an undisturbed one, and what is watched is there."""
    backend = get_backend("inductor")
    compiled = backend.compile(case.program, optimize=True)
    inputs = dict(zip(case.program.graph.inputs, case.inputs, strict=True))
    plain = backend.run(compiled, inputs)
    watched = backend.run(compiled, inputs, compiled.graph.producer)
    assert set(compiled.graph.producer) <= set(watched)
    assert all(torch.equal(plain[name], watched[name]) for name in case.program.graph.outputs)


def test_a_wrong_lowering_is_found_in_its_kernel(case, monkeypatch):
    """Tanh is compiled to something a thousandth too large: the first row that differs is the kernel that has it."""
    from torch._inductor import lowering

    tanh = torch.ops.aten.tanh.default
    right = lowering.lowerings[tanh]
    monkeypatch.setitem(lowering.lowerings, tanh, lambda x: lowering.mul(right(x), 1.001))

    report = compare(case.steal(), case.program, backend="inductor")

    assert not report.close
    assert "Tanh" in report.first_divergence.operators
    assert report.first_divergence.node.startswith("cpp_fused")
    assert report.first_divergence.source.rpartition(":")[0].endswith("test_inductor.py")


def test_a_call_of_another_shape_is_compiled_for(case):
    """A program with a dynamic dimension gets kernels of each shape that it is called with, as torch.compile does."""
    shapes = {"x": {0: torch.export.Dim("rows", min=2, max=64)}}
    program = export(case.model, case.inputs, dynamic_shapes=shapes)
    report = compare(case.steal(torch.randn(7, 8)), program, backend="inductor")
    assert report.close, report
    assert any(row.shape == (7, 8) for row in report.rows)


def test_half_precision_stays_inside(case):
    """With use_fp16, inputs and outputs are float32 and what is between is rounded, within the tolerance."""
    backend = get_backend("inductor", use_fp16=True)
    report = compare(case.steal(), case.program, backend=backend, tolerance=1e-2)
    assert report.close, report
    assert report.worst.error > 1e-5
    assert {row.dtype for row in report.rows} == {"float32"}


@pytest.mark.parametrize("options", [{}, {"use_fp16": True}])
def test_an_input_is_called_like_a_builtin(options):
    """The compiled graph reads it, as each precision copies the graph, and a copy would rename it."""

    def forward(self, input):  # noqa: A002  as the modules of torch.nn call it
        return self.linear(input).relu()

    program = export(module_of(forward, linear=nn.Linear(8, 8)), (torch.randn(2, 8),))
    graph = get_backend("inductor", **options).compile(program, optimize=False).graph

    assert "linear" in graph.computed_from(["input"])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"search_space": 3}, "search_space is 0 (none), 1 (default) or 2 (exhaustive), not 3"),
        ({"mode": "fastest"}, "Inductor has no mode 'fastest'; there are default, "),
        ({"config": {"max_autotun": True}}, "Inductor has no setting 'max_autotun'; did you mean 'max_autotune'?"),
        ({"use_fp16_reduction": True}, "use_fp16_reduction needs use_fp16=True: it sets how float16 accumulates"),
        ({"serch_space": 2}, "does not take these options"),
        ({"config": "layout_optimization"}, "config: 'layout_optimization' is not name=value,name=value"),
    ],
)
def test_an_option_that_there_is_not_is_refused(options, message):
    """In one sentence, before anything is compiled."""
    with pytest.raises(BackendError) as caught:
        get_backend("inductor", **options)
    assert message in str(caught.value)


@pytest.mark.parametrize("options", [{"use_fp16": True, "use_fp16_reduction": True}, {"use_cuda_graph": True}])
def test_an_option_without_effect_is_refused(case, options):
    """What only CUDA has is an error on the CPU, as it is with ONNX Runtime."""
    backend = get_backend("inductor", **options)
    with pytest.raises(BackendError, match=f"{[*options][-1]} has no effect: the graph runs on the CPU"):
        backend.compile(case.program, optimize=True)


def test_settings_can_be_text():
    """As the command line has them: written as in JSON or in Python, or else a word."""
    options = InductorOptions(config="layout_optimization=False,cpp.simdlen=1,cpp.weight_prepack=false,force_layout=x")
    assert options.config == {
        "layout_optimization": False,
        "cpp.simdlen": 1,
        "cpp.weight_prepack": False,
        "force_layout": "x",
    }


def test_a_missing_compiler_is_named(case):
    """Without a C++ compiler, the backend says so by name and reason."""
    backend = get_backend("inductor", config={"cpp.cxx": ("no-such-compiler",)})
    with pytest.raises(BackendError, match=r"backend 'inductor' can't compile the program: .*C\+\+ compiler"):
        backend.compile(case.program, optimize=True)


def test_a_torch_that_does_not_tell_is_refused(case, monkeypatch):
    """What says which operations a kernel computes has no public name; where it is missing, that is the reason."""
    monkeypatch.setitem(_torch.NAMES.places, "kernel_function", "torch._inductor.debug:gone")
    with pytest.raises(
        BackendError, match=r"can't compile the program: .*torch .* has no torch\._inductor\.debug\.gone"
    ):
        get_backend("inductor").compile(case.program, optimize=True)


@pytest.mark.gpu
def test_triton_kernels_are_observed_like_all_others(case):
    """On a CUDA device the kernels are Triton's; their buffers are shown by the same means."""
    report = compare(case.steal(), case.program, backend=get_backend("inductor", device="cuda"))
    assert report.close, report
    assert report.undisturbed
    assert any(name.startswith("triton_") for name in _kernels(report))


@pytest.mark.gpu
def test_recorded_kernels_are_observed_too(case):
    """CUDA graphs replay what was recorded; the observed run calls the same kernels one by one."""
    report = compare(case.steal(), case.program, backend=get_backend("inductor", device="cuda", use_cuda_graph=True))
    assert report.close, report


GENERATED = """
def call(args):
    # first
    buf0 = kernels.first()
    with kernels.guard():
        # second
        buf1 = kernels.second(buf0)
    # third
    buf2 = kernels.third(buf1)
    return buf2
"""


def test_kernels_in_front_of_a_block_are_observed_before_those_in_it(tmp_path):
    """Code for a GPU computes what is on the CPU before it selects the device in a `with` statement."""
    kernels = SimpleNamespace(first=lambda: torch.ones(1), second=lambda x: x + 1, third=lambda x: x * 3)
    kernels.guard = contextlib.nullcontext
    module = ModuleType("generated")
    module.__file__, module.kernels = str(tmp_path / "generated.py"), kernels
    Path(module.__file__).write_text(GENERATED)
    lines = {line.strip("# "): number for number, line in enumerate(GENERATED.splitlines(), 1) if "# " in line}
    called = [
        Kernel(f"{name}:{index}", f"kernels.{name}", (), (f"buf{index}",), (), lines[name], variables=(f"buf{index}",))
        for index, name in enumerate(lines)
    ]
    observed = []
    instrument(module, called)(
        [], lambda kernel, buffers: observed.append((kernel.name, *map(float, buffers.values())))
    )
    assert observed == [("first:0", 1.0), ("second:1", 2.0), ("third:2", 6.0)]
