"""Programs with a cache, run step by step: right ones, and ones with faults that begin at some position."""

import json

import onnx_ir as ir
import pytest
import torch
from onnx import numpy_helper
from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM, MptConfig, MptForCausalLM, RwkvConfig, RwkvForCausalLM
from transformers.models.llama.modeling_llama import LlamaAttention
from typer.testing import CliRunner

from filch.compare import CompareError, compare_decode, map_to_export
from filch.compare.cli._app import app
from filch.compare.testing._artifacts import ArtifactStore
from filch.compare.testing._checks import Checks
from filch.export import ExportError, Program, cache_argument, cached_call, export, load_program
from filch.steal import steal_forward
from support.faults.decoding import change_late, exchanged, replaced, with_further_output
from support.models.exports import copied
from support.models.fused_llama import fused_onnx, tiny_llama, with_cache
from support.models.zoo import build
from support.thorough import slow

TOKENS = torch.randint(3, 96, (2, 9), generator=torch.Generator().manual_seed(0))
FIRST, PAST = 3, "past_key_values.0.key"


def llama(layers=1):
    torch.manual_seed(0)
    config = LlamaConfig(
        hidden_size=32, intermediate_size=48, num_hidden_layers=layers, num_attention_heads=4, num_key_value_heads=2,
        vocab_size=96,
    )  # fmt: skip
    return LlamaForCausalLM(config).eval()


@pytest.fixture(scope="module")
def model():
    return llama()


@pytest.fixture(scope="module")
def programs(model, tmp_path_factory):
    """The model's programs, read from files, by the kind of cache."""
    folder, loaded = tmp_path_factory.mktemp("programs"), {}
    for cache in ("dynamic", "static"):
        export(model, TOKENS, cache=cache, slots=16).save(folder / f"{cache}.onnx")
        loaded[cache] = load_program(folder / f"{cache}.onnx")
    return loaded


def decoded(model, program, **options):
    return compare_decode(model, TOKENS, program=program, tokens=9, prefill=FIRST, **options)


@slow
@pytest.mark.parametrize("stage", ["exported", "compiled"])
@pytest.mark.parametrize("cache", ["dynamic", "static"])
def test_a_right_program_is_silent(model, programs, cache, stage):
    result = decoded(model, copied(programs[cache]), stages=[stage])
    assert result.close, result
    assert result.cache == cache
    assert result.breaks == ()
    assert [(item.position, item.step) for item in result.positions] == [
        *((position, 0) for position in range(3)),
        *((position, position - 2) for position in range(3, 8)),
        (8, 5),
    ]
    findings = [item for items in result.graph.findings.values() for item in items if item.positions is not None]
    assert len(findings) >= 0.8 * result.judged and not any(item.positions.wrong for item in findings)
    assert {len(item.positions.errors) for item in findings} == {9}
    assert "Where modules have wrong values" not in str(result)
    assert 0 < max(item.logits for item in result.positions) < 1e-5
    assert 0 < max(item.state for item in result.positions) < 1e-5
    assert result.judged > 0.8 * result.values


def changed(program, name, start, change, past=PAST):
    return change_late(program, name, start, change, past)


def stale_slot(add, value):
    first, rest = add("Slice", [value, [0], [1], [2]]), add("Slice", [value, [1], [99], [2]])
    return add("Concat", [add("Sub", [first, first]), rest], axis=2)


def rolled(add, value):
    last, rest = add("Slice", [value, [-1], [99], [2]]), add("Slice", [value, [0], [-1], [2]])
    return add("Concat", [last, rest], axis=2)


def unrotated(add, value):
    rotated = value.producer().inputs[1].producer()  # key * cos + rotate_half(key) * sin
    key = rotated.inputs[0].producer().inputs[0]
    return add("Concat", [value.producer().inputs[0], key], axis=2)


def harmless_at_first(add, value):
    """Let the last query of the first call see a key that no call has yet, and one from 5 on not see itself."""
    harmless, late = (add("Cast", [add(*item)], to=7) for item in (("Equal", [value, 2]), ("Greater", [value, 4])))
    return add("Sub", [add("Add", [value, harmless]), late])


def at_the_top(add, value):
    """Let several queries begin at the first key, also if there are keys in the cache, as `is_causal` does."""
    several = add("Cast", [add("Greater", [add("Shape", [value], start=-1), 1])], to=7)
    first = add("ReduceMin", [value], keepdims=0)
    return add("Sub", [value, add("Mul", [several, first])])


