"""The HTML view in a browser, from disk and without a network: what people do with it, with mouse and keys."""

import dataclasses
import re
import time
from itertools import pairwise
from xml.etree import ElementTree as ET

import pytest
import torch

from filch.export import Graph, Node, Value, as_graph
from filch.export.views import plot_graph
from support.models.zoo import ZOO
from support.views.chromium import missing
from support.views.pages import FORWARD, HOSTILE, compiled, finding, flat, folded, headers, judged, named, table

pytestmark = [
    pytest.mark.skipif(missing() is not None, reason=str(missing())),
    pytest.mark.usefixtures("complains_of_nothing"),
]
SHOWN = "[...document.querySelectorAll('svg.graph .box:not(.far)')].map((box) => box.dataset)"
OPENED = "document.querySelectorAll('.box.open').length"
TITLE = ".panel h2"
FIRST = 24  # the node at which `deep` diverges


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """The pages that several tests open."""
    folder = tmp_path_factory.mktemp("pages")
    graphs = {
        "plain": flat(60, layers=3),
        "deep": judged(flat(60, layers=3)),
        "compiled": compiled(),
        "large": judged(flat(5000, layers=32)),
        "flat": judged(flat(5000)),
    }
    graphs["folded"] = folded()
    for name, graph in graphs.items():
        plot_graph(graph, folder / f"{name}.html")
    return folder


def deep():
    return judged(flat(60, layers=3))


def graph_keys(page, *keys):
    """Presses keys where the graph has the focus."""
    page.run("document.querySelector('svg.graph').focus()")
    for key in keys:
        page.press(key)


def names(page):
    """The lines of text of all boxes in sight."""
    return page.run("[...document.querySelectorAll('text.op')].map((text) => text.textContent)")


def sort_by(page, title):
    page.run(
        f"[...document.querySelectorAll('.rows th')].find((cell) => cell.dataset.name === '{title}').firstChild.click()"
    )
    page.settle()


def choose(page, label, option):
    element = f"document.querySelector('[aria-label=\"{label}\"]')"
    page.run(f"{element}.value = '{option}'; {element}.dispatchEvent(new Event('change'))")
    page.settle()


def test_a_graph_is_drawn_from_disk(page, files):
    """Boxes for the layers, a label for the input, and lines between them."""
    page.open(files / "plain.html")

    assert {"model", "layers.0"} <= {*names(page)}
    assert page.run("document.querySelectorAll('.edge .line').length") > 3
    assert "60 operations" in page.text(".panel")


def test_no_boxes_lie_upon_each_other(page, files):
    """Neither folded nor opened, with and without values and weights: each is beside, around or inside another."""
    page.open(files / "plain.html")
    crossing = """(() => {
      const boxes = filch.active.arrangement.boxes;
      const above = (a, b) => a.y + a.h <= b.y;
      const beside = (a, b) => a.x + a.w <= b.x;
      const apart = (a, b) => above(a, b) || above(b, a) || beside(a, b) || beside(b, a);
      const within = (a, b) => a.x >= b.x && a.y >= b.y && a.x + a.w <= b.x + b.w && a.y + a.h <= b.y + b.h;
      const wrong = (a, at) => boxes.slice(at + 1).filter((b) => !apart(a, b) && !within(b, a));
      return boxes.flatMap((a, at) => wrong(a, at).map((b) => [a.item.name, b.item.name]));
    })()"""

    for key in ("c", "o", "o", "v", "w", "o"):
        graph_keys(page, key)
        assert page.run("filch.active.arrangement.boxes.length") > 1
        assert page.run(crossing) == []


def test_lines_go_around_boxes(page, files):
    """No line of a value runs through a box that does not read it."""
    page.open(files / "plain.html")
    through = """(() => {
      const { boxes, edges } = filch.active.arrangement;
      const solid = boxes.filter((box) => box.kind !== "open");
      const steps = [...Array(41).keys()].map((step) => step / 40);
      // Straight down, in a curve (a cubic whose ends are upright), and straight down again.
      const points = ([x1, y1, bend, x2, end, y2]) => steps.flatMap((t) => [
        [x1, y1 + t * (bend - y1)],
        [x1 + (x2 - x1) * t * t * (3 - 2 * t), bend + (end - bend) * (1.5 * t * (1 - t) + t ** 3)],
        [x2, end + t * (y2 - end)],
      ]);
      const inside = (box, [x, y]) => x > box.x + 1 && x < box.x + box.w - 1 && y > box.y + 1 && y < box.y + box.h - 1;
      const hit = (point) => solid.filter((box) => inside(box, point)).map((box) => box.item.name);
      return edges.flatMap((edge) => edge.runs.flatMap(points).flatMap(hit));
    })()"""

    for key in ("c", "o", "o", "o", "v"):
        graph_keys(page, key)
        assert page.run("filch.active.arrangement.edges.length") > 1
        assert page.run(through) == []


def test_types_on_lines_do_not_run_into_each_other(page, tmp_path):
    """Of operations side by side, each type ends before the next one begins."""
    names = [f"y{at}" for at in range(6)]
    values = {name: Value(name, "float32", (1, 64, 112, 112)) for name in ("x", "z", *names)}
    nodes = [*(Node(name, "Neg", ("x",), (name,)) for name in names), Node("all", "Sum", (*names,), ("z",))]
    page.open(plot_graph(Graph("wide", ("x",), ("z",), (), tuple(nodes), values), tmp_path / "wide.html"))
    page.run("filch.active.center(filch.active.boxOf(filch.data.main.nodes[2]), false)")
    page.run("filch.active.zoom(1 / filch.active.view.k, 0, 0, false)")

    types = page.run(
        "[...document.querySelectorAll('text.type')].map((text) => text.getBoundingClientRect())"
        ".map(({ left, right, top }) => [Math.round(top), left, right]).sort((a, b) => a[0] - b[0] || a[1] - b[1])"
    )

    beside = [(one, two) for one, two in pairwise(types) if one[0] == two[0]]
    assert len(beside) >= 3
    assert all(one[2] <= two[1] for one, two in beside)


