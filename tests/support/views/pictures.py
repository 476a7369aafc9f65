"""A small graph with all that a picture may show, and what Netron's own loader finds in a file."""

import dataclasses
import importlib.util
import json
import shutil
import subprocess
from pathlib import Path

import onnx_ir as ir
import pytest

from filch.export import Finding, Graph, Node, Value
from filch.export.graph._from_onnx import graph_from_onnx
from filch.export.graph._nodes import Frame
from filch.export.views import draw, write

LOADER = Path(__file__).with_name("netron_loader.mjs")
MODEL = """<ir_version: 10, opset_import: ["" : 18], producer_name: "test">
judged (float[batch, 4] x, bool c) => (float[batch, 2] y, float[batch, 4] z) <float[4, 4] w = {
    1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16}> {
    [multiply] h = MatMul(x, w)
    [split] a, b = Split <axis = 1, num_outputs = 2> (h)
    r = Relu(a)
    [clip] k = Clip(b, , )
    [choose] y = If(c) <
        then_branch = t () => (float[batch, 2] s) { s = Add(r, k) },
        else_branch = e () => (float[batch, 2] d) { d = Sub(r, k) }
    >
    [last] z = Concat <axis = 1> (r, y)
}"""


def judged_graph() -> Graph:
    """Return an ONNX graph with two calls of a value, a node of two outputs, an unnamed node and a capture."""
    graph = graph_from_onnx(ir.from_onnx_text(MODEL))
    findings = {
        "w": (Finding("same", kind="constant", error=0.0),),
        "h": (
            Finding("same", error=1.25e-07, text="as it should be", evidence="operator", seconds=1.5e-05),
            Finding("different", call=1, error=0.03125, first=True, text="3e-2 away", measures={"max_abs": 0.1 / 3}),
        ),
        "a": (Finding("shape or dtype differs", text="float16 is not float32"),),
        "b": (Finding("different", error=float("nan"), measures={"max_rel": float("inf"), "count": 3}),),
        "r": (Finding("no value", text="fused into 'last': see there"),),
        "y": (Finding("not mapped", text="nobody knows"),),
        "z": (Finding("different", kind="output", error=7.0, seconds=0.25),),
    }
    return dataclasses.replace(graph, findings=findings, remarks=("1 of 7 differs", "it is y"))


def fused_graph() -> Graph:
    """Return a graph of one kernel, not of ONNX, and its three source operations."""
    kinds = {name: Value(name, "float32", (2, "n")) for name in ("x", "w", "a", "b", "y")}
    stack = (Frame("", "app.Model"), Frame("head", "torch.nn.modules.linear.Linear", "app.py:3"))
    before = (
        Node("view", "Reshape", ("x",), ("a",), {"shape": [2, -1]}, module="head", stack=stack),
        Node("turn", "Rearrange", ("a",), ("b",), module="head", stack=stack),
        Node("mm", "BatchMatmul", ("w", "b"), ("y",), module="head", stack=stack, source="app.py:3"),
    )
    made_of = Graph("before", ("x",), ("y",), ("w",), before, kinds)
    kernel = Node(
        "kernel_0", "FusedMatmul", ("w", "x"), ("y",), {"mma": "simt"}, module="head", origins=("view", "turn", "mm")
    )
    return Graph("after", ("x",), ("y",), ("w",), (kernel,), kinds, source_graph=made_of)


def netron_finds(folder: Path, path: Path, attachment: Path | None = None) -> dict:
    """Return the graph that the loader of the installed package `netron` reads from a file.

    Args:
        folder: an empty one, where its JavaScript is put: Node takes it for modules only where a package.json says so.
        path: of the file.
        attachment: of another one, that is opened upon it.
    """
    node, found = shutil.which("node"), importlib.util.find_spec("netron")
    if found is None or found.origin is None:
        pytest.skip("the package netron is not installed, whose loader is asked")
    if node is None:
        pytest.skip("Netron's loader is JavaScript, and there is no node to run it")
    package = folder / "netron"
    if not package.exists():
        kept = shutil.ignore_patterns("*.py", "__pycache__", "*.png", "*.ico", "*.html", "*.css")
        shutil.copytree(Path(found.origin).parent, package, ignore=kept)
        (package / "package.json").write_text('{"type": "module"}')
    command = [node, str(LOADER), str(package), str(path), *([str(attachment)] if attachment else [])]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def save_with_note(graph, name, path):
    """Draw a graph into a file; return its path and the note of the drawing."""
    drawing = draw(graph, name, path.suffix or None)
    return write(drawing, path), drawing.note
