"""Copies of tensors share memory as the tensors do, and copy no more than that."""

import pytest
import torch
from torch import nn

from filch.export.common._copies import copy_tensors


def test_copies_share_memory_in_the_same_way():
    """A write to one copy is seen in the other, and in nothing else."""
    whole = torch.arange(10.0)
    values = {"a": whole[:6], "b": [whole[2:8:2], 3, None], "c": torch.zeros(2)}

    copied = copy_tensors(values)
    copied["a"].add_(100)

    assert copied["b"][0].tolist() == [102, 104, 6]
    assert copied["b"][1:] == [3, None] and whole.tolist() == [*range(10)]


@pytest.mark.parametrize(
    "tensor",
    [
        torch.arange(24.0).reshape(4, 6).T[1:],
        torch.arange(3.0).expand(2, 3),
        torch.tensor(2),
        torch.zeros(0, 3),
        torch.tensor([1 + 2j, 3j]).conj(),
        (torch.tensor([1 + 2j, 3j]).conj()).imag,
        torch.eye(3).to_sparse(),
        nn.Parameter(torch.ones(2, 2)),
        torch.zeros(2, device="meta"),
    ],
    ids=repr,
)
def test_a_copy_has_the_numbers_and_the_strides_of_the_tensor(tensor):
    """Whatever the layout; a copy of what needs a gradient needs one, as a leaf."""
    copied = copy_tensors(tensor)

    assert (copied.shape, copied.dtype, copied.requires_grad) == (tensor.shape, tensor.dtype, tensor.requires_grad)
    assert tensor.layout is not torch.strided or copied.stride() == tensor.stride()
    assert copied.is_leaf and copied is not tensor
    assert tensor.is_meta or torch.equal(copied.to_dense() if copied.is_sparse else copied, _dense(tensor))


def _dense(tensor):
    return tensor.to_dense() if tensor.is_sparse else tensor


def test_little_of_a_large_memory_is_copied():
    """A batch of a data set doesn't copy the data set; where it begins modulo 64 bytes stays."""
    batch = torch.arange(2.0**20)[1001:1011]

    copied = copy_tensors(batch)

    assert torch.equal(copied, batch) and copied.untyped_storage().nbytes() < 200
    assert (copied.storage_offset() - batch.storage_offset()) % 16 == 0
