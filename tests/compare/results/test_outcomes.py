"""Test the rule for outcomes: close is a proof, and what is needed and was not judged is named."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import pytest
import torch
from torch import nn

from filch.compare import CompareError, DiffRow, DumpDiff, compare
from filch.compare.common._accepted import read_accepted
from filch.compare.rendering._outcome import Comparison, Gap, Outcome, Proof, worst_outcome
from filch.compare.testing._artifacts import ArtifactStore
from filch.compare.testing._checks import Checks
from filch.export import export
from filch.steal import Key, steal_forward
from support.processes.commands import run


@dataclass(frozen=True, repr=False)
class Result(Comparison):
    """A result with a proof that is given."""

    given: Proof = field(default_factory=lambda: Proof(1, is_wrong=False))

    @property
    def proof(self) -> Proof:
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
def test_an_outcome_follows_from_what_was_judged(proof: Proof, outcome: Outcome) -> None:
    """Without a judged value nothing is close, and what is wrong outweighs what is missing."""
    result = Result(given=proof)

    assert result.outcome == outcome
    assert result.close == result.passes == (outcome == "close")
    assert result.exit_code == (outcome != "close")


@pytest.mark.parametrize(
    ("accepted", "passes"),
    [
        ({}, False),
        ({"logits": "drawn at random"}, False),
        ({"logits": "drawn at random", "cache": "not used"}, True),
        ({"logits": "drawn at random", "other": "no gap"}, False),
    ],
)
def test_an_incomplete_result_passes_only_if_each_gap_is_accepted(accepted: Mapping[str, str], passes: bool) -> None:
    """It stays incomplete; the reason stands beside the value."""
    result = Result(given=Proof(3, is_wrong=False, gaps=GAPS), accepted=accepted)

    assert (result.outcome, result.passes, result.exit_code) == ("incomplete", passes, int(not passes))
    assert any("accepted: drawn at random" in sentence for sentence in result.gap_sentences()) == bool(accepted)


def test_acceptance_hides_nothing_that_is_wrong_or_was_never_judged() -> None:
    """A part of a comparison without a name, such as a stage that failed, can't be accepted."""
    accepted = {"logits": "a reason", "cache": "a reason", "": "a reason"}
    nameless = Gap("", "the compiled graph can't be run")

    assert not Result(given=Proof(3, is_wrong=True, gaps=GAPS), accepted=accepted).passes
    assert not Result(given=Proof(0, is_wrong=False, gaps=GAPS), accepted=accepted).passes
    assert not Result(given=Proof(3, is_wrong=False, gaps=(nameless,)), accepted=accepted).passes


def test_the_worst_of_several_outcomes_counts() -> None:
    """None at all is incomplete."""
    assert worst_outcome(["close", "incomplete", "different"]) == "different"
    assert worst_outcome(["close", "incomplete"]) == "incomplete"
    assert worst_outcome(["close"]) == "close"
    assert worst_outcome([]) == "incomplete"


def test_a_file_of_accepted_values_has_a_reason_for_each(tmp_path) -> None:
    """A name with dots is quoted; a table, a number or an empty reason is an error that shows the right line."""
    path = tmp_path / "accepted.toml"
    path.write_text('logits = "drawn at random"\n"layers.3/y" = "not used"\n')
    assert read_accepted(path) == {"logits": "drawn at random", "layers.3/y": "not used"}

    for line in ('layers.3 = "a table"', "logits = 3", 'logits = " "'):
        path.write_text(line)
        with pytest.raises(CompareError, match="expected lines like logits = "):
            read_accepted(path)


@pytest.mark.parametrize(("name", "outcome"), [("0", "close"), ("", "incomplete")])
def test_a_value_that_was_not_stored_is_covered_by_the_output_of_its_model(name: str, outcome: str) -> None:
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


def test_a_value_that_can_not_be_judged_is_named_and_can_be_accepted(tmp_path, monkeypatch, capsys) -> None:
    """On the command line by an option or a file, in pytest by an argument or the setting for all tests."""
    (tmp_path / "draws.py").write_text(DRAWS)
    monkeypatch.chdir(tmp_path)

    assert run("check", "draws.py:make", "--json") == 1
    (report,) = json.loads(capsys.readouterr().out)
    unjudged = {row["value"] for row in report["rows"] if row["kind"] == "output" and row["status"] == "no value"}
    (name,) = unjudged
    assert (report["outcome"], report["close"]) == ("incomplete", False)

    (tmp_path / "accepted.toml").write_text(f'{name} = "drawn at random"\n')
    assert run("check", "draws.py:make", "--accept", f"{name}=drawn at random") == 0
    assert "INCOMPLETE" in (shown := capsys.readouterr().out)
    assert "accepted: drawn at random" in " ".join(shown.split())
    assert run("check", "draws.py:make", "--accepted", "accepted.toml", "--quiet") == 0
    assert run("check", "draws.py:make", "--accept", "other=a reason", "--quiet") == 1
    assert run("check", "draws.py:make", "--accept", name) == 2
    assert "--accept is the name of a value and a reason" in capsys.readouterr().err


def test_the_fixture_takes_reasons_of_a_test_and_of_all_tests(tmp_path) -> None:
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


def _proof_of(model: nn.Module, x: torch.Tensor) -> Proof:
    with steal_forward(model) as capture:
        model(x)
    return compare(capture, export(model, (x,))).proof
