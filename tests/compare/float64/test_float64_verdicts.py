"""Whether a difference is more than rounding, and which node it is of: judged by float64."""

import json
import math
from collections.abc import Callable
from dataclasses import replace

import onnx
import onnx_ir as ir
import pytest
import torch
from torch import nn

from faults.decisions import replaced
from filch.compare import compare, compare_tensors, load_report
from filch.compare.float64._verdict import (
    SUSPICIOUS,
    Float64Value,
    RoundingVerdict,
    identical_verdict,
    rounding_verdict,
)
from filch.compare.judging._judge import Confirmed
from filch.compare.judging._run import Pair
from filch.export import Value, export
from filch.steal import FilchError, steal_forward
from support.faults.fakes import WrongBackend
from support.models.hand_made import chain, float64_values, judge_of, run_of
from support.models.small import capture_of, module_of, recorded

UNIT, HALF = 2.0**-24, 2.0**-8  # of float32 and bfloat16


def sums(*, terms=64):
    """Return sums of products in float32, and the same in float64."""
    made = torch.Generator().manual_seed(0)
    x, w = (torch.randn(256, terms, generator=made) for _ in range(2))
    exact = x.double() @ w.double().T
    signs = torch.randint(0, 2, x.shape, generator=made) * 2 - 1
    noisy = (x.double() * (1 + UNIT * signs)) @ w.double().T
    return x @ w.T, Float64Value(exact, noisy, UNIT)


def test_sums_in_another_order_are_rounding():
    """Both orders are within the rounding of float32."""
    eager, truth = sums()
    halves = (truth.value.float() + eager) / 2

    for other in (halves, truth.value.float(), torch.nextafter(eager, torch.full_like(eager, math.inf))):
        found = rounding_verdict(other, eager, truth, unit=UNIT, length=64)

        assert found.verdict == "rounding", found
        assert found.ratio <= SUSPICIOUS


@pytest.mark.parametrize("share", [1.0, 0.0])
def test_three_times_the_rounding_is_found(share):
    """All elements are off, or one of 65,536."""
    eager, truth = sums()
    off = (eager.double() - truth.value).abs()
    level = off.square().mean().sqrt() if share else off.max()
    wrong = truth.value.clone().reshape(-1)
    wrong[: max(1, int(share * wrong.numel()))] += 3.5 * level

    found = rounding_verdict(wrong.reshape(eager.shape).float(), eager, truth, unit=UNIT, length=16)

    assert not found.sound, found


def test_a_reference_that_needs_gradients_is_judged_without_a_warning():
    """A capture of a model that was called without `no_grad` has such tensors."""
    eager, truth = sums()

    found = rounding_verdict(truth.value.float(), eager.requires_grad_(), truth, unit=UNIT, length=64)

    assert found.verdict == "rounding"


@pytest.mark.parametrize("coarse", [2.0**-11, 2.0**-8])
def test_a_reference_is_as_exact_as_the_dtypes_of_the_model_or_of_the_run(coarse):
    """If its error is neither, float64 computes something else than the model did, and there is no verdict."""
    eager, truth = sums()
    rounded = truth.value + truth.value.abs() * coarse * torch.linspace(-0.5, 0.5, truth.value.shape[1])

    for reference, is_judged in ((eager, True), (rounded, True), (eager * (1 + 20 * coarse), False)):
        found = rounding_verdict(rounded.float(), reference.float(), truth, unit=coarse, length=64)
        assert (found is not None and found.sound) == is_judged
    one = eager.clone()
    one[0, 0] += 1000 * coarse
    assert rounding_verdict(one, one, truth, unit=coarse, length=64) is None


def test_far_off_is_wrong_and_says_by_how_much():
    """The verdict has the largest distance of an element."""
    eager, truth = sums()
    wrong = eager.clone()
    wrong[3, 5] += 0.125

    found = rounding_verdict(wrong, eager, truth, unit=UNIT)

    assert (found.verdict, round(found.error, 3)) == ("wrong", 0.125)
    assert found.ratio > 1000
    assert found.eager < 1e-4