def test_a_double_click_opens_a_layer_and_closes_it(page, files):
    """What is in it is drawn, and gone again; so with its sign."""
    page.open(files / "plain.html")
    graph_keys(page, "c", "f")
    before = page.run(OPENED)

    page.click(".box.group", times=2)
    assert page.run(OPENED) == before + 1
    page.click(".heading .fold")
    assert page.run(OPENED) == before
    page.click(".box.group .fold")
    assert page.run(OPENED) == before + 1


def test_two_taps_open_a_layer(page, files):
    """Where a browser does not count a finger's taps, too; two with a while between them only select."""
    page.open(files / "plain.html")
    graph_keys(page, "c", "f")
    left, top, width, height = page.box(".box.group")
    tap = (
        "filch.active.svg.dispatchEvent(new PointerEvent('click', "
        f"{{ detail: 1, clientX: {left + width / 2}, clientY: {top + height / 2} }}))"
    )

    page.run(tap)
    page.run("new Promise((done) => setTimeout(done, 500))")
    page.run(tap)
    assert page.run(OPENED) == 0
    page.run(tap)

    assert page.run(OPENED) == 1


def test_enter_opens_what_is_selected(page, files):
    """All that the mouse does, the keys do."""
    page.open(files / "plain.html")
    graph_keys(page, "c", "f")
    page.click(".box.group", dx=60)

    page.press("Enter")

    assert page.run(OPENED) == 1


def test_a_click_says_all_of_a_node(page, files):
    """Operator, name, modules, attributes, source, inputs and outputs with their types."""
    page.open(files / "plain.html")
    graph_keys(page, "o", "o", "o")
    node = page.run(f"{SHOWN}.find((box) => box.node).node")
    page.click(f'.box.node[data-node="{node}"]')
    graph = flat(60, layers=3)
    given = graph.nodes[int(node)]

    told = page.text(".panel")

    assert page.text(TITLE) == given.op
    assert all(text in told for text in (given.name, given.source, *given.inputs, *given.outputs, "axis"))
    assert str(graph.values[given.outputs[0]]) in told
    assert all(frame.path in told and frame.type in told for frame in given.stack)


def test_inputs_lead_to_what_made_them(page, files):
    """Links of the panel select, and so do the keys that follow the data."""
    page.open(files / "plain.html")
    page.run("filch.select(filch.data.main.nodes[5], { move: true })")

    page.press("j")
    assert page.run("filch.selected.id") == 6
    page.press("k")
    page.run(
        "[...document.querySelectorAll('.panel button.link')].find((link) => link.textContent === 'val_4').click()"
    )
    assert page.text(TITLE) == "val_4"


def test_searching_finds_and_opens(page, files):
    """Any part of a name, in any case; Enter goes there, through closed layers."""
    page.open(files / "plain.html")
    graph_keys(page, "c", "/")

    page.type("LAYERS.2.BLOCK_1")
    found = page.run("document.querySelectorAll('.found [role=option]').length")
    page.press("ArrowDown")
    page.press("ArrowDown")
    chosen = page.text(".found [aria-selected=true] .name")
    page.press("Enter")

    assert found > 3
    assert page.text(".panel h2").startswith(chosen) or chosen in page.text(".panel")
    assert page.run("filch.active.boxOf(filch.selected) !== undefined")
    graph_keys(page, "/")
    page.run("filch.search.input.value = ''")
    page.type("nothing is called so")
    assert "No name contains this text." in page.text(".found")


@pytest.mark.parametrize("width", [400, 700, 1000, 1280, 1920])
def test_what_was_found_is_on_the_screen(page, files, width):
    """The list is wider than what is typed into, and cut off at no side of it."""
    page.open(files / "compiled.html")
    page.resize(width, 800)
    graph_keys(page, "/")

    page.type("m")

    left, _, wide, _ = page.box(".found")
    assert left >= 0
    assert left + wide <= width


def test_colors_follow_the_choice(page, files):
    """By operator, module, error, status and time, each with its legend."""
    page.open(files / "deep.html")
    assert page.run("filch.colors.mode") == "error"

    seen = set()
    for mode in page.run("filch.colors.modes"):
        choose(page, "Color by", mode)
        seen.add((page.text(".legend"), page.run("document.querySelector('.box.node').getAttribute('class')")))

    assert len(seen) == 5


def test_slow_nodes_have_aitemplates_classes(page, tmp_path):
    """Over the 70th, the 90th and the 95th percentile of the times."""
    graph = flat(101)
    times = {node.outputs[0]: (finding("same", 0.0, seconds=(at + 1) / 1e3),) for at, node in enumerate(graph.nodes)}
    page.open(plot_graph(dataclasses.replace(graph, findings=times), tmp_path / "times.html"))
    page.run("filch.setColorMode('time')")

    classes = page.run("filch.data.main.nodes.map((node) => Number(filch.colors.classOf(node).slice(-1)))")

    assert classes == [0] * 70 + [1] * 20 + [2] * 5 + [3] * 6
    page.run("filch.select(filch.data.main.nodes[70])")
    assert "takes 71 ms" in page.text(".panel")


def test_a_report_begins_at_the_first_divergence(page, files):
    """Its remarks on top, the way to it opened, and all that was measured beside it."""
    page.open(files / "deep.html")
    graph = deep()
    (found,) = graph.findings[f"val_{FIRST}"]

    assert [*filter(None, page.text(".remarks").splitlines())] == [*graph.remarks]
    assert page.run("filch.selected.id") == FIRST
    left, top, width, height = page.box(f'.box.node[data-node="{FIRST}"]')
    assert 0 < left < left + width < 910 and 60 < top < top + height < 560
    told = page.text(".panel")
    assert all(text in told for text in ("first divergence", found.text, *found.measures, "reference", "std"))
    numbers = page.run("[...document.querySelectorAll('.finding data')].map((each) => Number(each.dataset.value))")
    assert {found.error, *found.measures.values(), found.seconds, found.actual.maximum, found.histogram.low} <= {
        *numbers
    }
    assert page.run("document.querySelectorAll('.histogram path').length") == 2


