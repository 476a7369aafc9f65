"""Test the rule for outcomes: close is a proof, and what is needed and was not judged is named."""

import json
from dataclasses import dataclass, field, replace

import pytest
import torch
from torch import nn

from filch.compare import CompareError, DiffRow, DumpDiff, Report, Row, compare
from filch.compare.common._accepted import read_accepted
from filch.compare.history._history import history
from filch.compare.rendering._outcome import Gap, Outcome, Proof
from filch.compare.rendering._result import Result
from filch.compare.results._alignment import AlignedOutput, AlignedWeight, Alignment
from filch.compare.results._bisection import BisectReport
from filch.compare.results._cells import Cell, CellTable, ledger_row, run_cell
from filch.compare.results._decoding import DecodeBreak, Decoding
from filch.compare.results._invariance import Invariance, InvarianceRow
from filch.compare.results._passes import PassErrors, PassRow
from filch.compare.results._precision import Goal, OutputDifferences, PrecisionReport
from filch.compare.testing._artifacts import ArtifactStore
from filch.compare.testing._checks import Checks
from filch.export import export
from filch.steal import Key
from support.models.small import capture_of
from support.processes.commands import run


@dataclass(frozen=True, repr=False)
class Given(Result):
    """A result with a proof that is given."""

    given: Proof = field(default_factory=lambda: Proof(1, is_wrong=False))

    @property
    def proof(self):
        """Return the given proof."""
        return self.given


GAPS = (Gap("logits", "no reference for this value"), Gap("cache", "the backend does not return it"))


@pytest.mark.parametrize(
    ("proof", "outcome"),
    [
        (Proof(3, is_wrong=False), "close"),
        (Proof(0, is_wrong=False), "incomplete"),
        (Proof(3, is_wrong=False, gaps=GAPS), "incomplete"),
        (Proof(3, is_wrong=True, gaps=GAPS), "different"),
        (Proof(0, is_wrong=True), "different"),
    ],
)
def test_an_outcome_follows_from_what_was_judged(proof, outcome):
    """Without a judged value nothing is close, and what is wrong outweighs what is missing."""
    result = Given(given=proof)

    assert result.outcome == outcome
    assert result.close == result.passes == (outcome == "close")
    assert result.exit_code == (outcome != "close")
    assert outcome != "incomplete" or result.gap_sentences()


@pytest.mark.parametrize(
    ("accepted", "passes"),
    [
        ({}, False),
        ({"logits": "drawn at random"}, False),
        ({"logits": "drawn at random", "cache": "not used"}, True),
        ({"logits": "drawn at random", "other": "no gap"}, False),
    ],
)
def test_an_incomplete_result_passes_only_if_each_gap_is_accepted(accepted, passes):
    """It stays incomplete; the reason stands beside the value."""
    result = Given(given=Proof(3, is_wrong=False, gaps=GAPS), accepted=accepted)

    assert (result.outcome, result.passes, result.exit_code) == ("incomplete", passes, int(not passes))
    assert any("accepted: drawn at random" in sentence for sentence in result.gap_sentences()) == bool(accepted)


def test_acceptance_hides_nothing_that_is_wrong_or_was_never_judged():
    """A part of a comparison without a name, such as a stage that failed, can't be accepted."""
    accepted = {"logits": "a reason", "cache": "a reason", "": "a reason"}
    nameless = Gap("", "the compiled graph can't be run")

    assert not Given(given=Proof(3, is_wrong=True, gaps=GAPS), accepted=accepted).passes
    assert not Given(given=Proof(0, is_wrong=False, gaps=GAPS), accepted=accepted).passes
    assert not Given(given=Proof(3, is_wrong=False, gaps=(nameless,)), accepted=accepted).passes


CLOSE, WRONG = Proof(1, is_wrong=False), Proof(1, is_wrong=True)
INCOMPLETE, IMPOSSIBLE = Proof(1, is_wrong=False, gaps=GAPS), Proof.impossible("there is no GPU")


