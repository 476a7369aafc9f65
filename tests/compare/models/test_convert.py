"""Models are moved to another device or dtype; one that is not there is refused in one sentence."""

import pytest
import torch
from torch import nn

from filch.compare import CompareError
from filch.compare.models._subject import Subject
from filch.compare.models._variants import converted, find_device


def _subject(**options):
    return Subject.of(nn.Linear(4, 2, **options), (torch.rand(3, 4), {"n": 3}), None)


def test_tensors_are_moved_and_floating_point_numbers_cast():
    """Anything else stays as it is."""
    found = converted(_subject(), torch.float64, torch.device("cpu"))

    assert found.model.weight.dtype is torch.float64
    assert found.args[0].dtype is torch.float64 and found.args[1] == {"n": 3}


@pytest.mark.parametrize("device", ["mps", "xpu", f"cuda:{torch.cuda.device_count()}", "meta", "hpu"])
def test_a_device_that_is_not_there_is_refused(device):
    """In one short sentence that says what to do."""
    with pytest.raises(
        CompareError, match=rf"the model can't run there: .*'{device}'.*; choose another device"
    ) as error:
        converted(_subject(), None, find_device(device))
    assert "\n" not in str(error.value) and len(str(error.value)) < 300


@pytest.mark.parametrize("name", ["nonsense", "", "7", "cuda:-1", "cuda:x"])
def test_a_name_of_no_device_is_refused(name):
    """With examples."""
    with pytest.raises(CompareError, match=f"a device is one like cpu or cuda:0, not '{name}'"):
        find_device(name)


def test_a_model_without_numbers_can_not_be_moved():
    """The sentence has torch's reason."""
    with pytest.raises(CompareError, match="the model can't be moved to cpu: Cannot copy out of meta tensor"):
        converted(_subject(device="meta"), None, torch.device("cpu"))