def test_the_path_goes_on_from_the_first_divergence(page, files):
    """What it reaches through values that are wrong or unknown is lit, the rest is dim."""
    page.open(files / "deep.html")
    graph_keys(page, "d", "p")

    lit = page.run("[...filch.path].filter((thing) => thing.kind === 'node').map((node) => node.id)")
    dim = page.run(
        "[...document.querySelectorAll('.box.node')]"
        ".map((box) => [Number(box.dataset.node), box.classList.contains('dim')])"
    )

    assert min(lit) == FIRST and 59 in lit
    assert all(place not in lit for place in range(FIRST))
    assert dim and all((place not in lit) == faint for place, faint in dim)
    page.press("p")
    assert page.run("document.querySelectorAll('.dim').length") == 0


def test_all_numbers_of_the_table_are_the_reports(page, tmp_path):
    """Each is read back from the page, by scrolling through all rows, and is the very number of its finding."""
    graph = judged(flat(1500, layers=8))
    page.resize(1280, 2000)
    page.open(plot_graph(graph, tmp_path / "numbers.html"))

    rows = [dict(zip(headers(page), row, strict=True)) for row in table(page)]

    assert len(rows) == 1500
    for at, (row, (value, (found,))) in enumerate(zip(rows, graph.findings.items(), strict=True)):
        node = graph.nodes[at]
        assert (row["#"], row["value"], row["operator"], row["status"]) == (str(at), value, node.op, found.status)
        expected = {"error": found.error, **found.measures, "seconds": found.seconds}
        for name in ("error", "mean_error", "absolute", "snr", "count", "seconds"):
            number = expected.get(name)
            assert (float(row[name]) == number) if number is not None else row[name] == ""


def test_the_table_sorts_by_a_click(page, files):
    """Numbers from the largest, then from the least; what has none is last."""
    page.open(files / "deep.html")
    column = headers(page).index("error")
    errors = [found.error for (found,) in deep().findings.values()]
    known = sorted(error for error in errors if error is not None)

    sort_by(page, "error")
    falling = [row[column] for row in table(page)]
    sort_by(page, "error")
    rising = [row[column] for row in table(page)]

    assert [float(text) for text in falling if text] == known[::-1]
    assert [float(text) for text in rising if text] == known
    blanks = errors.count(None)
    assert blanks and falling[-blanks:] == rising[-blanks:] == [""] * blanks


def test_the_table_filters(page, files):
    """By text and by status; a click on a row selects what it is of."""
    page.open(files / "deep.html")
    page.run("document.querySelector('[aria-label=\"Filter rows\"]').focus()")
    page.type("layers.2.block_3")
    shown = [dict(zip(headers(page), row, strict=True)) for row in table(page)]
    choose(page, "Status", "different")
    wrong = table(page)

    assert shown and all(row["module"] == "model.layers.2.block_3" for row in shown)
    assert 0 < len(wrong) <= len(shown) and f"{len(wrong)} of 60 rows" in page.text(".table .bar")
    page.run("document.querySelector('.scroller').scrollTop = 0")
    page.click(".rows tbody tr:not(.space)", dx=100)
    assert page.run("filch.selected.id") == int(wrong[0][headers(page).index("#")])


def test_the_plot_of_errors_selects(page, files):
    """One dot for each finding; a click on one selects its node, hovering says what it is."""
    page.open(files / "deep.html")

    assert page.run("filch.plot.dots.length") == 60
    x, y = page.run("(({ x, y }) => [x, y])(filch.plot.dots.find((dot) => dot.finding.order === 50))")
    left, top, *_ = page.box(".errors")
    page.mouse("mouseMoved", left + x, top + y)
    page.settle()
    assert "node_" in page.text(".tooltip")
    page.click(".errors", dx=x, dy=y)
    assert page.run("filch.selected.id") == 50


def test_headings_stand_above_their_graphs(page, files):
    """Side by side, what a graph begins with is not under the name of its frame."""
    page.open(files / "compiled.html")
    page.press("Escape")
    page.press("s")

    for place in (1, 2):
        for key in ("c", "f"):
            page.run(f"filch.activate([...filch.panes.values()].at(-{place}))")
            page.press(key)
            _left, top, width, height = page.box(f".pane:nth-last-of-type({place}) h2")
            highest = page.run(
                f"Math.min(...[...document.querySelectorAll('.pane:nth-last-of-type({place}) .box')]"
                ".map((box) => box.getBoundingClientRect().y))"
            )
            assert width > 0
            assert top + height < highest


def test_both_graphs_stand_side_by_side(page, files):
    """A fused node marks the two that it was made of, and each of these says what it became."""
    page.open(files / "compiled.html")
    graph_keys(page, "s")

    assert page.run("document.querySelectorAll('svg.graph').length") == 2
    page.run("filch.select(filch.data.main.nodes[0], { move: true })")
    page.settle()
    marked = page.run("[...document.querySelectorAll('.box.node.marked')].map((box) => box.dataset.node)")
    assert sorted(marked) == ["0", "1"] and "Fused from 2" in page.text(".panel")
    page.run("filch.select(filch.data.before.nodes[1], { move: true })")
    assert "Fused into" in page.text(".panel") and "FusedMatMul" in page.text(".panel")
    graph_keys(page, "s")
    assert page.run("document.querySelectorAll('svg.graph').length") == 1


def test_values_and_weights_are_drawn_on_request(page, tmp_path):
    """In AITemplate's manner: tensors between operations, and what they read, in their roles."""
    page.resize(1280, 1600)
    page.open(plot_graph(FORWARD, tmp_path / "forward.html"))
    graph_keys(page, "o", "o")
    boxes = (
        "filch.active.arrangement.boxes.filter((box) => box.kind === 'value')"
        ".map((box) => [box.item.name, box.role]).sort()"
    )

    assert page.run(boxes) == [["x", "input"], ["y", "output"]]
    page.press("v")
    page.press("w")
    assert page.run(boxes) == [
        ["bias", "parameter"],
        ["h", "intermediate"],
        ["weight", "parameter"],
        ["x", "input"],
        ["xw", "intermediate"],
        ["y", "output"],
    ]
    colors = page.run("[...document.querySelectorAll('.box.value .card')].map((card) => getComputedStyle(card).stroke)")
    assert len({*colors}) == 4


