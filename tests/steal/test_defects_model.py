"""A model that is observed is not damaged, and computes what it computes: D13 to D17 (see `test_defects.py`)."""

import copy
import dataclasses
import functools
import inspect

import numpy as np
import pytest
import torch
import transformers
from torch import nn
from transformers import DynamicCache, StaticCache
from transformers.cache_utils import EncoderDecoderCache

from filch.steal import Skipped, steal_forward

pytestmark = [
    pytest.mark.filterwarnings("ignore:ComplexHalf support is experimental:UserWarning"),
    pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors:UserWarning"),
    pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor.*deprecated:UserWarning"),
]


def test_d13_a_module_that_is_listed_twice_is_left_as_it_was(capfd):
    """After the block its calls are recorded and told of nowhere."""
    module = nn.Linear(2, 2)
    before = {name: dict(value) if isinstance(value, dict) else value for name, value in vars(module).items()}

    with steal_forward([("a", module), ("b", module)], verbose=1) as capture:
        module(torch.ones(1, 2))
    count = len(capture)
    capfd.readouterr()
    module(torch.ones(1, 2))

    assert count == len(capture) == 4
    assert capfd.readouterr() == ("", "")
    assert vars(module).keys() == before.keys()
    assert not module._forward_hooks  # noqa: SLF001
    assert not module._forward_pre_hooks  # noqa: SLF001


def test_d14_the_forward_of_a_module_stays_that_of_its_class():
    """Inside the block and after it: a later change to the class reaches the module."""

    class Doubling(nn.Module):
        def forward(self, x):
            return x * 2

    module = Doubling()
    with steal_forward(module):
        module(torch.ones(1))
        inside = "forward" in vars(module)
    Doubling.forward = lambda _, x: x * 3

    assert not inside
    assert "forward" not in vars(module)
    assert module(torch.ones(1)).item() == 3


def test_d14_a_replica_of_a_module_runs_its_own_forward():
    """DataParallel copies a module's attributes: none of them leads back to the original."""
    module = nn.Linear(2, 2)

    with steal_forward(module):
        module(torch.ones(1, 2))
        inside = module._replicate_for_data_parallel()  # noqa: SLF001
    after = module._replicate_for_data_parallel()  # noqa: SLF001

    assert inside.forward.__self__ is inside
    assert after.forward.__self__ is after


def test_d14_the_signature_of_a_forward_is_its_own_inside_the_block():
    """Libraries look at it to choose what they pass."""

    class Asked(nn.Module):
        def forward(self, input_ids, position_ids=None, *, use_cache=True):
            return input_ids

    module = Asked()

    with steal_forward(module):
        found = list(inspect.signature(module.forward).parameters)

    assert found == ["input_ids", "position_ids", "use_cache"]


@dataclasses.dataclass
class State:
    a: torch.Tensor


class Opaque:
    """Nothing that one could store."""


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
TOLD = {"function": len, "object": Opaque(), "class": Opaque, "lambda": lambda: None}


class Meeting(nn.Module):
    """Gives the object that it was given, and remembers it."""

    def forward(self, x, value=None):
        self.met = value
        return value


@pytest.mark.parametrize("name", [*STORED, *TOLD])
def test_d15_a_value_of_any_type_passes_through_a_module_undisturbed(steal, differ, name):
    """In and out; it is stored, or the record says what was not."""
    module, value = Meeting(), (STORED | TOLD)[name]
    outputs = []

    records = steal(("m", module), lambda: outputs.append(module(torch.ones(1), value)))

    assert module.met is value
    assert outputs[0] is value
    for found in (records["m", 0, "I"][0][1], records["m", 0, "O"]):
        if name in TOLD and isinstance(found, Skipped):
            assert found.reason
        else:
            assert differ(found, value) is None
    assert records["m", 0, "I"][0][0].item() == 1


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
MAY_BE_TOLD = {"int4", "uint4", "int2", "uint1", "qint8", "quint8", "nested"}


