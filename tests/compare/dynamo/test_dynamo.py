"""`torch.compile(model, backend="filch")`: what it runs, what it says, and what it refuses."""

import builtins
from functools import partial
from pathlib import Path

import pytest
import torch
from torch import nn

from filch.compare import Report
from filch.compare.dynamo import _backend
from filch.compare.dynamo._graph_check import GraphCheck, TorchKernels
from filch.compare.dynamo._options import DynamoOptions
from filch.export.backends import Compiled
from support.models.hand_made import chain
from support.models.small import module_of
from support.processes.compilers import needs_compiler
from support.thorough import slow

EXAMPLES = Path(__file__).parents[3] / "examples"


class Sum(nn.Module):
    """Adds to its own input in place, after it was used."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(8, 8)
        self.act = nn.GELU()

    def forward(self, x):
        y = self.act(self.linear(x))
        shifted = y * 2
        y += shifted
        return torch.tanh(y)


class Broken(Sum):
    """The same, in two graphs."""

    def forward(self, x):
        y = self.act(self.linear(x))
        torch._dynamo.graph_break()  # noqa: SLF001  how torch's documentation does it
        return torch.tanh(y)


def _eager(module, inputs):
    return module.forward


def _compiled(model, **options):
    return torch.compile(model, backend="filch", options=options)


def _input(rows=4):
    return torch.randn(rows, 8)


@slow
@needs_compiler
def test_inductors_kernels_and_the_models_operators_are_both_in_the_report():
    """The model is clean: the output is that of Inductor, operators and kernels are judged, and nothing differs."""
    reports, model, x = [], Sum().eval(), _input()
    with torch.no_grad():
        got = _compiled(model, correctness_report=reports)(x)
        torch._dynamo.reset()  # noqa: SLF001  as above
        assert torch.equal(got, torch.compile(model, backend="inductor")(x))
    (report,) = reports
    assert report.close, report
    assert [item.text for item in report.operators[0]] == [
        "",
        "Linear(in_features=8, out_features=8, bias=True)",
        "GELU(approximate='none')",
        "operator.mul",
        "operator.iadd",
        "torch.tanh",
        "",
    ]
    assert all(item.row is not None and item.row.status == "same" for item in report.operators[0][1:])
    kernels = {row.node: row for row in report.rows if row.stage == "compiled" and row.kind != "output"}
    assert next(row.op for row in kernels.values()) == "extern_kernels.addmm"
    assert {name for row in kernels.values() for name in row.operators} >= {"linear", "gelu", "tanh"}


@slow
@needs_compiler
def test_a_wrong_lowering_is_found_in_the_operator_and_in_the_kernel(monkeypatch):
    """The first operator with an arrow is the one with the wrong lowering, and its kernel has an arrow, too."""
    from torch._inductor import lowering

    tanh = torch.ops.aten.tanh.default
    right = lowering.lowerings[tanh]
    monkeypatch.setitem(lowering.lowerings, tanh, lambda x: lowering.mul(right(x), 1.001))
    reports = []
    with torch.no_grad():
        _compiled(Sum().eval(), correctness_report=reports)(_input())
    diverged = [row for row in reports[0].diverged if row.kind != "output"]
    assert reports[0].first_divergence.op == "tanh"
    assert {row.stage for row in diverged} == {"exported", "compiled"}
    assert all("tanh" in (row.op, *row.operators) for row in diverged)


@slow
@needs_compiler
@pytest.mark.parametrize("grad", [False, True])
def test_kernels_that_are_wrong_by_themselves_are_told_from_those_that_inherit(monkeypatch, grad):
    """A kernel runs alone on eager PyTorch's values: the second wrong one is found behind the first."""
    from torch._inductor import lowering

    for operator in (torch.ops.aten.tanh.default, torch.ops.aten.sigmoid.default):
        right = lowering.lowerings[operator]
        monkeypatch.setitem(lowering.lowerings, operator, lambda x, right=right: lowering.mul(right(x), 1.001))
    model = nn.Sequential(*(part for act in (nn.Tanh(), nn.Sigmoid(), nn.ReLU()) for part in (nn.Linear(8, 8), act)))
    reports = []
    with torch.set_grad_enabled(grad):
        _compiled(model, correctness_report=reports)(_input())
    kernels = [row for row in reports[0].rows if row.stage == "compiled" and row.kind != "output"]
    assert [row.operators for row in kernels if row.introduced] == [("tanh",), ("sigmoid",)]
    inherited = [row for row in kernels if row.diverged and not row.introduced]
    assert len(inherited) == 3 and all(row.isolated.sound for row in inherited)
    assert reports[0].first_divergence.op == "tanh"


