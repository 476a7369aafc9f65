"""What holds for every test: no network, and a reason where there is no GPU."""

import os

import pytest

os.environ.setdefault("HF_HUB_OFFLINE", "1")  # transformers reads it when it is imported, which is later than this


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip what needs a GPU, where there is none; torch is imported only to answer that.

    What takes longest comes first: files are shared out in this order, and the last ones should keep nobody waiting.
    """
    items.sort(key=lambda item: "house" not in item.path.parts)
    wanting = [item for item in items if item.get_closest_marker("gpu")]
    if not wanting:
        return
    import torch

    if torch.cuda.is_available():
        return
    reason = f"needs a CUDA device, and torch {torch.__version__} sees none: torch.cuda.is_available() is False"
    for item in wanting:
        item.add_marker(pytest.mark.skip(reason=reason))
