"""The files for Netron: its own loader opens them, and they say what the graph says."""

import dataclasses
import json
import math

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import pytest

from filch.export import ViewError
from filch.export.graph._from_onnx import graph_from_onnx
from filch.export.views import draw
from support.hostile.graphs import TEXTS, hostile_graph, hostile_model
from support.views.pictures import MODEL, fused_graph, judged_graph, netron_finds, save_with_note


@pytest.fixture(scope="module")
def netron(tmp_path_factory):
    """Asks Netron's loader what is in a file."""
    folder = tmp_path_factory.mktemp("netron")
    return lambda path, attachment=None: netron_finds(folder, path, attachment)


def _same(text, number):
    """Whether a text reads back as a number, NaN included."""
    return float(text) == number or (math.isnan(float(text)) and math.isnan(number))


def _check_numbers(graph, told):
    """Each finding's numbers are in `told`: for the name of a value, the metadata of the value or of its node."""
    for name, findings in graph.findings.items():
        facts = told(name)
        worst = max(findings, key=lambda finding: finding.weight)
        numbers = {"error": worst.error, "seconds": worst.seconds, **worst.measures}
        for key, number in numbers.items():
            assert (f"filch.{key}" in facts) == (number is not None), (name, key)
            assert number is None or _same(facts[f"filch.{key}"], number)
        assert facts["filch.status"] == worst.status
        assert facts.get("filch.finding", "") == worst.text
        for finding in findings if len(findings) > 1 else ():
            assert facts[f"filch.call_{finding.call}_of_{name}"] == f"{finding.status}, error {finding.error!r}"


def test_an_annotated_model_says_all_findings_and_is_what_it_was(tmp_path):
    """All numbers stand in its metadata, to the last digit; it is valid, it runs, and the graph's own is untouched."""
    graph = judged_graph()
    before = ir.serde.serialize_model(graph.onnx).SerializeToString()

    path, note = save_with_note(graph, "netron", tmp_path / "m.onnx")

    assert note == ""
    model = onnx.load(path)
    onnx.checker.check_model(model, full_check=True)
    of_values = {value.name: value for value in (*model.graph.value_info, *model.graph.output)}
    of_values |= {out: node for node in model.graph.node for out in node.output if out not in of_values}
    _check_numbers(graph, lambda name: {p.key: p.value for p in of_values[name].metadata_props})
    x = np.ones((3, 4), dtype=np.float32)
    y, _ = onnxruntime.InferenceSession(path).run(None, {"x": x, "c": np.array(True)})
    assert np.array_equal(y, np.tile([[28 + 36, 32 + 40]], (3, 1)))
    assert ir.serde.serialize_model(graph.onnx).SerializeToString() == before


def test_stock_netron_shows_what_was_found_at_each_node(tmp_path, netron):
    """Its loader opens the model: as many nodes, and the error of each among its metadata."""
    graph = judged_graph()
    path, _ = save_with_note(graph, "netron", tmp_path / "m.onnx")

    found = netron(path)

    nodes = [node for node in found["nodes"] if node["outputs"]]
    assert [node["outputs"] for node in nodes] == [list(node.outputs) for node in graph.nodes]
    shown = {name: dict(node["metadata"]) for node in nodes for name in node["outputs"]}
    assert shown["h"]["filch.error"] == "0.03125"
    assert shown["a"]["filch.call_0_of_a"] == "shape or dtype differs"
    assert shown["z"]["filch.seconds"] == "0.25"
    assert dict(found["metadata"])["filch.remark.0"] == "1 of 7 differs"
    described = {value["name"]: value["description"] for value in found["values"]}
    assert described["h"].startswith("error: 0.03125, status: different, finding: 3e-2 away, first divergence: yes")


def test_an_attachment_adds_to_the_untouched_model(tmp_path, netron):
    """Stock Netron takes it on top of the file: text among the metadata, numbers among the metrics."""
    graph = judged_graph()
    ir.save(graph.onnx, tmp_path / "m.onnx")
    attachment, _ = save_with_note(graph, "netron", tmp_path / "m.json")

    found = netron(tmp_path / "m.onnx", attachment)

    assert found["attached"] is True
    values = {value["name"]: value for value in found["values"]}
    _check_numbers(graph, lambda name: dict(values[name]["metadata"]))
    nodes = {node["name"]: node for node in found["nodes"]}
    assert dict(nodes["multiply"]["metrics"]) == {"filch.error": "0.03125", "filch.max_abs": repr(0.1 / 3)}
    assert dict(values["b"]["metrics"]) == {"filch.error": "nan", "filch.max_rel": "inf", "filch.count": "3"}
    assert dict(found["metadata"])["filch.remark.1"] == "it is y"
    assert nodes[""]["metadata"] == []  # a node without a name: what it makes has its finding