@pytest.mark.parametrize(
    ("proofs", "outcome", "code", "if_accepted"),
    [
        ([CLOSE, CLOSE], "close", 0, 0),
        ([CLOSE, INCOMPLETE], "incomplete", 1, 0),
        ([INCOMPLETE, IMPOSSIBLE], "incomplete", 2, 2),
        ([IMPOSSIBLE, INCOMPLETE, WRONG, CLOSE], "different", 1, 1),
        ([CLOSE, Proof(0, is_wrong=False)], "incomplete", 1, 1),
        ([], "incomplete", 2, 2),
    ],
)
def test_the_worst_of_several_outcomes_counts(proofs, outcome, code, if_accepted):
    """None at all is incomplete, and a comparison that could not be made is an error unless another one differs."""
    together = Proof.together(proofs)

    assert (together.outcome, together.exit_code) == (outcome, code)
    assert together.without({gap.name: "a reason" for gap in GAPS}).exit_code == if_accepted


def a_report(*statuses, **fields):
    """Return a report with an input that is the same, and outputs with these statuses."""
    given = Row(0, "exported", 0, "node", "n", "Relu", "x", status="same")
    rows = (Row(0, "exported", 1, "output", "n", "Relu", f"y{at}", status=item) for at, item in enumerate(statuses))
    return Report("eager", "reference", "program", (given, *rows), **fields)


def a_diff(*same, kind="O"):
    """Return the difference of two dumps with records that are equal, not equal or not stored."""
    rows = (DiffRow(Key(f"m{at}", 0, kind), "", "", reason="", same=item) for at, item in enumerate(same))
    return DumpDiff("a", "b", tuple(rows))


def an_alignment(*problems, gaps=()):
    """Return the alignment of outputs with these problems."""
    outputs = tuple(AlignedOutput(f"y{at}", "", problem=problem) for at, problem in enumerate(problems))
    return Alignment("a", "b", *[()] * 5, tuple(filter(None, problems)), outputs=outputs, gaps=gaps)


def weights(*found, gaps=()):
    """Return the alignment of weights that are in A, or not."""
    rows = tuple(AlignedWeight(f"y{at}", (), ("w",) * item, "", complete=item) for at, item in enumerate(found))
    wrong = tuple(row.name for row in rows if not row.complete)
    return Alignment("a", "b", rows, *[()] * 4, wrong, compared="weights", gaps=gaps)


def a_decoding(judged, *wrong, **fields):
    """Return the result of decoding."""
    return Decoding(
        "m", "eager", "dynamic", "", 1, 2, (), wrong, (), (), judged, 9, 0.0, **{"consistent": True} | fields
    )


def an_invariance(*verdicts):
    """Return the result of relations with these verdicts."""
    return Invariance("m", 1, 6, bitwise=False, rows=tuple(InvarianceRow("y0", item) for item in verdicts))


def cells(*items):
    """Return a table of comparisons."""
    return CellTable(
        tuple(run_cell({}, lambda item=item: item) if isinstance(item, Report) else item for item in items)
    )


def a_history(*cells):
    """Return the history of cells in one run."""
    common = {"filch_ledger": 1, "key": "k", "run": "2026-01-01T00:00:00Z", "environment": {}, "blame": None}
    return history(
        ledger_row(common | {"labels": {"model": str(at)}, "status": cell.status, "error": None, "detail": cell.detail})
        for at, cell in enumerate(cells)
    )


def passes(*reports):
    """Return the reports after passes; None is one after which the program can't be run."""
    return PassErrors(tuple(PassRow(at, f"p{at}", 1, report=report) for at, report in enumerate(reports)))


def of_outputs(kind, *, are_close):
    """Return a bisection or a precision report of a program whose outputs are close or not."""
    before = OutputDifferences(passes=are_close, error=0.0, snr=0.0)
    if kind == "bisect":
        return BisectReport("eager", "a", "b", None, before, None, None, (), (), ())
    return PrecisionReport("int8", "eager", Goal(), before, None, (), {}, before, (), 1)


