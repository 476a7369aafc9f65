"""Graphs to draw: made by hand, large, judged and hostile."""

import dataclasses
import math
import random

from filch.export import Finding, Graph, Histogram, Node, Value
from filch.export.graph._nodes import Frame
from filch.steal import Statistics

OPS = ("MatMul", "Add", "Mul", "Relu", "Reshape", "Transpose", "Softmax", "LayerNormalization", "Cast")
# Each sets `window.pwned` if any of it is ever read as code or as HTML.
HOSTILE = {
    "script": "</script><script>window.pwned=1;alert(1)</script>",
    "comment": "<!--<script>window.pwned=1",
    "image": '<img src=x onerror="window.pwned=1">',
    "quotes": "\"'`;window.pwned=1;//",
    "template": "${window.pwned=1}`+alert(1)+`",
    "jinja": "{{ 7 * 7 }}{% raw %}",
    "selector": '#a.b[c="d"] > e:f\\',
    "right to left": "\u202eevil\u202d\u2066\u05d0\u05d1\u05d2",
    "emoji": "🦊👩‍👩‍👧‍👦🏳️‍🌈",
    "surrogate": "half \ud83d of one",
    "separators": "a\u2028b\u2029c\u0000d\ne\tf",
    "proto": "__proto__",
    "long": "x" * 10_000,
    "combining": "Z" + "\u0351\u0363\u0489" * 300,
    "entity": "&lt;b&gt;&amp;&#0;",
    "link": "javascript:window.pwned=1",
}


