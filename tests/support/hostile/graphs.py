"""Graphs whose every text would like to be more than text: what views and pages have to show and never obey."""

from collections.abc import Mapping

import onnx_ir as ir

from filch.export import Finding, Graph, Histogram, Node, Value
from filch.export.graph._nodes import Frame

LONG = "long" * 2500
TEXTS = {
    "script": "</script><script>alert(1)</script>",
    "image": "<img src=x onerror=alert(1)>",
    "quotes": "it's \"quoted\" 'twice'",
    "ticks": "`${alert(1)}` ${x} {{x}} {% x %}",
    "backslashes": r"\N \n \l \G \\ C:\new\table",
    "lines": "two\nlines\r\tand a tab",
    "html": "<b>bold</b> &amp; <TABLE>",
    "comment": "-->]]>*/ # // --",
    "brackets": '{a|<b>}; [c="d"] -> e',
    "rtl": "\u202eevil\u2066\u200f",
    "emoji": "\U0001f525 \U0001f469\u200d\U0001f4bb",
    "surrogate": "lone \ud800 surrogate",
    "controls": "nul \x00 bell \x07 escape \x1b[31m",
    "path": "../../../etc/passwd",
    "formula": '=HYPERLINK("x")',
    "prototype": "__proto__",
    "empty": " ",
    "title": "\x1b]0;owned\x07 \x9b31m",  # OSC and the C1 form of CSI
    "erase": "good\x1b[2K\rbad\x08\x08\x7f",
    "separators": "a\u2028b\u2029c\x85d\x0be\x0cf",
    "isolates": "\u2067\u202a\u200e\ufeff\u00ad\U000e0041",
    "noncharacter": "\ufffe \uffff \ufdd0",
    "link": "[l](javascript:alert(1)) ![i](https://evil.example/x.png) <https://evil.example>",
    "mention": "@everyone #1 https://evil.example www.evil.example",
    "address": "_www.evil.example x_www.evil.example a@evil.example mailto:a@evil.example",
    "indented": "    code",
    "table": "|x|\n|---|\n# h1",
    "code": "``` `` ` ~~~",
    "emphasis": "**b** __init__ ~~s~~ $m$ :smile:",
    "reference": "[ref]: https://evil.example",
    "list": "- a\n1. b",
    "command": "=cmd|' /C calc'!A0",
    "sum": "@SUM(1+1)*cmd|' /C calc'!A0",
    "plus": "+1+1",
    "minus": "-2+3+cmd|' /C calc'!A0",
    "full width": "\uff1d1+1",
    "tab": "\t=1+1",
    "rich": "[link=https://evil.example]x[/link] [red]y[/] [/]",
    "docstring": '"""\nimport os; os.system("touch canary")\n"""',
    "percent": "%n %s %(x)s {0} {compute}",
    "dot": 'x"]; evil [label="\\N"',
    "xml": "]]><svg onload=alert(1)/><!--",
    "long": LONG,
}


def hostile_graph() -> Graph:
    """Return a chain with a node for each text, used as name, operator, module, class, source, attribute and value.

    What it reads first is an input, and each node a constant beside; each value has a finding that says the text, and
    the graph that it was made of has the same names.
    """
    return _graph(TEXTS, source_graph=_graph(TEXTS, source_graph=None))


def hostile_model() -> ir.Model:
    """Return an ONNX model of such a chain of Relu, without texts that protobuf refuses as invalid Unicode."""
    texts = {key: text for key, text in TEXTS.items() if key != "surrogate"}
    floats = ir.TensorType(ir.DataType.FLOAT)
    value = ir.Value(name="input of " + texts["script"], shape=ir.Shape([2]), type=floats)
    inputs, nodes = [value], []
    for text in texts.values():
        node = ir.Node("", "Relu", [value], name=text)
        node.outputs[0].name = f"value of {text}"
        node.metadata_props["pkg.torch.onnx.name_scopes"] = repr(["", text, "relu"])
        node.metadata_props["pkg.torch.onnx.class_hierarchy"] = repr([text, text, "aten.relu"])
        nodes.append(node)
        value = node.outputs[0]
    value.shape, value.type = ir.Shape([2]), floats
    graph = ir.Graph(inputs, [value], nodes=nodes, name=texts["html"], opset_imports={"": 18})
    return ir.Model(graph, ir_version=10, producer_name=texts["script"])


def _graph(texts: Mapping[str, str], source_graph: Graph | None) -> Graph:
    nodes: list[Node] = []
    last = "input of " + texts["script"]
    inputs = (last,)
    for number, text in enumerate(texts.values()):
        nodes.append(_node(text, last, number))
        last = nodes[-1].outputs[0]
    values = [name for node in nodes for name in (*node.inputs, *node.outputs)]
    return Graph(
        name=texts["script"],
        inputs=inputs,
        outputs=(last, *inputs),
        constants=tuple(node.inputs[1] for node in nodes),
        nodes=tuple(nodes),
        values={name: Value(name, name, (3, name, None)) for name in values},
        source_graph=source_graph,
        findings={node.outputs[0]: (_finding(node.name, number),) for number, node in enumerate(nodes)},
        remarks=tuple(texts.values()),
    )


def _node(text: str, read: str, number: int) -> Node:
    return Node(
        name=text,
        op=text,
        inputs=(read, f"constant of {text}", ""),
        outputs=(f"value of {text}",),
        attributes={text: text, "list": [text, 1, 2.5], "number": number},
        module=text,
        source=f"{text}:{number}",
        target=text,
        code=f"{text}:{number}",
        stack=(Frame("", text), Frame(text, text, f"{text}:1"), Frame(f"{text}.inner", text)),
        origins=(text, "no such node"),
        gradient_of=text,
    )


def _finding(text: str, number: int) -> Finding:
    return Finding(
        status=("same", "different", "shape or dtype differs", "no value", "not mapped")[number % 5],
        error=(1.25e-7 * (number + 1), float("nan"), float("inf"), None)[number % 4],
        first=number == 1,
        text=text,
        evidence=text,
        measures={text: number / 7, "max_abs": float("nan")},
        seconds=number * 1.1e-5,
        histogram=Histogram(-1.5, 2.5, (1, 2, 3), (3, 2, 1)),
    )
