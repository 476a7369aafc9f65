"""Comparing a program with what the model did: rows, statuses, the first divergence, and what is refused."""

import copy
import re
from dataclasses import replace

import numpy as np
import onnx_ir as ir
import pytest
import torch
from torch import nn

from filch.compare import CompareError, compare, tiny_llm
from filch.export import BackendError, ProgramError, export, load_program
from filch.steal import DumpError, FilchError, steal_forward
from support.faults.fakes import WrongBackend
from support.models.small import module_of
from support.thorough import slow


class Model(nn.Module):
    """A model of three modules in a sequence; one returns two results."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(4, 4)
        self.norm = nn.LayerNorm(4)
        self.last = nn.Linear(4, 2)

    def forward(self, x):
        values, indices = torch.topk(self.norm(self.first(x)), 2)
        return self.last(self.norm(x)) + values, indices


def capture_of(model, *calls, **options):
    """Return a capture of some calls of a model."""
    with torch.no_grad(), steal_forward(model, **{"submodules": True, **options}) as capture:
        for call in calls:
            model(*call)
    return capture


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(0)
    return Model().eval()


@pytest.fixture(scope="module")
def inputs():
    return (torch.randn(3, 4, generator=torch.Generator().manual_seed(1)),)


@pytest.fixture(scope="module")
def program(model, inputs):
    return export(model, inputs)


@pytest.fixture(scope="module")
def capture(model, inputs):
    return capture_of(model, inputs)


def row_of(report, value):
    """Return the row of a value of the exported graph."""
    return next(row for row in report.rows if row.value == value and row.stage == "exported")


def test_a_clean_run_judges_every_value_and_flags_none(capture, program):
    """This holds for the exported and the compiled graph, and instrumentation does not change the outputs."""
    report = compare(capture, program)

    assert report.close
    assert report.first_divergence is None
    assert report.undisturbed
    assert {row.status for row in report.rows if row.stage == "exported"} == {"same"}
    assert {row.stage for row in report.rows} == {"exported", "compiled"}
    report.assert_close()


@pytest.mark.parametrize("backend", ["onnxruntime-cpu", "reference", "eager"])
def test_every_backend_agrees_with_the_model(capture, program, backend):
    """The backends include `eager`, which runs the exported program in PyTorch."""
    report = compare(capture, program, backend=backend)

    assert report.close
    assert report.backend == backend
    assert all(row.judged for row in report.rows if row.kind == "output")


def test_every_output_of_a_node_with_several_has_a_row(capture, program):
    """A top-k node returns values and indices."""
    report = compare(capture, program)

    rows = [row for row in report.rows if row.op == "TopK" and row.stage == "exported" and row.kind == "node"]
    assert [row.dtype for row in rows] == ["float32", "int64"]
    assert all(row.judged for row in rows)


def test_a_wrong_second_output_is_found(capture, program):
    """Integers are compared exactly, and the second output has a row of its own."""
    wrong = WrongBackend({program.graph.outputs[1]: lambda value: value + 1})

    report = compare(capture, program, backend=wrong)

    assert report.first_divergence.value == program.graph.outputs[1]
    assert not report.close


def test_a_wrong_value_that_the_output_does_not_show_is_found(capture, program):
    """A wrong intermediate value makes the report not close, even if the outputs are close."""
    value = program.module_calls["first", 0].outputs[0].value

    report = compare(capture, program, backend=WrongBackend({value: lambda tensor: tensor * 1.001}))

    assert (report.first_divergence.value, report.first_divergence.module, len(report.diverged)) == (value, "first", 1)
    with pytest.raises(
        AssertionError,
        match=r"(?s)is not close to the capture!.*First: exported node .* → linear in first \(.*linear\.py:\d+\)",
    ):
        report.assert_close()


@pytest.mark.parametrize("tolerance", [None, "default"])
def test_all_faults_are_in_one_message(capture, program, tolerance):
    """The message has the first difference and each other node that is wrong, and the number of inherited ones."""
    names = [program.module_calls[path, 0].outputs[0].value for path in ("first", "last")]
    wrong = WrongBackend({name: lambda tensor: tensor + 1 for name in names})

    with pytest.raises(AssertionError) as raised:
        compare(capture, program, backend=wrong, tolerance=tolerance).assert_close()

    first, others = str(raised.value).split("\n\n")[2:4]
    assert first.startswith("First: exported node node_linear (Gemm) → linear in first")
    assert others.startswith("Also wrong:\n  exported node node_linear_1 (Gemm) → linear_1 in last")
    assert others.count("\n") == 1


@pytest.mark.parametrize("tolerance", [None, "default"])
def test_inherited_differences_are_counted(capture, program, tolerance):
    """What is computed from a wrong value, and outputs, are not listed in the message."""
    wrong = replace(program, model=program.model.clone())
    bias = wrong.model.graph.initializers["first.bias"]
    bias.const_value = ir.tensor(bias.const_value.numpy() + np.float32([2, 0, 0, 0]))
    report = compare(capture, wrong, stages=["exported"], tolerance=tolerance)

    with pytest.raises(AssertionError) as raised:
        report.assert_close()

    assert report.first_divergence is report.diverged[0]
    assert report.inherited == report.diverged[1:] != ()
    assert "Also wrong" not in str(raised.value)
    assert str(raised.value).endswith(f"\n\n{len(report.inherited)} more rows inherit an error.")


def test_a_row_says_what_judged_it(capture, program):
    """A value that float64 judged has no limit of a tolerance, which another value has."""
    wrong = WrongBackend({program.module_calls["first", 0].outputs[0].value: lambda tensor: tensor * 1.001})
    by_float64 = compare(capture, program, backend=wrong).first_divergence
    by_tolerance = compare(capture, program, backend=wrong, tolerance=1e-5).first_divergence

    assert by_float64 is not None
    assert by_tolerance is not None
    assert f": wrong: {by_float64.float64.ratio:,.0f} times rounding (absolute error " in str(by_float64)
    assert f"greatest harmonic error {by_float64.error:.1e} at" in str(by_float64)
    assert "allowed" not in str(by_float64)
    assert "elements differ by more" in str(by_tolerance)
    assert "(up to 1.0e-05 allowed)" in str(by_tolerance)


@pytest.mark.parametrize(
    ("fault", "status", "reason"),
    [
        (lambda t: t.double(), "shape or dtype differs", r"the dtype differs: f64\[3, 4\] where f32\[3, 4\]"),
        (lambda t: t[:1], "shape or dtype differs", r"the shape differs: f32\[1, 4\] where f32\[3, 4\]"),
        (lambda t: t * float("nan"), "different", ""),
        (lambda t: t * float("inf"), "different", ""),
        (lambda t: -t, "different", ""),
        (lambda _: None, "no value", "the backend does not return it"),
    ],
    ids=["dtype", "shape", "nan", "inf", "sign", "missing"],
)
def test_wrong_shapes_types_and_missing_values_have_a_status(capture, program, fault, status, reason):
    """The row also has a reason, and a missing value never counts as close."""
    value = program.module_calls["first", 0].outputs[0].value

    row = row_of(compare(capture, program, backend=WrongBackend({value: fault})), value)

    assert row.status == status
    assert re.search(reason, row.reason)


def test_a_missing_result_is_no_pass(capture, program):
    """A report in which an output could not be judged is not close."""
    output = program.graph.outputs[0]

    report = compare(capture, program, backend=WrongBackend({output: lambda _: None}))

    assert not report.close
    with pytest.raises(AssertionError, match=f"{output} was not judged: the backend does not return it"):
        report.assert_close()
    assert f"no value that was judged differs, but {output} was not judged" in str(report)


def test_a_backend_whose_outputs_instrumentation_changes_is_reported(capture, program):
    """The outputs of the two runs differ by one bit here, and the headline says so."""
    output = program.graph.outputs[0]
    wrong = WrongBackend({output: lambda t: torch.nextafter(t, t + 1)}, observed_only=True)

    report = compare(capture, program, backend=wrong)

    assert not report.undisturbed
    assert "instrumentation CHANGED the outputs" in report.table("nodes", width=200).splitlines()[1]


@slow
def test_three_calls_in_one_block_are_compared_call_by_call():
    """Each call has inputs of another shape; a fault in one call is reported for that call alone."""
    model, (ids,), shapes = tiny_llm(dynamic_shapes=True)
    capture = capture_of(model, (ids,), (ids[:1, :7],), (ids[:, :3],))
    program = export(model, (ids,), dynamic_shapes=shapes)
    value = program.module_calls["decoder.norm_1", 0].outputs[0].value

    clean = compare(capture, program)
    wrong = compare(capture, program, backend=WrongBackend({value: lambda t: t + 1 if t.shape[1] == 7 else t}))

    assert clean.close
    assert {row.call for row in clean.rows} == {0, 1, 2}
    assert {row.call for row in wrong.diverged} == {1}


@slow
def test_the_steps_of_generate_are_compared_where_the_program_fits():
    """One program is of the first step, one of the second, whose inputs are the cache that the first returns."""
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        hidden_size=16, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2, num_key_value_heads=2,
        vocab_size=50,
    )  # fmt: skip
    llama = LlamaForCausalLM(config).eval()
    with steal_forward(llama, submodules=True) as steps:
        llama.generate(torch.randint(3, 50, (1, 5)), max_new_tokens=8, min_new_tokens=8, do_sample=False)

    assert len(steps.calls()) == 8
    for index in (0, 1):
        args, kwargs = steps["", index, "I"]
        report = compare(steps, export(llama, args, kwargs))

        assert report.close
        assert report.headline.startswith("compared 1 of 8 calls; judged ")
        assert {row.call for row in report.rows} == {index}
        assert sum("was given" in note for note in report.notes) == 7


def test_rows_have_the_evidence_of_their_references(capture, program):
    """A reference is captured from a module, computed in eager PyTorch, or derived by a decomposition."""
    report = compare(capture, program)

    assert row_of(report, program.module_calls["first", 0].outputs[0].value).evidence == "module"
    assert {row.evidence for row in report.rows if row.stage == "exported"} == {"module", "eager", "derived"}


def test_a_captured_value_takes_precedence_over_the_exported_program(model, inputs, program):
    """The reference is the model that ran: a weight that changed between capture and export is found."""
    changed = copy.deepcopy(model)
    with torch.no_grad():
        changed.last.bias += 0.5

    report = compare(capture_of(changed, inputs), program)

    assert not report.close
    assert {row.module for row in report.diverged if row.kind == "node"} == {"last", ""}


def test_a_fused_node_names_what_it_computes():
    """ONNX Runtime fuses MatMul, Add and others into one node, whose row lists the exported nodes."""
    model = nn.Sequential(nn.Linear(8, 8), nn.Tanh()).eval()
    x = torch.randn(2, 8)

    report = compare(capture_of(model, (x,)), export(model, (x,)))

    fused = [row for row in report.rows if row.kind == "fused"]
    assert ("Add" in fused[0].operators or "Gemm" in fused[0].operators) and "Tanh" in fused[-1].operators
    assert report.close


def test_a_fault_of_the_compiled_graph_alone_is_found(capture, program):
    """The fault is only in the optimized graph, and the first divergence is there."""

    class WrongWhenOptimized(WrongBackend):
        def compile(self, program, *, optimize):
            self.wrong = optimize
            made = super().compile(program, optimize=optimize)
            object.__setattr__(made, "optimized", optimize)
            return made

        def run(self, compiled, inputs, watch=()):
            found = dict(super().run(compiled, inputs, watch))
            if compiled.optimized:
                found = {name: value * 1.01 if value.is_floating_point() else value for name, value in found.items()}
            return found

    backend = WrongWhenOptimized(stages=("exported", "compiled"))

    report = compare(capture, program, backend=backend)

    assert report.first_divergence.stage == "compiled"


@pytest.mark.parametrize("form", ["path", "Path", "dump", "capture"])
def test_a_reference_is_a_path_a_dump_or_a_capture(model, inputs, program, tmp_path, form):
    """A program is a `Program` or the path of a file."""
    from filch.steal import restore

    made = capture_of(model, inputs, dump_file=tmp_path / "ref.onnx")
    program.save(tmp_path / "model.onnx")
    reference = {
        "path": str(tmp_path / "ref.onnx"),
        "Path": tmp_path / "ref.onnx",
        "dump": restore(tmp_path / "ref.onnx"),
        "capture": made,
    }[form]

    assert compare(reference, str(tmp_path / "model.onnx")).close
    assert compare(reference, load_program(tmp_path / "model.onnx")).close


def test_references_and_programs_that_do_not_match_are_refused(model, inputs, program, tmp_path):
    """The cases are dumps of another model, without inputs or with other shapes, and files of other formats."""
    parts = capture_of(model.first, inputs)
    inner = capture_of(nn.Sequential(model.first), inputs, submodules=False, include="0")
    only = [("first", model.first)]
    with torch.no_grad(), steal_forward(only) as without:
        model(*inputs)
    shape = capture_of(model, (torch.randn(2, 4),))
    (tmp_path / "text.onnx").write_text("no protobuf")

    for reference, message in [
        (parts, "has no calls of Model, the model of the program, but calls of Linear; if Linear is a part"),
        (inner, "has no calls of Model, the model of the program, but calls of Sequential"),
        (
            shape,
            (
                r"the program takes x: float32\[3, 4\], but the capture, call 0 of the model, "
                r"was given f32\[2, 4\] as x; export it with"
            ),
        ),
    ]:
        with pytest.raises(CompareError, match=message):
            compare(reference, program)
    with pytest.raises(FilchError, match=r"has no calls of Model|has no inputs of an outermost call"):
        compare(without, program)
    with pytest.raises(DumpError, match="there is no file"):
        compare(tmp_path / "none.onnx", program)
    with pytest.raises(DumpError, match="is not an ONNX file"):
        compare(tmp_path / "text.onnx", program)
    with pytest.raises(FilchError, match="there is no backend 'nothing'"):
        compare(parts, program, backend="nothing")
    with pytest.raises(ProgramError, match="'int' is not a program: give a Program, the path of an ONNX file"):
        compare(parts, 3)
    with pytest.raises(CompareError, match="reference must be a capture, a dump or the path of a dump, not Program"):
        compare(program, parts)


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"statistics_only": True}, "it has their statistics only"),
        ({"storage_limit": 8}, "bytes exceed the storage limit of 8"),
        ({"total_limit": 8}, "bytes would exceed the total limit of 8"),
    ],
)
def test_inputs_that_an_option_of_the_capture_excluded_are_named(model, inputs, program, options, reason):
    """The message names the option."""
    kept = capture_of(model, inputs, **options)

    with pytest.raises(CompareError, match=f"of x the capture has no numbers: .*{reason}"):
        compare(kept, program)


def test_an_empty_capture_is_refused(program):
    """A comparison that judges nothing is not close."""
    with steal_forward(nn.Identity()) as empty:
        pass

    with pytest.raises(CompareError, match="has no inputs of an outermost call: capture the model itself too"):
        compare(empty, program)


@slow
@pytest.mark.parametrize("optimized", [False, True])
def test_files_of_torchs_exporter_are_mapped_by_their_metadata(tmp_path, optimized):
    """A wrong value in such a file is found at its module."""
    model, (ids,) = tiny_llm()
    capture = capture_of(model, (ids,))
    made = torch.onnx.export(model, (ids,), dynamo=True, optimize=optimized, verbose=False)
    made.save(tmp_path / "foreign.onnx")

    clean = compare(capture, tmp_path / "foreign.onnx")

    assert clean.close
    inferred = [row for row in clean.modules if row.resolution == "inferred"]
    assert len(inferred) >= 0.9 * sum(row.side == "output" for row in clean.modules)

    file = ir.load(tmp_path / "foreign.onnx")
    bias = file.graph.initializers["decoder.feed_forward.linear_1.bias"]
    bias.const_value = ir.tensor(bias.const_value.numpy() + np.float32(0.1), name=bias.name)
    ir.save(file, tmp_path / "foreign.onnx")

    wrong = compare(capture, tmp_path / "foreign.onnx")

    assert not wrong.close
    assert wrong.first_divergence.module == "decoder.feed_forward.linear_1"
    assert wrong.first_divergence.evidence == "inferred"


def test_files_without_any_metadata_are_mapped_by_their_numbers(tmp_path):
    """A captured value without a counterpart is `not mapped`, with the reason; the outputs are still judged."""
    model, (ids,) = tiny_llm()
    capture = capture_of(model, (ids,))
    made = torch.onnx.export(model, (ids,), dynamo=True, optimize=False, verbose=False)
    bare = made.model
    for node in bare.graph:
        node.metadata_props.clear()
    weight = bare.graph.initializers["decoder.norm_2.weight"]
    ir.save(bare, tmp_path / "bare.onnx")
    weight.const_value = ir.tensor(weight.const_value.numpy() * 1.01, name=weight.name)
    ir.save(bare, tmp_path / "wrong.onnx")

    clean, wrong = compare(capture, tmp_path / "bare.onnx"), compare(capture, tmp_path / "wrong.onnx")

    assert clean.close and {row.note for row in clean.modules if row.resolution == "inferred"} == {"by its numbers"}
    assert not wrong.close
    lost = next(row for row in wrong.modules if row.path == "decoder.norm_2" and row.side == "output")
    assert (lost.resolution, lost.note) == (
        "not mapped",
        "nothing in this file says which value it is, and none has its numbers",
    )


def test_a_program_in_half_precision_differs_in_dtype(capture, program):
    """The `eager` backend runs the program in another dtype than the model, which is a difference."""
    from filch.export.backends import get_backend

    report = compare(capture, program, backend=get_backend("eager", dtype=torch.float16))

    assert not report.close
    assert "the dtype differs: f16[" in report.first_divergence.reason


def test_a_fault_beside_a_mask_is_found_at_its_node():
    """A mask of -3.4e38 does not widen the tolerance of other elements, in the masked sum or in the softmax."""
    model = module_of(lambda self, scores, mask: torch.softmax(scores * 2 + mask, dim=-1)).eval()
    mask = torch.full((8, 8), torch.finfo(torch.float32).min).triu(1)
    inputs = (torch.randn(8, 8, generator=torch.Generator().manual_seed(0)), mask)
    program = export(model, inputs)
    stolen = capture_of(model, inputs)
    values = [node.outputs[0] for node in program.graph.nodes if node.op in ("Add", "Softmax")]

    assert compare(stolen, program).close
    for value in values:
        wrong = compare(stolen, program, backend=WrongBackend({value: lambda t: torch.where(t > -1e30, t * 1.001, t)}))
        assert wrong.first_divergence.value == value


def test_a_node_that_cannot_be_judged_is_named_with_the_one_that_reads_it(capture, program):
    """An inserted node has no reference; the first row that differs behind it names it."""
    model = program.model.clone()
    node = next(node for node in model.graph if node.op_type == "LayerNormalization")
    factor = ir.val("factor", const_value=ir.tensor(np.float32(1.5), name="factor"))
    model.graph.register_initializer(factor)
    following = next(user for user, _ in node.outputs[0].uses())
    index = list(following.inputs).index(node.outputs[0])
    scaled = ir.node("Mul", [node.outputs[0], factor], name="scaled")
    scaled.outputs[0].name = "scaled_value"
    model.graph.insert_before(following, scaled)
    following.replace_input_with(index, scaled.outputs[0])

    first = compare(capture, replace(program, model=model)).first_divergence

    assert first.node == following.name
    assert "scaled" in first.origins
    assert "after scaled, which could not be judged" in str(first)


def test_an_exported_graph_that_cannot_be_optimized_is_still_judged(capture, program):
    """The report has the exported rows and the reason, and is not close."""

    class Refuses(WrongBackend):
        def compile(self, program, *, optimize):
            if optimize:
                raise BackendError("the optimizer does not like it")
            return super().compile(program, optimize=optimize)

    report = compare(capture, program, backend=Refuses(stages=("exported", "compiled")))

    assert {row.stage for row in report.rows} == {"exported"}
    assert not report.diverged
    assert not report.close
    assert "INCOMPLETE: the optimizer does not like it" in report.headline
    with pytest.raises(AssertionError, match="the optimizer does not like it"):
        report.assert_close()


def test_a_float32_value_computed_from_float16_has_the_tolerance_of_float16():
    """A float32 value that does not depend on float16 is judged as float32."""
    torch.manual_seed(0)
    model = module_of(
        lambda self, x: self.narrow(x.half()).float() + self.wide(x),
        narrow=nn.Linear(64, 64).half(),
        wide=nn.Linear(64, 64),
    ).eval()
    x = (torch.randn(4, 64),)
    program = export(model, x)
    stolen = capture_of(model, x)
    (narrow,), (wide,) = (program.module_calls[name, 0].outputs for name in ("narrow", "wide"))
    cast = next(node.outputs[0] for node in program.graph.consumers[narrow.value] if node.op == "Cast")

    def off(value, by):
        wrong = WrongBackend({value: lambda t: t + by})
        return compare(stolen, program, backend=wrong, tolerance="default").close

    assert compare(stolen, program).close
    assert off(cast, 1e-3)
    assert not off(cast, 1e-1)
    assert not off(wide.value, 1e-3)


def test_a_compiled_node_that_differs_names_those_before_it_that_could_not_be_judged(capture, program):
    """They may be at fault: here the backend does not return the value that the wrong node reads."""
    hidden, wrong = (program.module_calls[path, 0].outputs[0].value for path in ("first", "norm"))
    backend = WrongBackend({hidden: lambda _: None, wrong: lambda tensor: tensor + 1}, stages=("compiled",))

    first = compare(capture, program, backend=backend).first_divergence

    assert first.value == wrong
    assert first.behind == (program.graph.producer[hidden].name,)
    assert f"after {first.behind[0]}, which could not be judged" in str(first)


LOWEST = torch.finfo(torch.float32).min


@pytest.mark.parametrize(
    "choose",
    [
        lambda x: torch.where(x > 0, x, torch.tensor(LOWEST)),
        lambda x: x.masked_fill(x < 0, LOWEST),
        lambda x: torch.clamp(x, min=LOWEST),
        lambda x: torch.maximum(x, torch.tensor(LOWEST)),
        lambda x: nn.functional.pad(x, (1, 1), value=LOWEST),
        lambda x: torch.cat([x, torch.full((1, 8), LOWEST)]),
        lambda x: x.scatter(0, torch.zeros(1, 8, dtype=torch.int64), torch.full((1, 8), LOWEST)),
    ],
)
def test_an_unselected_fill_value_does_not_widen_the_tolerance(choose):
    """A fill value of -3.4e38 does not affect the other elements, so its rounding explains no difference there."""
    torch.manual_seed(0)
    model, x = module_of(lambda self, x: choose(x) * 1.0).eval(), torch.randn(4, 8)
    capture = capture_of(model, (x,))
    program = export(model, (x,))
    chosen = next(node.inputs[0] for node in program.graph.nodes if node.op == "Mul")
    wrong = WrongBackend({chosen: lambda t: torch.where(t > 0, t + 0.5, t)})

    report = compare(capture, program, backend=wrong)

    assert report.first_divergence is not None and report.first_divergence.value == chosen


def test_contradicting_declared_shapes_do_not_fail_a_comparison(program, capture, caplog):
    """Declared shapes may be outdated if the graph was changed afterwards."""
    changed = program.model.clone()
    values = [output for node in changed.graph for output in node.outputs]
    norm = next(value for value in values if value.name == "layer_norm")
    norm.shape = ir.Shape([30, 40])

    report = compare(capture, replace(program, model=changed))

    assert report.close
    assert not caplog.records


def test_huge_expanded_inputs_are_refused():
    """A dump of a few bytes can hold an expanded tensor that no runtime can take as input."""
    model = module_of(lambda self, x: x[0, 0] + 1)
    program = export(model, (torch.ones(2, 3, 4),), dynamic_shapes=({0: "a", 1: "b"},))
    with steal_forward(model) as capture:
        model(torch.ones(1, 1, 4).expand(2**20, 2**20, 4))

    with pytest.raises(CompareError, match=r"repeat their numbers: they would take 16,384.0 GiB, more than 64 times"):
        compare(capture, program)


def test_a_dump_with_calls_of_unlisted_modules_is_refused():
    """The dump has records of modules that its list of modules lacks."""
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
    program = export(model, (torch.ones(2, 4),))
    with torch.no_grad(), steal_forward(model) as capture:
        model(torch.ones(2, 4))
    capture.modules.clear()
    with pytest.raises(CompareError, match="has no inputs of an outermost call"):
        compare(capture, program)