def flat(size: int, *, layers: int = 0) -> Graph:
    """Return a chain with skips and weights, in `layers` of four blocks each, or in no module."""
    rng = random.Random(size)
    values, weights, nodes, made = {"x": Value("x", "float32", (1, 8, 64))}, [], [], ["x"]
    for at in range(size):
        op = rng.choice(OPS)
        inputs = [made[-1]]
        if op in ("Add", "Mul"):
            inputs.append(made[max(0, len(made) - 1 - rng.choice((3, 5, 8, 12, 40)))])
        if op == "MatMul":
            weights.append(f"w{at}")
            inputs.append(weights[-1])
        made.append(f"val_{at}")
        values |= {name: Value(name, "float32", (1, 8, 64)) for name in (*inputs[1:], made[-1])}
        stack = _stack(at * layers // size, at * layers * 4 // size % 4) if layers else ()
        node = Node(
            f"node_{op}_{at}", op, tuple(inputs), (made[-1],), {"axis": -1}, source=f"model.py:{at}", stack=stack
        )
        nodes.append(node)
    return Graph(f"flat {size}", ("x",), (made[-1],), tuple(weights), tuple(nodes), values)


def _stack(layer: int, block: int) -> tuple[Frame, ...]:
    path = f"model.layers.{layer}"
    return (
        Frame("", "pkg.Net"),
        Frame("model", "pkg.Model", "net.py:3"),
        Frame(path, "pkg.Layer", "model.py:7"),
        Frame(f"{path}.block_{block}", "pkg.Block", "layer.py:9"),
    )


def finding(status: str, error: float | None, **more) -> Finding:
    """Return a finding with all fields set."""
    if error is None:
        return Finding(status, text=f"{status}: nothing to hold it against", **more)
    numbers = {"mean_error": error / 7, "absolute": error * 3, "snr": -math.log(error or 1), "count": 512}
    told = {
        "text": f"greatest harmonic error {error:.1e} (up to 1.0e-05 allowed)",
        "evidence": "module",
        "measures": numbers,
        "seconds": 1e-3 / (1 + error),
        "reference": _statistics(0.0),
        "actual": _statistics(error),
        "histogram": Histogram(-3.1, 2.9, _bell(10), _bell(10 + error)),
    }
    return Finding(status, error=error, **(told | more))


def _statistics(shift: float) -> Statistics:
    content = f"{abs(hash(shift)):032x}"
    return Statistics("f32[1, 8, 64]", "float32", (1, 8, 64), -3.1 + shift, 2.9 + shift, shift / 3, 1.01, 0, 0, content)


def _bell(middle: float) -> tuple[int, ...]:
    return tuple(round(100 * math.exp(-(((at - middle) / 4) ** 2))) for at in range(20))


def judged(graph: Graph, *, start: float = 0.4, seed: int = 0) -> Graph:
    """Return the same with a finding for each value: those after `start` of the nodes diverge, some were not judged."""
    rng = random.Random(seed)
    found: dict[str, tuple[Finding, ...]] = {}
    begin = int(start * len(graph.nodes))
    for at, node in enumerate(graph.nodes):
        for value in filter(None, node.outputs):
            if at != begin and rng.random() < 0.06:
                one = finding(rng.choice(("no value", "not mapped")), None)
            elif at >= begin:
                one = finding("different", 10 ** rng.uniform(-4, -1), first=at == begin)
            else:
                one = finding("same", rng.choice((0.0, 10 ** rng.uniform(-9, -6))))
            found[value] = (one,)
    remarks = (
        "judged nearly all values",
        f"the first that differs is {graph.nodes[begin].name}" if graph.nodes else "",
    )
    return dataclasses.replace(graph, findings=found, remarks=remarks)


BLOCK = (Frame("", "pkg.Net"), Frame("block", "pkg.Block", "net.py:3"))
LINEAR = (*BLOCK, Frame("block.linear", "torch.nn.Linear", "block.py:5"))
FORWARD = Graph(
    "exported",
    ("x",),
    ("y",),
    ("weight", "bias"),
    (
        Node("product", "MatMul", ("x", "weight"), ("xw",), stack=LINEAR, source="linear.py:1"),
        Node("sum", "Add", ("xw", "bias"), ("h",), stack=LINEAR, source="linear.py:1"),
        Node("act", "Gelu", ("h",), ("y",), {"approximate": "none"}, stack=BLOCK, source="block.py:6"),
    ),
    {name: Value(name, "float32", ("batch", 4)) for name in ("x", "xw", "h", "y", "weight", "bias")},
)


def compiled() -> Graph:
    """Return a graph of two nodes, one of them fused from two, with findings on it and on its source graph."""
    nodes = (
        Node("fused", "com.microsoft::FusedMatMul", ("x", "weight", "bias"), ("h",), origins=("product", "sum")),
        Node("act", "Gelu", ("h",), ("y",), origins=("act",), code="kernel.cpp:7", target="aten.gelu.default"),
    )
    before = dataclasses.replace(FORWARD, findings={"h": (finding("same", 1e-8),), "y": (finding("same", 2e-8),)})
    found = {"h": (finding("different", 0.25, first=True, kind="fused"),), "y": (finding("different", 0.125),)}
    values = {name: FORWARD.values[name] for name in ("x", "h", "y", "weight", "bias")}
    return Graph(
        "compiled", ("x",), ("y",), ("weight", "bias"), nodes, values, source_graph=before, findings=found,
        remarks=("2 of 2",), close=False,
    )  # fmt: skip


def linked(size: int, layers: int) -> Graph:
    """Return implementation B with A as its reference: B leaves A in the middle, and what is later inherits it."""
    own = flat(size, layers=layers)
    middle = size // 2
    statuses = ("proved", "anchored", "by value", "ambiguous")
    found: dict[str, tuple[Finding, ...]] = {}
    of_own: dict[str, tuple[Finding, ...]] = {}
    for at, node in enumerate(own.nodes):
        (value,) = node.outputs
        told = {"evidence": "why", "places": {value: "transposed"}}
        if at < middle:
            found[value] = of_own[value] = (Finding(statuses[at % len(statuses)], **told),)
        elif at == middle:
            found[value] = (Finding("leaves A", first=True, text="axis is 1, -1 in A", places={value: ""}),)
            of_own[value] = (Finding("not in B"),)
        else:
            found[value] = of_own[value] = (Finding("inherited", evidence="why"),)
    found |= {name: (Finding("found", places={name: "transposed"}),) for name in own.constants[1:]}
    of_own |= found | of_own
    found[own.constants[0]] = (Finding("not found"),)
    of_own[own.constants[0]] = (Finding("unused"),)
    return dataclasses.replace(
        own,
        name="port",
        reference_graph=dataclasses.replace(own, name="original", findings=of_own),
        findings=found,
        remarks=("the outputs differ",),
        close=False,
    )


def folded() -> Graph:
    """Return a graph from which a compiler folded a constant, with the graph before as its source."""
    shape = Node("shape", "Constant", (), ("s",), {"value": "[1, 4]"})
    nodes = (
        shape,
        Node("cast", "Cast", ("s",), ("c",)),
        Node("reshape", "Reshape", ("x", "c"), ("r",)),
        Node("product", "MatMul", ("r", "weight"), ("y",)),
    )
    values = {name: Value(name, "float32", (1, 4)) for name in ("x", "s", "c", "r", "y", "weight")}
    before = Graph("exported", ("x",), ("y",), ("weight",), nodes, values)
    after = tuple(dataclasses.replace(node, origins=(node.name,)) for node in (shape, *nodes[2:]))
    kept = (after[0], dataclasses.replace(after[1], inputs=("x", "s")), after[2])
    return Graph("compiled", ("x",), ("y",), ("weight",), kept, values, source_graph=before)


def named(name: str) -> Graph:
    """Return a graph in which every field for a name has this one."""
    stack = (Frame("", name), Frame(name, name, name), Frame(f"{name}.{name}", name, name))
    node = Node(
        name, name, (f"{name} in", f"{name} w"), (name,), {name: name}, module=name, source=name, target=name,
        code=name, stack=stack, origins=(name,), gradient_of=name,
    )  # fmt: skip
    values = {each: Value(each, name, (name, 3)) for each in (f"{name} in", f"{name} w", name)}
    found = {name: (dataclasses.replace(finding("different", 0.5, first=True), text=name, evidence=name, kind=name),)}
    graph = Graph(name, (f"{name} in",), (name,), (f"{name} w",), (node,), values, findings=found, remarks=(name,))
    return dataclasses.replace(graph, source_graph=graph, functions={name: graph})


def named_pair(name: str) -> Graph:
    """Return implementation B, with A as its reference, in which every field for a name has this one."""
    graph = dataclasses.replace(named(name), source_graph=None, functions={})
    found = {name: (Finding("leaves A", first=True, text=name, evidence=name, places={name: name}),)}
    graph = dataclasses.replace(graph, findings=found)
    return dataclasses.replace(graph, reference_graph=graph)


def table(page) -> list[list[str]]:
    """Return all rows, by scrolling: numbers as the page keeps them, other cells as text."""
    rows = page.run("""(async () => {
        const scroller = document.querySelector(".scroller"), found = new Map();
        for (let at = 0; ; at += scroller.clientHeight + 200) {  // as many more are made above and below
            scroller.scrollTop = at;
            await new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)));
            for (const row of document.querySelectorAll(".rows tbody tr:not(.space)"))
                found.set(Number(row.ariaRowIndex),
                    [...row.cells].map((cell) => cell.querySelector("data")?.dataset.value ?? cell.textContent));
            if (at + scroller.clientHeight >= scroller.scrollHeight) return [...found];
        }
    })()""")
    return [row for _, row in sorted(rows)]


def headers(page) -> list[str]:
    return page.run("[...document.querySelectorAll('.rows th')].map((cell) => cell.dataset.name)")