def without_first(add, value):
    first, rest = add("Slice", [value, [0], [1], [1]]), add("Slice", [value, [1], [99], [1]])
    return add("Concat", [add("Sub", [first, first]), rest], axis=1)


# The value that is changed, from which number of tokens in the cache on, how, the module that reads it first, and the
# position at which that shows.
FAULTS = {
    "a stale slot": ("present.0.key", 5, stale_slot, "", 5),
    "slots in another order": ("present.0.value", 4, rolled, "", 4),
    "sequences exchanged": ("present.0.value", 6, exchanged, "", 6),
    "a key that is not rotated": ("present.0.key", 3, unrotated, "", 3),
    "a key that is never rotated": ("present.0.key", 0, unrotated, "", 1),
    "a position too early": ("position_ids", 4, lambda add, value: add("Sub", [value, [1]]), "model.rotary_emb", 4),
    "positions that end": ("position_ids", 0, lambda add, value: add("Min", [value, [6]]), "model.rotary_emb", 7),
    "a mask that hides nothing": ("attention_mask", 0, lambda add, value: add("Max", [value, [1]]), "model", 1),
    "a mask without the first token": ("attention_mask", 7, without_first, "model", 7),
}


@slow
@pytest.mark.parametrize(
    "fault",
    FAULTS,
)
def test_a_fault_is_named_with_its_position(model, programs, fault):
    name, start, change, module, position = FAULTS[fault]
    result = decoded(model, changed(copied(programs["dynamic"]), name, start, change), stages=["exported"])
    first = result.first_break
    assert (first.position, first.module or "") == (position, module), result.table(wide=True)
    assert first.introduced
    assert first.value == name or not name.startswith("present")  # inputs have no row
    before, after = result.positions[:position], result.positions[position:]
    assert max(item.logits for item in before) < 1e-5 < after[0].logits
    assert not result.close
    assert json.loads(result.to_json())["breaks"][0]["position"] == position
    (marked,) = [item for items in result.graph.findings.values() for item in items if item.first]
    assert marked.diverged and marked.positions.wrong[0] <= position
    (layer,) = [item for item in result.layers if item.module == module]
    assert position in layer.wrong


@slow
@pytest.mark.parametrize(("change", "position"), [(harmless_at_first, 5), (at_the_top, 7)])
def test_positions_of_a_mask_are_wrong_from_where_they_have_an_effect(model, programs, change, position):
    program = copied(programs["dynamic"])
    node = next(node for node in program.model.graph if node.op_type == "LessOrEqual")
    value = node.inputs[1]  # the positions of queries, of which the mask is made
    while value.producer().op_type != "Add":
        value = value.producer().inputs[0]
    name = value.name
    first = decoded(model, changed(program, name, 0, change), stages=["exported"]).first_break
    assert (first.position, first.value) == (position, name)


@slow
@pytest.mark.parametrize("is_wrong", [False, True])
def test_a_file_of_another_tool_is_decoded(model, programs, is_wrong):
    """Its values are found in a program of the model, though nothing in it says what they are."""
    file, exported = (copied(programs["dynamic"]) for _ in range(2))
    if is_wrong:
        changed(file, "present.0.value", 6, exchanged)
    for item in (file.model, file.model.graph, *file.model.graph):
        item.metadata_props.clear()
    with torch.no_grad(), steal_forward(model, submodules=True) as reference:
        model(**cached_call(model, TOKENS))
    foreign = ir.serde.serialize_model(file.model)
    program = map_to_export(foreign, exported=exported, reference=reference)
    result = decoded(model, program, stages=["exported"])
    first = result.first_break
    assert (first and (first.position, first.module)) == ((6, "model.layers.0.self_attn") if is_wrong else None)
    assert result.judged > 0.8 * result.values


@pytest.fixture(scope="module")
def counting():
    """A model, its tokens and its program."""
    model, _, _ = tiny_llama()
    tokens = TOKENS % 40
    return model, tokens, export(model, tokens, cache="dynamic")


