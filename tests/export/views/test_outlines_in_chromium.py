"""Two implementations in a browser, side by side, and positions against layers: what is in sight and what is linked."""

import dataclasses
import json
from typing import Any

import pytest

from filch.export import PositionErrors
from filch.export.views import plot_graph
from support.views.chromium import missing
from support.views.pages import HOSTILE, flat, headers, judged, linked, named_pair, table

pytestmark = [
    pytest.mark.skipif(missing() is not None, reason=str(missing())),
    pytest.mark.usefixtures("complains_of_nothing"),
]
MIDDLE = 30  # the node at which B leaves A


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """The pages that several tests open."""
    folder = tmp_path_factory.mktemp("pages")
    plot_graph(linked(2 * MIDDLE, 3), folder / "pair.html")
    plot_graph(linked(1500, 24), folder / "large.html")
    return folder


def lines(page, side, what=""):
    """Return the text of the lines of A (0) or B (1) that have a class."""
    outline = f"document.querySelectorAll('.outline')[{side}]"
    found: list[str] = page.run(f"[...{outline}.querySelectorAll('.line{what}')].map((line) => line.innerText)")
    return [" ".join(text.split()) for text in found]


def is_visible(page, side, what):
    """Whether the first line with a class is inside of its outline."""
    return page.run(f"""(() => {{
        const frame = document.querySelectorAll('.outline .lines')[{side}];
        const parts = [frame, frame.querySelector('.line{what}')];
        const [outline, line] = parts.map((part) => part?.getBoundingClientRect());
        return Boolean(line && line.top >= outline.top - 1 && line.bottom <= Math.min(outline.bottom, innerHeight) + 1);
    }})()""")


def select(page, graph, node):
    page.run(f"filch.select(filch.data.{graph}.nodes[{node}], {{ move: true }})")
    page.settle()


@pytest.mark.parametrize("width", [400, 800, 1280])
def test_it_opens_where_b_leaves_a(page, files, width):
    """The operation is selected and visible, as is that of A, with what is wrong; nothing is wider than the window."""
    page.resize(width, 800)
    page.open(files / "pair.html")
    page.settle()

    assert lines(page, 1, ".selected")[0].endswith("leaves A") and is_visible(page, 1, ".selected")
    assert lines(page, 0, ".marked")[0].endswith("not in B") and is_visible(page, 0, ".marked")
    assert "axis is 1, -1 in A" in page.text(".panel") and "B leaves A" in page.text(".verdict")
    assert page.run("document.querySelectorAll('.gutter .near').length") == 1
    assert page.run("document.documentElement.scrollWidth") <= width


def test_selecting_one_side_shows_the_other(page, files):
    """A click marks the place and opens the modules around it; the panel has the arrangement and a link to it."""
    page.open(files / "pair.html")
    page.run("for (const pane of filch.panes.values()) pane.closeAll()")
    page.press("Escape")
    assert not lines(page, 1, ".marked")
    select(page, "reference", 3)

    assert is_visible(page, 0, ".selected") and is_visible(page, 1, ".marked")
    assert lines(page, 1, ".marked") == lines(page, 0, ".selected")
    assert "transposed" in page.text(".panel .finding")
    page.click(".panel .finding .links .link")
    assert page.run("filch.selected === filch.data.main.nodes[3]")
    shown = len(lines(page, 0))
    page.click(".outline .line.group .sign")
    assert len(lines(page, 0)) < shown and page.run("filch.selected === filch.data.main.nodes[3]")
    page.click(".outline .line.group .label", times=2)
    assert len(lines(page, 0)) == shown and page.run("filch.selected === filch.data.reference.groups[0]")


def test_modules_are_linked_with_modules(page, files):
    """A module is marked for a module, also while both are closed."""
    page.open(files / "pair.html")
    page.run("for (const pane of filch.panes.values()) pane.closeAll()")
    page.run("filch.select(filch.data.reference.nodes[3].group, { move: true })")
    page.settle()
    assert lines(page, 0, ".selected.group") == lines(page, 1, ".marked.group") != []


