"""Tests of `filch align`."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from filch.compare.cli._app import app

FACTORIES = """
from filch.tests.support.models.port import port

def reference():
    model, _, args = port()
    return model, args

def ported():
    _, model, args = port()
    return model, args

def wrong():
    _, model, args = port({1: "gelu"})
    return model, args
"""


@pytest.fixture
def factories(tmp_path, monkeypatch):
    (tmp_path / "models.py").write_text(FACTORIES.replace("filch.tests", __package__.rpartition("tests")[0] + "tests"))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_correct_port_exits_with_0_and_writes_a_mapping(factories):
    """The mapping is written beside the result, and checked by the next command."""
    runner = CliRunner()
    outputs = ["-o", "map.toml", "-o", "result.json", "-o", "result.md", "-o", "result.html"]
    result = runner.invoke(app, ["align", "models.py:reference", "models.py:ported", *outputs])
    assert result.exit_code == 0, result.output
    assert "CLOSE: models.py:ported (B) against models.py:reference (A)" in result.output
    record = json.loads((factories / "result.json").read_text())
    assert record["close"] is True
    assert record["filch_align"] == 2
    assert "layers.1.norm_1" in (factories / "result.html").read_text()
    assert "| weight of B" in (factories / "result.md").read_text()
    again = ["align", "models.py:reference", "models.py:ported", "--mapping", "map.toml", "--all"]
    result = runner.invoke(app, again)
    assert result.exit_code == 0, result.output
    assert "given: the mapping file says so" in " ".join(result.output.split())


def test_a_wrong_port_exits_with_1_and_names_the_operation(factories):
    """The table names module, operator and line."""
    result = CliRunner().invoke(app, ["align", "models.py:reference", "models.py:wrong"])
    assert result.exit_code == 1, result.output
    assert "blocks.1" in result.output
    assert "gelu" in result.output
    assert all(len(line) <= 80 for line in result.output.splitlines())


def test_another_suffix_is_refused_before_anything_runs(factories):
    """A usage error exits with 2."""
    result = CliRunner().invoke(app, ["align", "a.py:x", "b.py:y", "-o", "out.csv"])
    assert result.exit_code == 2
    assert ".toml, .html, .json, .md" in result.output
