"""A capture that is killed at any moment loses no complete record."""

import json
from pathlib import Path

import pytest
import torch

from filch.steal import DumpError, recover, restore
from support.processes import kills as kills_script
from support.processes.forked import run_python

KILLS = 100


@pytest.fixture(scope="module")
def kills(tmp_path_factory):
    base = tmp_path_factory.mktemp("kills")
    script = Path(kills_script.__file__)
    done = run_python(script, base, KILLS, 0)
    assert done.returncode == 0, done.stderr
    return [(base, json.loads(line)) for line in done.stdout.splitlines()]


def _left_of(folder):
    """Return the dump or the recovered dump, and which of the two it is."""
    path = folder / "dump.onnx"
    if path.exists():
        return restore(path), "finished"
    try:
        return recover(path), "recovered"
    except DumpError as error:
        assert "nothing to recover" in str(error)  # noqa: PT017  one of two valid outcomes
        return {}, "nothing"


def test_all_complete_records_survive_a_kill(kills):
    """Killed during the run, inside the writer's system calls, and between the steps of publishing the dump."""
    outcomes = set()
    for base, kill in kills:
        dump, outcome = _left_of(base / kill["folder"])
        outcomes.add((kill["place"], outcome))

        assert len(dump) >= kill["reported"], kill
        assert list(dump) == [("m", index // 2, "IO"[index % 2]) for index in range(len(dump))]
        for key, found in dump.items():
            tensor = found[0][0] if key.kind == "I" else found
            assert torch.equal(tensor, kills_script.value(key.iteration)), (kill, key)

    assert len(kills) == KILLS
    assert {("run", "recovered"), ("write", "recovered"), ("publish", "recovered"), ("publish", "finished")} <= outcomes


def test_nothing_but_the_dump_is_left_after_a_recovery(kills):
    """No draft files, and no unused data file."""
    for base, kill in kills:
        dump, outcome = _left_of(base / kill["folder"])
        if outcome == "recovered":
            names = sorted(path.name for path in (base / kill["folder"]).iterdir())
            assert names in (["dump.onnx"], ["dump.onnx", "dump.onnx.data"])
            assert len(dump) == len(restore(base / kill["folder"] / "dump.onnx"))
