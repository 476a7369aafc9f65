"""Tests of `check_invariance`: faults of caches, masks, positions and batches, and clean runs."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import nn
from transformers.cache_utils import (
    Cache,
    DynamicLayer,
    DynamicSlidingWindowLayer,
    StaticLayer,
    StaticSlidingWindowLayer,
)
from transformers.models.llama import modeling_llama

from filch.compare import CompareError, check_invariance
from filch.export import BackendError, ExportError, export
from support.faults.decoding import change_late, exchanged, with_further_output
from support.models.exports import copied
from support.models.named_caches import NAMES, Annotated
from support.models.zoo import build
from support.thorough import slow

SETTINGS = {
    "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "vocab_size": 96, "pad_token_id": 0,
}  # fmt: skip
TOKENS = torch.randint(3, 96, (3, 11), generator=torch.Generator().manual_seed(0))
FIRST = 2  # tokens in the first call of those that decode

Patch = Callable[[pytest.MonkeyPatch, nn.Module], object]


@pytest.fixture
def llama():
    return build("LlamaForCausalLM", SETTINGS)


@pytest.fixture(scope="module")
def small():
    """A model with one layer, and its program."""
    model = build("LlamaForCausalLM", SETTINGS | {"num_hidden_layers": 1})
    return model, export(model, TOKENS, cache="dynamic")


@dataclass(frozen=True)
class Fault:
    """A fault and where it shows: the relation, the module, its operators, and the first position and sequence."""

    patch: Patch
    relation: str
    module: str
    operators: str
    position: int
    sequence: int = 0


def positions_off_by_one(monkeypatch, model):
    rotary = model.model.rotary_emb
    forward = rotary.forward
    monkeypatch.setattr(
        rotary, "forward", lambda x, position_ids: forward(x, position_ids + (position_ids.shape[1] == 1))
    )


def patched_update(cache, change):
    """Return a patch that changes the keys that a layer of a cache returns, when one token is added."""

    def patch(monkeypatch, _model):
        update = cache.update

        def changed(self, key, value, *args, **kwargs):
            keys, values = update(self, key, value, *args, **kwargs)
            return (change(keys, key) if key.shape[2] == 1 else keys), values

        monkeypatch.setattr(cache, "update", changed)

    return patch


def visible_future(monkeypatch, _model):
    """Let the first token of each later chunk see the second one."""
    create = modeling_llama.create_causal_mask

    def leaking(*args, **kwargs):
        mask = create(*args, **kwargs)
        if mask is None or mask.shape[-1] == mask.shape[-2] or mask.shape[-2] == 1:
            return mask
        mask = mask.clone()
        mask[:, :, 0] = mask[:, :, 1]
        return mask

    monkeypatch.setattr(modeling_llama, "create_causal_mask", leaking)


def visible_padding(monkeypatch, model):
    forward = model.model.forward

    def unmasked(*args, attention_mask, **kwargs):
        return forward(*args, attention_mask=torch.ones_like(attention_mask), **kwargs)

    monkeypatch.setattr(model.model, "forward", unmasked)


def row_dependent(monkeypatch, model):
    """Let the second layer's MLP normalize by the largest number of the batch."""
    mlp = model.model.layers[1].mlp
    forward = mlp.forward
    monkeypatch.setattr(mlp, "forward", lambda x: forward(x / (1 + x.abs().max())))


def rescaled_keys(monkeypatch, _model):
    """Scale all keys and values that a call reads, from position 5 on, but not in one call."""
    repeat = modeling_llama.repeat_kv

    def changed(states, count):
        return repeat(states, count) * (2.0 if 5 < states.shape[2] < TOKENS.shape[1] else 1.0)

    monkeypatch.setattr(modeling_llama, "repeat_kv", changed)