def test_what_one_looks_at_stays_when_values_come(page, files):
    """The graph grows around the operation in the middle of the frame, and shrinks so."""
    page.open(files / "plain.html")
    graph_keys(page, "o", "o", "o")
    page.run("filch.active.center(filch.active.boxOf(filch.data.main.nodes[40]), false)")
    place = (
        "(({ x, y }, view) => [x * view.k + view.x, y * view.k + view.y])"
        "(filch.active.boxOf(filch.data.main.nodes[40]), filch.active.view)"
    )
    before = page.run(place)

    for key in ("v", "w", "v", "w"):
        graph_keys(page, key)
        assert page.run(place) == pytest.approx(before)


def test_wheel_drag_and_keys_move_the_graph(page, files):
    """The point under the mouse stays where it is while the wheel zooms."""
    page.open(files / "plain.html")
    view = "(({ k, x, y }) => [k, x, y])(filch.active.view)"
    k, x, y = page.run(view)

    page.mouse("mouseWheel", 300, 300, deltaX=0, deltaY=-100)
    page.settle()
    closer, *there = page.run(view)
    top = page.box("svg.graph")[1]
    assert closer > k and there[0] == pytest.approx(300 - (300 - x) * closer / k)
    assert there[1] == pytest.approx(300 - top - (300 - top - y) * closer / k)
    page.mouse("mousePressed", 300, 300, button="left", buttons=1)
    page.mouse("mouseMoved", 320, 340, button="left", buttons=1)
    page.mouse("mouseMoved", 340, 360, button="left", buttons=1)
    page.mouse("mouseReleased", 340, 360, button="left")
    assert page.run(view) == pytest.approx([closer, there[0] + 40, there[1] + 60])
    graph_keys(page, "ArrowLeft", "-")
    assert page.run(view)[0] < closer
    page.press("f")
    assert page.run("filch.active.arrangement.height * filch.active.view.k < filch.active.view.height")


def test_the_keys_reach_everything(page, files):
    """Tab goes from control to control, visibly, and `?` lists the keys."""
    page.open(files / "deep.html")
    focus, seen = "document.activeElement", []
    for _ in range(30):
        page.press("Tab")
        seen.append(page.run(f"{focus}.ariaLabel || {focus}.innerText || {focus}.className"))
        assert page.run(f"{focus} === document.body || getComputedStyle({focus}).outlineStyle !== 'none'")

    assert {"Search nodes, values and modules", "Path", "Color by", "Filter rows"} <= {*seen}
    assert any(text.startswith("Graph ") for text in seen)
    graph_keys(page, "?")
    assert page.run("document.querySelector('dialog').open") and "first divergence" in page.text("dialog")
    page.press("Escape")
    assert not page.run("document.querySelector('dialog').open")


def test_dark_and_light_follow_the_reader(page, files):
    """The system's choice, until the toggle says otherwise."""
    page.open(files / "plain.html")
    paper = "getComputedStyle(document.body).backgroundColor"
    light = page.run(paper)

    page.dark()
    dark = page.run(paper)
    graph_keys(page, "l")

    assert light != dark and page.run(paper) == light


@pytest.mark.parametrize("width", [400, 1280, 2400])
def test_nothing_is_cut_off_at_any_width(page, files, width):
    """No part of the page is wider than the window; panes and panel find their place."""
    page.resize(width, 800)
    page.open(files / "compiled.html")
    graph_keys(page, "s")

    assert page.run("document.documentElement.scrollWidth") <= width
    frames = page.run(
        "[...document.querySelectorAll('svg.graph, .panel, .scroller')]"
        ".map((part) => part.getBoundingClientRect().toJSON())"
    )
    assert all(frame["left"] >= 0 and frame["right"] <= width + 1 and frame["height"] > 40 for frame in frames)
    assert frames[1]["top" if width == 400 else "left"] > frames[0]["top" if width == 400 else "left"]


def test_paper_gets_the_graph_and_all_rows(page, files, tmp_path):
    """What is drawn is fitted onto a page; the table has all its rows; afterwards all is as before."""
    page.open(files / "deep.html")
    view = page.run("({ ...filch.active.view })")
    page.run(
        "addEventListener('beforeprint', () => (window.printed = ['.rows tbody tr:not(.space)', '.box']"
        ".map((part) => document.querySelectorAll(part).length)))"
    )

    page.print(tmp_path / "page.pdf")

    rows, boxes = page.run("window.printed")
    assert rows == 60 and boxes == page.run("filch.active.arrangement.boxes.length")
    assert (tmp_path / "page.pdf").stat().st_size > 10_000
    assert page.run("({ ...filch.active.view })") == view


@pytest.mark.parametrize("kind", HOSTILE)
def test_hostile_names_do_nothing(page, tmp_path, kind):
    """Whatever has such a name: it is shown as it is, nothing of it runs, and the page keeps its shape."""
    name = HOSTILE[kind]
    page.open(plot_graph(named(name), tmp_path / "hostile.html"))

    graph_keys(page, "o", "o", "v", "w", "s", "o", "o")
    page.run("filch.select(filch.data.main.nodes[0], { move: true })")
    page.run("filch.search.input.focus()")
    page.type(name[:20])
    page.press("Enter")
    for thing in ("groups[0]", "inputs[0]", "nodes[0]"):
        page.run(f"filch.select(filch.data.main.{thing}, {{ move: true }})")

    assert page.run("window.pwned") is None
    assert page.run("document.querySelectorAll('img, iframe, object').length") == 0
    assert page.run("document.querySelectorAll('script').length") == 2
    assert page.run("document.documentElement.scrollWidth") <= 1280
    shown = page.run(f"document.querySelector('{TITLE} bdi').textContent")
    assert shown == name.encode("utf-16", "surrogatepass").decode("utf-16", "replace") or "\ud83d" in name
    over = """[...document.querySelectorAll('.box text')].map((text) => {
      const { x, width } = text.getBBox();
      return x + width - text.parentNode.querySelector('.card').getBBox().width;
    })"""
    assert max(page.run(over)) < 1