A_BREAK = DecodeBreak("exported", 3, 0, "n", "Relu", "y", None, None, introduced=True, float64=None, index=0)
OUTCOMES: dict[str, tuple[Result, Outcome, int]] = {
    "check, all outputs": (a_report("same", "same"), "close", 0),
    "check, a wrong output": (a_report("same", "different"), "different", 1),
    "check, an output of another shape": (a_report("shape or dtype differs"), "different", 1),
    "check, an output not judged": (a_report("same", "no value"), "incomplete", 1),
    "check, no output": (a_report(), "incomplete", 1),
    "check, a stage missing": (a_report("same", failed=("it can't be compiled",)), "incomplete", 1),
    "check, another order of outputs": (a_report("same", interface=("the outputs are exchanged",)), "different", 1),
    "check, wrong and missing": (a_report("different", failed=("it can't be compiled",)), "different", 1),
    "diff, all records": (a_diff(True, True), "close", 0),
    "diff, a wrong record": (a_diff(True, None, False), "different", 1),
    "diff, an output not stored": (a_diff(True, None), "incomplete", 1),
    "diff, a gradient not stored": (a_diff(None, kind="G"), "incomplete", 1),
    "diff, no record": (a_diff(), "incomplete", 1),
    "align, all outputs": (an_alignment("", ""), "close", 0),
    "align, a wrong output": (an_alignment("", "it is not that of A"), "different", 1),
    "align, an output not judged": (an_alignment("", gaps=(Gap("y1", "no array has it"),)), "incomplete", 1),
    "align, no output": (an_alignment(), "incomplete", 1),
    "align --weights-only, all weights": (weights(True, True), "close", 0),
    "align --weights-only, a wrong weight": (weights(True, False), "different", 1),
    "align --weights-only, only one that is not judged": (weights(True, gaps=(Gap("y0", "scaled"),)), "incomplete", 1),
    "align --weights-only, no weight": (weights(), "incomplete", 1),
    "decode, all values": (a_decoding(9), "close", 0),
    "decode, a wrong value": (a_decoding(9, A_BREAK), "different", 1),
    "decode, a model that is wrong itself": (a_decoding(9, consistent=False), "different", 1),
    "decode, logits not judged": (a_decoding(9, unjudged={"logits": "no reference"}), "incomplete", 1),
    "decode, a part missing": (a_decoding(9, failed=("no step could be compiled",)), "incomplete", 1),
    "decode, nothing judged": (a_decoding(0), "incomplete", 1),
    "invariance, all relations": (an_invariance("holds", "not run"), "close", 0),
    "invariance, a relation broken": (an_invariance("holds", "breaks"), "different", 1),
    "invariance, other bits": (an_invariance("rounding"), "different", 1),
    "invariance, a call that raises": (an_invariance("fails"), "different", 1),
    "invariance, a relation not judged": (an_invariance("holds", "not judged"), "incomplete", 1),
    "invariance, none supported": (an_invariance("not run"), "incomplete", 1),
    "matrix, all close": (cells(a_report("same"), a_report("same")), "close", 0),
    "matrix, one different": (cells(Cell({}, "missing"), a_report("different")), "different", 1),
    "matrix, one incomplete": (cells(a_report("same"), a_report("no value")), "incomplete", 1),
    "matrix, one of another order": (cells(a_report("same", interface=("exchanged",))), "different", 1),
    "matrix, one failed": (cells(a_report("no value"), Cell({}, "failed")), "incomplete", 2),
    "matrix, no cell": (cells(), "incomplete", 2),
    "history, all close": (a_history(Cell({}, "close")), "close", 0),
    "history, one different": (a_history(Cell({}, "close"), Cell({}, "different"), Cell({}, "lost")), "different", 1),
    "history, one incomplete": (a_history(Cell({}, "incomplete")), "incomplete", 1),
    "history, one crashed": (a_history(Cell({}, "close"), Cell({}, "crashed")), "incomplete", 2),
    "passes, all close": (passes(a_report("same"), a_report("same")), "close", 0),
    "passes, one wrong": (passes(a_report("same"), a_report("different")), "different", 1),
    "passes, an output not judged": (passes(a_report("same"), a_report("no value")), "incomplete", 1),
    "passes, one can't be run": (passes(a_report("same"), None), "incomplete", 2),
    "passes, none": (passes(), "incomplete", 2),
    "bisect, no error": (of_outputs("bisect", are_close=True), "close", 0),
    "bisect, an error": (of_outputs("bisect", are_close=False), "different", 1),
    "precision, the goal is met": (of_outputs("precision", are_close=True), "close", 0),
    "precision, it is not met": (of_outputs("precision", are_close=False), "different", 1),
}


