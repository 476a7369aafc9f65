"""Operations on large weights are computed block by block."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from filch.compare.runs._evaluation import Float64Evaluator
from filch.export import export
from filch.export.evaluation import _blockwise

WORDS, WIDTH = 1030, 65  # neither a multiple of the rows of a block, nor of the numbers of noise


class Model(nn.Module):
    """A table that is read at some places and multiplied by, as a language model does."""

    def __init__(self, dtype):
        super().__init__()
        self.table = nn.Embedding(WORDS, WIDTH, padding_idx=3, dtype=dtype)
        self.head = nn.Linear(WIDTH, WORDS, dtype=dtype)

    def forward(self, ids):
        return self.head(torch.tanh(self.table(ids))).softmax(-1)


def subject(dtype):
    """Return the program and its input."""
    torch.manual_seed(0)
    ids = torch.tensor([[3, 0, WORDS - 1, 5], [5, 5, 512, 513]])
    return export(Model(dtype).eval(), (ids,)), ids


def float64_values(program, ids):
    """Return the exact and the noisy float64 value of each node."""
    assert program.original is not None
    names = program.original.names
    values = Float64Evaluator(program).of({"ids": ids}, names, keep=True)
    found = {name: values.get(name) for name in names}
    return {name: (value.value, value.noisy) for name, value in found.items() if value is not None}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_blocks_give_the_values_and_the_noise_of_the_whole_weight(dtype, monkeypatch):
    """Each number of a weight gets the same noise, so that only the order of the sums differs."""
    program, ids = subject(dtype)
    whole = float64_values(program, ids)
    monkeypatch.setattr(_blockwise, "_LARGE", 0)
    monkeypatch.setattr(_blockwise, "_BLOCK", 7 * WIDTH)

    blocks = float64_values(program, ids)

    assert blocks.keys() == whole.keys() >= {"embedding", "linear"}
    for name, (exact, noisy) in blocks.items():
        torch.testing.assert_close(exact, whole[name][0], rtol=1e-13, atol=1e-15)
        torch.testing.assert_close(noisy, whole[name][1], rtol=1e-13, atol=1e-15)
    assert not torch.equal(*blocks["embedding"])


def test_a_large_weight_is_never_read_whole(monkeypatch):
    """Nothing of its size is converted to float64."""
    program, ids = subject(torch.float32)
    monkeypatch.setattr(_blockwise, "_LARGE", 0)
    monkeypatch.setattr(_blockwise, "_BLOCK", 7 * WIDTH)
    sizes: list[int] = []

    def read(_name, value, _start):
        sizes.append(value.numel() if value.is_floating_point() else 0)
        return value

    assert program.original is not None
    values: dict[str, Any] = {}
    for name in program.original.names:
        values[name] = program.original.float64.compute(name, {"ids": ids}, values, read)

    assert max(sizes) <= max(7 * WIDTH, 8 * WORDS)  # a block, or the result


def test_an_empty_index_gives_an_empty_result(monkeypatch):
    """No row of the table is read."""
    monkeypatch.setattr(_blockwise, "_LARGE", 0)
    program = export(Model(torch.float32).eval(), (torch.empty(1, 0, dtype=torch.int64),))

    exact, _ = float64_values(program, torch.empty(1, 0, dtype=torch.int64))["embedding"]

    assert (exact.shape, exact.dtype) == ((1, 0, WIDTH), torch.float64)