@slow
@pytest.mark.parametrize("is_wrong", [False, True])
def test_a_file_that_counts_tokens_in_place_of_a_mask_is_decoded_without_one(counting, is_wrong):
    """Its attention takes no other mask, and several tokens behind a cache of one sequence alone."""
    model, tokens, exported = counting
    file = with_cache(fused_onnx(model))
    if is_wrong:
        cosines = next(item for item in file.graph.initializer if item.name == "cos")
        table = numpy_helper.to_array(cosines).copy()
        table[6] = table[5]
        cosines.CopyFrom(numpy_helper.from_array(table, "cos"))
    with torch.no_grad(), steal_forward(model, submodules=True) as reference:
        model(**cached_call(model, tokens))
    program = map_to_export(file, exported=exported, reference=reference)
    result = compare_decode(model, tokens, program=program, tokens=9, stages=["exported"])
    assert result.close is not is_wrong, result
    assert (result.first_break and (result.first_break.position, result.first_break.op)) == (
        (6, "com.microsoft::GroupQueryAttention") if is_wrong else None
    )
    assert "no token was masked" in str(result)
    assert [item.step for item in result.positions][-2:] == [6, 7]


@slow
def test_a_fault_is_found_in_the_optimized_graph_too(model, programs):
    program = changed(copied(programs["dynamic"]), "present.0.value", 6, exchanged)
    first = decoded(model, program, stages=["compiled"]).first_break
    assert (first.position, first.stage, first.value) == (6, "compiled", "present.0.value")


@slow
def test_a_slot_of_a_static_cache_that_changes_later_is_named_where_it_does(model, programs):
    program = copied(programs["static"])

    def zeroed(add, value):
        return add("Sub", [value, value])

    with pytest.raises(CompareError, match="at least 6"):
        compare_decode(model, TOKENS, program=program, tokens=5)
    late = changed(program, "present.0.key", 5, zeroed, past="past_key_values.0.length")
    first = decoded(model, late, stages=["exported"]).first_break
    assert (first.position, first.value) == (5, "present.0.key")

    def uncounted(add, value):
        return add("Identity", [value.producer().inputs[0]])

    program = copied(programs["static"])
    late = changed(program, "present.0.length", 5, uncounted, past="past_key_values.0.length")
    first = decoded(model, late, stages=["exported"]).first_break
    assert (first.position, first.value) == (5, "present.0.length")

    def total(add, value):
        return add("Max", [value, TOKENS.shape[1]])

    program = copied(programs["static"])
    early = changed(program, "present.0.length", 0, total, past="past_key_values.0.length")
    first = decoded(model, early, stages=["exported"]).first_break
    assert (first.position, first.value) == (0, "present.0.length")


@slow
@pytest.mark.parametrize("precision", ["float16", "bfloat16"])
def test_lower_precision_is_no_fault(model, programs, precision):
    result = decoded(model, copied(programs["dynamic"]), to=precision)
    assert result.close, result
    assert result.to == precision
    assert 1e-4 < max(item.logits for item in result.positions) < 1e-1
    wrong = changed(copied(programs["dynamic"]), "present.0.value", 6, exchanged)
    first = decoded(model, wrong, to=precision).first_break
    assert (first.position, first.sequence) == (6, 0) and "present.0.value" in first.value, first


@slow
@pytest.mark.parametrize(
    ("dtype", "backend"),
    [(torch.float16, "onnxruntime-cpu"), (torch.bfloat16, "reference")],
    ids=["float16", "bfloat16"],
)
def test_a_model_in_lower_precision_decodes(dtype, backend):
    model = llama().to(dtype)
    program = export(model, TOKENS, cache="dynamic")
    options = {"backend": backend, "stages": ["exported"]}
    result = decoded(model, program, **options)
    assert result.close, result
    assert result.to == "" and result.judged > 100
    wrong = changed(program.snapshot(), "present.0.value", 6, exchanged)
    first = decoded(model, wrong, **options).first_break
    assert (first.position, first.sequence, first.value) == (6, 0, "present.0.value"), first


@slow
@pytest.mark.parametrize("queries", [1, 2])
def test_a_model_that_decodes_something_else_is_told_from_its_program(model, programs, monkeypatch, queries):
    """Positions begin at 0 again in each call of the model with so many tokens, but not in its program."""

    class Restarting(nn.Module):
        def __init__(self, rotary):
            super().__init__()
            self.rotary = rotary

        def forward(self, x, position_ids):
            start = position_ids[:, :1] if position_ids.shape[1] == queries else 0
            return self.rotary(x, position_ids - start)

    rotary = model.model.rotary_emb
    monkeypatch.delattr(model.model, "rotary_emb")
    monkeypatch.setattr(model.model, "rotary_emb", Restarting(rotary), raising=False)
    result = decoded(model, copied(programs["dynamic"]))
    assert (result.close, result.breaks, result.consistent) == (False, (), False)
    assert "itself decodes other logits" in result.headline


