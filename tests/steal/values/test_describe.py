"""`describe` describes any value in one line, and `string_type` in the codes of onnx-diagnostic."""

import collections
import enum
import re
import types
from typing import NamedTuple

import ml_dtypes
import numpy as np
import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from transformers import DynamicCache
from transformers.modeling_outputs import BaseModelOutput

from filch.steal import Foreign, Skipped, describe, string_type
from filch.steal.values._dtypes import CARRIERS

NAN, INF = float("nan"), float("inf")


class Pair(NamedTuple):
    left: object
    right: object


class Color(enum.Enum):
    RED = 1


def _loop():
    value = [1]
    value.append({"again": value})
    return value


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (torch.zeros(2, 30), "f32[2, 30]"),
        (torch.zeros(()), "f32[]"),
        (torch.zeros(0, 3, dtype=torch.bfloat16), "bf16[0, 3]"),
        (nn.Parameter(torch.zeros(1, dtype=torch.complex64)), "c64[1]"),
        (torch.zeros(2, device="meta"), "f32[2]@meta"),
        (((torch.zeros(1),), {}), "((f32[1],), {})"),
        ((torch.zeros(1), None), "(f32[1], None)"),
        ([torch.zeros(1)], "[f32[1]]"),
        ([], "[]"),
        ((), "()"),
        ({"mask": None, 3: torch.ones(1)}, "{mask: None, 3: f32[1]}"),
        (Pair(torch.zeros(1), "a"), "Pair(left=f32[1], right='a')"),
        (BaseModelOutput(last_hidden_state=torch.zeros(1)), "BaseModelOutput(last_hidden_state=f32[1])"),
        (collections.OrderedDict(a=1), "{a: 1}"),
        ("it's", '"it\'s"'),
        (1.5, "1.5"),
        (torch.float32, "float32"),
        (torch.Size([2, 3]), "torch.Size([2, 3])"),
        (Color.RED, "<Color.RED: 1>"),
        (np.zeros((2, 3), "i2"), "numpy int16[2, 3]"),
        (Skipped("f32[2]", "it is nested"), "skipped f32[2] (it is nested)"),
        (Foreign("a.b:Outer.State", {"h": torch.zeros(1), "n": 2}), "State(h=f32[1], n=2)"),
        (_loop(), "[1, {again: …}]"),
        ({1}, "{1}"),
        (set(), "set()"),
        (frozenset({1}), "frozenset({1})"),
        (collections.deque([torch.zeros(1)]), "deque([f32[1]])"),
        (types.SimpleNamespace(a=1), "SimpleNamespace(a=1)"),
        (types.MappingProxyType({"a": 1}), "{a: 1}"),
        ({(torch.zeros(1), 2): 3}, "{(f32[1], 2): 3}"),
        (bytearray(b"a"), "bytearray(b'a')"),
        (Foreign("a:Stack", {0: 1, 1: 2}, "list", {"note": 3}), "Stack([1, 2])"),
        (Foreign("a:Bag", {0: 1}, "set"), "Bag({1})"),
        (Foreign("a:Pair", {0: 1}, "tuple"), "Pair((1,))"),
        (Foreign("a:Settings", {"x": 1}, "dict"), "Settings({x: 1})"),
        (nn.Sequential(nn.Identity()), "<Sequential>"),
        (nn.UninitializedParameter(), "f32[?]"),
    ],
)
def test_a_value_is_described_in_one_line(value, text):
    """Tensors by dtype and shape, everything else as Python writes it."""
    assert describe(value) == text


@pytest.mark.filterwarnings("ignore:(ComplexHalf|BComplex32) support is experimental:UserWarning")
def test_dtypes_are_written_short():
    """A letter for the kind and the number of bits; float8 and float4 with the name of their format."""
    assert [describe(torch.empty(0, dtype=dtype)).partition("[")[0] for dtype in CARRIERS] == [
        "f32", "f64", "f16", "bf16", "i8", "i16", "i32", "i64", "u8", "u16", "u32", "u64", "bool",
        "f8e4m3fn", "f8e4m3fnuz", "f8e5m2", "f8e5m2fnuz", "f8e8m0fnu", "c64", "c128", "c32",
        *(["bc32"] if hasattr(torch, "bcomplex32") else []), "f4e2m1x2",
    ]  # fmt: skip
    assert describe(torch.empty(0, dtype=torch.bits8)) == "bits8[0]"