@pytest.mark.parametrize("situation", OUTCOMES)
def test_each_command_has_the_outcome_of_its_situation(situation):
    """Text, JSON and exit code say the same; if values that were not judged are accepted, only named ones count."""
    result, outcome, code = OUTCOMES[situation]
    data = json.loads(result.to_json())

    assert (result.outcome, result.exit_code) == (data["outcome"], code) == (outcome, code)
    assert data["close"] == result.close == (outcome == "close")
    names = {gap.name for gap in result.proof.gaps}
    accepted = replace(result, accepted=dict.fromkeys(names, "a reason"))
    assert accepted.passes == (outcome == "close" or (outcome == "incomplete" and "" not in names))


def test_a_file_of_accepted_values_has_a_reason_for_each(tmp_path):
    """A name with dots is quoted; a table, a number or an empty reason is an error that shows the right line."""
    path = tmp_path / "accepted.toml"
    path.write_text('logits = "drawn at random"\n"layers.3/y" = "not used"\n')
    assert read_accepted(path) == {"logits": "drawn at random", "layers.3/y": "not used"}

    for line in ('layers.3 = "a table"', "logits = 3", 'logits = " "'):
        path.write_text(line)
        with pytest.raises(CompareError, match="expected lines like logits = "):
            read_accepted(path)


@pytest.mark.parametrize(("name", "outcome"), [("0", "close"), ("", "incomplete")])
def test_a_value_that_was_not_stored_is_covered_by_the_output_of_its_model(name, outcome):
    """An inner value is, if the outputs of the model were judged; the output itself is not, and is named."""
    stored = [DiffRow(Key(path, 0, kind), "", "float32[2]", same=True) for path in ("", "0") for kind in "IO"]
    rows = [replace(row, same=None, reason="too large") if row.key == (name, 0, "O") else row for row in stored]

    result = DumpDiff("a.onnx", "b.onnx", tuple(rows))

    assert result.outcome == outcome
    assert [gap.name for gap in result.proof.gaps] == ([] if outcome == "close" else ["(root)#0.O"])


DRAWS = """
import torch

def make():
    return torch.nn.Dropout(0.5), (torch.ones(2, 3),)
"""


def test_a_value_that_can_not_be_judged_is_named_and_can_be_accepted(tmp_path, monkeypatch, capsys):
    """On the command line by an option or a file, in pytest by an argument or the setting for all tests."""
    (tmp_path / "draws.py").write_text(DRAWS)
    monkeypatch.chdir(tmp_path)

    assert run("check", "draws.py:make", "--json") == 1
    (report,) = json.loads(capsys.readouterr().out)
    unjudged = {row["value"] for row in report["rows"] if row["kind"] == "output" and row["status"] == "no value"}
    (name,) = unjudged
    assert (report["outcome"], report["close"]) == ("incomplete", False)

    (tmp_path / "accepted.toml").write_text(f'{name} = "drawn at random"\n')
    assert run("check", "draws.py:make", "--accept", f"{name} = drawn at random") == 0
    assert "INCOMPLETE" in (shown := capsys.readouterr().out)
    assert "accepted: drawn at random" in " ".join(shown.split())
    assert run("check", "draws.py:make", "--accepted", "accepted.toml", "--quiet") == 0
    assert run("check", "draws.py:make", "--accept", "other=a reason", "--quiet") == 1
    assert run("check", "draws.py:make", "--accept", name) == 2
    assert "--accept is the name of a value and a reason" in capsys.readouterr().err


def test_the_fixture_takes_reasons_of_a_test_and_of_all_tests(tmp_path):
    """A report that is incomplete fails, unless one of both has a reason for each value."""
    model, x = nn.Dropout(0.5).train(), torch.ones(2, 3)
    recorded: dict[str, str] = {}
    store = ArtifactStore(tmp_path, None, lambda: tmp_path, recorded.__setitem__)

    with pytest.raises(AssertionError, match="was not judged"):
        Checks(store).check(model, (x,))
    (name,) = {gap.name for gap in _proof_of(model, x).gaps}

    (report,) = Checks(store).check(model, (x,), accepted={name: "drawn at random"})
    assert (report.outcome, recorded["result"]) == ("incomplete", "incomplete")
    Checks(replace(store, accepted={name: "drawn at random"})).check(model, (x,))


def _proof_of(model, x):
    capture = capture_of(model, x)
    return compare(capture, export(model, (x,))).proof