def test_a_graph_of_anything_is_a_message(tmp_path, netron):
    """Inputs, weights, types and what is known of a kernel arrive."""
    path, _ = save_with_note(fused_graph(), "netron", tmp_path / "m.netron")

    found = netron(path)

    (kernel,) = found["nodes"]
    assert (kernel["name"], kernel["type"], kernel["inputs"]) == ("kernel_0", "FusedMatmul", ["w", "x"])
    assert dict(kernel["attributes"])["filch.fusion"] == "Reshape Rearrange BatchMatmul"
    types = {value["name"]: (value["type"], value["constant"]) for value in found["values"]}
    assert types == {"w": ("float32[2,n]", True), "x": ("float32[2,n]", False), "y": ("float32[2,n]", False)}
    assert path.read_bytes()[:64].startswith(b'{\n "signature": "netron:filch",')


def test_a_message_says_all_findings(tmp_path, netron):
    """Of a node, among its attributes."""
    graph = judged_graph()
    path, _ = save_with_note(graph, "netron", tmp_path / "m.netron")

    shown = {name: dict(node["attributes"]) for node in netron(path)["nodes"] for name in node["outputs"]}

    assert len(shown) == sum(len(node.outputs) for node in graph.nodes)
    assert shown["h"]["filch.error"] == "0.03125"
    assert shown["h"]["filch.call_0_of_h"] == "same, error 1.25e-07"
    assert shown["r"]["filch.status"] == "no value"


def test_hostile_names_arrive_as_they_are(tmp_path, netron):
    """In a message, where JSON can say anything; in an ONNX file, where protobuf can; and on top of it."""
    graph = hostile_graph()
    model = graph_from_onnx(hostile_model())
    said = list(graph.findings.values())
    model = dataclasses.replace(
        model, findings={node.outputs[0]: said[i] for i, node in enumerate(model.nodes)}, remarks=graph.remarks
    )

    message = netron(save_with_note(graph, "netron", tmp_path / "h.netron")[0])
    annotated = netron(save_with_note(model, "netron", tmp_path / "h.onnx")[0])
    ir.save(model.onnx, tmp_path / "plain.onnx")
    attached = netron(tmp_path / "plain.onnx", save_with_note(model, "netron", tmp_path / "h.json")[0])

    assert [node["name"] for node in message["nodes"]] == list(TEXTS.values())
    assert [node["name"] for node in annotated["nodes"]] == [text for key, text in TEXTS.items() if key != "surrogate"]
    assert dict(annotated["nodes"][0]["metadata"])["filch.finding"] == TEXTS["script"]
    for node, named in zip(attached["nodes"], model.nodes, strict=True):
        assert dict(node["metadata"])["filch.finding"] == model.findings[named.outputs[0]][0].text


def test_a_graph_that_is_not_onnx_is_no_onnx_file():
    """The error says which suffix does."""
    with pytest.raises(
        ViewError,
        match=r"graph 'after' was not read from an ONNX model and can't be written as .onnx: choose the suffix .netron",
    ):
        draw(fused_graph(), "netron", ".onnx")


def _with_external_weights(tmp_path):
    model = ir.from_onnx_text(MODEL)
    ir.save(model, tmp_path / "m.onnx", external_data="m.data", size_threshold_bytes=0)
    return graph_from_onnx(ir.load(tmp_path / "m.onnx"))


def test_weights_of_another_file_are_taken_into_the_model(tmp_path):
    """One file is easier to hand on."""
    graph = _with_external_weights(tmp_path)

    drawing = draw(graph, "netron", ".onnx")

    (weight,) = onnx.load_from_string(drawing.content).graph.initializer
    assert np.array_equal(onnx.numpy_helper.to_array(weight).ravel(), np.arange(1, 17))
    assert drawing.note == ""


def test_weights_that_are_gone_are_left_out_and_told_of(tmp_path, netron):
    """Netron draws the model all the same, and no other file's numbers can be taken for them."""
    graph = _with_external_weights(tmp_path)
    (tmp_path / "m.data").unlink()

    path, note = save_with_note(graph, "netron", tmp_path / "copy.onnx")

    assert note.startswith("1 of 1 weights are left out, as ")
    assert note.endswith("m.data' can't be read any more: the file can be looked at, not run")
    assert len([node for node in netron(path)["nodes"] if node["outputs"]]) == len(graph.nodes)


class Large(ir.Tensor):
    """Says that it is larger than it is."""

    nbytes = 3 * 2**30


def test_a_model_beyond_what_a_file_can_hold_is_refused_in_one_sentence():
    """The attachment does without its weights."""
    graph = judged_graph()
    graph.onnx.graph.initializers["w"].const_value = Large(np.zeros((4, 4), np.float32), name="w")

    with pytest.raises(ViewError, match=r"weights are 3.0 GiB, and one ONNX file holds 2: choose the suffix .json"):
        draw(graph, "netron", ".onnx")
    assert json.loads(draw(graph, "netron", ".json").content)["signature"] == "netron:attachment"
