"""Bugs that others reported, each inside a model: what the cases declare, and a few of them asked about."""

import json
import re
import subprocess
import sys
import tomllib
from collections import Counter
from pathlib import Path

import pytest

from museum._bug import MARK, OnnxBug, TorchBug
from museum._prove import load
from support.thorough import slow

FOLDER = Path(__file__).resolve().parents[2] / "benchmarks" / "museum"
CASES = sorted(FOLDER.glob("*/*.py"))
ISSUE = re.compile(r"[\w.-]+/[\w.-]+#\d+")


@pytest.fixture(scope="module")
def bugs():
    return {path: load(path) for path in CASES}


def test_each_case_is_of_a_public_issue_of_its_own(bugs):
    """And none of them is among those that were dropped."""
    dropped = tomllib.loads((FOLDER / "dropped.toml").read_text())["dropped"]
    counts = Counter(bug.issue for bug in bugs.values() if isinstance(bug, TorchBug))

    assert all(ISSUE.fullmatch(bug.issue) for bug in bugs.values())
    assert all(ISSUE.fullmatch(item["issue"]) and item["what"] and item["reason"] for item in dropped)
    assert max(counts.values()) == 1
    assert not {bug.issue for bug in bugs.values()} & {item["issue"] for item in dropped}


def test_each_case_has_a_right_answer_and_a_control(bugs):
    """One line of a model is marked; of an ONNX model, nodes that it has are named."""
    for path, bug in bugs.items():
        if isinstance(bug, TorchBug):
            assert path.read_text().count(f"{MARK}\n") == 1, path.name
            assert (bug.introduce is None) == (bug.repair is not None or bug.harmless is not None), path.name
        elif isinstance(bug, OnnxBug):
            names = {node.name for node in bug.make().graph.node}
            assert bug.nodes <= names and bug.near <= names and not bug.nodes & bug.near, path.name
            assert bug.right is not None or bug.control is not None, path.name


@slow
@pytest.mark.parametrize(
    ("case", "command", "place"),
    [
        ("torch/variance_correction", "torch.compile", "right"),
        ("torch/scatter_into_overwritten_input", "check", "right"),
        ("torch/batched_nan_to_num", "torch.compile", "right"),  # a pass that changes the graph in place
        ("tools/lrn_of_the_first_channels", "compare", "right"),
        ("tools/shift_of_negative_numbers", "compare", "near"),  # uint64 in place of int64
    ],
)
def test_a_bug_is_named_and_its_control_is_not_flagged(case, command, place, tmp_path):
    """In a process of its own, as the case changes torch."""
    answers = []
    for way in ("buggy", "control"):
        arguments = [sys.executable, str(FOLDER / "_exam.py"), str(FOLDER / f"{case}.py"), way, command]
        done = subprocess.run(arguments, capture_output=True, text=True, check=True, cwd=tmp_path)
        answers.append(json.loads(done.stdout.splitlines()[-1]))

    assert answers[0].get("place") == place, answers[0]
    assert answers[1].get("flagged") is False, answers[1]
