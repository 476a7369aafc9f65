"""Wrong answers of all kinds, which no command and no comparison calls close."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from faults.answers import CASES
from filch.compare import Report, align, check_invariance, compare_decode, compare_programs, compare_tensors, diff
from filch.compare._compare_export import compare_export
from filch.compare.common._complex import complex_as_real
from filch.compare.engine._value_comparator import ValueComparator
from filch.compare.history._history import history
from filch.compare.judging._run import Run
from filch.compare.metrics._limits import Limits
from filch.compare.references._resolver import Reference, ReferenceResolver
from filch.compare.results._cells import Cell, CellTable, ledger_row, run_cell
from filch.compare.testing._artifacts import ArtifactStore
from filch.compare.testing._checks import Checks
from filch.export import Graph, Node, Value, export
from filch.export.backends import Compiled
from support.faults.fakes import WrongBackend
from support.models.hand_made import float64_values, judge_of
from support.models.small import capture_of, module_of
from support.models.zoo import build
from support.thorough import kept, slow

Change = Callable[[torch.Tensor], torch.Tensor | None]
X = torch.randn(6, 6, generator=torch.Generator().manual_seed(0))
TOKENS = torch.randint(3, 24, (2, 6), generator=torch.Generator().manual_seed(0))
WAYS: dict[str, Change] = {
    "NaN": lambda t: t * float("nan"),
    "infinite": lambda t: torch.full_like(t, float("inf")),
    "zero": torch.zeros_like,
    "constant": lambda t: torch.full_like(t, 0.5),
    "one number": lambda t: t.flatten()[0],
    "empty": lambda t: t[..., :0],
    "missing": lambda _: None,
    "reordered": lambda t: t.flip(-1),
    "a part": lambda t: t[..., :3],
    "repeated": lambda t: torch.cat([t, t], -1),
    "rounded to few values": lambda t: (t * 2).round() / 2,
    "another layout": lambda t: t.movedim(0, -1).reshape(t.shape),
}


def net(change=lambda t: t):
    """A model of two layers whose output may be wrong."""
    torch.manual_seed(0)

    def forward(self, x):
        """Return the changed output."""
        return self.change(self.layers(x))

    return module_of(forward, layers=nn.Sequential(nn.Linear(6, 8), nn.GELU(), nn.Linear(8, 6)), change=change)


@dataclass(frozen=True)
class Right:
    """What is computed once for all ways: a capture of the model and its program."""

    model: nn.Module
    capture: object
    program: object

    def report(self, change):
        """Return the report of `filch check` on a backend with a wrong output."""
        backend = WrongBackend({self.program.graph.outputs[0]: change})
        return compare_export(self.capture, self.program, backend=backend)


@pytest.fixture(scope="module")
def right():
    """Return the right model, whose output is finite."""
    return right_of(lambda t: t)


def right_of(change):
    """Record and export a model."""
    model = net(change).eval()
    capture = capture_of(model, X, submodules=True)
    return Right(model, capture, export(model, (X,)))


def of_fixture(right, change, folder):
    """Return what the fixture `filch` records of the test."""
    recorded: dict[str, str] = {}
    store = ArtifactStore(folder, folder, lambda: folder, recorded.__setitem__)
    backend = WrongBackend({right.program.graph.outputs[0]: change})
    try:
        Checks(store).check(right.model, (X,), backends=backend)
    except AssertionError:
        assert recorded["result"] != "close"
    return recorded["result"]


def of_torch_compile(right, change, _):
    """Return the outcome of a compiler with a wrong output."""
    reports: list[Report] = []

    def inner(module, _):
        def run(*args):
            results = [change(result) for result in module(*args)]
            return [torch.zeros(()) if result is None else result for result in results]

        return run

    torch.compiler.reset()
    options = {"correctness_report": reports, "inner": inner}
    with torch.no_grad():
        torch.compile(right.model, backend="filch", options=options)(X)
    return reports[0].outcome


def of_history(right, change, _):
    """Return the outcome of a history with one right and one wrong comparison."""
    wrong = run_cell({"model": "b"}, lambda: right.report(change))
    common = {"filch_ledger": 1, "key": "k", "run": "2026-01-01T00:00:00Z", "environment": {}, "blame": None}
    return history(
        ledger_row(
            {**common, "labels": cell.labels, "status": cell.status, "error": cell.worst, "detail": cell.detail}
            | {"gaps": list(cell.gaps)}
        )
        for cell in (Cell({"model": "a"}, "close"), wrong)
    ).outcome


def of_table(right, change, _):
    """Return the outcome of a matrix or a sweep with one right and one wrong comparison."""
    return CellTable((Cell({}, "close"), run_cell({}, lambda: right.report(change)))).outcome


def of_diff(right, change, __):
    """Return the outcome for two captures of the whole model, of which the second one is wrong."""
    captures = []
    for model in (right.model, net(change).eval()):
        capture = capture_of(model, X)
        captures.append(capture)
    return diff(*captures).outcome


def of_programs(right, change, _):
    """Return the outcome for two ONNX programs, of which the second one is wrong."""
    if change(X) is None:
        wrong = right.program.model.clone()
        wrong.graph.outputs[:] = [wrong.graph.node(0).outputs[0]]
        return compare_programs(right.program, wrong, inputs={"x": X}).outcome
    return compare_programs(right.program, export(net(change).eval(), (X,)), inputs={"x": X}).outcome


@cache
def language_model():
    """Return a tiny Llama and its program with a cache."""
    sizes = {"hidden_size": 16, "intermediate_size": 16, "num_attention_heads": 2, "num_key_value_heads": 2}
    model = build("LlamaForCausalLM", {**sizes, "num_hidden_layers": 1, "vocab_size": 24, "pad_token_id": 0})
    return model, export(model, kwargs={"input_ids": TOKENS[:, :2]}, cache="dynamic")


def of_decode(_, change, __):
    """Return the outcome of a decode whose logits are wrong."""
    model, program = language_model()
    backend = WrongBackend({program.graph.outputs[0]: change})
    return compare_decode(model, TOKENS, program=program, backend=backend, tokens=6, prefill=2).outcome


def of_invariance(_, change, __):
    """Return the outcome of a language model whose logits are wrong if it is called with one token."""
    model, _program = language_model()

    def changed(_model, _args, output):
        one = output["logits"].shape[1] == 1
        return type(output)(**{**output, "logits": change(output["logits"])}) if one else output

    hook = model.register_forward_hook(changed)
    try:
        return check_invariance(model, TOKENS, only=["decode"]).outcome
    finally:
        hook.remove()


def of_weights(_, change, __):
    """Return the outcome for two sets of weights, of which one weight is wrong."""
    weights = net().state_dict()
    wrong = {name: change(item) if name == "layers.2.weight" else item for name, item in weights.items()}
    return align(weights, {name: item for name, item in wrong.items() if item is not None}, weights_only=True).outcome


COMMANDS: dict[str, Callable[[Right, Change, Path], str]] = {
    "check": lambda right, change, _: right.report(change).outcome,
    "compare": of_programs,
    "diff": of_diff,
    "align": lambda right, change, _: align(right.model, net(change).eval(), (X,)).outcome,
    "align --weights-only": of_weights,
    "matrix, sweep": of_table,
    "history": of_history,
    "torch.compile": of_torch_compile,
    "fixture": of_fixture,
    "decode": of_decode,
    "invariance": of_invariance,
}


# A conversion of a checkpoint may arrange or repeat the numbers of a weight, as for grouped heads; the result says how.
STATED = {("align --weights-only", "repeated"), ("align --weights-only", "another layout")}
PAIRS = [pair for pair in itertools.product(COMMANDS, WAYS) if pair not in STATED]


@pytest.mark.parametrize(("command", "way"), kept(PAIRS, *(pair for pair in PAIRS if pair[1] == "zero")))
def test_no_command_calls_a_wrong_output_close(command, way, right, tmp_path):
    """Only what is missing may be incomplete instead of different."""
    outcome = COMMANDS[command](right, WAYS[way], tmp_path)

    assert outcome == "different" or (way == "missing" and outcome == "incomplete")


@pytest.mark.parametrize("command", COMMANDS)
def test_each_command_calls_a_right_output_close(command, right, tmp_path):
    """The same checks, with the output unchanged."""
    assert COMMANDS[command](right, lambda t: t * 1, tmp_path) == "close"


def with_first(number):
    """Return a change that gives the first element another number."""
    first = torch.zeros(6, 6, dtype=torch.bool)
    first[0, 0] = True
    return lambda t: torch.where(first, torch.tensor(number), t)


right_with_first = cache(lambda number: right_of(with_first(number)))
KINDS = [("inf", "inf"), ("inf", "-inf"), ("inf", "nan"), ("nan", "nan"), ("nan", "inf"), ("nan", "0")]


@slow
@pytest.mark.parametrize("command", ["check", "compare", "diff", "align"])
@pytest.mark.parametrize(("expected", "actual"), KINDS)
def test_what_is_not_finite_has_to_be_of_the_same_kind(expected, actual, command, tmp_path):
    """NaN is only NaN, and an infinity only itself."""
    outcome = COMMANDS[command](right_with_first(float(expected)), with_first(float(actual)), tmp_path)

    assert outcome == ("close" if expected == actual else "different")


SPECIAL = (0.0, 1.5, -2.0, 1e-30, 3e4, float("inf"), float("-inf"), float("nan"))
GRAPH = Graph("main", ("x",), ("y",), (), (Node("copy", "Identity", ("x",), ("y",)),), {"y": Value("y")})


def compared(actual, expected, *, truth):
    """Return the report on a one-node graph that computes `actual` where the model has `expected`."""
    known = {} if expected is None else {"y": complex_as_real(expected)}
    made = {} if actual is None else {"y": complex_as_real(actual)}
    run = Run(0, "exported", Compiled(GRAPH, None), {"x": known["y"]} if known else {}, made)
    rounding = judge_of(float64_values(known), run) if truth and expected is not None else None
    references = {name: Reference(tensor, "module") for name, tensor in known.items()}
    judge = ValueComparator(run, ReferenceResolver(references), None, Limits(GRAPH, None), None, rounding)
    judge.compare((name, tensor, None) for name, tensor in made.items())
    return Report("backend", "model", "program", tuple(judge.rows()))


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_wrong_answers_differ_and_right_ones_are_close(case):
    """They are judged by `compare_tensors`, in a comparison with a tolerance, and in one by float64."""
    alone = compare_tensors(case.actual, case.expected)
    reports = [compared(case.actual, case.expected, truth=truth) for truth in (False, True)]

    found = [alone.close, *(report.close for report in reports)]
    assert found == [case.close] * 3, [str(row) for row in reports[1].rows]
    assert case.close or alone.problem or (alone.absolute > 0 and alone.error > 0)


def test_there_are_wrong_answers_of_all_kinds():
    """Their names are unique, and some are right answers."""
    assert len({case.name for case in CASES}) == len(CASES) >= 120
    assert sum(case.close for case in CASES) >= 25


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex64])
@settings(max_examples=30, deadline=None)
@given(pairs=st.lists(st.tuples(st.sampled_from(SPECIAL), st.sampled_from(SPECIAL)), min_size=1, max_size=4))
def test_a_nonfinite_value_on_one_side_alone_never_passes(dtype, pairs):
    """Nor do infinities of different signs or a number in place of NaN, however they are judged."""
    expected, actual = (torch.tensor(side).to(dtype) for side in zip(*pairs, strict=True))
    e, a = complex_as_real(expected), complex_as_real(actual)
    alike = (e == a) | (e.isnan() & a.isnan())
    odd = bool((~alike & ~(e.isfinite() & a.isfinite())).any())

    for report in (compared(actual, expected, truth=truth) for truth in (False, True)):
        assert not (odd and report.close), str(report.rows[0].float64)
        assert not odd or not any(row.float64 is not None and row.float64.sound for row in report.rows)
    assert not (odd and compare_tensors(actual, expected, tolerance=1e6, magnitude=1e30).close)