def test_a_mask_does_not_hide_what_is_beside_it():
    """The rounding of -3.4e38 is not applied to scores of size 1."""
    eager, truth = sums()
    masked = torch.rand(eager.shape, generator=torch.Generator().manual_seed(1)) < 0.5
    low = torch.finfo(torch.float32).min
    eager = eager.masked_fill(masked, low)
    truth = Float64Value(truth.value.masked_fill(masked, low), truth.noisy.masked_fill(masked, low * (1 + UNIT)), UNIT)
    wrong = eager.clone()
    wrong[~masked] += 1e-3

    assert rounding_verdict(wrong, eager, truth, unit=UNIT).verdict == "wrong"


@pytest.mark.parametrize("odd", [math.nan, math.inf, -math.inf])
def test_what_is_not_finite_is_wrong_unless_the_model_has_the_same(odd):
    """So is a finite number in place of infinity, whatever float64 has, and another infinity."""
    eager, truth = sums()
    over = eager.clone()
    over[0, 0] = odd
    raised = replace(truth, value=truth.value.masked_fill(~over.isfinite(), odd))

    for known in (truth, raised):
        assert rounding_verdict(over, eager, known, unit=UNIT).verdict == "wrong"
        assert rounding_verdict(eager, over, known, unit=UNIT).verdict == "wrong"
        assert rounding_verdict(over.where(over.isfinite(), 12345.0), over, known, unit=UNIT).verdict == "wrong"
        for other in {math.nan, math.inf, -math.inf} - {odd}:
            assert rounding_verdict(over.where(over.isfinite(), other), over, known, unit=UNIT).verdict == "wrong"
        assert rounding_verdict(over + 0, over, known, unit=UNIT).sound


def test_where_float64_alone_is_not_finite_it_does_not_judge():
    """The tolerance judges these elements."""
    eager, truth = sums()
    unknown = truth.value.clone()
    unknown[0, 0] = math.nan
    wrong = eager.clone()
    wrong[0, 0] = 12345

    assert rounding_verdict(wrong, eager, replace(truth, value=unknown), unit=UNIT) is None


def test_distances_beyond_the_range_of_float64_are_wrong():
    """The distance or its square overflows float64."""
    unit = 2.0**-53
    for value in (torch.finfo(torch.float64).max, 1e200):
        right = torch.full((4,), value, dtype=torch.float64)
        truth = Float64Value(right, right * (1 - 3 * unit), unit)

        assert rounding_verdict(-right, right, truth, unit=unit).verdict == "wrong"
        assert rounding_verdict(right * (1 - 2 * unit), right, truth, unit=unit).sound


def test_numbers_that_processors_flush_are_rounding():
    """Subnormal float32 numbers may be 0, with or without float64; normal ones may not."""
    least = 2.0**-126
    for share, sound in ((0.75, True), (1e-7, True), (8.0, False)):
        exact = torch.full((64,), share * least, dtype=torch.float64)
        for noisy in (exact, exact * (1 + 4 * UNIT)):
            truth, made = Float64Value(exact, noisy, UNIT), exact.float()

            assert rounding_verdict(torch.zeros(64), made, truth, unit=UNIT).sound == sound
            if sound:
                assert rounding_verdict(made, torch.zeros(64), truth, unit=UNIT).sound


def test_float8_is_judged_and_nothing_is_nothing():
    """PyTorch has no arithmetic for float8, and an empty tensor has no largest element."""
    right = torch.tensor([1.0, 2.0]).to(torch.float8_e4m3fn)
    truth = Float64Value(right.double(), right.double(), UNIT)
    empty = torch.empty(0, 3)

    assert rounding_verdict(torch.tensor([1.0, -2.0]).to(right.dtype), right, truth, unit=UNIT).verdict == "wrong"
    assert rounding_verdict(empty, empty, Float64Value(empty.double(), empty.double(), UNIT), unit=UNIT).sound


def test_the_magnitude_of_a_value_leaves_masks_out():
    """An error of 1e-3 among scores is not relative to -3.4e38."""
    scores = torch.linspace(-1, 1, 64)
    scores[10:50] = torch.finfo(torch.float32).min
    truth = Float64Value(scores.double(), scores.double() * (1 + 3 * UNIT), UNIT)
    wrong = scores.clone()
    wrong[3] += 1e-3

    assert 0.1 < rounding_verdict(wrong, scores, truth, unit=UNIT).magnitude < 2


