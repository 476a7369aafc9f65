"""Values of any type pass through a captured module unchanged, and are restored as they were."""

import copy
import dataclasses
import functools
import random

import numpy as np
import pytest
import torch
import transformers
from torch import nn
from transformers import DynamicCache, StaticCache
from transformers.cache_utils import EncoderDecoderCache

from filch.steal import Skipped
from support.models.small import module_of

pytestmark = [
    pytest.mark.filterwarnings("ignore:ComplexHalf support is experimental:UserWarning"),
    pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors:UserWarning"),
    pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor.*deprecated:UserWarning"),
]


def passing():
    """Returns its only argument, or all arguments."""
    return module_of(lambda self, *args, **kwargs: args[0] if len(args) == 1 and (not kwargs) else (args, kwargs))


ONE, SEVEN = torch.ones(1), torch.full((1,), 7.0)


@pytest.mark.parametrize(
    ("args", "kwargs"),
    [
        ((ONE, None, SEVEN), {}), ((ONE, None), {}), ((ONE,), {"a": None, "b": SEVEN}),
        ((ONE,), {"b": SEVEN, "a": None}), ((None, None), {"a": None}), ((), {"x": ONE, "flag": True}), ((), {}),
        ((None,), {}), ((ONE, [None]), {}), (((ONE, None),), {}),
        (({"logits": ONE, "loss": None, "states": [SEVEN, {"deep": ONE}]},), {}), ((5,), {}), (((),), {}),
    ],
)  # fmt: skip
def test_arguments_and_outputs_are_recorded_as_passed(steal, differ, args, kwargs):
    """Positions, keywords, their order and any nesting are kept, and no None is omitted."""
    module = passing()

    records = steal(("m", module), lambda: module(*args, **kwargs))

    assert differ(records["m", 0, "I"], (args, kwargs)) is None
    assert differ(records["m", 0, "O"], args[0] if len(args) == 1 and not kwargs else (args, kwargs)) is None


def _any_value(rng, depth):
    if depth == 0 or rng.random() < 0.4:
        return rng.choice([torch.full((2,), rng.random()), rng.randint(-5, 5), rng.random(), True, None, None])
    items = [_any_value(rng, depth - 1) for _ in range(rng.randint(0, 3))]
    return rng.choice([list, tuple, lambda items: {f"k{index}": item for index, item in enumerate(items)}])(items)


def test_random_nested_values_with_none_are_restored(steal, differ):
    """400 random nestings of tensors, numbers and None."""
    rng, module = random.Random(0), passing()  # noqa: S311  no secrets here
    values = [_any_value(rng, 3) for _ in range(400)]

    records = steal(("m", module), lambda: [module(value) for value in values])

    wrong = [value for index, value in enumerate(values) if differ(records["m", index, "O"], value) is not None]
    assert wrong == []


@dataclasses.dataclass
class State:
    a: torch.Tensor


class Opaque:
    """An object that can't be stored."""


STORED = {
    "dtype": torch.float16, "device": torch.device("cpu"), "slice": slice(0, 1), "dataclass": State(torch.ones(2)),
    "range": range(3), "complex": 1 + 2j, "numpy scalar": np.float32(1.5),
    "numpy array": np.arange(6.0).reshape(2, 3), "string": "eager",
}  # fmt: skip


NOT_STORED = {"function": len, "object": Opaque(), "class": Opaque, "lambda": lambda: None}


class Storing(nn.Module):
    """Returns its second argument, and stores it."""

    def forward(self, x, value=None):
        self.value = value
        return value


def _empty(name):
    return torch.zeros(2, 2, dtype=torch.uint8).view(getattr(torch, name))


TENSORS = {
    **{name: functools.partial(torch.tensor([1 + 2j, 3 - 1j]).to, getattr(torch, name))
       for name in ("complex32", "complex64", "complex128")},
    **{name: functools.partial(torch.tensor([1.0, 2.0]).to, getattr(torch, name))
       for name in ("float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz", "float8_e8m0fnu")},
    "float4_e2m1fn_x2": functools.partial(_empty, "float4_e2m1fn_x2"),
    **{name: functools.partial(torch.empty, 3, dtype=getattr(torch, name))
       for name in ("int4", "uint4", "int2", "uint1")},
    "qint8": lambda: torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.qint8),
    "quint8": lambda: torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.quint8),
    "nested": lambda: torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]),
}  # fmt: skip


MAY_BE_SKIPPED = {"int4", "uint4", "int2", "uint1", "qint8", "quint8", "nested"}


@pytest.mark.parametrize("name", [*STORED, *NOT_STORED, *TENSORS])
def test_a_captured_module_gets_and_returns_the_same_object(steal, differ, comparable, name):
    """It is stored, tensors of any dtype bit for bit, or the record has a reason why not."""
    module, value = Storing(), TENSORS[name]() if name in TENSORS else (STORED | NOT_STORED)[name]
    outputs = []

    records = steal(("m", module), lambda: outputs.append(module(torch.ones(1), value)))

    assert module.value is value
    assert outputs[0] is value
    for found in (records["m", 0, "I"][0][1], records["m", 0, "O"]):
        if name in {*NOT_STORED} | MAY_BE_SKIPPED and isinstance(found, Skipped):
            assert found.reason
        else:
            assert differ(comparable(found), comparable(value)) is None
    assert records["m", 0, "I"][0][0].item() == 1


def _filled():
    cache = DynamicCache()
    cache.update(torch.rand(1, 2, 3, 4), torch.rand(1, 2, 3, 4), 0)
    return cache


def _small():
    return transformers.LlamaConfig(
        num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=2, hidden_size=8, vocab_size=8
    )


CACHES = {
    "empty": DynamicCache,
    "empty, of a configuration": lambda: DynamicCache(config=_small()),
    "filled": _filled,
    "static": lambda: StaticCache(config=_small(), max_cache_len=8),
    "pair": lambda: EncoderDecoderCache(_filled(), _filled()),
}


@pytest.mark.parametrize("name", CACHES)
def test_a_cache_is_restored_as_it_was_before_the_call(steal, differ, name):
    """Although the module writes into it."""
    cache = CACHES[name]()
    untouched = copy.deepcopy(cache)

    class Updating(nn.Module):
        def forward(self, x, cache):
            own = getattr(cache, "self_attention_cache", cache)
            own.update(torch.ones(1, 2, 1, 4), torch.ones(1, 2, 1, 4), 0)
            return x

    module = Updating()

    records = steal(("m", module), lambda: module(torch.ones(1), cache=cache))

    found = records["m", 0, "I"][1]["cache"]
    assert type(found) is type(cache)
    assert differ(found, untouched) is None
