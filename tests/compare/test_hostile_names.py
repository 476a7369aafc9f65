"""Names from a model that would like to be more than names: in every format that is written, they stay text."""

import ast
from pathlib import Path

import onnx_ir as ir
import pytest
import torch
from torch import nn

from filch.compare import write_repro
from filch.export import Program, export
from filch.steal import Capture, steal_forward

CANARY = "canary"  # a file that code would write, in the folder where all of it runs

CALLS = {
    *(
        "Path",
        "Path(__file__).resolve",
        "numpy_helper.to_array",
        "onnx.load",
        "platform.python_version",
        "print",
        "run",
    ),
    *("np.asarray", "np.testing.assert_allclose", "tensors", "tensors('expected.onnx').values", "zip"),
    *("options.add_session_config_entry", "ort.InferenceSession", "ort.SessionOptions", "session.run"),
}


def wrong_gelu(op: str, value: str) -> tuple[Capture, Program]:
    """A capture of a Gelu, and a program in which a local function called `op` computes `value`, twice as large."""
    model, x = nn.GELU(), torch.linspace(-3, 3, 12).reshape(3, 4)
    with steal_forward(model, submodules=True) as capture:
        model(x)
    program = export(model, (x,))
    graph = program.model.graph
    (node,) = graph
    read, made = ir.val("read"), ir.val("made", dtype=ir.DataType.FLOAT)
    inside = [ir.node("Gelu", [read], name="gelu"), ir.node("Add", [], name="add")]
    inside[1] = ir.node("Add", [inside[0].outputs[0]] * 2, outputs=[made])
    body = ir.Graph([read], [made], nodes=inside, opset_imports={"": 20}, name="body")
    program.model.functions[("hostile", op, "")] = ir.Function("hostile", op, "", graph=body, attributes=[])
    node.op_type, node.domain = op, "hostile"
    node.attributes.clear()
    node.outputs[0].name = value
    graph.opset_imports["hostile"] = 1
    return capture, Program(program.model)


def test_names_in_a_repro_are_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An operator and a value whose names are Python: the script, which is run, has them in strings alone."""
    monkeypatch.chdir(tmp_path)
    text = f'E"""\nimport os; os.system("touch {CANARY}")\n"""\\"""; open("{CANARY}", "w") # {{compute}} {{0}} \''
    capture, program = wrong_gelu(text, f"value {text}")

    made = write_repro(capture, program, f"value {text}", "why")

    tree = ast.parse(made.script.read_text("utf-8"))
    assert not [*tmp_path.rglob(CANARY)]
    assert (ast.get_docstring(tree, clean=False) or "").startswith(text)
    assert f"value {text}" in {node.value for node in ast.walk(tree) if isinstance(node, ast.Constant)}
    assert {ast.unparse(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)} <= CALLS
    assert "\nimport" not in (made.folder / "README.md").read_text("utf-8")