def test_a_finite_number_is_wrong_where_infinity_is_right():
    """A mask of -inf is missing, or has the other sign."""
    eager, truth = sums()
    masked = torch.eye(256, dtype=torch.bool)
    infinite = replace(truth, value=truth.value.masked_fill(masked, -math.inf))
    right = eager.masked_fill(masked, -math.inf)

    for other in (eager, eager.masked_fill(masked, math.inf)):
        found = rounding_verdict(other, right, infinite, unit=UNIT)

        assert (found.verdict, found.note) == ("wrong", "not infinite in 256 elements, as it should be")
    assert rounding_verdict(right + 0, right, infinite, unit=UNIT).sound


def test_an_integer_is_wrong_unless_rounding_decides_it():
    """The index of the larger of two nearly equal numbers may be either."""
    eager, other = torch.tensor([1, 2, 3]), torch.tensor([1, 2, 4])
    sure, tie = Float64Value(eager, eager, UNIT), Float64Value(eager, other, UNIT)

    assert str(rounding_verdict(other, eager, sure, unit=UNIT)) == "wrong: 4 instead of 3 in 1 of 3 elements"
    assert str(rounding_verdict(other, eager, tie, unit=UNIT)) == "decision: 1 of 3 differ"


def test_other_indices_of_the_same_numbers_are_no_fault():
    """ONNX Runtime breaks ties differently from torch; the index of another number is wrong."""

    class Top(nn.Module):
        def forward(self, x):
            return x.relu().topk(6).indices

    x = torch.randn(8, 9, generator=torch.Generator().manual_seed(0))
    program = export(Top(), (x,))
    with steal_forward(model := Top()) as capture:
        model(x)
    index = program.graph.outputs[0]

    def other(indices):
        return (indices + 1) % 9

    clean = compare(capture, program, every_node=True, stages=["exported"])
    wrong = compare(capture, program, every_node=True, backend=WrongBackend({index: other}, observed_only=True))

    assert not clean.introduced
    assert clean.explanation is not None
    assert [row.value for row in clean.explanation.decisions] == [index]
    assert [row.value for row in wrong.introduced] == [index]


def test_what_changes_from_run_to_run_is_unstable():
    """Its distance from the reference is that between runs; a value further off is wrong as well."""
    eager, truth = sums()
    noise = torch.full(eager.shape, 1e-3, dtype=torch.float64)

    assert rounding_verdict(eager + 1e-3, eager, truth, unit=UNIT, spread=noise).verdict == "unstable"
    assert rounding_verdict(eager + 1e-1, eager, truth, unit=UNIT, spread=noise).verdict == "wrong"
    assert rounding_verdict(eager + 1e-3, eager, truth, unit=UNIT, spread=0 * noise).verdict == "wrong"
    assert rounding_verdict(eager, eager, truth, unit=UNIT, spread=noise).verdict == "unstable", (
        "right the first time alone"
    )
    assert rounding_verdict(eager, eager, truth, unit=UNIT, spread=noise * 1e-6).verdict == "rounding"
    assert rounding_verdict(eager, eager, truth, unit=UNIT, spread=noise * math.inf).verdict == "unstable"
    whole = torch.tensor([1, 2, 3])
    sure = Float64Value(whole, whole, UNIT)
    assert (
        rounding_verdict(whole, whole, sure, unit=UNIT, spread=torch.ones(3, dtype=torch.float64)).verdict == "unstable"
    )


@pytest.fixture(scope="module")
def subject():
    """Return a capture of the net, and its program."""
    torch.manual_seed(0)
    # Two linear layers with a norm and an activation.
    model = module_of(
        lambda self, x: self.down(self.norm(self.act(self.up(x)))).softmax(-1),
        up=nn.Linear(16, 32),
        act=nn.GELU(),
        norm=nn.LayerNorm(32),
        down=nn.Linear(32, 4),
    ).eval()
    x = torch.randn(8, 16)
    return recorded(model, x, submodules=True)


def with_epsilon(program, epsilon):
    """Return the program with another epsilon in the norm."""
    model = program.model.clone()
    (norm,) = (node for node in model.graph if node.op_type == "LayerNormalization")
    norm.attributes["epsilon"] = ir.AttrFloat32("epsilon", epsilon)
    return replace(program, model=model)