@slow
@needs_compiler
def test_a_wrong_custom_operator_is_found(monkeypatch):
    """The user's operator is right in eager PyTorch, and its lowering in Inductor is wrong."""
    from torch._inductor import lowering

    @torch.library.custom_op("filch_tests::twice", mutates_args=())
    def twice(x: torch.Tensor) -> torch.Tensor:
        return x * 2

    twice.register_fake(torch.empty_like)
    wrong = torch.ops.filch_tests.twice.default
    monkeypatch.setitem(lowering.lowerings, wrong, lambda x: lowering.mul(x, 2.01))

    reports = []
    with torch.no_grad():
        _compiled(module_of(lambda self, x: torch.sin(twice(torch.cos(x)))), correctness_report=reports)(_input())
    assert "twice" in reports[0].first_divergence.op


def test_each_graph_and_each_shape_is_checked_once():
    """A graph break makes two graphs and a new shape two more; a call without a new graph makes no report."""
    reports, model = [], Broken().eval()
    compiled = _compiled(model, correctness_report=reports, inner=_eager)
    with torch.no_grad():
        for rows in (4, 4, 6, 7):
            x = _input(rows)
            assert torch.equal(compiled(x), model(x))
    assert len(reports) == 4
    assert all(report.close for report in reports)
    assert {row.shape for report in reports for row in report.rows} == {(4, 8), (6, 8)}


@slow
@needs_compiler
def test_what_a_kernel_casts_for_a_library_is_not_the_value_before():
    """A library computes the sum of booleans from integers, whose buffer is not the boolean value."""
    reports = []

    def steps(positions):
        return (torch.diff(positions, prepend=positions[:, :1] - 1, dim=-1) != 1).cumsum(-1)

    torch.compile(steps, backend="filch", options={"correctness_report": reports})(torch.arange(7)[None])

    assert reports[0].close
    assert "cumsum" in {row.value for row in reports[0].rows if row.stage == "compiled" and row.judged}


@slow
@needs_compiler
def test_dynamo_may_begin_again():
    """With dynamic shapes from the start, a norm's epsilon becomes a tensor and the graph is traced again."""
    reports = []
    model = torch.compile(nn.LayerNorm(8), backend="filch", dynamic=True, options={"correctness_report": reports})

    for rows in (2, 5):
        model(_input(rows))

    assert reports and all(report.close for report in reports)


def test_a_wrong_compiler_is_found():
    """A compiler that ignores GELU's approximation is found at GELU, not before."""

    def wrong(module, inputs):
        graph = torch.fx.Graph()
        graph.output(graph.graph_copy(module.graph, {}))
        copied = torch.fx.GraphModule(module, graph)
        for node in copied.graph.nodes:
            if node.target is nn.functional.gelu:
                node.kwargs = {"approximate": "tanh"}
        copied.recompile()
        return copied.forward

    reports = []
    with torch.no_grad():
        _compiled(Sum().eval(), correctness_report=reports.append, inner=wrong)(3 * _input())
    assert reports[0].first_divergence.op == "gelu"


def _rounding_otherwise(module, inputs):
    (results,) = module.graph.output_node().args
    factor = 1.0 if len(results) == 1 else 1.0 + 1e-6
    return lambda *values: tuple(value * factor for value in module.forward(*values))


def _with_sigmoid(graph):
    """Change a graph in place, as passes do before a graph is lowered."""
    for node in graph.nodes:
        if node.target in (torch.tanh, "tanh"):
            node.op, node.target = "call_function", torch.sigmoid


def _changing(module, inputs):
    _with_sigmoid(module.graph)
    module.recompile()
    return module.forward


