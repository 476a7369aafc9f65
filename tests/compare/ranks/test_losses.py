"""Models that return their loss, as those of transformers do, are compared with one process, too."""

import pytest
import torch
from torch import nn

from filch.compare import diff
from filch.steal import Layouts, assemble, steal_forward


class WithLoss(nn.Module):
    """A classifier that returns the mean loss of its batch beside its scores."""

    def __init__(self):
        super().__init__()
        self.scores = nn.Linear(4, 3)

    def forward(self, x, targets):
        scores = self.scores(x)
        return {"loss": nn.functional.cross_entropy(scores, targets), "scores": scores}


@pytest.fixture(params=[1.0, 3.0], ids=["right", "scaled"])
def run(tmp_path, request):
    """Dumps of the whole batch, and of two ranks with half of it, whose loss may have a wrong scale."""
    torch.manual_seed(0)
    model, x, targets = WithLoss(), torch.randn(6, 4, requires_grad=True), torch.tensor([0, 1, 2, 2, 1, 0])
    parts = {"reference": slice(0, 6), "run.0": slice(0, 3), "run.1": slice(3, 6)}
    for name, rows in parts.items():
        with steal_forward(model, submodules=True, gradients=True, dump_file=tmp_path / f"{name}.onnx"):
            loss = model(x[rows], targets[rows])["loss"]
            (loss if name == "reference" else loss * request.param).backward()
    return tmp_path, request.param


def test_the_gradient_of_a_mean_loss_is_not_divided(run):
    """It is 1 on each rank, as in one process; the other gradients are twice as large on two ranks."""
    folder, scale = run
    result = diff(folder / "reference.onnx", f"{folder}/run.*.onnx")
    rows = {row.key.label + row.path: row for row in result.rows}

    assert result.close == (scale == 1)
    assert all(row.judged for row in result.rows)
    assert not rows["scores#0.O"].diverged
    assert rows["(root)#0.GO['loss']"].diverged == (scale != 1)
    learned = assemble(f"{folder}/run.*.onnx", layouts=Layouts(learned=result.learned))
    assert diff(folder / "reference.onnx", learned).close == (scale == 1)
