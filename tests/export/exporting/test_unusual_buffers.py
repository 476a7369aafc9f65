"""Models with buffers that are not dense are exported, and those without numbers are refused."""

import pytest
import torch

from filch.export import ExportError, export

BUFFERS = {
    "sparse": lambda: torch.eye(8).to_sparse(),
    "rows": lambda: torch.eye(8).to_sparse_csr(),
    "nested": lambda: torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]),
}


def linear_with(buffer):
    """Return a model with a further buffer, which it does not use."""
    model = torch.nn.Linear(8, 8)
    model.register_buffer("held", buffer)
    return model


@pytest.mark.filterwarnings("ignore:.*(prototype|beta state)")
@pytest.mark.parametrize("kind", BUFFERS)
def test_a_buffer_that_is_not_dense_is_exported(kind):
    """Buffers are restored after the run that records the calls, as far as a run can change them."""
    program = export(linear_with(BUFFERS[kind]()), (torch.randn(4, 8),))
    assert [node.op for node in program.graph.nodes] == ["Gemm"]


def test_weights_on_the_device_meta_are_refused():
    """They have no numbers; torch would fail somewhere behind the export."""
    with pytest.raises(ExportError, match="Linear has weights on the device meta, which have no numbers: load them"):
        export(linear_with(torch.empty(3, device="meta")), (torch.randn(4, 8),))