def test_evidence_is_told_by_words_and_shapes(page, files):
    """Each line says it in words, and no two kinds of evidence have the same sign."""
    page.open(files / "pair.html")
    page.run("for (const pane of filch.panes.values()) pane.openAll()")
    page.settle()
    signs: dict[str, Any] = (
        page.run("""Object.fromEntries([...document.querySelectorAll('.line .status')].map((status) => {
      const dot = status.querySelector('.dot');
      const { backgroundImage, borderTopStyle, height } = getComputedStyle(dot);
      const shape = backgroundImage.replace(/rgba?\\([^)]*\\)/g, '');
      return [status.innerText.trim(), [shape, borderTopStyle, height, getComputedStyle(dot, '::before').content]];
    }))""")
    )

    wrong = {"leaves A", "not in B", "not found"}
    assert {"proved", "anchored", "by value", "ambiguous", "found", "unused"} <= signs.keys()
    assert all("✗" in signs[name][3] for name in wrong & signs.keys())
    others = [json.dumps(sign) for name, sign in signs.items() if name not in (*wrong, "found")]
    assert len({*others}) == len(others)
    assert signs["found"] == signs["proved"]  # of weights and of values


def test_keys_reach_everything(page, files):
    """Arrows go along the lines, open and close; `s` goes to the place in the other side, `d` to the departure."""
    page.open(files / "pair.html")
    page.press("Escape")
    assert "not found" not in page.text(".panel .kind") and "Weights of A that are not in B" in page.text(".panel")
    page.run("document.querySelector('.outline .lines').focus()")
    page.run("filch.active.closeAll()")
    while page.run("filch.selected?.kind") != "group":
        page.press("ArrowDown")
    closed = len(lines(page, 0))
    page.press("ArrowRight")
    assert len(lines(page, 0)) > closed
    page.press("ArrowRight")
    assert page.run("filch.selected.groupPath.length") == 2
    page.press("ArrowLeft")
    page.press("ArrowLeft")
    assert page.run("filch.selected.groupPath.length") == 1 and len(lines(page, 0)) == closed
    active = "document.activeElement.getAttribute('aria-activedescendant')"
    assert page.run(f"document.getElementById({active}).ariaSelected") == "true"
    select(page, "reference", 5)
    page.press("s")
    assert page.run("filch.selected === filch.data.main.nodes[5]")
    page.press("d")
    assert page.run(f"filch.selected === filch.data.main.nodes[{MIDDLE}]")
    page.press("?")
    assert "where B leaves A first" in page.text("dialog") and "zoom" not in page.text("dialog")


def test_names_are_searched_and_filtered(page, files):
    """Search finds weights, too, and goes there; the table has a row for each value and its places."""
    page.open(files / "pair.html")
    graph = linked(2 * MIDDLE, 3)
    page.press("w")
    page.press("/")
    page.type(graph.constants[-1])
    page.press("Enter")
    assert page.run(f"filch.selected.name === '{graph.constants[-1]}'") and lines(page, 1, ".selected.weight")
    page.press("t")
    shown = [dict(zip(headers(page), row, strict=True)) for row in table(page)]
    assert graph.reference_graph is not None
    assert len(shown) == len(graph.findings) + len(graph.reference_graph.findings)
    places = {row["value"]: row["in the other"] for row in shown if row["graph"] == "B"}
    assert places == {name: ", ".join(found.places) for name, (found,) in graph.findings.items()}


def test_a_link_shows_the_same_again(page, files):
    """The address says what was selected."""
    page.open(files / "pair.html")
    select(page, "reference", 7)
    page.wait("location.hash.includes('graph=1')")
    address = page.run("location.hash")
    page.press("d")
    page.wait("!location.hash.includes('graph=1')")
    page.run(f"location.hash = {json.dumps(address)}")
    page.wait("filch.selected.graph === filch.data.reference")
    page.settle()
    assert page.run("filch.selected === filch.data.reference.nodes[7]") and is_visible(page, 1, ".marked")


