"""Values of any type pass through a captured module unchanged, and are restored as they were."""

import collections
import copy
import dataclasses
import functools
import random
from typing import NamedTuple

import numpy as np
import pytest
import torch
import transformers
from torch import nn
from transformers import DynamicCache, MistralConfig, StaticCache
from transformers.cache_utils import EncoderDecoderCache
from transformers.modeling_outputs import BaseModelOutput

from filch.steal import Skipped

pytestmark = [
    pytest.mark.filterwarnings("ignore:ComplexHalf support is experimental:UserWarning"),
    pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors:UserWarning"),
    pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor.*deprecated:UserWarning"),
]


class Passing(nn.Module):
    """Returns its only argument, or all arguments."""

    def forward(self, *args, **kwargs):
        return args[0] if len(args) == 1 and not kwargs else (args, kwargs)


ONE, SEVEN = torch.ones(1), torch.full((1,), 7.0)


@pytest.mark.parametrize(
    ("args", "kwargs"),
    [
        ((ONE, None, SEVEN), {}),
        ((ONE, None), {}),
        ((ONE,), {"a": None, "b": SEVEN}),
        ((ONE,), {"b": SEVEN, "a": None}),
        ((None, None), {"a": None}),
    ],
)
def test_none_arguments_keep_their_place(steal, differ, args, kwargs):
    """Positional or by keyword, before and after tensors."""
    module = Passing()

    records = steal(("m", module), lambda: module(*args, **kwargs))

    assert differ(records["m", 0, "I"], (args, kwargs)) is None
    assert differ(records["m", 0, "O"], (args, kwargs)) is None


def _any_value(rng, depth):
    if depth == 0 or rng.random() < 0.4:
        return rng.choice([torch.full((2,), rng.random()), rng.randint(-5, 5), rng.random(), True, None, None])
    items = [_any_value(rng, depth - 1) for _ in range(rng.randint(0, 3))]
    return rng.choice([list, tuple, lambda items: {f"k{index}": item for index, item in enumerate(items)}])(items)


def test_random_nested_values_with_none_are_restored(steal, differ):
    """400 random nestings of tensors, numbers and None."""
    rng, module = random.Random(0), Passing()  # noqa: S311  no secrets here
    values = [_any_value(rng, 3) for _ in range(400)]

    records = steal(("m", module), lambda: [module(value) for value in values])

    wrong = [value for index, value in enumerate(values) if differ(records["m", index, "O"], value) is not None]
    assert wrong == []


class Point(NamedTuple):
    x: torch.Tensor
    y: int = 3


TYPES = {
    "torch.Size": torch.Size([2, 3]),
    "named tuple": Point(ONE),
    "OrderedDict": collections.OrderedDict([("b", ONE), ("a", SEVEN)]),
    "ModelOutput": BaseModelOutput(last_hidden_state=ONE, attentions=(SEVEN,)),
}


@pytest.mark.parametrize("name", TYPES)
def test_containers_keep_their_class(steal, name):
    """As an input and as an output, with their items in order."""
    module, value = Passing(), TYPES[name]

    records = steal(("m", module), lambda: module(value))

    for found in (records["m", 0, "I"][0][0], records["m", 0, "O"]):
        assert type(found) is type(value)
        assert list(found) == list(value)


@pytest.mark.parametrize("requires_grad", [True, False])
def test_parameters_stay_parameters(steal, requires_grad):
    """With their `requires_grad`."""
    module, value = Passing(), nn.Parameter(torch.ones(2), requires_grad=requires_grad)

    found = steal(("m", module), lambda: module(value))["m", 0, "I"][0][0]

    assert type(found) is nn.Parameter
    assert found.requires_grad == requires_grad
    assert torch.equal(found, value)


def test_requires_grad_is_restored_without_a_graph(steal):
    """Of a leaf and of a result computed from one."""
    module, leaf = Passing(), torch.ones(2, requires_grad=True)
    values = [leaf, leaf * 2, torch.ones(2)]

    found = steal(("m", module), lambda: module(values))["m", 0, "O"]

    assert [tensor.requires_grad for tensor in found] == [True, True, False]
    assert [tensor.grad_fn for tensor in found] == [None] * 3
    assert [tensor.tolist() for tensor in found] == [[1, 1], [2, 2], [1, 1]]


BASE = torch.arange(2 * 3 * 4 * 5.0).reshape(2, 3, 4, 5)


LAYOUTS = {
    "channels last": (BASE.contiguous(memory_format=torch.channels_last), (60, 1, 15, 3)),
    "transposed": (BASE.transpose(1, 2), (60, 5, 20, 1)),
    "matrix transposed": (BASE[0, 0].T, (1, 5)),
    "with gaps": (BASE[:, ::2, :, 1::2], (16, 8, 2, 1)),
    "transposed, with gaps": (BASE[:, :, 0].transpose(0, 2), (1, 5, 15)),
}


@pytest.mark.parametrize("name", LAYOUTS)
def test_the_memory_order_of_dimensions_is_restored(steal, name):
    """Kernels are selected by memory format; gaps between elements are removed."""
    module, (value, strides) = Passing(), LAYOUTS[name]

    found = steal(("m", module), lambda: module(value))["m", 0, "O"]

    assert torch.equal(found, value)
    assert found.stride() == strides


def test_cache_layers_keep_their_class(steal):
    """A sliding-window layer stays one."""
    config = MistralConfig(
        num_hidden_layers=1, num_attention_heads=2, num_key_value_heads=2, hidden_size=8, sliding_window=4
    )
    cache = DynamicCache(config=config)
    cache.update(torch.rand(1, 2, 3, 4), torch.rand(1, 2, 3, 4), 0)
    module = Passing()

    found = steal(("m", module), lambda: module(cache))["m", 0, "I"][0][0]

    assert [type(layer).__name__ for layer in found.layers] == ["DynamicSlidingWindowLayer"]
    assert torch.equal(found.layers[0].keys, cache.layers[0].keys)
    assert vars(found.layers[0]).keys() == vars(cache.layers[0]).keys()


@dataclasses.dataclass
class State:
    a: torch.Tensor


class Opaque:
    """An object that can't be stored."""


STORED = {
    "dtype": torch.float16,
    "device": torch.device("cpu"),
    "slice": slice(0, 1),
    "dataclass": State(torch.ones(2)),
    "range": range(3),
    "complex": 1 + 2j,
    "numpy scalar": np.float32(1.5),
    "numpy array": np.arange(6.0).reshape(2, 3),
    "string": "eager",
}


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
