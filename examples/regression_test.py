"""Regression tests to copy: the exported model stays close to eager PyTorch node by node, and to a golden dump.

Run them with pytest; `pytest --filch-update` stores the golden dump. As a script, this file does both in a temporary
folder.
"""

import shutil
import tempfile
from pathlib import Path

import pytest
import torch
from torch import nn

from filch.compare import Checks


class Classifier(nn.Module):
    """A stand-in for your model."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.TransformerEncoderLayer(32, 4, 64, batch_first=True)
        self.head = nn.Linear(32, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """`(batch, length, 32)` to `(batch, 10)`."""
        return self.head(self.encoder(x).mean(dim=1))


@pytest.fixture
def model() -> nn.Module:
    """Return the model with the same weights in each run; yours come from a file."""
    torch.manual_seed(0)
    return Classifier().eval()


@pytest.mark.filch_backends("onnxruntime-cpu", "reference")
def test_the_exported_classifier_is_close_to_eager_pytorch(filch: Checks, model: nn.Module) -> None:
    filch.check(model, torch.ones(2, 5, 32))


def test_the_classifier_computes_what_it_did(filch: Checks, model: nn.Module) -> None:
    filch.golden("classifier").check(model, torch.ones(2, 5, 32))


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        copied = shutil.copy(__file__, Path(folder) / "test_classifier.py")
        for options in (["--filch-update", "-k", "computes"], []):
            code = pytest.main([copied, "-q", "--rootdir", folder, "-p", "no:cacheprovider", *options])
            if code:
                raise SystemExit(code)