def test_a_model_that_fails_in_a_step_is_noted(model, programs, monkeypatch):
    def forward(self, hidden_states, *args, **kwargs):
        if hidden_states.shape[1] == 2 and kwargs[cache_argument(model)].get_seq_length():
            raise ValueError("one token at a time")
        return attend(self, hidden_states, *args, **kwargs)

    attend = LlamaAttention.forward
    program = copied(programs["dynamic"])
    monkeypatch.setattr(LlamaAttention, "forward", forward)
    result = decoded(model, program)
    assert result.close
    assert "ValueError: one token at a time" in " ".join(str(result).split())


@slow
def test_biases_that_are_others_in_each_step_are_compared_with_those_of_the_model():
    """MPT's count positions from the last key: no score of a step is that of one call, but all logits are."""
    torch.manual_seed(0)
    model = MptForCausalLM(MptConfig(d_model=32, n_heads=4, n_layers=1, max_seq_len=64, vocab_size=96)).eval()
    program = export(model, TOKENS, cache="dynamic")
    assert "position_ids" not in program.graph.inputs  # it takes none
    result = decoded(model, program, stages=["exported"])
    assert result.close, result
    assert result.prefill == 1
    wrong = changed(program.snapshot(), "present.0.value", 6, exchanged)
    first = decoded(model, wrong, stages=["exported"]).first_break
    assert (first.position, first.sequence) == (6, 0), first


@slow
def test_a_small_fault_of_calls_with_several_tokens_stays_one(model, programs):
    """The outputs are off by less than they may be, so that steps of one token would not show it."""
    program = copied(programs["dynamic"])
    (softmax,) = (node.outputs[0] for node in program.model.graph if node.op_type == "Softmax")
    tokens = next(value for value in program.model.graph.inputs if value.name == "input_ids")

    def scaled(add, value):
        several = add("Cast", [add("Greater", [add("Shape", [tokens], start=1), 1])], to=1)
        small = add("Mul", [several, add("Constant", [], value=ir.tensor([4e-6], dtype=ir.DataType.FLOAT))])
        return add("Add", [value, add("Mul", [value, small])])

    name = softmax.name
    result = decoded(model, changed(program, name, 0, scaled), stages=["exported"])
    assert (result.first_break.position, result.first_break.value) == (0, name)
    assert not result.notes


@slow
def test_a_model_that_rounds_otherwise_in_steps_decodes_the_same_logits(model, programs, monkeypatch):
    """They differ by more than a tolerance, but not in float64."""
    layer = model.model.layers[0].mlp
    forward = layer.forward

    def rounded(x):
        far = 1e3 * x.shape[1]
        return (forward(x) + far) - far

    monkeypatch.setattr(layer, "forward", rounded)
    result = decoded(model, copied(programs["dynamic"]), stages=["exported"])
    assert result.consistent and result.eager > 1e-4


@slow
def test_the_fixture_names_the_position(model, programs, tmp_path):
    properties: list[tuple[str, str]] = []
    store = ArtifactStore(tmp_path, None, lambda: tmp_path, lambda name, value: properties.append((name, value)))
    options = {"tokens": 9, "prefill": FIRST}
    assert Checks(store).check_decode(model, TOKENS, program=copied(programs["dynamic"]), **options).close
    wrong = changed(copied(programs["dynamic"]), "present.0.value", 6, exchanged)
    with pytest.raises(AssertionError, match="goes wrong at position 6 of sequence 0"):
        Checks(store).check_decode(model, TOKENS, program=wrong, **options)
    assert dict(properties)["first_divergence"].startswith("position 6 of sequence 0")
    page = (tmp_path / "2-decode.html").read_text()
    assert "position 6 of sequence 0" in page and 'type="application/json"' in page


def test_a_program_without_a_cache_is_refused(model, programs):
    with pytest.raises(CompareError, match=r"no output present\.0\.key"):
        decoded(model, Program(ir.Model(ir.Graph([], [], nodes=[], opset_imports={"": 18}), ir_version=10)))
    program = copied(programs["dynamic"])
    del program.model.graph.outputs[0]
    del program.model.graph.outputs[-1]
    with pytest.raises(CompareError, match=r"does not return logits, present\.0\.value"):
        decoded(model, program)


