"""Programs whose cache drops the keys and values that a sliding window no longer reaches."""

import pytest
import torch

from filch.compare import CompareError, compare_decode
from filch.export import ExportError, export, load_program
from support.faults.decoding import change_late, exchanged
from support.models.exports import copied
from support.models.zoo import build
from support.thorough import slow

TOKENS = torch.randint(3, 96, (2, 11), generator=torch.Generator().manual_seed(0))
WINDOW = 5
SIZES = {"hidden_size": 32, "intermediate_size": 48, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8}
SIZES |= {"vocab_size": 96, "pad_token_id": 0, "sliding_window": WINDOW}
OPTIONS = {"cache": "window", "tokens": TOKENS.shape[1]}
SLOTS, SLOT_OPTIONS = 16, OPTIONS | {"cache": "static-window"}


@pytest.fixture(scope="module")
def mixed(tmp_path_factory):
    """A model with a window in its first layer and none in its second, and its program, read from a file."""
    model, path = build("Gemma2ForCausalLM", SIZES | {"num_hidden_layers": 2}), tmp_path_factory.mktemp("m") / "m.onnx"
    export(model, TOKENS, cache="window").save(path)
    return model, load_program(path)


@slow
@pytest.mark.parametrize("stage", ["exported", "compiled"])
def test_a_right_program_is_silent_within_and_beyond_the_window(mixed, stage):
    model, program = mixed
    result = compare_decode(model, TOKENS, program=program, stages=[stage], **OPTIONS)
    assert result.close, result
    assert result.cache == "window"
    assert [item.step for item in result.positions] == [*range(TOKENS.shape[1])]
    assert all(0 < item.state < 1e-5 and 0 < item.logits < 1e-5 for item in result.positions)
    states = {name for name, items in result.graph.findings.items() if all(item.positions for item in items)}
    assert {f"present.{layer}.{kind}" for layer in (0, 1) for kind in ("key", "value")} <= states


@slow
def test_a_model_of_windows_alone_and_a_wider_window():
    model = build("MistralForCausalLM", SIZES | {"num_hidden_layers": 1})
    result = compare_decode(model, TOKENS, **OPTIONS)
    assert result.close, result
    assert result.judged > 0.6 * result.values
    model.config.sliding_window = WINDOW + 1
    wider = export(model, TOKENS, cache="window")
    model.config.sliding_window = WINDOW
    first = compare_decode(model, TOKENS, program=wider, stages=["exported"], **OPTIONS).first_break
    assert first.position == WINDOW - 1  # from which on there are more keys than the window needs
    assert first.value.startswith("present.0"), first


def unmoved(add, value):
    """Return the keys with the oldest one of the step before, which the window no longer reaches, still in its slot."""
    cache = {item.name: item for item in value.producer().graph.inputs}["past_key_values.0.key"]
    both = add("Concat", [cache, value], axis=2)  # in the first step, the cache is empty
    first, rest = add("Slice", [both, [0], [1], [2]]), add("Slice", [value, [1], [99], [2]])
    return add("Concat", [first, rest], axis=2)


def rolled(add, value):
    last, rest = add("Slice", [value, [-1], [99], [2]]), add("Slice", [value, [0], [-1], [2]])
    return add("Concat", [last, rest], axis=2)


# The value that is changed, the position, how, and the value that is named.
FAULTS = {
    "a stale slot after the window has rolled": ("present.0.key", 7, unmoved, "present.0.key"),
    "slots in another order": ("present.0.value", 6, rolled, "present.0.value"),
    "keys of other sequences": ("present.0.key", 9, exchanged, "present.0.key"),
    "values that are read in another order": ("past_key_values.0.value", 8, rolled, ""),
}


@slow
@pytest.mark.parametrize("fault", FAULTS)
def test_a_wrong_window_is_named_with_its_position(mixed, fault):
    model, program = mixed
    name, start, change, value = FAULTS[fault]
    wrong = change_late(copied(program), name, start, change, "past_key_values.1.key")
    result = compare_decode(model, TOKENS, program=wrong, stages=["exported"], **OPTIONS)
    first = result.first_break
    assert (first.position, first.sequence) == (start, 0), result.table(wide=True)
    assert first.introduced
    assert first.value == value or (not value and first.module == "model.layers.0.self_attn"), first


@pytest.fixture(scope="module")
def slots(mixed, tmp_path_factory):
    """The program of the same model with a fixed number of slots, read from a file."""
    path = tmp_path_factory.mktemp("s") / "s.onnx"
    export(mixed[0], TOKENS, cache="static-window", slots=SLOTS).save(path)
    return load_program(path)


