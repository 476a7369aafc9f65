"""Arrays of any layout and dtype become tensors."""

import ml_dtypes
import numpy as np
import pytest
import torch

from filch.export.common._arrays import array_to_torch, torch_to_array

NUMBERS = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
FROZEN = NUMBERS.copy()
FROZEN.flags.writeable = False


@pytest.mark.parametrize("copy", [False, True])
@pytest.mark.parametrize(
    "array",
    [
        NUMBERS[:, ::-1],
        NUMBERS[..., ::-2][::-1],
        np.asfortranarray(NUMBERS),
        NUMBERS.T[1:2],
        NUMBERS.astype(">f4"),
        np.arange(3, dtype=">i8")[::-1],
        np.array(2.5),
        np.float32(2.5),
        NUMBERS[:0],
        NUMBERS[:0, ::-1],
        np.zeros((0, 3), ">f8"),
        FROZEN,
        np.array([True, False])[::-1],
        np.array([1 + 2j, 3j], ">c16"),
    ],
)
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
