"""A regression test to copy: the exported model stays close to eager PyTorch, node by node.

Run it with pytest, or as a script.
"""

import pytest
import torch
from torch import nn

from filch.compare import compare
from filch.export import export, optimize
from filch.steal import steal_forward


class Classifier(nn.Module):
    """Stands for your own model."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.TransformerEncoderLayer(32, 4, 64, batch_first=True)
        self.head = nn.Linear(32, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """`(batch, length, 32)` to `(batch, 10)`."""
        return self.head(self.encoder(x).mean(dim=1))


@pytest.mark.parametrize("backend", ["onnxruntime-cpu", "reference"])
def test_the_exported_classifier_is_close_to_eager_pytorch(backend: str) -> None:
    torch.manual_seed(0)
    model, inputs = Classifier().eval(), (torch.randn(2, 5, 32),)
    with torch.no_grad(), steal_forward(model, submodules=True) as capture:
        model(*inputs)

    report = compare(capture, optimize(export(model, inputs)), backend=backend)

    report.assert_close()  # all differences in one message, the first one in front


if __name__ == "__main__":
    raise SystemExit(pytest.main([__file__, "-q"]))