@slow
@pytest.mark.parametrize("stage", ["exported", "compiled"])
def test_a_right_program_with_slots_is_silent_before_and_after_they_are_full(mixed, slots, stage):
    graph = slots.graph
    sizes = {name: graph.values[name].shape[1:] for name in graph.inputs}
    assert sizes["past_key_values.0.key"] == (2, WINDOW, 8) and sizes["past_key_values.1.key"] == (2, SLOTS, 8)
    assert sizes["attention_mask"] == (SLOTS,) and sizes["past_key_values.0.length"] == ()
    result = compare_decode(mixed[0], TOKENS, program=slots, stages=[stage], **SLOT_OPTIONS)
    assert result.close, result
    assert result.cache == "static-window"
    assert all(0 < item.state < 1e-5 and 0 < item.logits < 1e-5 for item in result.positions)


def unfilled(add, value):
    """Return the keys with the newest one a slot too early."""
    newest, rest = add("Slice", [value, [-1], [99], [2]]), add("Slice", [value, [1], [99], [2]])
    return add("Concat", [rest, add("Sub", [newest, newest])], axis=2)


def oldest_kept(add, value):
    """Return the keys with the oldest one of the step before still in its slot."""
    cache = {item.name: item for item in value.producer().graph.inputs}["past_key_values.0.key"]
    return add("Concat", [add("Slice", [cache, [0], [1], [2]]), add("Slice", [value, [1], [99], [2]])], axis=2)


def uncounted(add, value):
    return add("Sub", [value, [1]])


# As above, from a number of tokens of the first sequence on.
SLOT_FAULTS = {
    "a stale slot after the window has rolled": ("present.0.key", 7, oldest_kept, "present.0.key"),
    "slots that move too early": ("present.0.key", 3, unfilled, "present.0.key"),
    "a token that is not counted": ("present.1.length", 4, uncounted, "present.1.length"),
    "keys that are read in another order": ("past_key_values.0.key", 8, rolled, ""),
}


@slow
@pytest.mark.parametrize("fault", SLOT_FAULTS)
def test_a_wrong_slot_is_named_with_its_position(mixed, slots, fault):
    name, start, change, value = SLOT_FAULTS[fault]
    wrong = change_late(copied(slots), name, start, change, "past_key_values.1.length")
    result = compare_decode(mixed[0], TOKENS, program=wrong, stages=["exported"], **SLOT_OPTIONS)
    first = result.first_break
    assert (first.position, first.sequence) == (start, 0), result.table(wide=True)
    assert first.value == value or (not value and first.module == "model.layers.0.self_attn"), first


@slow
def test_more_tokens_than_slots_are_refused_unless_all_windows_have_slots(mixed, slots):
    with pytest.raises(CompareError, match="24 tokens need as many slots, unless all windows are smaller, not 16"):
        compare_decode(mixed[0], TOKENS, program=slots, **SLOT_OPTIONS | {"tokens": SLOTS + 8})
    model = build("MistralForCausalLM", SIZES | {"num_hidden_layers": 1, "sliding_window": 8})
    program = export(model, TOKENS, cache="static-window", slots=8)
    assert compare_decode(model, TOKENS, program=program, stages=["exported"], **SLOT_OPTIONS).close
    model.config.sliding_window = 9
    with pytest.raises(CompareError, match="11 tokens need as many slots"):
        compare_decode(model, TOKENS, program=program, **SLOT_OPTIONS)


@slow
def test_what_has_no_windows_is_refused(mixed):
    model, program = mixed
    with pytest.raises(CompareError, match="a program with windows of keys takes one token in each step"):
        compare_decode(model, TOKENS, program=program, prefill=3, **OPTIONS)
    with pytest.raises(CompareError, match="takes one token in each step; if its cache drops keys"):
        compare_decode(model, TOKENS, program=program, tokens=11)
    llama = build("LlamaForCausalLM", SIZES | {"num_hidden_layers": 1, "sliding_window": None})
    with pytest.raises(ExportError, match="has no layer with a sliding window: export it with a dynamic cache"):
        export(llama, TOKENS, cache="window")
    with pytest.raises(ExportError, match="has no layer with a sliding window: export it with a static cache"):
        export(llama, TOKENS, cache="static-window", slots=SLOTS)
    with pytest.raises(ExportError, match="the number of slots"):
        export(model, TOKENS, cache="static-window")
    with pytest.raises(ExportError, match="a window of less than 4 tokens"):
        export(
            build("MistralForCausalLM", SIZES | {"num_hidden_layers": 1, "sliding_window": 3}), TOKENS, cache="window"
        )
