"""Caches of transformers as inputs and outputs, and the steps of `generate`."""

import inspect

import pytest
import torch
from transformers import DynamicCache, LlamaConfig, LlamaForCausalLM, MistralConfig, StaticCache
from transformers.cache_utils import EncoderDecoderCache

from filch.export.exporting._model_cache import is_cache
from filch.steal import describe, restore, steal_forward, tensors

# transformers 5.24 calls the argument `cache`.
CACHE = next(
    name for name in inspect.signature(LlamaForCausalLM.forward).parameters if name in ("past_key_values", "cache")
)


@pytest.fixture(scope="module")
def llama():
    """Return a Llama of two layers and eight features per head, with random weights."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=64, hidden_size=16, intermediate_size=32, num_hidden_layers=2,
        num_attention_heads=2, num_key_value_heads=1, max_position_embeddings=64,
    )  # fmt: skip
    return LlamaForCausalLM(config).eval().requires_grad_(requires_grad=False)


@pytest.fixture
def ids():
    """Return two prompts of five tokens."""
    return torch.randint(0, 64, (2, 5), generator=torch.Generator().manual_seed(0))


def test_a_cache_is_recorded_before_and_after_the_call(llama, ids, tmp_path, differ):
    """The model modifies the cache object in place, and the recorded inputs have its earlier contents."""
    cache = llama(ids, use_cache=True).past_key_values
    before = [(layer.keys.clone(), layer.values.clone()) for layer in cache.layers]

    with steal_forward(("llama", llama), dump_file=tmp_path / "dump.onnx"):
        output = llama(ids[:, :1], **{CACHE: cache})

    dump = restore(tmp_path / "dump.onnx")
    found = dump["llama", 0, "I"][1][CACHE]
    assert type(found) is DynamicCache
    assert found.get_seq_length() == 5
    assert differ([(layer.keys, layer.values) for layer in found.layers], before) is None
    assert cache.get_seq_length() == 6
    assert differ(dump["llama", 0, "O"], output) is None


def test_paths_of_a_cache_lead_to_its_tensors(llama, ids):
    """The paths are valid Python expressions."""
    cache = llama(ids, use_cache=True).past_key_values

    assert list(tensors(cache)) == [f".layers[{index}].{name}" for index in range(2) for name in ("keys", "values")]


@pytest.mark.parametrize("filled", [False, True])
def test_a_restored_cache_can_be_used_as_an_input_again(llama, ids, tmp_path, filled):
    """The model returns bitwise equal logits, also for an empty cache, whose layers are created later."""
    cache = DynamicCache()
    if filled:
        llama(ids, **{CACHE: cache})

    with steal_forward(("llama", llama), dump_file=tmp_path / "dump.onnx"):
        output = llama(ids, **{CACHE: cache})

    args, kwargs = restore(tmp_path / "dump.onnx")["llama", 0, "I"]
    again = llama(*args, **kwargs)
    assert torch.equal(again.logits, output.logits)
    assert again.past_key_values.get_seq_length() == output.past_key_values.get_seq_length() == (10 if filled else 5)


def test_a_static_cache_is_recorded_as_it_was(llama, ids, tmp_path):
    """A StaticCache modifies its tensors in place."""
    cache = StaticCache(config=llama.config, max_cache_len=8)
    llama(ids[:, :2], **{CACHE: cache})
    pointer = cache.layers[0].keys.data_ptr()

    with steal_forward(("llama", llama), dump_file=tmp_path / "dump.onnx"):
        llama(ids[:, 2:], **{CACHE: cache})

    dump = restore(tmp_path / "dump.onnx")
    before, after = (dump["llama", 0, "I"][1][CACHE], dump["llama", 0, "O"].past_key_values)
    written = [cached.layers[0].keys.abs().sum(dim=(0, 1, 3)).ne(0).tolist() for cached in (before, after)]
    assert cache.layers[0].keys.data_ptr() == pointer
    assert written == [[True] * 2 + [False] * 6, [True] * 5 + [False] * 3]
    assert type(after) is StaticCache


def _updated(cache, step, layer):
    return getattr(cache, "self_attention_cache", cache).update(step, -step, layer)


@pytest.mark.parametrize("filled", [False, True])
@pytest.mark.parametrize(
    "name",
    ["dynamic", "dynamic of a configuration", "sliding", "static", "static and sliding", "pair", "pair of static ones"],
)
def test_a_restored_cache_of_any_class_can_be_updated(restored, captured, differ, name, filled):
    """The results of one more step are bitwise equal, for empty and filled caches."""
    sliding = MistralConfig(num_hidden_layers=2, sliding_window=4, hidden_size=16, num_attention_heads=2)
    plain = LlamaConfig(num_hidden_layers=2, hidden_size=16, num_attention_heads=2)
    cache = {
        "dynamic": DynamicCache,
        "dynamic of a configuration": lambda: DynamicCache(config=plain),
        "sliding": lambda: DynamicCache(config=sliding),
        "static": lambda: StaticCache(config=plain, max_cache_len=8),
        "static and sliding": lambda: StaticCache(config=sliding, max_cache_len=8),
        "pair": lambda: EncoderDecoderCache(DynamicCache(), DynamicCache(config=sliding)),
        "pair of static ones": lambda: EncoderDecoderCache(
            StaticCache(config=plain, max_cache_len=8), StaticCache(config=plain, max_cache_len=8)
        ),
    }[name]()
    step = torch.arange(48.0).reshape(1, 2, 3, 8)
    if filled:
        _updated(cache, step, 0)
        _updated(cache, step, 1)

    found = [restored(cache), captured(cache)]

    assert [differ(one, cache) for one in found] == [None, None]
    assert "skipped" not in describe(found)
    expected = _updated(cache, step + 1, 0)
    assert [differ(_updated(one, step + 1, 0), expected) for one in found] == [None, None]


def test_generating_eight_tokens_is_captured_step_by_step(llama, ids, tmp_path, differ):
    """All modules at all steps, in memory and on disk, and the tokens are the same as without a capture."""
    options = {"attention_mask": torch.ones_like(ids), "max_new_tokens": 8, "do_sample": False, "pad_token_id": 0}
    expected = llama.generate(ids, **options)

    to_disk = steal_forward(llama, submodules=True, dump_file=tmp_path / "dump.onnx")
    with to_disk, steal_forward(llama, submodules=True) as capture:
        generated = llama.generate(ids, **options)

    dump = restore(tmp_path / "dump.onnx")
    assert torch.equal(generated, expected)
    assert list(dump) == list(capture)
    assert len(dump.calls()) == 8
    assert [call.name for call in dump.calls()] == [""] * 8
    given = [dump["model.layers.0", step, "I"][1] for step in range(8)]
    lengths = [next(filter(is_cache, kwargs.values())).get_seq_length() for kwargs in given]
    assert lengths == [0, *range(5, 12)]
    tokens = [dump["lm_head", step, "O"][:, -1].argmax(-1) for step in range(8)]
    assert torch.equal(torch.stack(tokens, dim=1), generated[:, 5:])
    assert all(differ(dump[key], capture[key]) is None for key in capture)
    assert "skipped" not in dump.describe()
    assert describe(dump["lm_head", 7, "O"]) == "f32[2, 1, 64]"