def test_rounding_alone_is_close(subject):
    """Every node of both graphs runs in isolation, and nothing is blamed."""
    report = compare(*subject, every_node=True)

    assert report.close
    assert not report.introduced
    assert all(row.isolated is not None and row.isolated.sound for row in report.rows if row.kind != "output")
    assert "Rounding explains all differences" in str(report).replace("\n", " ")


def test_what_inherits_an_error_is_not_blamed(subject):
    """The norm is wrong by itself, later nodes are not; the text and JSON say so."""
    capture, program = subject

    report = compare(capture, with_epsilon(program, 1e-3), every_node=True)

    exported = [row for row in report.rows if row.stage == "exported" and row.kind != "output"]
    assert {row.op for row in report.introduced} == {"LayerNormalization"}
    assert [row.op for row in exported if row.diverged and not row.introduced] == ["Gemm", "Softmax"]
    assert report.first_divergence is report.introduced[0]
    assert not report.close
    text = " ".join(str(report).split())
    assert "Divergence starts at `node_layer_norm` in `norm` (LayerNormalization" in text
    assert report.introduced[0].isolated is not None
    assert f"{report.introduced[0].isolated.error:.1e} (absolute) from float64" in text
    assert "inherited" in text
    told = json.loads(report.to_json())["explanation"]
    assert told["text"] in text
    assert not told["others"]  # the same node of the compiled graph is the same fault
    assert (told["starts"]["node"], told["results"][0]["value"]) == ("node_layer_norm", program.graph.outputs[0])
    assert "The exported graph is already wrong." in told["text"]


def test_a_report_is_read_back_with_what_was_judged(subject, tmp_path):
    """JSON has the verdicts."""
    report = compare(subject[0], with_epsilon(subject[1], 1e-3), every_node=True)
    report.to_json(tmp_path / "report.json")

    assert load_report(tmp_path / "report.json").rows == report.rows


def test_a_wrong_shape_is_blamed_where_it_comes_up(subject):
    """Later nodes can't be judged in isolation."""
    capture, program = subject
    wrong = WrongBackend({"gelu": lambda tensor: tensor[:1]}, observed_only=True)

    report = compare(capture, program, backend=wrong, every_node=True)

    assert [row.value for row in report.introduced] == ["gelu"]
    assert "the shape differs" in str(report.explanation)


def test_a_value_that_is_off_is_not_explained_by_rounding(subject):
    """This holds whether or not its own node is wrong; equal bits have the verdict `same`."""
    report = compare(*subject, stages=["exported"], every_node=True)
    first, *others = (replace(row, float64=None, isolated=identical_verdict()) for row in report.rows)
    off = replace(first, status="different", float64=RoundingVerdict("wrong", 2.5e9, 0.25))

    words = str(replace(report, rows=(off, *others)).explanation)

    assert words.startswith(f"No node is wrong by itself, but 1 value differs; the first is `{first.node}`")
    assert words.endswith("2.5e-01 (absolute) from float64, 2.5e+09 times float32 rounding (eager: 0.0e+00).")
    assert str(replace(report, rows=(first, *others)).explanation) == "No value differs from its reference."


def test_what_is_drawn_at_random_has_no_truth():
    """Rounding does not explain it; sums along any axis are still known."""

    class Drawing(nn.Module):
        def forward(self, x):
            dropped = nn.functional.dropout(x, 0.5, training=True)
            return x.cumsum(0), dropped * 2.0

    x = torch.randn(4096, 2, generator=torch.Generator().manual_seed(0))
    program = export(Drawing(), (x,))
    with steal_forward(model := Drawing()) as capture:
        model(x)

    report = compare(capture, program, every_node=True, stages=["exported"])

    judged = {row.op: row for row in report.rows if row.kind == "node" and row.judged}
    assert not report.introduced  # what was stolen is of another draw
    assert judged["Dropout"].float64 is None
    assert report.random
    assert judged["CumSum"].float64 is not None