@pytest.mark.parametrize(("close", "status", "badge"), [(True, "same", "✓ close"), (False, "no value", "? not close")])
def test_the_verdict_is_a_badge(page, tmp_path, close, status, badge):
    """In words and with a sign, not by color alone."""
    found = {"y": (finding(status, 0.0 if close else None),)}
    page.open(plot_graph(dataclasses.replace(FORWARD, findings=found, close=close), tmp_path / "judged.html"))

    assert page.text(".verdict") == badge


def test_without_a_comparison_there_is_no_verdict(page, files):
    """And no room for it."""
    page.open(files / "plain.html")

    assert page.run("document.querySelector('.verdict, .remarks')") is None


@pytest.mark.parametrize("dark", [False, True])
def test_the_badge_can_be_read(page, files, dark):
    """Its text has a contrast of at least 4.5 in light and in dark."""
    page.dark(dark=dark)
    page.open(files / "deep.html")

    badge = page.run(
        "(({ color, backgroundColor }) => [color, backgroundColor])(getComputedStyle(document.querySelector('.badge')))"
    )

    assert contrast(*badge) >= 4.5
    assert page.text(".badge") == "✗ different"


def test_the_first_divergence_is_a_link(page, files):
    """It selects the node and brings it into sight, wherever the reader is, in whichever graph."""
    page.open(files / "deep.html")
    graph_keys(page, "Escape", "c", "f")

    page.click(".culprit")

    assert page.run("filch.selected.id") == FIRST
    left, top, width, height = page.box(f'.box.node[data-node="{FIRST}"]')
    assert 0 < left < left + width < 910 and 100 < top < top + height < 560


@pytest.mark.parametrize("width", [390, 820, 1280])
def test_a_long_headline_is_shown_whole(page, tmp_path, width):
    """And the other remarks on request, if they are cut."""
    headline = "; ".join(f"judged {at} of {at} exported values" for at in range(8))
    remarks = (headline, *("The exported graph is already wrong. " * 9 for _ in range(2)))
    page.resize(width, 844)
    page.open(plot_graph(dataclasses.replace(deep(), remarks=remarks), tmp_path / "long.html"))
    cut = "(({ scrollHeight, clientHeight }) => scrollHeight > clientHeight)(document.querySelector('.remarks %s'))"

    assert not page.run(cut % ".headline")
    assert page.text(".remarks .headline") == headline
    assert page.run(cut % ".others")
    before = page.box(".remarks .others")[3]
    page.click(".remarks .more")
    assert page.box(".remarks .others")[3] > before + 20
    assert not page.run(cut % ".others")


def test_keys_of_the_panel_do_not_break_within_words(page, files):
    """Each is as high as one line, next to a long content."""
    page.open(files / "compiled.html")
    page.run("filch.select(filch.data.main.nodes[1])")

    broken = page.run(
        "[...document.querySelectorAll('.panel .facts th')].filter((cell) => /^\\S+$/.test(cell.innerText))"
        ".map((cell) => [cell.innerText, cell.getBoundingClientRect().height]).filter(([, height]) => height > 30)"
    )
    names_shown = page.run("[...document.querySelectorAll('.panel .facts th')].map((cell) => cell.innerText)")

    assert "translates" in names_shown
    assert broken == []


def test_the_minimap_moves_the_view(page, files):
    """A click moves there, a drag goes on; the frame is where the view is; it is gone while all is visible."""
    page.open(files / "large.html")
    graph_keys(page, "o")
    middle = "((view) => (view.height / 2 - view.y) / view.k / filch.active.arrangement.height)(filch.active.view)"
    _left, top, width, height = page.box(".minimap canvas")

    page.click(".minimap", dx=width / 2, dy=height * 0.75)
    assert page.run(middle) == pytest.approx(0.75, abs=0.02)
    _, frame_top, _, frame_height = page.box(".minimap .frame")
    assert frame_top + frame_height / 2 == pytest.approx(top + height * 0.75, abs=4)
    left, *_ = page.box(".minimap canvas")
    page.mouse("mousePressed", left + width / 2, top + height / 2, button="left", buttons=1, clickCount=1)
    page.mouse("mouseMoved", left + width / 2, top + height / 4, button="left", buttons=1)
    page.mouse("mouseReleased", left + width / 2, top + height / 4, button="left")
    assert page.run(middle) == pytest.approx(0.25, abs=0.02)
    page.press("f")
    assert page.run("getComputedStyle(document.querySelector('.minimap')).visibility") == "hidden"
    page.resize(390, 844)
    assert page.run("getComputedStyle(document.querySelector('.minimap')).display") == "none"


def test_the_minimap_stays_in_its_pane(page, files):
    """Above the buttons, also side by side; where there is no room for it, there is no minimap."""
    page.open(files / "compiled.html", "#graph=0&both")
    parts = "[minimap.element, tools, svg].map((each) => each.getBoundingClientRect())"
    sides = ".map(({ top, bottom, left, right }) => [top, bottom, left, right])"
    shown = []
    for size in ((1280, 800), (1280, 520), (768, 1024), (768, 700), (620, 900)):
        page.resize(*size)
        page.settle()
        page.run("filch.shownPanes.forEach((pane) => pane.zoom(4 / pane.view.k, 0, 0, false))")

        places = page.run(f"filch.shownPanes.map(({{ minimap, tools, svg }}) => {parts}{sides})")

        assert len(places) == 2
        for minimap, tools, pane in places:
            shown.append(minimap[1] > minimap[0])
            assert not shown[-1] or (pane[0] <= minimap[0] and minimap[1] <= tools[0])
            assert not shown[-1] or minimap[3] - minimap[2] <= (pane[3] - pane[2]) / 3
            assert shown[-1] or pane[1] - pane[0] < 200
    assert {*shown} == {False, True}