FAULTS = {
    "positions off by one": Fault(positions_off_by_one, "decode", "model.rotary_emb", "mul cos", FIRST),
    "unrotated slot": Fault(
        patched_update(DynamicLayer, lambda keys, key: torch.cat([keys[:, :, :-1], 2 * key], 2)),
        "decode",
        "model.layers.0.self_attn",
        "cat bmm mm matmul",
        FIRST,
    ),
    "stale slot": Fault(
        patched_update(DynamicLayer, lambda keys, _: torch.cat([keys[:, :, :-1], keys[:, :, -2:-1]], 2)),
        "decode",
        "model.layers.0.self_attn",
        "cat bmm mm matmul",
        FIRST,
    ),
    "slot of a static cache": Fault(
        patched_update(StaticLayer, lambda keys, _: torch.cat([keys[:, :, 1:2], keys[:, :, 1:]], 2)),
        "static cache",
        "model.layers.0.self_attn",
        "cat bmm mm matmul",
        FIRST,
    ),
    "swapped sequences": Fault(
        patched_update(DynamicLayer, lambda keys, _: keys.flip(0)),
        "decode",
        "model.layers.0.self_attn",
        "flip cat bmm mm matmul",
        FIRST,
    ),
    "visible future": Fault(visible_future, "chunked prefill", "model.layers.0.self_attn", "add _softmax", 3),
    "visible padding": Fault(visible_padding, "padding on the left", "model.layers.0.self_attn", "add _softmax", 0, 1),
    "scale of earlier keys": Fault(rescaled_keys, "decode", "model.layers.0.self_attn", "mul", 5),
    "row-dependent scale": Fault(row_dependent, "batch", "model.layers.1.mlp", "div", 0),
}


@slow
@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_named_at_its_operation_and_position(name, llama, monkeypatch):
    fault = FAULTS[name]
    fault.patch(monkeypatch, llama)
    result = check_invariance(llama, TOKENS, only=["prefill with a cache", fault.relation])
    assert not result.close
    holding, row = result.rows if result.rows[0].relation != fault.relation else result.rows[::-1]
    assert (holding.verdict, row.verdict) == ("holds", "breaks")
    assert row.first is not None
    assert row.first.module == fault.module
    assert row.first.operator in fault.operators.split()
    assert (row.first.sequence, row.first.position) == (fault.sequence, fault.position)
    assert row.first.before == ()


@slow
@pytest.mark.parametrize(
    ("relation", "cache"), [("decode", DynamicSlidingWindowLayer), ("static cache", StaticSlidingWindowLayer)]
)
def test_a_stale_slot_of_a_window_that_has_rolled_is_named(relation, cache, monkeypatch):
    window = 5
    model = build("MistralForCausalLM", SETTINGS | {"sliding_window": window, "num_hidden_layers": 1})
    (row,) = check_invariance(model, TOKENS, only=[relation]).rows
    assert row.verdict == "holds"
    update = cache.update

    def stale(self, key, *args, **kwargs):
        keys, values = update(self, key, *args, **kwargs)
        is_late = self.get_seq_length() > window + 1
        return (torch.cat([keys[:, :, 1:2], keys[:, :, 1:]], 2) if is_late else keys), values

    monkeypatch.setattr(cache, "update", stale)
    (row,) = check_invariance(model, TOKENS, only=[relation]).rows
    assert row.verdict == "breaks" and row.first is not None
    assert (row.first.module, row.first.position, row.first.sequence) == ("model.layers.0.self_attn", window + 1, 0)


def test_the_module_is_named_whose_operations_are_others_token_by_token(monkeypatch):
    """The scan of a sequence has other operations than the update of a state, which is not stored here."""
    sizes = {"num_heads": 8, "head_dim": 8, "n_groups": 2, "chunk_size": 4, "state_size": 8}
    common = {name: SETTINGS[name] for name in ("hidden_size", "vocab_size", "pad_token_id")}
    model = build("Mamba2ForCausalLM", {**common, **sizes, "num_hidden_layers": 1})
    get = Cache.get_recurrent_state

    def copied(*args, **kwargs):
        state = get(*args, **kwargs)
        return state if state is None else state.clone()

    monkeypatch.setattr(Cache, "get_recurrent_state", copied)
    (row,) = check_invariance(model, TOKENS, only=["decode"]).rows
    assert row.first is not None
    assert (row.first.module, row.first.before) == ("backbone.layers.0.mixer.norm", ("backbone.layers.0.mixer",))
    assert row.first.position == FIRST + 1  # the state of the first call is stored
    assert "or before it in backbone.layers.0.mixer," in str(row.first)


