"""Which axis of a value has the slots of a static cache, if others have the same size."""

import pytest
import torch

from filch.compare.decoding._axes import Axes, Steps, shape_in_one_call, value_in_one_call
from filch.compare.decoding._stepwise import StepTensors, _other_size, _same_nodes

LENGTH, SIZE = 3, 4  # tokens; slots, and the size of a head
SPANS = Steps.of((1, LENGTH), 1, 1, SIZE)
ENDS = [end for _, end in SPANS.spans]


def written(numbers, end):
    """Return slots of which those of the tokens up to an end are written."""
    return torch.where(torch.arange(SIZE)[:, None] < end, numbers, 0.0)


@pytest.mark.parametrize("error", [0.0, 0.5], ids=["right", "wrong"])
def test_the_slots_are_the_axis_that_fills_up(error):
    """Also if a number of the first slot is wrong in the last step."""
    numbers = torch.randn(SIZE, SIZE, generator=torch.Generator().manual_seed(0))
    whole, parts = written(numbers, LENGTH), [written(numbers, end) for end in ENDS]
    parts[-1][0, 1] += error

    axes = Axes.of(SPANS, whole[None, None], [part[None, None] for part in parts])
    assert axes is not None
    assert axes.roles == ("fixed", "fixed", "keys", "fixed")
    turned = Axes.of(SPANS, whole.T[None, None], [part.T[None, None] for part in parts])
    assert turned is not None
    assert turned.roles == ("fixed", "fixed", "fixed", "keys")


def test_what_has_no_slots_has_no_axis_of_them():
    """The queries of a head have its size, which is that of the cache."""
    queries = torch.randn(1, 1, LENGTH, SIZE, generator=torch.Generator().manual_seed(0))
    axes = Axes.of(SPANS, queries, [queries[:, :, start:end] for start, end in SPANS.spans])
    assert axes is not None
    assert axes.roles == ("fixed", "fixed", "queries", "fixed")


def test_nodes_of_steps_are_judged_as_long_as_they_are_the_same():
    """Inductor compiles again for another number of tokens, and its buffers have other meanings then."""
    first, other = ([(name, torch.ones(1)) for name in names] for names in ("abc", "adc"))
    assert [name for name, _ in _same_nodes([first, first])] == ["a", "b", "c"]
    assert [name for name, _ in _same_nodes([first, other])] == ["a"]
    assert [(name, len(parts)) for name, parts in _same_nodes([first, first[:2]])] == [("a", 2), ("b", 2)]


STEPS = Steps.of((2, 6), 2, 2, 0)


def grown(numbers):
    """Return the keys after each step."""
    return [numbers[:, :end].clone() for end in STEPS.ends]


def joined_parts(tensors):
    parts = StepTensors()
    for tensor in tensors:
        parts.append(tensor)
    return parts.tensors


def test_keys_that_stay_the_same_are_kept_once():
    keys = torch.randn(2, 6, 3, generator=torch.Generator().manual_seed(0))
    parts = joined_parts(grown(keys))
    assert [part.shape[1] for part in parts] == [2, 3, 4, 6]
    assert all(torch.equal(part, keys[:, : part.shape[1]]) for part in parts)
    assert {part.untyped_storage().data_ptr() for part in parts} == {parts[-1].data_ptr()}
    assert torch.equal(value_in_one_call(STEPS, parts), keys)


@pytest.mark.parametrize("step", [0, 2, 3])
def test_keys_of_a_step_that_change_are_kept(step):
    keys = torch.randn(2, 6, 3, generator=torch.Generator().manual_seed(0))
    tensors = grown(keys)
    tensors[step][0, 1] += 1
    parts = joined_parts(tensor.clone() for tensor in tensors)
    assert all(torch.equal(*pair) for pair in zip(parts, tensors, strict=True))
    assert value_in_one_call(STEPS, parts) is None  # which numbers it has is not known


@pytest.mark.parametrize("wrong", [None, 0, 3])
def test_biases_that_count_from_the_last_key_are_those_of_a_call_with_steps_in_rows(wrong):
    spans = Steps.in_rows_of(2, 5)
    biases = -torch.arange(5.0).flip(0)[None]
    parts = [biases[:, 5 - end :].clone() for end in spans.ends]
    if wrong is not None:
        parts[wrong][0, -1] += 1
    axes = Axes.of(spans, biases, parts)
    assert axes is not None and axes.roles == ("fixed", "keys")
    joined = axes.joined(biases, parts)
    differing = (joined.value != biases).nonzero()[:, 1].tolist()
    assert [joined.positions[key] for key in differing] == ([] if wrong is None else [wrong])


def test_queries_of_all_steps_are_those_of_one_call():
    values = torch.randn(2, 6, 3, generator=torch.Generator().manual_seed(0))
    parts = [values[:, start:end] for start, end in STEPS.spans]
    assert torch.equal(value_in_one_call(STEPS, parts), values)
    flat = [part.reshape(-1, 3) for part in parts]
    assert torch.equal(value_in_one_call(STEPS, flat), values.reshape(-1, 3))


def test_scores_have_a_shape_in_one_call_but_not_all_numbers():
    parts = [torch.randn(2, end - start, end) for start, end in STEPS.spans]
    assert shape_in_one_call(STEPS, parts) == (2, 6, 6)
    assert value_in_one_call(STEPS, parts) is None
    assert shape_in_one_call(STEPS, [*parts[:-1], torch.randn(2, 1, 4)]) is None


def test_keys_of_a_window_are_at_the_positions_that_read_them_first():
    spans = Steps.in_rows_of(1, 6)
    whole = torch.zeros(6, 1, 3, 2)
    parts = [whole[:1, :, : min(end, 3)] for end in spans.ends]
    axes = Axes(spans, ("fixed", "fixed", "keys", "fixed"), (1, 1, 3, 2))
    assert axes.joined(whole[:1], parts).positions == [2, 1, 0]


@pytest.mark.parametrize("window", [2, 5])
def test_a_step_that_keeps_another_number_of_keys_is_found(window):
    spans = Steps.in_rows_of(2, 5)
    whole = torch.zeros(10, 1, window, 2)
    parts = [torch.zeros(2, 1, min(end, window), 2) for _, end in spans.spans]
    axes = Axes.of(spans, whole, parts)
    assert axes is not None and axes.roles == ("joint", "fixed", "keys", "fixed")
    assert _other_size(spans, "present.0.key", whole, parts) is None
    parts[3] = torch.zeros(2, 1, 1, 2)
    assert _other_size(spans, "present.0.key", whole, parts) == 3
    assert _other_size(spans, "logits", whole, parts) is None
