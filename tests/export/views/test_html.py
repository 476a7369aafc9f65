"""The HTML view as a file: what the page is given, and what it can't do."""

import base64
import dataclasses
import hashlib
import json
import math
import random
import re

import pytest

from filch.export import Graph, Node, Value, ViewError
from filch.export.views import draw, plot_graph
from support.views.pages import HOSTILE, compiled, finding, flat, judged, named


def page(graph):
    return draw(graph, "html").content.decode()


def data(text):
    (found,) = re.findall(r'<script type="application/json" id="data">(.*?)</script>', text, re.DOTALL)
    return json.loads(found)


class Reader:
    """Reads the page's data as `page/src/model.js` does, back to names and numbers."""

    def __init__(self, raw):
        self.raw = raw

    def text(self, place):
        return None if place is None else self.raw["strings"][place]

    def texts(self, place):
        return None if place is None else tuple(self.raw["strings"][text] for text in self.raw["lists"][place])

    def number(self, number):
        if isinstance(number, str):
            return int(number) if number.lstrip("-").isdigit() else float(number)
        return number

    def filled(self, members, size):
        return [*members, *[None] * (size - len(members))]

    def value(self, raw):
        name, _, dtype, shape = self.filled(raw, 4)
        return self.text(name), self.text(dtype), self.texts(shape)

    def node(self, raw, values):
        raw = self.filled(raw, 14)
        given = self.texts(raw[8]) or ()
        return {
            "name": self.text(raw[0]),
            "op": self.text(raw[1]),
            "inputs": tuple("" if place is None else values[place] for place in raw[3] or ()),
            "outputs": tuple("" if place is None else values[place] for place in raw[4] or ()),
            "stack": self.texts(raw[5]) or (),
            "module": self.text(raw[6]),
            "source": self.text(raw[7]),
            "attributes": dict(zip(given[::2], given[1::2], strict=True)),
            "origins": self.texts(raw[9]) or (),
            "target": self.text(raw[10]),
            "code": self.text(raw[11]),
            "gradient_of": self.text(raw[12]),
            "captured": tuple(values[place] for place in raw[13] or ()),
        }

    def finding(self, raw, values):
        raw = self.filled(raw, 14)
        measures = dict(zip(self.texts(raw[8]) or (), map(self.number, raw[9] or ()), strict=True))
        numbers = [[self.number(number) for number in of[1:-1]] if of else None for of in raw[11:13]]
        return {
            "value": values[raw[0]],
            "status": self.text(raw[1]),
            "kind": self.text(raw[2]),
            "call": raw[3],
            "first": bool(raw[4]),
            "error": self.number(raw[5]),
            "text": self.text(raw[6]) or "",
            "evidence": self.text(raw[7]) or "",
            "measures": measures,
            "seconds": self.number(raw[10]),
            "statistics": numbers,
            "histogram": raw[13],
        }


def said(name, of):
    """A finding, as `Reader.finding` gives it."""
    fields = ("status", "kind", "call", "first", "error", "text", "evidence", "seconds")
    kinds = ("minimum", "maximum", "mean", "std", "nan", "inf")
    statistics = [each and [getattr(each, kind) for kind in kinds] for each in (of.reference, of.actual)]
    spread = of.histogram
    return {
        "value": name,
        **{field: getattr(of, field) for field in fields},
        "measures": dict(of.measures),
        "statistics": statistics,
        "histogram": spread and [spread.low, spread.high, [*spread.expected], [*spread.actual]],
    }


@pytest.mark.parametrize("graph", [judged(flat(60)), compiled()], ids=["flat", "compiled"])
def test_the_page_has_all_that_the_graph_has(graph):
    """Every node, every value and the modules around them."""
    raw = data(page(graph))
    reader = Reader(raw)

    for drawn, given in zip(raw["graphs"], filter(None, (graph, graph.source_graph)), strict=True):
        values = [reader.value(value) for value in drawn["values"]]
        names = [name for name, _, _ in values]
        assert {name for name in names if name in given.values} == {*given.values}
        for name, dtype, shape in values:
            known = given.values.get(name, Value(name))
            assert (dtype, shape) == (known.dtype, None if known.shape is None else tuple(map(str, known.shape)))
        for made, node in zip((reader.node(node, names) for node in drawn["nodes"]), given.nodes, strict=True):
            stack = tuple(part or "" for frame in node.stack for part in (frame.path, frame.type, frame.source))
            attributes = {name: str(value) for name, value in node.attributes.items()}
            expected = {field: getattr(node, field) for field in made}
            assert made == expected | {"stack": stack, "attributes": attributes}
        assert [names[place] for place in drawn["inputs"]] == [*given.inputs]
        assert [names[place] for place in drawn["outputs"]] == [*given.outputs]


def test_the_page_has_every_number_of_every_finding():
    """Not rounded: it reads back as the very same number."""
    rng = random.Random(7)
    numbers = {f"m{at}": rng.uniform(-1, 1) * 10.0 ** rng.randint(-300, 300) for at in range(50)}
    odd = {"nan": math.nan, "inf": math.inf, "low": -math.inf, "large": 2**63 + 1, "least": 5e-324, "minus": -0.0}
    graph = flat(12)
    found = judged(graph).findings | {"val_3": (finding("different", 0.1 + 0.2, measures=numbers | odd),)}
    raw = data(page(dataclasses.replace(graph, findings=found)))
    reader = Reader(raw)

    (drawn,) = raw["graphs"]
    names = [reader.value(value)[0] for value in drawn["values"]]
    read = [reader.finding(each, names) for each in drawn["findings"]]

    expected = [said(name, each) for name, several in found.items() for each in several]
    # As text: NaN equals itself there, and -0.0 is not 0.0.
    assert [repr(sorted(each.items())) for each in read] == [repr(sorted(each.items())) for each in expected]


