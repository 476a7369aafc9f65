"""Arrays and tensors of all dtypes, copies of models, and the memory that is free."""

import gc
import mmap
import weakref

import ml_dtypes
import numpy as np
import pytest
import torch
from torch import nn

from filch.export.common._arrays import array_to_torch, torch_to_array
from filch.export.common._copies import copy_tensors
from filch.export.common._memory import _resident, release_memory

NUMBERS = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
FROZEN = NUMBERS.copy()
FROZEN.flags.writeable = False


@pytest.mark.parametrize("copy", [False, True])
@pytest.mark.parametrize(
    "array",
    [
        NUMBERS[:, ::-1], NUMBERS[..., ::-2][::-1], np.asfortranarray(NUMBERS), NUMBERS.T[1:2],
        NUMBERS.astype(">f4"), np.arange(3, dtype=">i8")[::-1], np.array(2.5), np.float32(2.5), NUMBERS[:0],
        NUMBERS[:0, ::-1], np.zeros((0, 3), ">f8"), FROZEN, np.array([True, False])[::-1],
        np.array([1 + 2j, 3j], ">c16"),
    ],
)  # fmt: skip
def test_layouts(array, copy):
    """Negative strides, other byte orders, single numbers and empty arrays among them."""
    tensor = array_to_torch(array, copy=copy)
    assert tensor.shape == array.shape
    assert tensor.tolist() == array.tolist()


@pytest.mark.parametrize("dtype", [ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2fnuz])
def test_short_floating_point_numbers(dtype):
    """With the dtype that torch has for them, and back."""
    array = np.array([[1, 2, 0.5], [-1, 0, 4]], dtype)
    for view in (array, array[:, ::-1], array.T, array[:0], array[1, 2]):
        tensor = array_to_torch(view, copy=False)
        assert tensor.float().tolist() == view.astype(np.float32).tolist()
        assert np.array_equal(torch_to_array(tensor), view)


@pytest.mark.parametrize(
    ("dtype", "wide"),
    [
        (ml_dtypes.int4, torch.int8),
        (ml_dtypes.uint4, torch.uint8),
        (ml_dtypes.int2, torch.int8),
        (ml_dtypes.float4_e2m1fn, torch.float32),
    ],
)
def test_numbers_of_a_few_bits(dtype, wide):
    """Torch can't compute with them, so they become numbers of the next dtype."""
    tensor = array_to_torch(np.array([0, 1], dtype)[::-1])
    assert tensor.dtype == wide
    assert tensor.tolist() == [1, 0]


def test_memory_is_shared_where_it_can_be():
    """Not if it is to be copied."""
    array = np.zeros(3)
    array_to_torch(array, copy=False)[0] = 1
    array_to_torch(array)[1] = 1
    assert array.tolist() == [1, 0, 0]


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
        torch.arange(24.0).reshape(4, 6).T[1:], torch.arange(3.0).expand(2, 3), torch.tensor(2), torch.zeros(0, 3),
        torch.tensor([1 + 2j, 3j]).conj(), (torch.tensor([1 + 2j, 3j]).conj()).imag, torch.eye(3).to_sparse(),
        nn.Parameter(torch.ones(2, 2)), torch.zeros(2, device="meta"),
    ],
    ids=repr,
)  # fmt: skip
def test_a_copy_has_the_numbers_and_the_strides_of_the_tensor(tensor):
    """Whatever the layout; a copy of what needs a gradient needs one, as a leaf."""
    copied = copy_tensors(tensor)

    assert (copied.shape, copied.dtype, copied.requires_grad) == (tensor.shape, tensor.dtype, tensor.requires_grad)
    assert tensor.layout is not torch.strided or copied.stride() == tensor.stride()
    assert copied.is_leaf and copied is not tensor
    assert tensor.is_meta or torch.equal(copied.to_dense() if copied.is_sparse else copied, _dense(tensor))


def test_the_copy_of_a_view_is_a_view_of_the_copy():
    """A compiler may join two views of one tensor to that tensor, with its shape."""
    whole = torch.arange(12.0).view(3, 4).clone()
    copied, row = copy_tensors((whole, whole[1]))

    assert row._base is copied  # noqa: SLF001
    row.add_(100)
    assert copied[1].tolist() == row.tolist() and whole[1].tolist() == [4, 5, 6, 7]
    assert copy_tensors(whole[1])._base.shape == whole.shape  # noqa: SLF001
    assert copy_tensors(nn.Parameter(whole)[1].detach()).is_leaf


def _dense(tensor):
    return tensor.to_dense() if tensor.is_sparse else tensor


def test_little_of_a_large_memory_is_copied():
    """A batch of a data set doesn't copy the data set; where it begins modulo 64 bytes stays."""
    batch = torch.arange(2.0**20)[1001:1011]

    copied = copy_tensors(batch)

    assert torch.equal(copied, batch) and copied.untyped_storage().nbytes() < 200
    assert (copied.storage_offset() - batch.storage_offset()) % 16 == 0


class Cycle:
    """An object that only the garbage collector removes."""

    def __init__(self):
        self.itself = self


@pytest.mark.parametrize(("resident", "released"), [(2**31 - 1, False), (2**31, True), (None, True)])
def test_garbage_is_looked_for_in_large_processes_alone(monkeypatch, resident, released):
    """Where only Linux would tell the size of a process, it counts as large."""
    monkeypatch.setattr("filch.export.common._memory._resident", lambda: resident)
    monkeypatch.setattr("filch.export.common._memory._libc", lambda _: None)
    gc.disable()
    try:
        garbage = weakref.ref(Cycle())
        release_memory()
        assert (garbage() is None) == released
    finally:
        gc.enable()


def test_the_size_of_a_process_is_read():
    """It has the pages that it wrote."""
    if (before := _resident()) is None:
        pytest.skip("only Linux tells what memory a process has")
    with mmap.mmap(-1, 2**26) as block:  # memory that no earlier object has left behind
        for start in range(0, len(block), mmap.PAGESIZE):
            block[start] = 1
        assert _resident() - before > 0.9 * len(block)