@pytest.mark.parametrize("inner", [_changing, "inductor"])
def test_a_compiler_that_changes_the_graph_does_not_change_its_reference(inner):
    """What runs in eager PyTorch is the graph as Dynamo made it."""
    reports = []

    with torch._inductor.config.patch(pre_grad_custom_pass=_with_sigmoid if inner == "inductor" else None):  # noqa: SLF001
        _compiled(Sum().requires_grad_(False), inner=inner, correctness_report=reports)(_input())

    assert [report.outcome for report in reports] == ["different"]
    assert reports[0].first_divergence.op == "tanh"


def test_memory_that_random_numbers_are_drawn_into_is_not_judged():
    """Dropout of channels copies uninitialized memory, into which PyTorch's own function then draws."""
    reports = []

    def drop(x):
        return torch.nn.functional.dropout1d(torch.tanh(x), 0.4, training=True) + 1

    with torch._inductor.config.patch(fallback_random=True):  # noqa: SLF001
        torch.compile(drop, backend="filch", options={"correctness_report": reports})(torch.randn(2, 12, 6))

    kernels = [row for row in reports[0].rows if row.stage == "compiled" and row.kind != "output"]
    assert [row.judged for row in kernels] == [False, True]
    assert reports[0].close


def test_the_observers_effect_is_said():
    """A compiler returns other numbers if more values are returned: the report has the observer effect."""
    reports = []
    with torch.no_grad():
        _compiled(Sum().eval(), correctness_report=reports, inner=_rounding_otherwise)(_input())
    assert not reports[0].undisturbed
    assert "instrumentation CHANGED the outputs" in reports[0].headline
    assert any(note.startswith("the table of operations is of a second compilation") for note in reports[0].notes)


def test_a_second_compilation_that_differs_is_no_effect_on_the_kernels(monkeypatch):
    """The kernels are those that run; a note says that only the operations' table is of another compilation."""
    kernels = TorchKernels(None, Compiled(chain("Relu"), None))
    monkeypatch.setattr(_backend, "GraphCheck", partial(GraphCheck, kernels=kernels))
    monkeypatch.setattr(TorchKernels, "rows", lambda *_: ([], None))
    reports = []
    with torch.no_grad():
        _compiled(Sum().eval(), correctness_report=reports, inner=_rounding_otherwise)(_input())
    assert reports[0].undisturbed
    assert "instrumentation did not change the outputs" in reports[0].headline
    assert any("second compilation" in note and "by up to" in note for note in reports[0].notes)


def test_what_is_written_in_place_is_seen_as_it_was():
    """Rows before an in-place operation have the values before it; the user's input is written once."""

    class InPlace(nn.Module):
        def forward(self, x):
            x += 1
            return x.mul_(2)

    reports, x = [], torch.zeros(3)
    with torch.no_grad():
        got = _compiled(InPlace(), correctness_report=reports, inner=_eager)(x)
    assert got.tolist() == x.tolist() == [2.0, 2.0, 2.0]
    assert reports[0].close, reports[0]


@slow
def test_resnet_18_has_the_rows_of_hidets_document(monkeypatch):
    """There are 71: the image, each module or function as it is written, and the output."""
    monkeypatch.syspath_prepend(EXAMPLES)
    from resnet18_correctness import resnet18

    reports, (model, _) = [], resnet18()
    with torch.no_grad():
        _compiled(model, correctness_report=reports, inner=_eager)(torch.randn(1, 3, 32, 32))
    (operators,) = reports[0].operators
    assert len(operators) == 71
    assert [item.kind for item in operators[:3]] == ["placeholder", "call_module", "call_module"]
    assert operators[1].text == "Conv2d(3, 64, kernel_size=(7, 7), stride=(2, 2), padding=(3, 3), bias=False)"
    assert (operators[10].kind, operators[10].text) == ("call_function", "operator.iadd")
    assert [item.text for item in operators[68:]] == [
        "torch.flatten",
        "Linear(in_features=512, out_features=1000, bias=True)",
        "",
    ]
    assert all(item.row is not None and item.row.status == "same" for item in operators[1:])


@pytest.mark.parametrize("inner", ["aot_eager", "eager", "onnxruntime"])
def test_other_compilers_are_checked_through_the_same_door(inner):
    """These are torch's compilers by name, and Filch's own backends by ONNX."""
    reports, model, x = [], Sum().eval(), _input()
    with torch.no_grad():
        got = _compiled(model, correctness_report=reports, inner=inner)(x)
        torch.testing.assert_close(got, model(x))
    assert reports[0].close, reports[0]
    assert {row.op.lower() for row in reports[0].rows} >= {"tanh"}