def test_an_error_that_reaches_no_result_is_told_all_the_same(subject):
    """The report is not close."""
    capture, program = subject
    wrong = WrongBackend({"gelu": lambda tensor: tensor * 1.001}, observed_only=True)

    report = compare(capture, program, backend=wrong, every_node=True)

    assert [row.value for row in report.introduced] == ["gelu"]
    assert "All model outputs remain within rounding error." in " ".join(str(report).split())


@pytest.mark.parametrize(
    ("how", "problem"),
    [
        ({"every_node": True, "tolerance": 1e-3}, "`every_node` and `tolerance` are mutually exclusive"),
        ({"repeats": 2, "tolerance": 1e-3}, "give no tolerance"),
        ({"every_node": True, "repeats": 0}, "repeats must be an integer of at least 1, not 0"),
    ],
)
def test_what_does_not_go_together_is_refused(subject, how, problem):
    """The message is one sentence."""
    with pytest.raises(FilchError, match=problem):
        compare(*subject, **how)


@pytest.mark.parametrize(("exact", "verdict"), [(65519.0, "rounding"), (65521.0, "rounding"), (70000.0, "wrong")])
def test_rounding_decides_whether_a_number_at_the_limit_of_its_dtype_overflows(exact, verdict):
    """A mask of float16's lowest number plus a score may become -inf; a number far beyond the limit has to."""
    unit = 2.0**-11
    value = torch.tensor([1.0, exact, -exact], dtype=torch.float64)
    finite = torch.tensor([1.0, 65504.0, -65504.0]).half()
    infinite = torch.tensor([1.0, math.inf, -math.inf]).half()
    truth = Float64Value(value, value * (1 + unit), unit)

    for actual, eager in ((finite, infinite), (infinite, finite)):
        assert rounding_verdict(actual, eager, truth, unit=unit).verdict == verdict
    assert rounding_verdict(-infinite, finite, truth, unit=unit).verdict == "wrong"


@pytest.mark.parametrize(("unit", "verdict"), [(2.0**-11, "rounding"), (UNIT, "wrong")])
def test_a_number_that_overflowed_before_it_was_cast_to_a_finer_dtype_may_be_finite(unit, verdict):
    """A kernel computes in float32 what eager PyTorch computes in float16 and then casts."""
    value = torch.tensor([1.0, -65534.0], dtype=torch.float64)
    truth = Float64Value(value, value * (1 + 2 * unit), unit)

    found = rounding_verdict(value.float(), torch.tensor([1.0, -math.inf]), truth, unit=unit)

    assert found is not None
    assert found.verdict == verdict


def test_a_copied_mask_does_not_become_infinite_by_rounding():
    """No arithmetic takes place: a mask of -inf in place of the lowest number is another mask."""
    mask = torch.zeros(8, 8).masked_fill(torch.ones(8, 8).triu(1).bool(), torch.finfo(torch.float32).min)
    truth = Float64Value(mask.double(), mask.double() * (1 + UNIT), UNIT)

    verdict = rounding_verdict(1.04 * mask, mask, truth, unit=UNIT)

    assert verdict is not None
    assert (verdict.verdict, verdict.note) == ("wrong", "not finite in 28 elements")


def test_a_number_where_the_model_has_none_is_not_explained_by_rounding():
    """This holds for the whole run and for a node in isolation; NaN in the model, too, is no fault."""
    x = torch.tensor([[-1.0, 0.0, 2.0]])
    with steal_forward(model := module_of(lambda self, x: x.log())) as capture:
        model(x)
    program = export(model, (x,))
    name, how = program.graph.outputs[0], {"every_node": True, "stages": ["exported"]}
    instead: list[Callable[[torch.Tensor], torch.Tensor]] = [
        lambda made: made.where(~made.isnan(), 12345.0),
        lambda made: made.where(~made.isinf(), 7.0),
        lambda made: made.where(~made.isinf(), math.inf),
        lambda made: made.where(~made.isfinite(), math.nan),
    ]

    assert compare(capture, program, **how).close
    for fault in instead:
        report = compare(capture, program, backend=WrongBackend({name: fault}), **how)

        assert not report.close
        assert [row.value for row in report.introduced] == [name]
        assert "Float64Checker" not in str(report)


