"""What each test of torch.compile begins with."""

import pytest
import torch


@pytest.fixture(autouse=True)
def fresh():
    """Forget what was compiled before, and draw the same numbers."""
    torch._dynamo.reset()  # noqa: SLF001  torch documents it
    torch.manual_seed(0)