def test_an_output_without_a_reference_does_not_pass(model, programs):
    result = decoded(model, with_further_output(copied(programs["dynamic"])), stages=["exported"])
    assert (result.outcome, result.close, result.breaks) == ("incomplete", False, ())
    assert [*result.unjudged] == ["further"]
    assert "INCOMPLETE: LlamaForCausalLM on onnxruntime-cpu: not judged: further" in str(result)
    assert "output further was not judged: " in str(result)


def test_logits_of_the_last_token_only_are_wrong_in_the_first_step(model, programs):
    program = replaced(copied(programs["dynamic"]), "logits", lambda add, value: add("Slice", [value, [-1], [99], [1]]))
    first = decoded(model, program, stages=["exported"]).first_break
    assert (first.position, first.value) == (0, "logits")


def test_only_language_models_with_tokens_are_exported_with_a_cache(model):
    with pytest.raises(ExportError, match="takes the tokens"):
        export(model, (TOKENS.float(),), cache="dynamic")
    with pytest.raises(ExportError, match="number of slots"):
        export(model, (TOKENS,), cache="static")
    with pytest.raises(ExportError, match="does not take the cache of a causal language model"):
        export(nn.Embedding(96, 4), (TOKENS,), cache="dynamic")
    recurrent = RwkvForCausalLM(RwkvConfig(hidden_size=32, num_hidden_layers=2, vocab_size=96, context_length=16))
    with pytest.raises(ExportError, match=r"RwkvForCausalLM .* its forward has no argument for a cache"):
        export(recurrent.eval(), (TOKENS,), cache="dynamic")


def test_a_program_with_a_cache_takes_any_sizes_and_has_the_usual_names(programs):
    graph = copied(programs["dynamic"]).graph
    assert graph.inputs[-2:] == ("past_key_values.0.key", "past_key_values.0.value")
    assert graph.outputs == ("logits", "present.0.key", "present.0.value")
    shapes = [graph.values[name].shape for name in graph.inputs]
    assert [[size for size in shape if isinstance(size, int)] for shape in shapes] == [[], [], [], [2, 8], [2, 8]]
    static = copied(programs["static"]).graph
    assert static.values["present.0.key"].shape[1:] == (2, 16, 8)
    assert static.outputs[-1] == "present.0.length"


FACTORY = """
import torch
from transformers import LlamaConfig, LlamaForCausalLM, MptConfig, MptForCausalLM, RwkvConfig, RwkvForCausalLM

def llama():
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 1, "vocab_size": 96}
    config = LlamaConfig(**sizes, num_attention_heads=4, num_key_value_heads=2)
    return LlamaForCausalLM(config).eval(), (torch.arange(3, 12)[None],)
"""


@slow
def test_the_command_judges_a_file(programs, tmp_path, monkeypatch):
    """It exits with 1 and writes the result; a name with another suffix is refused before anything runs."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "models.py").write_text(FACTORY)
    changed(copied(programs["dynamic"]), "present.0.value", 6, exchanged).save("wrong.onnx")
    arguments = ["decode", "models.py:llama", "--program", "wrong.onnx", "--tokens", "9", "--prefill", "3"]
    result = CliRunner().invoke(app, [*arguments, "-o", "result.json", "-o", "result.md"])
    assert result.exit_code == 1, result.output
    assert "goes wrong at position 6" in " ".join(result.output.split())
    record = json.loads((tmp_path / "result.json").read_text())
    assert (record["close"], record["breaks"][0]["position"]) == (False, 6)
    assert "Wrong values" in (tmp_path / "result.md").read_text()
    assert CliRunner().invoke(app, [*arguments, "-o", "result.txt"]).exit_code == 2


@slow
def test_a_model_without_positions_is_decoded_and_a_wrong_slope_is_named_where_it_begins():
    """Bloom takes no positions: its biases are slopes, which have no axis of tokens, times the places of keys."""
    model = build("BloomForCausalLM", {"hidden_size": 32, "n_layer": 1, "n_head": 4, "vocab_size": 96})
    program = export(model, kwargs={"input_ids": TOKENS}, cache="dynamic")
    assert "position_ids" not in program.graph.inputs
    assert decoded(model, program).close
    (slopes,) = (node.outputs[0] for node in program.graph.nodes if node.op == "Pow" and node.module == "transformer")
    result = decoded(model, changed(program, slopes, 5, exchanged), stages=["exported"])
    assert not result.close
    assert (result.first_break.value, result.first_break.position) == (slopes, 5)