def test_all_that_is_visible_is_drawn_while_the_graph_moves(page, files):
    """In small steps and in large ones, near and far; far away, names of groups move with their groups."""
    page.open(files / "plain.html")
    graph_keys(page, "o", "o", "o")
    missing_boxes = """(() => {
      const { view, drawing, arrangement } = filch.active;
      const visible = ({ x, y, w, h }) => x * view.k + view.x < view.width && (x + w) * view.k + view.x > 0
        && y * view.k + view.y < view.height && (y + h) * view.k + view.y > 0;
      return arrangement.boxes.filter((box) => visible(box) && !drawing.drawn.get(box)?.isConnected).length;
    })()"""
    page.run("filch.active.zoom(1 / filch.active.view.k, 0, 0, false)")
    for step in (7, 19, 37, 59, 61, 400):
        for _ in range(5):
            page.run(f"filch.active.pan({step % 7}, {-step})")
            assert page.run(missing_boxes) == 0
    for factor in (1.1, 0.9, 0.75):
        page.run(f"filch.active.zoom({factor}, 100, 100, false)")
        assert page.run("filch.active.drawing.level") > 0 and page.run(missing_boxes) == 0

    graph_keys(page, "c", "f")
    page.run("filch.active.zoom(0.3 / filch.active.view.k, 300, 300, false)")
    drawn = "[...document.querySelectorAll('.far-labels text')]"
    assert page.run(f"{drawn}.length") > 0
    page.run(f"window.first = {drawn}[0]; window.left = first.getBoundingClientRect().left")
    page.run("filch.active.pan(20, 10)")
    assert page.run(f"{drawn}[0].getBoundingClientRect().left - left") == pytest.approx(20, abs=0.1)
    assert page.run(f"{drawn}[0] === first")


def test_the_steps_of_a_scale_stay_in_one_line(page, files):
    """In the legend, whole and inside of it, also side by side."""
    page.open(files / "compiled.html", "#graph=0&both")
    rects = ".map((each) => each.getBoundingClientRect())"
    places = f"{rects}.map(({{ left, right, y, height }}) => [left, right, y + height / 2])"
    for size in ((1280, 800), (768, 1024), (390, 844)):
        page.resize(*size)
        page.settle()

        scales = page.run(
            f"[...document.querySelectorAll('.legend .scale')].map((scale) => [...scale.children]{places})"
        )

        legend_left, _, width, _ = page.box(".legend")
        assert len(scales) == 2
        for scale in scales:
            assert max(middle for *_, middle in scale) - min(middle for *_, middle in scale) < 3
            assert all(legend_left <= left and right <= legend_left + width for left, right, _ in scale)


def test_the_minimap_shows_findings(page, files):
    """The part that differs has other colors than the part that does not."""
    page.open(files / "large.html")
    warm = """(() => {
      const { canvas } = filch.active.minimap, { width, height } = canvas;
      const { data } = canvas.getContext("2d").getImageData(0, 0, width, height);
      const rows = [...Array(height).keys()].map((y) => [...Array(width).keys()].map((x) => 4 * (y * width + x)));
      return rows.map((row) => row.filter((at) => data[at] > data[at + 2] + 60).length);
    })()"""

    rows = page.run(warm)

    begin = len(rows) // 3
    assert not any(rows[:begin]) and sum(rows[2 * begin :]) > begin


def test_the_legend_covers_neither_of_two_graphs(page, files):
    """On a small screen, where one graph is above the other, it is below both."""
    page.open(files / "compiled.html", "#graph=0&both")
    for size in ((768, 1024), (390, 844)):
        page.resize(*size)
        page.settle()

        _, top, _, height = page.box(".legend")
        bottoms = page.run("filch.shownPanes.map(({ svg }) => svg.getBoundingClientRect().bottom)")
        _, stage_top, _, stage_height = page.box(".stage")
        assert len(bottoms) == 2 and max(bottoms) <= top
        assert top + height <= stage_top + stage_height


@pytest.mark.parametrize("size", [(1280, 800), (820, 1180), (390, 844)])
def test_the_whole_graph_is_beside_what_lies_upon_it(page, files, size):
    """Fitted, no box is under the legend or the buttons."""
    page.resize(*size)
    page.open(files / "deep.html")
    graph_keys(page, "Escape", "o", "f")

    below = page.run("filch.active.view.y + filch.active.arrangement.height * filch.active.view.k")
    beside = page.run("filch.active.view.x + filch.active.arrangement.width * filch.active.view.k")

    frame_left, frame_top, *_ = page.box("svg.graph")
    assert frame_top + below <= page.box(".legend")[1]
    assert frame_left + beside <= page.box(".zoom")[0]


def test_what_is_shown_as_a_whole_stays_whole(page, files):
    """When values come, the graph is larger, and is fitted again; a selected node that was in sight stays there."""
    page.open(files / "plain.html")
    graph_keys(page, "o", "o", "o", "f")
    assert page.run("filch.active.showsWhole")

    graph_keys(page, "v")
    assert page.run("filch.active.showsWhole")
    graph_keys(page, "w")
    assert page.run("filch.active.showsWhole")
    page.run("filch.select(filch.data.main.nodes[40], { move: true })")
    graph_keys(page, "v", "w")
    left, top, width, height = page.box('.box.node[data-node="40"]')
    assert 0 < left < left + width < 910 and 50 < top < top + height < 560


def test_constants_are_inputs_of_what_reads_them(page, files):
    """Not boxes; the panel lists them with their value, search finds them, and a toggle shows them."""
    page.open(files / "folded.html")
    page.run("filch.chooseGraph('1')")
    boxes = "filch.active.arrangement.boxes.map((box) => box.item.name)"
    assert page.run(boxes) == ["x", "reshape", "product", "y"]

    page.run("filch.select(filch.data.before.nodes[2])")
    assert "constant" in page.text(".panel")
    page.run("filch.select(filch.data.main.nodes[1])")
    assert "constant = [1, 4]" in page.text(".panel")
    page.run("filch.chooseGraph('1')")
    graph_keys(page, "/")
    page.type("shape")
    page.press("Enter")
    assert page.text(TITLE) == "Constant" and "Reshape" in page.text(".panel")
    assert page.run(boxes) == ["x", "reshape", "product", "y"]
    assert page.run("document.querySelector('.box.marked').dataset.node") == "2"
    graph_keys(page, "x")
    assert {"shape", "cast"} < {*page.run(boxes)}