@slow
def test_a_clean_model_keeps_all_relations(llama):
    result = check_invariance(llama, TOKENS[:, :8])
    assert result.close
    assert {row.verdict for row in result.rows} == {"holds"}
    assert all(row.compared > 50 and row.difference is not None and row.difference < 1e-4 for row in result.rows)
    assert result.headline == "13 of 13 ways to call LlamaForCausalLM give the same numbers"


@slow
def test_an_argument_without_dimensions_is_that_of_all_sequences(llama, monkeypatch):
    """It is neither repeated nor selected by row, as the arguments of several sequences are."""
    forward = llama.forward

    @functools.wraps(forward)
    def scaled(*args, scale, **kwargs):
        result = forward(*args, **kwargs)
        result.logits = result.logits * scale
        return result

    monkeypatch.setattr(llama, "forward", scaled)

    rows = check_invariance(llama, TOKENS[:1], {"scale": torch.tensor(2.0)}, only=["decode", "batch"]).rows
    assert [row.verdict for row in rows] == ["holds", "holds"]


@slow
def test_bits_are_compared_on_request(llama, monkeypatch):
    down = llama.model.layers[1].mlp.down_proj
    forward = down.forward

    def in_two_parts(x):
        if x.shape[1] > 1:
            return forward(x)
        return x[..., :20] @ down.weight[:, :20].T + x[..., 20:] @ down.weight[:, 20:].T

    monkeypatch.setattr(down, "forward", in_two_parts)
    relations = ["prefill with a cache", "decode"]
    assert check_invariance(llama, TOKENS[:1, :6], only=relations).close
    rows = check_invariance(llama, TOKENS[:1, :6], only=relations, bitwise=True).rows
    assert [row.verdict for row in rows] == ["holds", "rounding"]
    assert rows[1].first is not None


ON = "decode on onnxruntime-cpu"


@slow
def test_a_program_on_a_backend_decodes_what_the_model_computes(small, monkeypatch):
    model, program = small
    options: dict[str, Any] = {"only": [ON], "backends": ["onnxruntime-cpu", "eager"]}
    result = check_invariance(model, TOKENS, **options)
    (row,) = result.rows
    assert (result.close, row.relation, row.verdict) == (True, ON, "holds")
    assert row.compared > 100 and row.difference is not None and 0 < row.difference < 1e-4
    monkeypatch.setattr("filch.compare._decode.export", lambda *_args, **_kwargs: copied(program))
    (row,) = check_invariance(model, TOKENS, bitwise=True, **options).rows
    assert row.verdict == "rounding" and row.first is not None
    assert row.first.position == 0 and row.first.node and 0 < row.first.difference < 1e-5


@slow
def test_the_node_is_named_at_which_a_program_leaves_the_model(small, monkeypatch):
    model, program = small
    wrong = change_late(copied(program), "present.0.value", 6, exchanged, "past_key_values.0.key")
    monkeypatch.setattr("filch.compare._decode.export", lambda *_args, **_kwargs: wrong)
    result = check_invariance(model, TOKENS, only=[ON], backends=["onnxruntime-cpu"])
    (row,) = result.rows
    assert not result.close and row.verdict == "breaks" and row.first is not None
    assert (row.first.position, row.first.sequence, row.first.operator) == (6, 0, "Where")
    assert row.first.difference > 0.1 and row.first.node in str(row.first)
    assert row.first.node in result.table(wide=True)


def test_a_backend_that_fails_is_no_success(small, monkeypatch):
    model, program = small

    def failing(*_args, **_kwargs):
        raise ExportError("no translation")

    monkeypatch.setattr("filch.compare._decode.export", failing)
    result = check_invariance(model, TOKENS, only=[ON], backends=["onnxruntime-cpu"])
    assert [(row.verdict, row.note) for row in result.rows] == [("not judged", "no translation")]
    assert result.outcome == "incomplete"
    further = with_further_output(copied(program))
    monkeypatch.setattr("filch.compare._decode.export", lambda *_args, **_kwargs: further)
    (row,) = check_invariance(model, TOKENS[:, :6], only=[ON], backends=["onnxruntime-cpu"]).rows
    assert row.verdict == "not judged" and "not judged: further" in row.note
    (row,) = check_invariance(Plain(), TOKENS, only=[ON], backends=["onnxruntime-cpu"]).rows
    assert (row.verdict, row.note) == ("not run", "the model takes no cache")
    with pytest.raises(BackendError, match="onnxruntime-tpu"):
        check_invariance(model, TOKENS, backends=["onnxruntime-tpu"])