def test_shapes_can_be_omitted():
    """The rank replaces the shape, in any nesting."""
    assert describe([torch.zeros(2, 3), {"a": torch.zeros(())}], with_shape=False) == "[f32[r2], {a: f32[r0]}]"


def test_the_description_of_a_very_large_value_is_cut():
    """A list that contains another twice, which contains another twice, and so on, would never end."""
    value = [1]
    for _ in range(60):
        value = [value, value]

    assert "…" in describe(value)
    assert len(describe(value)) < 100_000


class Silent:
    def __str__(self):
        raise NotImplementedError


def test_a_value_whose_repr_raises_is_described_by_its_class():
    """The exception is not raised into the run, and other values are described."""
    assert describe([Silent(), 10**5000, torch.zeros(1)]) == "[<Silent>, <int>, f32[1]]"


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ([1.0, -3.0, 4.0], "f32[3] -3 … 4, mean 0.6667"),
        ([1.0, NAN, INF, -INF, 3.0], "f32[5] 1 … 3, mean 2, 1 NaN, 2 inf"),
        ([NAN], "f32[1] 1 NaN"),
        ([], "f32[0] empty"),
        ([True, False], "bool[2] 0 … 1, mean 0.5"),
        ([3 + 4j], "c64[1] 5 … 5, mean 5"),
        ([2**40], "i64[1] 1.1e+12 … 1.1e+12, mean 1.1e+12"),
    ],
)
def test_statistics_use_only_finite_numbers(value, text):
    """NaNs and infinities are counted; complex numbers count by their absolute value."""
    assert describe(torch.tensor(value), statistics=True) == text


def test_statistics_of_an_expanded_tensor_are_computed_once():
    """Counts of NaNs and infinities refer to the expanded shape."""
    value = torch.tensor([[1.0], [NAN], [INF]]).expand(3, 10)

    assert describe(value, statistics=True) == "f32[3, 10] 1 … 1, mean 1, 10 NaN, 10 inf"


@pytest.mark.filterwarnings("ignore:ComplexHalf support is experimental:UserWarning")
@pytest.mark.parametrize("dtype", CARRIERS, ids=str)
def test_statistics_of_every_dtype_are_described(dtype):
    """Except for two numbers per byte, which torch can't compute with."""
    tensor = torch.zeros(16, dtype=torch.uint8).view(dtype)
    zero = "5.877e-39" if dtype == torch.float8_e8m0fnu else "0"  # E8M0 has only powers of two

    line = describe(tensor, statistics=True)

    expected = "packed" if dtype == torch.float4_e2m1fn_x2 else f"{zero} … {zero}, mean {zero}"
    assert line == f"{CARRIERS[dtype].short}[{tensor.numel()}] {expected}"


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors:UserWarning")
def test_tensors_without_data_have_no_statistics():
    """And a nested tensor has no shape to describe."""
    nested = torch.nested.nested_tensor([torch.ones(1), torch.ones(2)])

    line = describe([torch.zeros(2, device="meta"), torch.eye(2).to_sparse(), nested], statistics=True)

    assert line == "[f32[2]@meta, f32[2, 2], f32[nested]]"


class Opaque:
    """An object of an unknown class."""


@pytest.mark.parametrize(
    ("value", "statistics", "text"),
    [
        (torch.ones(1).to(torch.float8_e4m3fn), False, r"f8e4m3fn\[1\]"),
        (1 + 2j, False, r"\(1\+2j\)"),
        ([1j, torch.ones(1)], False, r"\[1j, f32\[1\]\]"),
        (Opaque(), False, r".*Opaque.*"),
        ({"a": Opaque(), "b": torch.ones(1)}, False, r"\{a: .*Opaque.*, b: f32\[1\]\}"),
        (torch.float16, False, r"float16"),
        (torch.tensor([1, 3], dtype=torch.uint16), True, r"u16\[2\] 1 … 3, mean 2"),
        (torch.tensor([NAN, 1.0, 3.0]), True, r"f32\[3\] 1 … 3, mean 2, 1 NaN"),
        (torch.tensor([NAN]), True, r"f32\[1\] 1 NaN"),
        (torch.tensor([1.0, 3.0]).to(torch.float8_e5m2), True, r"f8e5m2\[2\] 1 … 3, mean 2"),
    ],
)
def test_descriptions_of_unusual_values_and_statistics(value, statistics, text):
    """Statistics exclude NaNs, which are counted."""
    assert re.fullmatch(text, describe(value, statistics=statistics))


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
        (torch.zeros(2, 3, device="meta"), {"with_min_max": True}, "T1r2"),
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