def test_the_growth_of_an_error_is_not_relative_to_masks(subject):
    """Relative to -3.4e38 the error of an input would be 0, and the growth a number of 38 digits."""
    report = compare(*subject, stages=["exported"], every_node=True)
    graph = report.graphs["exported"]
    last = graph.producer[graph.outputs[0]]
    scores = torch.linspace(-1, 1, 8)
    scores[5:] = torch.finfo(torch.float32).min
    masked = compare_tensors(scores + 1e-6, scores)
    off = {name: RoundingVerdict("rounding", 1.0, 1e-6, magnitude=1.0) for name in last.reads} | {
        last.outputs[0]: RoundingVerdict("wrong", 900.0, 2.5e-4, magnitude=1.0)
    }
    rows = [
        replace(
            row, status="different" if row.kind == "output" else "same", float64=off.get(row.value), difference=masked
        )
        for row in report.rows
    ]

    words = replace(report, rows=tuple(rows)).explanation

    assert words is not None
    assert words.growth == pytest.approx(250)
    assert f"The error grows most at `{last.name}`" in str(words) and str(words).count("by a factor of 250.") == 1
    assert "by a factor of 2.8e+37." in str(replace(words, growth=2.8e37))


def test_data_of_different_scales_is_no_mask():
    """Of two heads in one tensor, one has numbers of 1e-9; rounding errors of the other one are not wrong.

    The rounding of each number is known from one sample of noise, which is small for some numbers by chance.
    """
    made = torch.Generator().manual_seed(0)
    steps = torch.rand(2, 64, 256, generator=made) * torch.tensor([1e-9, 3e3]).view(2, 1, 1)
    exact = steps.double().cumsum(-1)
    noise = (torch.rand(steps.shape, generator=made, dtype=torch.float64) * 2 - 1) * 3**0.5 * UNIT
    truth = Float64Value(exact, exact * (1 + 300 * noise), UNIT)
    eager = exact * (1 + 100 * UNIT * torch.randn(steps.shape, generator=made, dtype=torch.float64))
    other = exact * (1 + 100 * UNIT * torch.randn(steps.shape, generator=made, dtype=torch.float64))

    verdict = rounding_verdict(other.float(), eager.float(), truth, unit=UNIT)

    assert verdict is not None
    assert verdict.sound, verdict
    wrong = other.clone()
    wrong[1, 3, 200] *= 1 + 1e-3
    found = rounding_verdict(wrong.float(), eager.float(), truth, unit=UNIT)
    assert found is not None
    assert found.verdict == "wrong"


@pytest.mark.parametrize(
    ("dtype", "mask"), [(torch.float16, -65504.0), (torch.float32, -1e4), (torch.float32, -3.4e38)]
)
def test_an_error_of_a_score_is_found_beside_masks_of_any_size(dtype, mask):
    """Also masks that do not absorb the score which is added to them."""
    unit = torch.finfo(dtype).eps / 2
    made = torch.Generator().manual_seed(0)

    def noise():
        return unit * (torch.rand(4, 64, 64, generator=made, dtype=torch.float64) * 2 - 1) * 3**0.5

    scores = 3 * torch.randn(4, 64, 64, generator=made, dtype=torch.float64)
    exact = torch.where(torch.ones(64, 64, dtype=torch.bool).triu(1), scores + mask, scores)
    truth = Float64Value(exact, exact * (1 + noise()), unit)
    eager, other = exact.to(dtype), (exact * (1 + noise() / 2)).to(dtype)

    clean = rounding_verdict(other, eager, truth, unit=unit)
    other[1, 40, 3] += 500 * unit
    wrong = rounding_verdict(other, eager, truth, unit=unit)

    assert clean is not None
    assert clean.sound, clean
    assert wrong is not None
    assert wrong.verdict == "wrong", wrong


def test_a_channel_of_large_numbers_is_no_mask():
    """Its errors have accumulated, so that rounding explains more than half a unit of each number."""
    made = torch.Generator().manual_seed(0)
    exact = torch.randn(64, 256, generator=made, dtype=torch.float64)
    exact[:, ::16] = 2000 + 1000 * torch.rand(64, 16, generator=made, dtype=torch.float64)
    growth = torch.ones(256)
    growth[::16] = 300

    def changed():
        return exact * (1 + growth * UNIT * torch.randn(exact.shape, generator=made, dtype=torch.float64))

    truth = Float64Value(exact, changed(), UNIT)

    verdict = rounding_verdict(changed().float(), exact.float(), truth, unit=UNIT)

    assert verdict is not None
    assert verdict.verdict != "wrong", verdict


