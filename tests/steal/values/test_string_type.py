"""`string_type` describes values in the codes of onnx-diagnostic."""

import ml_dtypes
import numpy as np
import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from transformers import DynamicCache

from filch.steal import string_type

SIX = torch.arange(6.0).reshape(2, 3)
BATCH, LENGTH = torch.export.Dim("batch"), torch.export.Dim("length")


@pytest.mark.parametrize(
    ("value", "options", "text"),
    [
        ((torch.zeros(2, 30, dtype=torch.int64),), {"with_shape": True}, "(T7s2x30,)"),
        (SIX, {}, "T1r2"),
        (SIX, {"with_shape": True, "with_device": True}, "CT1s2x3"),
        (SIX, {"with_shape": True, "with_min_max": True}, "T1s2x3[0.0,5.0:A2.5]"),
        (torch.tensor([float("nan"), 1.0]), {"with_shape": True, "with_min_max": True}, "T1s2[1.0,1.0:A1.0N1nans]"),
        (torch.tensor([float("nan")]), {"with_min_max": True}, "T1r1[N1nans]"),
        (torch.empty(0, 2), {"with_shape": True, "with_min_max": True}, "T1s0x2[empty]"),
        (torch.tensor(2.0), {"with_shape": True, "with_min_max": True}, "T1s=2.0"),
        (torch.ones(1).to(torch.float8_e4m3fn), {"with_shape": True, "with_min_max": True}, "T17s1[1.0,1.0:A1.0]"),
        (torch.ones(2, dtype=torch.uint16), {"with_shape": True, "with_min_max": True}, "T4s2[1,1:A1.0]"),
        (torch.ones(1, dtype=torch.complex64), {"with_shape": True}, "T14s1"),
        (np.ones((2, 2)), {"with_shape": True}, "A11s2x2"),
        (np.ones(2, ml_dtypes.int4), {"with_min_max": True}, "A22r1[1,1:A1.0]"),
        (np.ones(2, np.longdouble), {}, f"A{np.dtype(np.longdouble).name}r1"),
        ({"a": SIX, "b": None}, {"with_shape": True}, "dict(a:T1s2x3,b:None)"),
        ([SIX, (SIX, SIX)], {}, "#2[T1r2,(T1r2,T1r2)]"),
        ([1] * 25, {"with_min_max": True}, "#25[int=1,...][1,1:1.0]"),
        ([], {}, "#0[]"),
        ((), {}, "()"),
        ({}, {}, "{}"),
        ({1, 2}, {}, "{int,int}"),
        ([None, True, 3, 2.5, "s", slice(0, 1), 1j], {}, "#7[None,bool,int,float,str,slice,complex]"),
        ({"ids": {0: BATCH, 1: LENGTH}}, {}, "dict(ids:{0:Dim(batch),1:Dim(length)})"),
        ({0: torch.export.Dim.DYNAMIC, 1: "x"}, {}, "{0:DYNAMIC,1:DYN(x)}"),
        (object(), {}, "object"),
    ],
)
def test_values_are_described_in_codes_of_onnx_diagnostic(value, options, text):
    """For each kind of value and option."""
    assert string_type(value, **options) == text


def test_a_cache_is_described_by_its_keys_and_values():
    """As lists with one tensor per layer."""
    cache = DynamicCache()
    cache.update(torch.ones(1, 2, 3, 4), torch.ones(1, 2, 3, 4), 0)

    expected = "DynamicCache(key_cache=#1[T1s1x2x3x4], value_cache=#1[T1s1x2x3x4])"
    assert string_type(cache, with_shape=True) == expected


def test_a_fake_tensor_has_its_own_letter():
    """And no statistics, as it has no data."""
    with FakeTensorMode():
        fake = torch.empty(2, 3)

    assert string_type(fake, with_shape=True, with_min_max=True) == "F1s2x3"


def test_the_description_of_a_recursive_list_ends():
    """At a maximum depth."""
    value: list[object] = []
    value.append(value)

    assert string_type(value).endswith("…" + "]" * 101)