class Plain(nn.Module):
    """A model without a cache, which fails if rows are padded."""

    def __init__(self):
        super().__init__()
        self.embed, self.head = nn.Embedding(96, 5), nn.Linear(5, 96)

    def forward(self, input_ids, attention_mask):
        if not attention_mask.all():
            raise ValueError("no padding")
        return self.head(self.embed(input_ids).cumsum(1))


def test_what_a_model_does_not_support_is_not_run_and_an_error_is_no_success():
    result = check_invariance(Plain(), TOKENS, only=["decode", "batch", "padding on the left"])
    assert [row.verdict for row in result.rows] == ["not run", "holds", "fails"]
    assert [row.note for row in result.rows[::2]] == ["the model takes no cache", "ValueError: no padding"]
    assert not result.close
    assert result.headline == "1 of 2 ways to call Plain give the same numbers; not: padding on the left"
    assert "fails                  ValueError: no padding" in result.table(width=80)


@slow
@pytest.mark.parametrize("cls", NAMES)
def test_the_cache_of_a_model_may_have_any_name(cls, monkeypatch):
    """A clean run is silent, and a wrong position in decode is found."""
    only, model = ["prefill with a cache", "decode"], cls()
    assert [row.verdict for row in check_invariance(model, TOKENS, only=only).rows] == ["holds", "holds"]
    positions_off_by_one(monkeypatch, model.inner)
    assert [row.verdict for row in check_invariance(model, TOKENS, only=only).rows] == ["holds", "breaks"]


class Forgetful(Annotated):
    def call(self, *args):
        return super().call(*args)[0]


def test_a_model_that_returns_no_cache_fails():
    (row,) = check_invariance(Forgetful(), TOKENS, only=["decode"]).rows
    assert (row.verdict, row.note) == ("fails", "CompareError: Forgetful returned no cache for the next call")


@slow
@pytest.mark.parametrize("count", [8, 12])
def test_tokens_as_many_as_a_size_of_the_model_are_all_used(small, count, monkeypatch):
    """8 is the size of a head; of 12 tokens padded on the left, 3 sequences have 12, 11 and 10."""
    model, _ = small
    tokens = TOKENS.repeat(1, 2)[:, :count]
    only = ["prefill with a cache", "decode", "padding on the left", "order of rows"]
    result = check_invariance(model, tokens, only=only)
    assert result.close and result.length == count, result
    compared = check_invariance(model, TOKENS, only=only).rows
    assert [row.compared for row in result.rows[::2]] == [row.compared for row in compared[::2]]
    positions_off_by_one(monkeypatch, model)
    (row,) = check_invariance(model, tokens, only=["decode"]).rows
    assert row.first is not None
    assert (row.verdict, row.first.module, row.first.position) == ("breaks", "model.rotary_emb", count // 4)


def test_biases_that_are_made_of_the_mask_have_a_column_for_each_slot():
    """Those of BLOOM, which takes no positions."""
    model = build("BloomForCausalLM", {"hidden_size": 32, "n_layer": 1, "n_head": 4, "vocab_size": 96})
    result = check_invariance(model, TOKENS, only=["static cache", "decode without positions"])
    assert [row.verdict for row in result.rows] == ["not run", "holds"]


def test_an_unknown_relation_is_refused(llama):
    with pytest.raises(CompareError, match="there is no relation 'dekode'; there are prefill with a cache, decode"):
        check_invariance(llama, TOKENS, only=["dekode"])


def test_a_model_without_tokens_is_refused():
    with pytest.raises(CompareError, match="give the tokens of the model, input_ids, as integers"):
        check_invariance(nn.Linear(3, 3), torch.randn(2, 3))