def test_1500_operations_a_side_stay_quick(page, files):
    """All open, only visible lines are elements, and each step is quick."""
    page.open(files / "large.html")
    assert int(page.run("document.documentElement.dataset.drawn")) < 3000
    page.run("for (const pane of filch.panes.values()) pane.openAll()")
    page.press("a")
    assert page.run("filch.active.lines.length") > 1500
    spent = page.run("""(() => {
      filch.select(filch.data.reference.nodes[0], { move: true });
      const began = performance.now();
      for (let at = 0; at < 20; at++) {
        filch.outline.step(at % 2 ? 37 : 1);
        for (const pane of filch.panes.values()) pane.fill();
        filch.gutter.draw();
      }
      return (performance.now() - began) / 20;
    })()""")
    assert spent < 100
    assert page.run("document.querySelectorAll('.line').length") < 250


@pytest.mark.parametrize("kind", HOSTILE)
def test_hostile_names_do_nothing(page, tmp_path, kind):
    """Whatever has such a name: nothing of it runs, and the page keeps its shape."""
    page.open(plot_graph(named_pair(HOSTILE[kind]), tmp_path / "hostile.html"))
    for key in ("o", "a", "t", "s", "Escape"):
        page.press(key)
    for thing in ("groups[0]", "inputs[0]", "nodes[0]"):
        page.run(f"filch.select(filch.data.main.{thing}, {{ move: true }})")
    page.settle()

    assert page.run("window.pwned") is None
    assert page.run("document.querySelectorAll('img, iframe, object').length") == 0
    assert page.run("document.querySelectorAll('script').length") == 2
    assert page.run("document.documentElement.scrollWidth") <= 1280
    assert lines(page, 0, ".marked") and lines(page, 1, ".selected")


def test_paper_gets_all_lines(page, files, tmp_path):
    """Also those that are not visible on the screen; afterwards all is as before."""
    page.open(files / "pair.html")
    page.run("for (const pane of filch.panes.values()) pane.openAll()")
    page.resize(1280, 400)
    page.run("addEventListener('beforeprint', () => (window.printed = document.querySelectorAll('.line').length))")
    page.print(tmp_path / "page.pdf")
    page.settle()
    lines_of_both = page.run("[...filch.panes.values()].reduce((sum, pane) => sum + pane.lines.length, 0)")
    assert page.run("window.printed") == lines_of_both > page.run("document.querySelectorAll('.line').length")


LAYERS, FIRST, TOKENS = 24, 220, 160  # the fault is in the node `FIRST`, in layer 17
POSITION = 97  # from which on it is wrong
GRID = ".positions .scroller"


@pytest.fixture(scope="module")
def grids(tmp_path_factory):
    """A page with a fault, and one without."""
    folder = tmp_path_factory.mktemp("pages")
    graph = decoded(judged(flat(312, layers=LAYERS), start=FIRST / 312))
    plot_graph(graph, folder / "wrong.html")
    right = {name: items for name, items in graph.findings.items() if not items[0].diverged}
    plot_graph(dataclasses.replace(graph, findings=right, close=True), folder / "right.html")
    return folder


def decoded(graph):
    """Return a graph whose values are compared by position: those that diverge are wrong from `POSITION` on."""
    wrong, right = tuple(range(POSITION, TOKENS)), (1e-7,) * POSITION
    found = {}
    for name, (one,) in graph.findings.items():
        errors = PositionErrors(
            (*right, *((0.1 if one.diverged else 1e-6,) * len(wrong))), wrong if one.diverged else ()
        )
        found[name] = (dataclasses.replace(one, positions=errors if one.judged else None),)
    return dataclasses.replace(graph, findings=found)


def ring(page, kind):
    """Return left, top, right and bottom of the ring around a cell in the grid, and the size of that."""
    found: list[float] = page.run(f"""(() => {{
        const box = (each) => document.querySelector(each).getBoundingClientRect();
        const [grid, ring] = [box('{GRID}'), box('.cells .{kind}-ring')];
        const [x, y] = [ring.left - grid.left, ring.top - grid.top];
        return [x, y, x + ring.width, y + ring.height, grid.width, grid.height];
    }})()""")
    return found