def confirmed(isolated, whole, *, sums):
    """Return the verdict on a node in isolation, one that sums numbers or not."""
    graph = chain("ReduceSum" if sums else "Relu")
    graph = replace(graph, values={"x": Value("x", "float32", (4,)), "a": Value("a", "float32", (1,))})
    facts = judge_of(float64_values({}), run_of(graph, {"x": torch.ones(4)})).facts
    pair = Pair("a", "a", graph.nodes[0], torch.ones(1), None, None, whole=whole)
    verdict = Confirmed(facts).judge(pair, lambda _: isolated)
    assert verdict is not None
    return verdict


@pytest.mark.parametrize(
    ("isolated", "whole", "sums", "expected"),
    [
        (RoundingVerdict("suspicious", 3.1), RoundingVerdict("suspicious", 2.5), False, "wrong"),
        (RoundingVerdict("suspicious", 3.0), RoundingVerdict("suspicious", 2.5), True, "suspicious"),
        (RoundingVerdict("suspicious", 7.0), RoundingVerdict("suspicious", 2.5), True, "wrong"),
        (RoundingVerdict("suspicious", 2.5), RoundingVerdict("suspicious", 2.5), False, "suspicious"),
        (RoundingVerdict("suspicious", 2.4), RoundingVerdict("suspicious", 7.0), False, "suspicious"),
        (RoundingVerdict("suspicious", 6.0), RoundingVerdict("rounding", 1.9), False, "suspicious"),
        (RoundingVerdict("suspicious", 6.0), RoundingVerdict("wrong", 20.0), False, "suspicious"),
        (RoundingVerdict("suspicious", 6.0), None, False, "suspicious"),
        (RoundingVerdict("suspicious", 3.1, 1e-6), RoundingVerdict("suspicious", 3.1, 0.3), False, "suspicious"),
        (RoundingVerdict("rounding", 1.0), RoundingVerdict("suspicious", 2.5), False, "rounding"),
    ],
)
def test_a_node_that_is_suspicious_by_itself_and_in_the_whole_run_is_wrong(isolated, whole, sums, expected):
    """Kernels sum in different orders, so a sum has to be further off. An error of a lower precision shows nothing."""
    verdict = confirmed(isolated, whole, sums=sums)

    assert verdict == replace(isolated, verdict=expected, note=verdict.note)
    assert bool(verdict.note) is (expected == "wrong")


def test_a_sum_that_is_nearer_to_float64_than_the_model_is_twice_is_wrong():
    """The order in which a kernel sums changes the value's own error, and not that of the model."""
    values = torch.randn(4096, generator=torch.Generator().manual_seed(0)).double()
    truth = Float64Value(values, values * (1 + HALF), HALF)

    def judged(model):
        verdict = rounding_verdict(values.bfloat16(), (model * values).bfloat16(), truth, unit=HALF)
        assert verdict is not None
        return verdict

    assert judged(1.005).disputed == 0
    disputed = judged(1.02)
    assert disputed.verdict == "suspicious" and disputed.disputed == disputed.ratio < 4
    assert confirmed(disputed, disputed, sums=True).verdict == "wrong"
    own = replace(disputed, disputed=0.0)
    for isolated, whole in ((own, own), (disputed, own), (own, disputed), (replace(disputed, disputed=2.1), disputed)):
        assert confirmed(isolated, whole, sums=True).verdict == "suspicious"


def test_an_error_of_three_times_the_rounding_level_is_found(subject):
    """The first node inherits no error, so that its own rounding level is that of the whole run."""
    capture, program = subject
    (name,) = (node.outputs[0] for node in program.graph.nodes if node.op == "Gelu")
    factor = 1e-6
    for _ in range(3):  # the error is proportional to the factor, except for its rounding
        backend = WrongBackend({name: lambda tensor, by=1 + factor: tensor * by})
        report = compare(capture, program, backend=backend)
        row = next(row for row in report.rows if row.value == name)
        assert row.float64 is not None
        factor *= 3 / row.float64.ratio

    assert 2.5 < row.float64.ratio < 4
    assert row.float64.verdict == "suspicious"
    assert row.introduced
    assert report.first_divergence == row
    assert not report.close
    assert "suspicious in the whole run, too" in " ".join(str(report).split())