def test_search_says_which_graph_each_hit_is_in(page, files):
    """Hits of the graph that is shown come first."""
    page.open(files / "compiled.html")
    tags = "[...document.querySelectorAll('.found [role=option] .tag')].map((tag) => tag.textContent)"
    for choice, titles in (("0", ["Compiled graph", "Exported graph"]), ("1", ["Exported graph", "Compiled graph"])):
        page.run(f"filch.chooseGraph('{choice}'); filch.search.input.value = ''")
        graph_keys(page, "/")
        page.type("act")

        assert page.run(tags) == titles


def test_side_by_side_follows_a_folded_node(page, files):
    """To the node that reads its result in the other graph, and the panel says so."""
    page.open(files / "folded.html")
    graph_keys(page, "s")

    page.run("filch.select(filch.data.before.nodes[1], { move: true })")
    page.settle()

    assert "Not in the compiled graph" in page.text(".panel .folded")
    marked = "[...document.querySelectorAll('.pane:nth-of-type(2) .box.marked')].map((box) => box.dataset.node)"
    assert page.run(marked) == ["1"]


def test_metrics_have_units_and_say_what_they_mean(page, files):
    """In the panel and in the heads of the table."""
    page.open(files / "deep.html")

    shown = page.run(
        "Object.fromEntries([...document.querySelectorAll('.panel abbr')].map((one) => [one.innerText, one.title]))"
    )
    heads = page.run(
        "Object.fromEntries([...document.querySelectorAll('.rows th')].map((one) => [one.innerText, one.title]))"
    )

    for told in (shown, heads):
        assert "decibel" in told["snr dB"] and "largest harmonic error" in told["error"]
    assert "run time" in heads["seconds s"]


def test_error_and_module_come_first_and_whole(page, files):
    """On a phone and on a small screen; the table has only the visible rows, and no number is cut."""
    page.resize(390, 844)
    page.open(files / "large.html")
    numbers = "[...document.querySelectorAll('.rows td.number')]"
    sizes = {(390, 844): ("error", "module"), (1280, 800): ("error", "module", "operator", "status")}
    for size, columns in sizes.items():
        page.resize(*size)
        page.settle()
        left, _, width, height = page.box(".scroller")
        last = page.box(f".rows th:nth-child({len(columns)})")
        assert height > 100 and last[0] + last[2] <= left + width
        assert tuple(headers(page)[: len(columns)]) == columns
        assert page.run("document.querySelectorAll('.rows tbody tr').length") < 60
        assert page.run(f"{numbers}.filter((cell) => cell.scrollWidth > cell.clientWidth).length") == 0


def address(page):
    """Wait until the page has written its address, and return the part after `#`."""
    page.run("new Promise((done) => setTimeout(done, 250))")
    return page.run("location.hash")


def test_the_address_says_what_is_shown(page, files):
    """Selecting changes it, and the back button goes back, to the beginning at last."""
    page.open(files / "compiled.html")
    page.call("Page.resetNavigationHistory")  # full after 50 pages, it would lose entries that no click has made
    assert address(page) == ""
    page.run("filch.select(filch.data.before.nodes[1], { move: true })")
    assert address(page) == "#graph=1&node=sum&open=0-1"
    page.run("filch.select(filch.data.main.nodes[1], { move: true })")
    assert address(page) == "#graph=0&node=act&open=0-1"

    page.run("history.back()")
    page.wait("filch.selected?.name === 'sum'")
    assert page.run("filch.active.graph.role") == "before"
    page.run("history.back()")
    page.wait("filch.selected?.name === 'fused'")


COPY = '[title="Copy a link to what is shown"]'


@pytest.mark.parametrize("clipboard", ["navigator.clipboard", "no navigator.clipboard"])
def test_a_button_copies_the_link(page, files, clipboard):
    """Into the clipboard, and says so for a moment; also where a page has no `navigator.clipboard`."""
    page.call("Browser.grantPermissions", permissions=["clipboardReadWrite", "clipboardSanitizedWrite"])
    page.open(files / "compiled.html")
    page.run("window.clipboard = navigator.clipboard; clipboard.writeText('something else')")
    if clipboard.startswith("no "):
        page.run("Object.defineProperty(navigator, 'clipboard', { value: undefined }) && 0")
    page.run("filch.select(filch.data.before.nodes[1], { move: true })")
    label, width = page.text(COPY), page.box(COPY)[2]

    page.click(COPY)

    page.wait(f"document.querySelector('{COPY}').innerText === 'Copied'")
    copied = page.run("clipboard.readText()")
    assert copied == f"{(files / 'compiled.html').as_uri()}#graph=1&node=sum&open=0-1" == page.run("location.href")
    assert page.text(".voice") == "Link copied"
    assert page.box(COPY)[2] == width
    page.wait(f"document.querySelector('{COPY}').innerText === '{label}'")


def test_a_link_that_cannot_be_copied_is_in_the_address_bar(page, files):
    """Where the browser refuses to copy, the button says where the link is, and it is there."""
    page.open(files / "compiled.html")
    page.run("filch.select(filch.data.before.nodes[1], { move: true })")
    page.run("navigator.clipboard.writeText = () => Promise.reject(new Error()); document.execCommand = () => false; 0")

    page.click(COPY)

    page.wait(f"document.querySelector('{COPY}').innerText === 'See address bar'")
    assert page.text(".voice") == "The link could not be copied: it is in the address bar"
    assert page.run("location.hash") == "#graph=1&node=sum&open=0-1"


def test_a_wrong_address_shows_the_beginning(page, files):
    """Of another report, for example."""
    page.open(files / "deep.html", "#graph=7&node=missing")

    assert page.run("filch.selected.id") == FIRST


