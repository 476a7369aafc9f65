"""Tests of what a model says its cache is, whatever it calls it."""

import pytest
import torch
from torch import nn
from transformers import DynamicCache, MambaConfig, MambaForCausalLM

from filch.export import ExportError, cache_argument, export
from filch.export.exporting._model_cache import logits_of, returned_cache
from support.models.named_caches import NAMES, SETTINGS
from support.models.zoo import build
from support.thorough import slow

TOKENS = torch.arange(3, 11).reshape(1, 8)


class Plain(nn.Module):
    def forward(self, input_ids, cache=False, labels=None):
        return input_ids.double()


class Old(nn.Module):
    def forward(self, input_ids, past_key_values=None):
        return input_ids.double()


class Two(nn.Module):
    def forward(self, input_ids, state=None, past_key_values=None):
        return input_ids.double()


@pytest.mark.parametrize("cls", NAMES)
def test_the_annotation_or_the_result_says_which_argument_is_the_cache(cls):
    """An annotation as text, a result of the same name, or the very cache that was given; no name is known."""
    assert cache_argument(cls(), {"input_ids": TOKENS}) == NAMES[cls]


def test_the_models_of_transformers_say_it_without_being_called():
    """Before and since 5.24, which renamed it."""
    models = build("LlamaForCausalLM", SETTINGS), MambaForCausalLM(MambaConfig(hidden_size=8, num_hidden_layers=1))
    for model in models:
        assert cache_argument(model) in ("cache", "past_key_values", "cache_params")


def test_a_model_without_a_cache_has_no_argument_for_it():
    """A switch that is called `cache` is none; one of a usual name may be a tuple; of two, the usual one is taken."""
    assert cache_argument(Plain(), {"input_ids": TOKENS}) is None
    assert cache_argument(nn.Embedding(96, 4), {"input_ids": TOKENS}) is None
    assert [cache_argument(model) for model in (Old(), Two())] == ["past_key_values"] * 2
    with pytest.raises(ExportError, match=r"Plain does not take .*: its forward has no argument for a cache"):
        export(Plain(), (TOKENS,), cache="dynamic")


def test_the_cache_is_found_among_the_results():
    """By the name of the argument, by a usual one, or by its type."""
    cache, legacy, logits = DynamicCache(), ((torch.ones(1),),), torch.ones(2)
    assert returned_cache({"logits": logits, "kv": cache}, "state") is cache
    assert returned_cache({"other": cache, "past_key_values": legacy}, "past_key_values") is legacy
    assert returned_cache((logits, cache), None) is cache and returned_cache(logits, "cache") is None
    assert logits_of((logits, cache)) is logits_of({"loss": None, "logits": logits}) is logits_of(logits) is logits


@slow
@pytest.mark.parametrize("cls", NAMES)
def test_a_program_with_a_cache_has_the_usual_names_whatever_the_model_calls_it(cls):
    """They are those that runtimes expect."""
    graph = export(cls(), (TOKENS,), cache="dynamic").graph
    assert graph.inputs[-2:] == ("past_key_values.0.key", "past_key_values.0.value")
    assert graph.outputs == ("logits", "present.0.key", "present.0.value")