def test_an_error_that_is_negligible_beside_exact_numbers_is_rounding():
    """Exponentials of sums are exact where the sum is 0; errors of the others grow by more than their noise."""
    unit = 2.0**-8
    exact, noisy, eager, actual = (torch.ones(4, dtype=torch.float64) for _ in range(4))
    exact[3], noisy[3], eager[3], actual[3] = 1.6e-32, 3.3e-31, 1.1e-31, 1.1e-28
    truth = Float64Value(exact, noisy, unit)

    found = rounding_verdict(actual.float(), eager.float(), truth, unit=unit)
    actual[3] = 1e-3
    wrong = rounding_verdict(actual.float(), eager.float(), truth, unit=unit)

    assert found is not None
    assert found.verdict == "rounding"
    assert wrong is not None
    assert wrong.verdict == "wrong"


def test_a_wrong_weight_is_named_as_the_cause(tmp_path):
    """The node that reads it is right; the explanation names the initializer, and only if its numbers differ."""
    model, x = nn.Sequential(nn.Linear(8, 8), nn.GELU(), nn.Linear(8, 4)).eval(), torch.randn(3, 8)
    capture = capture_of(model, x, submodules=True)
    file = tmp_path / "model.onnx"
    export(model, (x,)).save(file)
    changed = onnx.load(file)
    (bias,) = (tensor for tensor in changed.graph.initializer if tensor.name == "2.bias")
    bias.CopyFrom(onnx.numpy_helper.from_array(onnx.numpy_helper.to_array(bias) + 0.1, bias.name))
    onnx.save(changed, file)
    wrong = compare(capture, file)
    (gelu,) = (node for node in changed.graph.node if node.op_type == "Gelu")
    gelu.attribute.append(onnx.helper.make_attribute("approximate", "tanh"))
    onnx.save(changed, file)

    assert wrong.changed_weights == ("2.bias",)
    assert "`2.bias` is not the model's weight" in str(wrong.explanation)
    first = compare(capture, file)
    assert first.first_divergence.op == "Gelu" and first.changed_weights == ()


def test_nodes_that_were_not_run_alone_are_not_called_right(subject):
    """The first value that differs is named, which may have inherited its error; an output follows from it."""
    report = compare(*subject, stages=["exported"], every_node=True)
    first, *others = (replace(row, float64=identical_verdict(), isolated=None) for row in report.rows)
    off = replace(first, status="different", float64=RoundingVerdict("wrong", 2.5e9, 0.25))
    output = replace(others[-1], kind="output", status="different", float64=off.float64)

    inner, outer = (str(replace(report, rows=rows).explanation) for rows in ((off, *others), (off, *others, output)))

    assert inner.startswith(f"1 value differs; nodes were not run alone; the first is `{first.node}`")
    assert outer.startswith(f"The first value that differs is `{first.node}`")
    assert "; nodes were not run alone. Model outputs that differ: " in outer
    assert "by itself" not in inner + outer


def test_a_report_names_one_largest_error(subject):
    """The largest in roundings is not the largest relative to the values: only the former is named."""
    report = compare(*subject, every_node=True)
    words = (report.table("nodes"), " ".join(report.graph.remarks))
    assert [text.count("the largest error") for text in words] == [1, 1]


@pytest.mark.parametrize("seed", range(3))
def test_the_mean_of_a_whole_tensor_may_round_as_a_long_sum_does(seed):
    """Its last node in ONNX only takes dimensions away; the sum before has no value in the model."""
    torch.manual_seed(seed)
    model, x = module_of(lambda self, x: x.abs().mean() * x), torch.randn(128, 128)
    capture, program = recorded(model, x, submodules=True)
    assert compare(capture, program, backend="onnxruntime-cpu").close
    mean = next(node for node in program.model.graph if node.op_type == "Squeeze")
    replaced(program.model, mean.outputs[0], "Mul", torch.tensor(1 + 1e-4))
    assert not compare(capture, program, backend="onnxruntime-cpu").close
