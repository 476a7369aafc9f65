"""Caches of layers with windows, as an exported program has them."""

import pytest
import torch

from filch.export.exporting._window_cache import WindowCache, WindowLayer


@pytest.mark.parametrize("windows", [(3, 5), (5, 3)])
def test_the_mask_has_a_column_for_each_token_of_the_longest_window(windows):
    """Without a layer that keeps all tokens."""
    cache = WindowCache()
    cache.layers = [*map(WindowLayer, windows)]
    for layer in cache.layers:
        layer.update(torch.zeros(1, 1, 8, 2), torch.zeros(1, 1, 8, 2))

    assert cache.get_seq_length() == 4
    assert [cache.get_mask_sizes(1, index) for index in range(2)] == [(window, 5 - window) for window in windows]
