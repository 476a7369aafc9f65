"""The phases of exports, comparisons and matrices: their names, their order, and counts that reach the totals."""

from __future__ import annotations

import logging

import torch
from torch import nn

from filch.compare import compare
from filch.compare.fleet._cell import CellOptions, matrix_cells, sweep_cells
from filch.compare.fleet._here import run_here
from filch.export import export
from filch.steal import Phase, watch_phases
from support.faults.fakes import WrongBackend
from support.models.small import capture_of

FACTORIES = """
import torch
from torch import nn

def small():
    torch.manual_seed(0)
    shapes = ({0: torch.export.Dim("batch", min=1, max=8)},)
    return nn.Sequential(nn.Linear(4, 4), nn.ReLU()).eval(), (torch.ones(2, 4),), {}, shapes
"""
EXPORT = ["running the model", "torch.export", "translation to ONNX", "types", "module calls"]


class Watched:
    """The names of phases in the order in which they began, the items, and the last text of each phase."""

    def __init__(self):
        self.names: list[str] = []
        self.last: dict[str, str] = {}
        self.stacks: set[tuple[str, ...]] = set()
        self._known: list[Phase] = []

    def __call__(self, phases):
        for item in phases:
            if not any(item is known for known in self._known):
                self._known.append(item)
                self.names.append(item.name)
            self.last[item.name] = str(item)
        self.stacks.add(tuple(map(str, phases)))


def _check(backend):
    torch.manual_seed(0)
    model, x = nn.Sequential(nn.Linear(4, 4), nn.GELU(), nn.Linear(4, 4)).eval(), torch.randn(2, 4)
    program = export(model, (x,))
    capture = capture_of(model, x, submodules=True)
    compare(capture, program, backend=backend)


def test_the_phases_of_a_check_come_in_order():
    """Export, capture, compilation of each stage, then the plain run and the values of each."""
    watched = Watched()
    with watch_phases(watched):
        _check("onnxruntime-cpu")

    stages = ("exported", "compiled")
    assert watched.names == [
        "export: step",
        "capture",
        *(f"{stage} graph: compiling" for stage in stages),
        "call",
        *(f"{stage} graph: {what}" for stage in stages for what in ("running", "value")),
    ]
    assert {(f"export: step {number} of 5: {name}",) for number, name in enumerate(EXPORT, 1)} <= watched.stacks


def test_counts_reach_their_totals_also_of_isolated_nodes():
    """Each value of a stage is counted, and each node that runs alone."""
    watched = Watched()
    with watch_phases(watched):
        _check(WrongBackend(faults={"linear": lambda value: value * 1.01}))

    assert watched.names[-2:] == ["exported graph: value", "exported graph: isolated node"]
    for name in ("call", "exported graph: value", "exported graph: isolated node"):
        count, _, total = watched.last[name].removeprefix(f"{name} ").partition(" of ")
        assert count == total and int(total) > 0, watched.last


def test_a_matrix_and_a_sweep_name_their_cells(tmp_path, monkeypatch):
    """The phases of each comparison are inside of its cell."""
    (tmp_path / "models.py").write_text(FACTORIES)
    monkeypatch.chdir(tmp_path)
    watched = Watched()
    with watch_phases(watched):
        options = {"folder": tmp_path, "judged": CellOptions()}
        backends, dtypes = ["eager", "onnxruntime-cpu"], ["float32", "float64"]
        cells = [*run_here(matrix_cells(["models.py:small"], backends=backends, dtypes=dtypes, **options))]
        swept = [*run_here(sweep_cells("models.py:small", {"batch": [2, 3]}, backends=["eager"], **options))]

    assert [cell.status for cell in (*cells, *swept)] == ["close"] * 6
    shown = {stack[0] for stack in watched.stacks if len(stack) > 1}
    assert shown == {
        "cell 1 of 4: models.py:small float32 eager",
        "cell 2 of 4: models.py:small float32 onnxruntime-cpu",
        "cell 3 of 4: models.py:small float64 eager",
        "cell 4 of 4: models.py:small float64 onnxruntime-cpu",
        "cell 1 of 2: batch=2 eager",
        "cell 2 of 2: batch=3 eager",
    }
    assert ("cell 4 of 4: models.py:small float64 onnxruntime-cpu", "call 1 of 1", "compiled graph: running") in (
        watched.stacks
    )


def test_a_check_logs_phases_not_values(caplog):
    """So a failing test of another project that shows debug messages is not flooded."""
    with caplog.at_level(logging.DEBUG, logger="filch"):
        _check("onnxruntime-cpu")
    assert len(caplog.records) < 20, caplog.messages
    assert {record.levelno for record in caplog.records} == {logging.DEBUG}