def test_a_link_shows_the_same_again(page, files):
    """Both graphs, what was selected, and the opened groups."""
    page.open(files / "compiled.html", "#graph=1&both&group=block&open=0")

    assert page.run("filch.sideBySide") and page.run("filch.selected.name") == "block"
    assert page.run("[...filch.panes.get(filch.data.before).scene.open].map((group) => group.id)") == [0]
    assert page.run("filch.history.address") == "#graph=1&both&group=block&open=0"


def test_the_visible_part_is_saved_as_a_picture(page, files):
    """As SVG with its own colors: it needs no style sheet, and has what is drawn."""
    page.open(files / "deep.html")
    page.run("window.saved = []; URL.createObjectURL = (blob) => { window.saved.push(blob); return '#'; }")
    page.run("[...document.querySelectorAll('.tools button')].find((each) => each.textContent === 'SVG').click()")

    text = page.run("window.saved[0].text()")
    picture = ET.fromstring(text)  # noqa: S314  our own page's

    space = "{http://www.w3.org/2000/svg}"
    shown = [each.text for each in picture.iter(f"{space}text")]
    assert set(names(page)) <= set(shown)
    fills = {each.get("fill") for each in picture.iter(f"{space}rect")}
    assert len(fills) > 3 and all(re.fullmatch(r"rgba?\(.*\)|none", fill) for fill in fills)
    assert "var(" not in text and "class=" not in text


@pytest.mark.parametrize("dark", [False, True])
def test_larger_errors_stand_out_more(page, files, dark):
    """The contrast with the paper grows with the error, in light and in dark, and text on each color can be read."""
    page.dark(dark=dark)
    page.open(files / "deep.html")
    colors = """(() => {
      const group = filch.active.drawing.world.appendChild(document.createElementNS("http://www.w3.org/2000/svg", "g"));
      group.innerHTML = '<rect class="card"/><text class="small">a</text>';
      const of = (name) => {
        group.setAttribute("class", `box node ${name}`);
        return [...group.children].map((part) => getComputedStyle(part).fill);
      };
      const steps = ["calm-0", "calm-1", "calm-2", "calm-3", ...Array.from({ length: 7 }, (_, at) => `error-${at}`)];
      return steps.map(of);
    })()"""
    paper = page.run("getComputedStyle(document.body).backgroundColor")

    steps = page.run(colors)

    contrasts = [contrast(fill, paper) for fill, _ in steps]
    calm, wrong = contrasts[:4], contrasts[4:]
    assert all(one < other for one, other in (*pairwise(calm), *pairwise(wrong)))
    assert max(calm) <= wrong[0] + 0.05
    assert [step for step in steps if contrast(*step) < 4.5] == []


def contrast(one, other):
    """Return the contrast of two colors, as the WCAG defines it."""
    light, dark = sorted(map(luminance, (one, other)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


def luminance(color):
    parts = [int(part) / 255 for part in re.findall(r"\d+", color)[:3]]
    linear = [part / 12.92 if part <= 0.03928 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return sum(weight * part for weight, part in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


@pytest.mark.parametrize("name", ["large", "flat"])
def test_five_thousand_nodes_are_drawn_in_three_seconds(page, files, name):
    """In layers, and in no module at all; opened whole, moving about stays quick."""
    page.open(files / f"{name}.html")

    assert int(page.run("document.documentElement.dataset.drawn")) < 3000
    assert page.run("performance.getEntriesByName('filch-drawn').length") == 1
    began = time.perf_counter()
    graph_keys(page, "o", "o", "o", "f")
    assert page.run("filch.active.arrangement.boxes.length") >= 5000
    assert time.perf_counter() - began < 10
    assert page.run("document.querySelectorAll('svg.graph *').length") < 3000
    frame = """(() => {
      const began = performance.now();
      for (let at = 0; at < 20; at++) filch.active.pan(3, 3);
      return (performance.now() - began) / 20;
    })()"""
    assert page.run(frame) < 50


def test_a_llama_of_32_layers_opens(page, tmp_path):
    """With its modules: one box a layer, and whole within seconds."""
    model, args, kwargs = ZOO["llama"]()
    model.model.layers.extend(type(model.model.layers[0])(model.config, at % 2) for at in range(30))
    model.config.num_hidden_layers = 32
    graph = as_graph(torch.export.export(model.eval(), args, kwargs, strict=False))
    page.open(plot_graph(graph, tmp_path / "llama.html"))

    assert int(page.run("document.documentElement.dataset.drawn")) < 3000
    graph_keys(page, "o")
    assert {f"layers.{at}" for at in range(3)} <= {*names(page)}
    graph_keys(page, "o", "o", "o")
    shown = page.run("filch.active.arrangement.boxes.filter((box) => box.kind === 'node').length")
    assert shown > len(graph.nodes) / 3 > 500


def test_an_empty_graph_is_a_page(page, tmp_path):
    """Nothing to draw is no error."""
    page.open(plot_graph(Graph("", (), (), (), (), {}), tmp_path / "empty.html"))
    graph_keys(page, "o", "f", "v", "w", "d", "p", "s")

    assert "0 operations" in page.text(".panel")


def test_an_input_that_is_returned_is_drawn_twice(page, tmp_path):
    """As an input and as an output; a finding of it is found."""
    graph = Graph(
        "same", ("x",), ("x",), (), (), {"x": Value("x")}, findings={"x": (finding("different", 0.5, first=True),)}
    )
    page.open(plot_graph(graph, tmp_path / "same.html"))

    assert page.run("filch.active.arrangement.boxes.map((box) => box.role)") == ["input", "output"]
    assert page.text(TITLE) == "x"


def test_nodes_that_wait_for_each_other_are_drawn(page, tmp_path):
    """No runtime would run them, but a file can say so; names are there twice, too."""
    nodes = (
        Node("a", "Add", ("x", "q"), ("p",)),
        Node("a", "Add", ("p", "p"), ("q",)),
        Node("b", "Neg", ("q",), ("y",)),
    )
    page.open(plot_graph(Graph("ring", ("x",), ("y",), (), nodes, {}), tmp_path / "ring.html"))

    assert page.run("filch.active.arrangement.boxes.map((box) => box.item.name)") == ["x", "a", "a", "b", "y"]