def chosen(page):
    """Return the name of the row of the chosen cell."""
    name: str = page.run("document.querySelector('.cells text.chosen title').textContent")
    return name


@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("width", [800, 1280])
def test_the_page_opens_at_the_first_wrong_cell(page, grids, width, dark):
    """Its row and its column are in sight, and nothing covers it."""
    page.resize(width, 800)
    page.dark(dark=dark)
    page.open(grids / "wrong.html")
    page.settle()

    left, top, right, bottom, all_width, all_height = ring(page, "first")
    assert 90 < left < right <= all_width and 20 <= top < bottom <= all_height
    assert page.run("filch.grid.chosen") == page.run("filch.grid.first")
    assert page.run("filch.grid.chosen.at") == POSITION
    assert "layers.16.block" in chosen(page)
    x, y = page.box(GRID)[:2]
    on_top = page.run(f"document.elementFromPoint({x + left + 3}, {y + top + 9}).closest('.cells') !== null")
    assert on_top and page.box(GRID)[1] + bottom <= 800
    fills = page.run("[...document.querySelectorAll('.cells path')].map((path) => getComputedStyle(path).fill)")
    assert len({*fills}) >= 2 and {*fills}.isdisjoint({"none", "rgb(0, 0, 0)"})
    assert page.run("document.querySelectorAll('.cells path.wrong').length") > 0
    assert page.run("document.documentElement.scrollWidth") <= width


def test_a_cell_selects_what_it_shows(page, grids):
    """The first value of the module that is wrong there; the tooltip says how far off it is."""
    page.open(grids / "wrong.html")
    before = page.text(".panel h2")
    left, top, *_ = ring(page, "first")
    x, y = page.box(GRID)[:2]

    page.mouse("mouseMoved", x + left + 3, y + top + 9 + 18)
    page.settle()
    assert f"position {POSITION}: wrong, off by 0.1" in page.text(".tooltip")
    page.click(GRID, dx=left + 3, dy=top + 9 + 18)
    assert page.run("filch.grid.chosen.at") == POSITION
    assert page.run("filch.selected.module || filch.selected.group.path") == page.run(
        "filch.grid.rows[filch.grid.chosen.row].name"
    )
    page.press("d")
    assert page.text(".panel h2") == before
    assert page.run("filch.grid.chosen") == page.run("filch.grid.first")


def test_keys_go_from_cell_to_cell(page, grids):
    """And stop at the borders."""
    page.open(grids / "wrong.html")
    first = page.run("filch.grid.first")
    page.run(f"document.querySelector('{GRID}').focus()")
    for key in ("ArrowLeft", "ArrowDown", "ArrowDown", "ArrowUp"):
        page.press(key)
    assert page.run("filch.grid.chosen") == {"row": first["row"] + 1, "at": POSITION - 1}
    page.run(f"document.querySelector('{GRID}').scrollLeft = 0; filch.grid.choose({{ row: 0, at: 0 }})")
    for key in ("ArrowLeft", "ArrowUp"):
        page.press(key)
    assert page.run("filch.grid.chosen") == {"row": 0, "at": 0}
    assert ring(page, "chosen")[0] >= 0


def test_rows_of_values(page, grids):
    """Show the same cell."""
    page.open(grids / "wrong.html")
    select = "document.querySelector('[aria-label=\"Rows\"]')"
    page.run(f"{select}.value = 'value'; {select}.dispatchEvent(new Event('change'))")
    page.settle()
    assert chosen(page) == f"val_{FIRST}"
    assert page.run("filch.grid.chosen.at") == POSITION


def test_a_right_page_marks_no_cell(page, grids):
    """And pages without positions have no grid."""
    page.open(grids / "right.html")
    assert page.run("document.querySelectorAll('.cells path').length") > 0
    assert page.run("document.querySelectorAll('.cells :is(.wrong, .first-ring)').length") == 0
    assert "right" in page.text(".positions .legend") and "wrong" not in page.text(".positions .legend")
