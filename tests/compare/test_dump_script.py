"""The script that this project came from, onnx-diagnostic's 'Dumps intermediate results', with its imports changed."""

from support.thorough import slow

# What follows the imports is the document's own, up to the drawing of the graph.
SCRIPT = """
import onnx
import torch
from filch.steal import describe as string_type
from filch.compare import tiny_llm as dummy_llm
from filch.steal import restore as create_input_tensors_from_onnx_model
from filch.steal import steal_forward


model, inputs, ds = dummy_llm(dynamic_shapes=True)

print(f"type(model)={type(model)}")
print(f"inputs={string_type(inputs, with_shape=True)}")
print(f"ds={string_type(ds, with_shape=True)}")

for name, mod in model.named_modules():
    print(f"- {name}: {type(mod)}")

with steal_forward(
    [
        ("model", model),
        ("model.decoder", model.decoder),
        ("model.decoder.attention", model.decoder.attention),
        ("model.decoder.feed_forward", model.decoder.feed_forward),
        ("model.decoder.norm_1", model.decoder.norm_1),
        ("model.decoder.norm_2", model.decoder.norm_2),
    ],
    dump_file="plot_dump_intermediate_results.inputs.onnx",
    verbose=1,
    storage_limit=2**28,
):
    model(*inputs)

print("restored:")
saved_tensors = create_input_tensors_from_onnx_model(
    "plot_dump_intermediate_results.inputs.onnx"
)
for k, v in saved_tensors.items():
    print(f"{k} -- {string_type(v, with_shape=True)}")

epo = torch.onnx.export(model, inputs, dynamic_shapes=ds, dynamo=True)
epo.optimize()
epo.save("plot_dump_intermediate_results.onnx")
onx = onnx.load("plot_dump_intermediate_results.onnx")
"""


@slow
def test_the_seeds_script_runs_with_only_its_imports_changed(tmp_path, monkeypatch, capsys):
    """Its modules, its narration and its restored keys, in its order and nesting."""
    monkeypatch.chdir(tmp_path)

    exec(compile(SCRIPT, "seed.py", "exec"), {"__name__": "seed"})  # noqa: S102  it is our own

    said, restored = capsys.readouterr().out.split("restored:\n")
    lines = said.splitlines()
    assert "inputs=(i64[2, 30],)" in lines
    assert len([line for line in lines if line.startswith("- ")]) == 22
    assert lines.index("+model -- stolen forward for class LLM -- iteration 0") < lines.index("-model.decoder.norm_1.")
    assert "  <- args=(f32[2, 30, 16],) --- kwargs={}" in lines
    assert restored.splitlines()[:12] == [
        "('model', 0, 'I') -- ((i64[2, 30],), {})",
        "('model.decoder', 0, 'I') -- ((f32[2, 30, 16],), {})",
        "('model.decoder.norm_1', 0, 'I') -- ((f32[2, 30, 16],), {})",
        "('model.decoder.norm_1', 0, 'O') -- f32[2, 30, 16]",
        "('model.decoder.attention', 0, 'I') -- ((f32[2, 30, 16],), {})",
        "('model.decoder.attention', 0, 'O') -- f32[2, 30, 16]",
        "('model.decoder.norm_2', 0, 'I') -- ((f32[2, 30, 16],), {})",
        "('model.decoder.norm_2', 0, 'O') -- f32[2, 30, 16]",
        "('model.decoder.feed_forward', 0, 'I') -- ((f32[2, 30, 16],), {})",
        "('model.decoder.feed_forward', 0, 'O') -- f32[2, 30, 16]",
        "('model.decoder', 0, 'O') -- f32[2, 30, 16]",
        "('model', 0, 'O') -- f32[2, 30, 16]",
    ]