@pytest.mark.parametrize("name", TENSORS)
def test_d15_a_tensor_of_any_dtype_passes_through_a_module_undisturbed(steal, differ, plain, name):
    """Stored to the bit; those that have no plain numbers may be left out, with the reason."""
    module, value = Meeting(), TENSORS[name]()
    outputs = []

    records = steal(("m", module), lambda: outputs.append(module(torch.ones(1), value)))

    assert module.met is value
    assert outputs[0] is value
    for found in (records["m", 0, "I"][0][1], records["m", 0, "O"]):
        if name in MAY_BE_TOLD and isinstance(found, Skipped):
            assert found.reason
        else:
            assert differ(plain(found), plain(value)) is None


def _llama():
    config = transformers.LlamaConfig(
        vocab_size=64, hidden_size=16, intermediate_size=32, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=1,
    )  # fmt: skip
    return transformers.LlamaForCausalLM(config)


def _t5():
    config = transformers.T5Config(
        vocab_size=64, d_model=16, d_ff=32, num_layers=2, num_heads=2, d_kv=8, decoder_start_token_id=0
    )
    return transformers.T5ForConditionalGeneration(config)


def _mamba():
    config = transformers.MambaConfig(vocab_size=64, hidden_size=16, num_hidden_layers=2, state_size=4)
    return transformers.MambaForCausalLM(config)


@pytest.mark.parametrize("make", [_llama, _t5, _mamba])
def test_d16_generating_runs_as_it_does_without_and_is_recorded_step_by_step(steal, make):
    """With the caches of a decoder, of an encoder and a decoder, and of a state space model, nothing left out."""
    torch.manual_seed(0)
    model, ids = make().eval(), torch.randint(3, 64, (1, 6))
    model.generation_config.eos_token_id = None  # it does not stop before the fourth token
    options = {"max_new_tokens": 4, "do_sample": False, "pad_token_id": 0}
    expected = model.generate(ids, **options)
    found = []

    records = steal(("m", model), lambda: found.append(model.generate(ids, **options)))

    assert torch.equal(found[0], expected)
    tokens = [records["m", step, "O"].logits[:, -1].argmax(-1) for step in range(1, 4)]
    assert torch.equal(torch.stack(tokens, dim=1), expected[:, -3:])
    assert len(records) == 8
    assert "skipped" not in records.describe()


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
def test_d16_a_cache_of_any_kind_is_an_argument_like_others(steal, differ, name):
    """It comes back as it went in, though the module wrote into it."""
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


def _doubling(graphs):
    """A backend that notes each graph and doubles its results: how many graphs a value went through shows in it."""

    def backend(graph, _):
        graphs.append(sum(node.op == "call_function" for node in graph.graph.nodes))
        return lambda *args: tuple(2 * result for result in graph.forward(*args))

    return backend


class Compiled(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x):
        return self.b(torch.relu(self.a(x)))


@pytest.mark.parametrize("before", [True, False], ids=["compiled before", "compiled inside"])
@pytest.mark.parametrize("fullgraph", [True, False])
@torch.no_grad()
def test_d17_a_compiled_model_is_the_same_graphs_and_gives_the_same_numbers_while_observed(steal, before, fullgraph):
    """One graph, before, inside and after the block; its result is the compiled one, and not eager's."""
    torch.compiler.reset()
    model, x, graphs, outputs = Compiled().eval(), torch.randn(2, 4), [], []
    compiled = torch.compile(model, backend=_doubling(graphs), fullgraph=fullgraph)
    if before:
        compiled(x)

    steal([("a", model.a), ("b", model.b)], lambda: outputs.append(compiled(x)))
    inside = list(graphs)
    outputs.append(compiled(x))

    assert inside == [3]
    assert set(graphs) == {3}
    assert all(torch.equal(output, 2 * model(x)) for output in outputs)
