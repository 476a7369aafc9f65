"""Programs with a cache, run step by step: right ones, and ones with faults that begin at some position."""

import json

import onnx_ir as ir
import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from filch.compare import compare_decode
from filch.export import Program, export, load_program

TOKENS = torch.randint(3, 96, (2, 9), generator=torch.Generator().manual_seed(0))
FIRST, PAST = 3, "past_key_values.0.key"


def llama(layers=1):
    torch.manual_seed(0)
    config = LlamaConfig(
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        vocab_size=96,
    )
    return LlamaForCausalLM(config).eval()


@pytest.fixture(scope="module")
def model():
    return llama()


@pytest.fixture(scope="module")
def programs(model, tmp_path_factory):
    """The paths of the model's programs, by the kind of cache."""
    folder = tmp_path_factory.mktemp("programs")
    for cache in ("dynamic", "static"):
        export(model, TOKENS, cache=cache, slots=16).save(folder / f"{cache}.onnx")
    return {cache: folder / f"{cache}.onnx" for cache in ("dynamic", "static")}


def decoded(model, program, **options):
    return compare_decode(model, TOKENS, program=program, tokens=9, first=FIRST, **options)


@pytest.mark.parametrize("stage", ["exported", "compiled"])
@pytest.mark.parametrize("cache", ["dynamic", "static"])
def test_a_right_program_is_silent(model, programs, cache, stage):
    result = decoded(model, load_program(programs[cache]), stages=[stage])
    assert result.close, result
    assert result.cache == cache
    assert result.breaks == ()
    assert [(item.position, item.step) for item in result.positions] == [
        *((position, 0) for position in range(3)),
        *((position, position - 2) for position in range(3, 9)),
    ]
    assert 0 < max(item.logits for item in result.positions) < 1e-5
    assert 0 < max(item.state for item in result.positions) < 1e-5
    assert result.judged > 0.8 * result.values


def changed(program: Program, name: str, start: int, change) -> Program:
    """Return a program in which `change` computes a value again, in calls with at least `start` tokens in the cache."""
    graph = program.model.graph
    values = {value.name: value for value in (*graph.inputs, *(item for node in graph for item in node.outputs))}
    value = values[name]
    nodes = []

    def add(operator, inputs, **attributes):
        inputs = [constant(item) if isinstance(item, list | int) else item for item in inputs]
        nodes.append(ir.node(operator, inputs, attributes))
        return nodes[-1].outputs[0]

    def constant(content):
        return add("Constant", [], value=ir.tensor(content, dtype=ir.DataType.INT64))

    past = add("Shape", [values[PAST]], start=2, end=3)
    is_late = add("GreaterOrEqual", [past, [start]])
    users = value.uses()
    result = add("Where", [is_late, change(add, value), value])
    for node, index in users:
        node.replace_input_with(index, result)
    result.dtype, result.shape = value.dtype, value.shape
    producer = value.producer()
    if producer is None:
        graph.insert_before(graph[0], nodes)
        return program
    for index, output in enumerate(graph.outputs):
        if output is value:
            graph.outputs[index] = result
    value.name, result.name = f"{name}_before", name
    graph.insert_after(producer, nodes)
    return program


def stale_slot(add, value):
    first, rest = add("Slice", [value, [0], [1], [2]]), add("Slice", [value, [1], [99], [2]])
    return add("Concat", [add("Sub", [first, first]), rest], axis=2)


def rolled(add, value):
    last, rest = add("Slice", [value, [-1], [99], [2]]), add("Slice", [value, [0], [-1], [2]])
    return add("Concat", [last, rest], axis=2)


def exchanged(add, value):
    return add("Gather", [value, [1, 0]], axis=0)


def unrotated(add, value):
    rotated = value.producer().inputs[1].producer()  # key * cos + rotate_half(key) * sin
    key = rotated.inputs[0].producer().inputs[0]
    return add("Concat", [value.producer().inputs[0], key], axis=2)


def earlier(add, value):
    return add("Sub", [value, [1]])


def without_first(add, value):
    first, rest = add("Slice", [value, [0], [1], [1]]), add("Slice", [value, [1], [99], [1]])
    return add("Concat", [add("Sub", [first, first]), rest], axis=1)


# The value that is changed, from which number of tokens in the cache on, how, and the module that reads it first.
FAULTS = {
    "a stale slot": ("present.0.key", 5, stale_slot, ""),
    "slots in another order": ("present.0.value", 4, rolled, ""),
    "sequences exchanged": ("present.0.value", 6, exchanged, ""),
    "a key that is not rotated": ("present.0.key", 3, unrotated, ""),
    "a position too early": ("position_ids", 4, earlier, "model.rotary_emb"),
    "a mask without the first token": ("attention_mask", 7, without_first, "model"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_named_with_its_position(model, programs, fault):
    name, start, change, module = FAULTS[fault]
    result = decoded(model, changed(load_program(programs["dynamic"]), name, start, change), stages=["exported"])
    first = result.first_break
    assert (first.position, first.module or "") == (start, module), result.table(wide=True)
    assert first.introduced
    assert first.value == name or not name.startswith("present")  # inputs have no row
    before, after = result.positions[:start], result.positions[start:]
    assert max(item.logits for item in before) < 1e-5 < after[0].logits
    assert not result.close
    assert json.loads(result.to_json())["breaks"][0]["position"] == start
