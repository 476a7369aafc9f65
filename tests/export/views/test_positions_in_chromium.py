"""Positions against layers in a browser: what is in sight when the page opens, with mouse and keys."""

import dataclasses

import pytest

from filch.export import PositionErrors
from filch.export.views import plot_graph
from support.views.chromium import Chromium, missing
from support.views.pages import flat, judged

pytestmark = pytest.mark.skipif(missing() is not None, reason=str(missing()))
LAYERS, FIRST, TOKENS = 24, 220, 160  # the fault is in the node `FIRST`, in layer 17
POSITION = 97  # from which on it is wrong
GRID = ".positions .scroller"


@pytest.fixture(scope="module")
def page():
    """A browser; each test opens its own file in it."""
    with Chromium() as made:
        yield made


@pytest.fixture(autouse=True)
def complains_of_nothing(page):
    """No error, no warning, and nothing asked of a network, whatever a test does."""
    page.heard()
    page.log.clear()
    page.requests.clear()
    yield
    page.heard()
    assert page.log == []
    assert all(url.startswith("file://") for url in page.requests) and len(page.requests) == 1
    page.resize(1280, 800)
    page.dark(dark=False)


@pytest.fixture(scope="module")
def files(tmp_path_factory):
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
def test_the_page_opens_at_the_first_wrong_cell(page, files, width, dark):
    """Its row and its column are in sight, and nothing covers it."""
    page.resize(width, 800)
    page.dark(dark=dark)
    page.open(files / "wrong.html")
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


def test_a_cell_selects_what_it_shows(page, files):
    """The first value of the module that is wrong there; the tooltip says how far off it is."""
    page.open(files / "wrong.html")
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


def test_keys_go_from_cell_to_cell(page, files):
    """And stop at the borders."""
    page.open(files / "wrong.html")
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


def test_rows_of_values(page, files):
    """Show the same cell."""
    page.open(files / "wrong.html")
    select = "document.querySelector('[aria-label=\"Rows\"]')"
    page.run(f"{select}.value = 'value'; {select}.dispatchEvent(new Event('change'))")
    page.settle()
    assert chosen(page) == f"val_{FIRST}"
    assert page.run("filch.grid.chosen.at") == POSITION


def test_a_right_page_marks_no_cell(page, files):
    """And pages without positions have no grid."""
    page.open(files / "right.html")
    assert page.run("document.querySelectorAll('.cells path').length") > 0
    assert page.run("document.querySelectorAll('.cells :is(.wrong, .first-ring)').length") == 0
    assert "right" in page.text(".positions .legend") and "wrong" not in page.text(".positions .legend")