def test_findings_of_values_that_the_graph_does_not_know_are_kept():
    """A report may know more than the graph that it is drawn on."""
    graph = dataclasses.replace(flat(3), findings={"elsewhere": (finding("not mapped", None),)})

    raw = data(page(graph))

    (found,) = raw["graphs"][0]["findings"]
    assert Reader(raw).value(raw["graphs"][0]["values"][found[0]])[0] == "elsewhere"


def test_functions_are_drawn_too():
    """Each is a graph of the page, under the operator that calls it."""
    graph = dataclasses.replace(flat(3), functions={"pkg::Gelu": flat(2)})

    graphs = data(page(graph))["graphs"]

    assert [(each["role"], each.get("of")) for each in graphs] == [("graph", None), ("function", "pkg::Gelu")]


@pytest.mark.parametrize("name", HOSTILE.values(), ids=HOSTILE)
def test_no_name_leaves_its_place(name):
    """The data are one script element that holds no `<`, `>` or `&`, and come back as they were."""
    text = page(named(name))

    inner = text.partition('id="data">')[2].partition("</script>")[0]
    assert not set("<>&") & set(inner)
    raw = data(text)
    assert name in raw["strings"] and raw["graphs"][0]["name"] == name
    assert text.count("<script") == 2 and text.count("</script>") == 2 and text.count("<style") == 1


def test_the_policy_knows_our_script_and_our_style_alone():
    """A browser runs nothing else, and loads nothing."""
    text = page(flat(3))
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', text).group(1).replace("&#39;", "'")
    script = re.search(r"<script>(.*?)</script>", text, re.DOTALL).group(1)
    style = re.search(r"<style>(.*?)</style>", text, re.DOTALL).group(1)

    rules = dict(rule.split(" ", 1) for rule in policy.split("; "))

    assert rules == {
        "default-src": "'none'",
        "script-src": digest(script),
        "style-src": digest(style),
        "base-uri": "'none'",
        "form-action": "'none'",
    }


def digest(text):
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def test_the_page_refers_to_nothing_outside_it():
    """The one address in it is SVG's name; nothing has a source, and the style imports nothing."""
    text = page(flat(3))

    assert set(re.findall(r"\w+://[^\"'\s]*", text)) == {"http://www.w3.org/2000/svg"}
    assert not re.search(r"""\b(?:src|href)\s*=|@import|url\(|fetch\(|XMLHttpRequest|import\s*\(|innerHTML""", text)


def test_five_thousand_nodes_with_findings_fit_into_six_megabytes():
    """With statistics and a histogram of each."""
    assert len(draw(judged(flat(5000)), "html").content) < 6e6


def test_long_attributes_are_cut_and_say_so():
    """A table of indices in an attribute would be most of the file."""
    graph = Graph("g", ("x",), ("y",), (), (Node("n", "Op", ("x",), ("y",), {"table": "7" * 10_000}),), {})

    (cut,) = (text for text in data(page(graph))["strings"] if "777" in text)

    assert cut == "7" * 4000 + "… (10,000 characters)"


def test_values_have_the_roles_of_aitemplate():
    """Input, output, weight, view of another value, and what is in between."""
    nodes = (
        Node("a", "MatMul", ("x", "w"), ("h",)),
        Node("b", "aten.view.default", ("h",), ("v",)),
        Node("c", "Relu", ("v",), ("y",)),
    )
    raw = data(page(Graph("g", ("x",), ("y",), ("w",), nodes, {})))
    reader = Reader(raw)

    roles = {reader.value(value)[0]: value[1] for value in raw["graphs"][0]["values"]}

    assert roles == {"h": 0, "v": 1, "x": 2, "y": 3, "w": 4}


def test_plot_graph_writes_what_the_suffix_says(tmp_path):
    """`.html` is the page; another view's suffix, that view's file."""
    graph = flat(3)

    made = plot_graph(graph, tmp_path / "new" / "model.html")

    assert made.read_text() == page(graph)
    assert plot_graph(graph, tmp_path / "model.txt").read_text() == f"{graph}\n"


def test_plot_graph_says_which_suffixes_there_are(tmp_path):
    """A path without a suffix is refused, and nothing is written."""
    with pytest.raises(ViewError, match=r"no view writes files with the suffix of '.*model': use one of .*\.html"):
        plot_graph(flat(3), tmp_path / "model")
    assert not [*tmp_path.iterdir()]


def test_plot_graph_does_not_choose_among_views(tmp_path):
    """A suffix that several views write is the caller's to decide."""
    save = r"filch\.export\.views\.save\(graph, 'hidet', path\)"
    refused = rf"several views write \.json files, .* write {save}, or one of model-explorer, .*netron"

    with pytest.raises(ViewError, match=refused):
        plot_graph(flat(3), tmp_path / "model.json")


def test_a_view_that_is_broken_is_in_nobodys_way(tmp_path, monkeypatch):
    """Another package's fault is no reason not to draw."""
    monkeypatch.setattr("filch.export.views._plot.view_names", lambda: ["broken", "html"])

    assert plot_graph(flat(3), tmp_path / "model.html").exists()


def test_compiled_graphs_fold_where_what_they_were_made_of_stood():
    """A fused node, whose own calls nobody knows, is in the group that all its origins are in."""
    raw = data(page(compiled()))
    reader = Reader(raw)
    groups = [reader.text(group[1]) for group in raw["graphs"][0]["groups"]]

    places = {reader.text(node[0]): node[2] for node in raw["graphs"][0]["nodes"]}

    assert {name: place if place is None else groups[place] for name, place in places.items()} == {
        "fused": "block.linear",
        "act": "block",
    }