def test_gradients_flow_through_what_is_checked():
    """A model in training gets the gradients of the inner compiler."""
    reports, model, x = [], Sum(), _input()
    _compiled(model, correctness_report=reports, inner="aot_eager")(x).sum().backward()
    got = model.linear.weight.grad.clone()
    model.zero_grad()
    model(x).sum().backward()
    torch.testing.assert_close(got, model.linear.weight.grad)
    assert reports[0].close


def test_the_report_and_the_graph_are_printed(capsys, monkeypatch):
    """`correctness_report=True` prints hidet's table; print_input_graph prints the graph, without `tabulate`."""
    imported = builtins.__import__

    def without_tabulate(name, *args, **kwargs):
        if name == "tabulate":
            raise ImportError(name)
        return imported(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", without_tabulate)
    with torch.no_grad():
        _compiled(Sum().eval(), correctness_report=True, print_input_graph=True, inner=_eager)(_input())
    text = capsys.readouterr().out
    assert "reports[0].show()" in text
    assert "report.table" not in text
    lines = [line.split() for line in text.splitlines()]
    assert lines[0] == ["opcode", "name", "target", "args", "kwargs"]
    assert ["output", "output"] in [line[:2] for line in lines]
    assert ["kind", "operator", "dtype", "error", "attention"] in lines
    assert ["5", "call_function", "torch.tanh", "float32", "0.0e+00"] in lines


def test_nothing_is_printed_or_run_twice_if_no_report_is_asked_for(capsys):
    """The function of the inner compiler runs unchanged."""
    calls = []

    def counting(module, inputs):
        calls.append("compiled")
        return lambda *values: calls.append("run") or module.forward(*values)

    with torch.no_grad():
        _compiled(Sum().eval(), inner=counting)(_input())
    assert calls == ["compiled", "run"]
    assert not capsys.readouterr().out


@slow
@needs_compiler
def test_hidets_options_reach_the_compiler(monkeypatch):
    """search_space, use_cuda_graph and use_fp16 change Inductor's configuration and graph."""
    from torch._inductor import compile_fx, config

    seen, compile_graph = [], compile_fx.compile_fx

    def spying(module, inputs, **settings):
        dtypes = {node.kwargs.get("dtype") for node in module.graph.nodes}
        seen.append((config.save_config_portable(), torch.float16 in dtypes))
        return compile_graph(module, inputs, **settings)

    monkeypatch.setattr(compile_fx, "compile_fx", spying)
    options = {"search_space": 2, "use_fp16": True, "use_cuda_graph": True, "config": {"epilogue_fusion": False}}
    with torch.no_grad():
        got = _compiled(Sum().eval(), **options)(_input())
    settings, halved = seen[-1]
    assert settings["max_autotune"] is True
    assert settings["max_autotune_gemm_search_space"] == "EXHAUSTIVE"
    assert settings["triton.cudagraphs"] is True
    assert settings["epilogue_fusion"] is False
    assert halved
    assert got.dtype == torch.float32


@pytest.mark.parametrize(
    ("options", "given"),
    [
        ({"mode": "reduce-overhead", "use_cuda_graph": False}, {"mode": "reduce-overhead", "use_cuda_graph": False}),
        ({"use_fp16": True, "use_fp16_reduction": False}, {"use_fp16": True, "use_fp16_reduction": False}),
        ({"search_space": 0, "use_cuda_graph": False, "use_fp16": False, "use_fp16_reduction": False}, {}),
    ],
)
def test_an_option_that_is_false_reaches_the_compiler_where_it_would_be_true(options, given):
    """By the mode, or as torch has it; without these, a compiler that does not have the option can be used."""
    assert DynamoOptions.of(options, None).of_compiler() == given


@pytest.mark.parametrize("inner", ["onnxruntime", "eager"])
def test_what_is_switched_off_is_refused_by_no_compiler(inner):
    _compiled(Sum(), inner=inner, search_space=0, use_cuda_graph=False, use_fp16_reduction=False)(_input())


@needs_compiler
def test_what_has_no_effect_on_a_cpu_is_said():
    """CUDA graphs exist only on CUDA devices."""
    reports = []

    with torch.no_grad():
        _compiled(Sum().eval(), correctness_report=reports, use_cuda_graph=True)(_input())

    assert reports[0].close
    assert "use_cuda_graph has no effect: the graph runs on the CPU" in reports[0].notes


def test_options_reach_the_backends_of_filch(monkeypatch):
    """Options of `inner` are passed to its factory."""
    from filch.compare.dynamo import _backend as _dynamo

    seen = {}

    def factory(name, **options):
        seen.update({name: options})
        raise KeyboardInterrupt

    monkeypatch.setattr(_dynamo, "get_backend", factory)
    with pytest.raises(KeyboardInterrupt):
        _compiled(Sum(), inner="onnxruntime", search_space=2, use_cuda_graph=True)(_input())
    assert seen == {"onnxruntime-cpu": {"search_space": 2, "use_cuda_graph": True}}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"serch_space": 2}, "backend 'filch' has no option 'serch_space'; did you mean 'search_space'?"),
        ({"inner": "nope"}, "there is no compiler 'nope' for inner; there are "),
        ({"inner": "filch"}, "there is no compiler 'filch' for inner; there are "),
        ({"inner": "aot_eager", "use_fp16": True}, "inner 'aot_eager' takes no option use_fp16"),
        (
            {"correctness_report": "yes"},
            "correctness_report is True, a list or a function that takes a report, not 'yes'",
        ),
        ({"use_fp16": "yes"}, "use_fp16: 'yes' is neither true nor false"),
        ({"search_space": 5}, "search_space is 0 (none), 1 (default) or 2 (exhaustive), not 5"),
    ],
)
def test_an_option_that_there_is_not_is_refused(options, message):
    """The error is one sentence, which torch passes on."""
    with pytest.raises(torch._dynamo.exc.BackendCompilerFailed) as caught:  # noqa: SLF001  what torch.compile raises
        _compiled(Sum(), **options)(_input())
    assert message in str(caught.value)


def test_a_report_is_a_report():
    """It has the type of the result of `compare`, and the same formats."""
    reports = []
    with torch.no_grad():
        _compiled(Sum().eval(), correctness_report=reports, inner=_eager)(_input())
    assert isinstance(reports[0], Report)
    assert '"tanh"' in reports[0].to_json()
    assert "tanh" in reports[0].table("nodes")


@slow
@needs_compiler
def test_each_graph_is_drawn_step_by_step(tmp_path):
    """The steps are Dynamo's graph, AOTAutograd's, the one before code generation and the kernels; also of backward."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.LayerNorm(8))
    options = {"dump_graph_ir": tmp_path / "ir"}

    torch.compile(model, backend="filch", options=options)(torch.randn(2, 4)).sum().backward()
    torch.compile(nn.ReLU(), backend="filch", options=options)(torch.randn(2, 4))

    forward = ["Dynamo", "AOTAutograd", "Inductor", "Kernels"]
    backward = ["BackwardAOTAutograd", "BackwardInductor", "BackwardKernels"]
    names = [f"{at}_{name}" for at, name in enumerate([*forward, *backward])]
    drawn = {path.name for path in (tmp_path / "ir" / "graph_0").glob("[0-9]*")}
    assert drawn == {f"{name}{suffix}" for name in names for suffix in (".json", ".txt")}
    texts = [(tmp_path / "ir" / "graph_0" / f"{name}.txt").read_text() for name in names]
    handed, functional, optimized, kernels = (text.count(" = ") for text in texts[:4])
    assert handed < functional and kernels < optimized
    assert "layer_norm(" in texts[0] and "addmm(" in texts[1] and 'fusion="' in texts[3]
    assert "gelu" in (tmp_path / "ir" / "graph_0" / "0_Dynamo.json").read_text()
    assert len(list((tmp_path / "ir" / "graph_1").glob("[0-9]*.txt"))) == 4


def test_a_folder_that_no_graph_can_be_drawn_into_is_said(tmp_path):
    """The error is raised before anything is compiled."""
    (tmp_path / "ir").write_text("a file")

    with pytest.raises(Exception, match=r"can't draw into .*ir.graph_0'"):
        torch.compile(nn.ReLU(), backend="filch", options={"dump_graph_ir": tmp_path / "ir"})(torch.randn(2, 4))
