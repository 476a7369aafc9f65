"""The site of a history: what its page shows in a browser from disk, without a network, and what it does with names."""

import json
import math
import re

import pytest

from filch.compare import CompareError
from filch.compare.history import _site
from filch.compare.history._history import CellOutcome, history
from filch.compare.history._ledger_rows import read_ledgers
from filch.compare.history._site import HEIGHT, as_site, streaks_of, timeline, write_site
from support.faults.ledgers import MadeLedger, blame, run_name
from support.hostile.graphs import TEXTS
from support.processes.commands import run
from support.thorough import slow
from support.views.chromium import Chromium, missing

needs_browser = pytest.mark.skipif(missing() is not None, reason=str(missing()))
NAMES = {**TEXTS, "megabyte": "L" * 500_000}

CONTRASTS = """(() => {
  const parts = (color) => color.match(/[\\d.]+/g).map(Number);
  const linear = (part) => (part /= 255) <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4;
  const light = (color) => {
    const [red, green, blue] = parts(color).slice(0, 3).map(linear);
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue;
  };
  const behind = (element) => {
    const color = getComputedStyle(element).backgroundColor;
    return parts(color)[3] === 0 ? behind(element.parentElement) : color;
  };
  const hasText = (element) => [...element.childNodes].some((node) => node.nodeType === 3 && node.data.trim());
  return [...document.querySelectorAll("body *")].filter(hasText).filter((one) => !one.closest("svg")).map((one) => {
    const both = [light(getComputedStyle(one).color), light(behind(one))];
    return (Math.max(...both) + 0.05) / (Math.min(...both) + 0.05);
  });
})()"""


def history_of(made, folder):
    path = made.write(folder / "ledger.jsonl")
    rows, notes = read_ledgers([path])
    return history(rows, ledgers=[str(path)], notes=notes)


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The site of a history with one regression, a flaky cell, a crash, and a regression that was fixed."""
    folder = tmp_path_factory.mktemp("site")
    made = MadeLedger()
    made.spoil(made.of("models.py:gpt2", "inductor", "float32", first=3, last=5), "h.0.attn", "MatMul")
    made.upgrade(6, onnx="1.19.1")
    made.upgrade(15, torch="2.13.0")
    made.spoil(made.of("models.py:bert", "inductor", first=15), "encoder.layer.3.norm", "LayerNorm")
    for number in (20, 22):
        made.spoil(made.of("models.py:llama", "inductor", "float16", first=number, last=number), "mlp", "MatMul")
    for row in made.of("models.py:llama", "onnxruntime-cpu", "float16", first=25):
        row.update(status="crashed", error=None, detail="signal 11")
    made.write(folder / "ledger.jsonl")
    assert run("history", str(folder / "ledger.jsonl"), "-o", str(folder / "site")) == 1
    return folder / "site"


@pytest.fixture(scope="module")
def hostile_site(tmp_path_factory):
    """The site of a ledger in which each text is each of the hostile names."""
    folder = tmp_path_factory.mktemp("hostile")
    made = MadeLedger(runs=1)
    template, rows = made.rows[0], []
    for number in (0, 1, 2, 3):
        status = ("close", "different", "failed", "crashed")[number]
        for name in NAMES.values():
            labels = {"model": name, "backend": name, "dtype": name, name: name}
            entries = {"run": run_name(number), "key": name, "status": status, "detail": name, "labels": labels}
            found = blame(name, name) | {"value": name} if status == "different" else None
            environment = {"torch": f"{name}{number}", name: f"{number}"}
            rows.append(template | entries | {"blame": found, "environment": environment})
    made.rows = rows
    write_site(history_of(made, folder), folder / "site")
    return folder / "site"


@pytest.fixture(scope="module")
def browser():
    """A browser for all pages."""
    with Chromium() as made:
        yield made


def opened(browser, page):
    """Open a page that has no script, after forgetting what was heard of others."""
    browser.heard()
    browser.log.clear()
    browser.requests.clear()
    browser.call("Page.navigate", url=page.as_uri())
    browser.wait(f"location.href === {json.dumps(page.as_uri())} && document.readyState === 'complete'")


@slow
@needs_browser
def test_the_page_opens_offline_with_the_regression_first(browser, site):
    """No request but for the page, no message; the first card is the planted regression."""
    opened(browser, site / "index.html")

    first = browser.text("main article")

    assert browser.text("main h2") == "Regressions"
    assert first.startswith("LayerNorm in encoder.layer.*.norm")
    assert "2 cells since 2026-10-16 03:00, last good 2026-10-15 03:00" in first
    assert "Changed: torch 2.12.0 → 2.13.0." in first
    assert "encoder.layer.3.norm" in first
    browser.heard()
    assert (browser.log, browser.requests) == ([], [(site / "index.html").as_uri()])


@needs_browser
def test_the_grid_has_the_status_of_each_cell_as_text(browser, site):
    """Models are rows, backends and dtypes are columns; a link leads to the history of the cell."""
    opened(browser, site / "index.html")

    rows = browser.run(
        "[...document.querySelectorAll('.grid tr')].map((row) => [...row.cells].map((c) => c.innerText))"
    )

    words = [[cell.split("\n")[0].partition(" ")[2] or cell for cell in row] for row in rows[1:]]
    assert rows[0][1:] == [
        f"{backend}, {dtype}" for backend in ("inductor", "onnxruntime-cpu") for dtype in ("float16", "float32")
    ]
    assert words == [
        ["models.py:bert", "different", "different", "close", "close"],
        ["models.py:gpt2", "close", "close", "close", "close"],
        ["models.py:llama", "close", "close", "crashed", "close"],
    ]
    browser.run("document.querySelector('.grid td.bad a').click()")
    browser.settle()
    assert "Different since 2026-10-16 03:00, last good 2026-10-15 03:00. Blamed: LayerNorm" in browser.text(":target")


@needs_browser
def test_other_cells_are_listed_apart(browser, site):
    """Flaky cells, those that crash, and regressions that were fixed are in sections of their own."""
    opened(browser, site / "index.html")

    assert "models.py:llama, inductor, float16" in browser.text("#flaky")
    assert "models.py:llama, onnxruntime-cpu, float16" in browser.text("#not-run")
    assert "MatMul in h.*.attn" in browser.text("#fixed")
    assert "MatMul" not in browser.text("#regressions")


@needs_browser
@pytest.mark.parametrize("width", [1280, 768, 390])
def test_the_page_fits_each_screen(browser, site, hostile_site, width):
    """Only tables scroll sideways, whatever the names are."""
    browser.resize(width, 800)
    for page in (site, hostile_site):
        opened(browser, page / "index.html")
        assert browser.run("document.documentElement.scrollWidth") <= width
    browser.resize(1280, 800)


@needs_browser
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_each_text_is_readable(browser, site, dark):
    """The contrast of each text with its background is at least 4.5, as WCAG 2.1 requires."""
    browser.dark(dark=dark)
    opened(browser, site / "index.html")

    contrasts = browser.run(CONTRASTS)

    browser.dark(dark=False)
    assert len(contrasts) > 100 and min(contrasts) >= 4.5


@needs_browser
def test_a_page_with_hostile_names_runs_nothing(browser, hostile_site):
    """There is no dialog, message, request or element that comes from a name."""
    opened(browser, hostile_site / "index.html")

    elements = browser.run("document.querySelectorAll('img, iframe, object, script, b, a[href^=javascript]').length")

    browser.heard()
    assert (elements, browser.log, len(browser.requests)) == (0, [], 1)


def test_hostile_names_stay_text(hostile_site):
    """The page has no elements but its own, no control characters, and no name in full if it is too long."""
    page = (hostile_site / "index.html").read_text("utf-8")

    tags = set(re.findall(r"</?([a-zA-Z]\w*)", page))
    own = {"html", "head", "meta", "title", "style", "body", "header", "main", "section", "article", "div", "span", "p"}
    own |= {"h1", "h2", "h3", "h4", "strong", "a", "ul", "li", "table", "thead", "tbody", "tr", "th", "td", "small"}
    assert tags <= own | {"svg", "path", "line", "rect", "details", "summary", "br"}
    assert "alert(1)" in page and "<script" not in page and "<img" not in page
    lines = page.replace("\N{NO-BREAK SPACE}", " ").replace("\N{IDEOGRAPHIC SPACE}", " ").split("\n")
    assert all(line.isprintable() for line in lines)
    assert "L" * 3000 not in page
    assert json.loads((hostile_site / "history.json").read_text("utf-8"))["filch_history"] == 1


def test_hostile_names_in_the_terminal_are_visible(tmp_path, capsys):
    """No control character reaches it, neither from names nor from messages."""
    made = MadeLedger(runs=2)
    for row, name in zip(made.of(first=1), TEXTS.values(), strict=False):
        row.update(status="different", detail=name, blame=blame(name, name), environment={"torch": name, name: name})
    path = made.write(tmp_path / "\x1b[2J.jsonl")

    for options in ([], ["--wide"], ["-o", str(tmp_path / "site")]):
        assert run("history", str(path), *options) == 1
        text = capsys.readouterr().out.replace("\N{NO-BREAK SPACE}", " ")
        assert all(line.isprintable() for line in text.split("\n"))


def test_the_json_beside_the_page_is_that_of_the_command(site, capsys):
    """It has the same contents; only the suggested command is missing, as the site is written already."""
    assert run("history", str(site.parent / "ledger.jsonl"), "--json") == 1

    printed = json.loads(capsys.readouterr().out)
    assert json.loads((site / "history.json").read_text()) == printed | {"next_command": None}
    assert sorted(file.name for file in site.iterdir()) == ["history.json", "index.html"]


def test_a_site_follows_no_link(tmp_path):
    """Somebody else may have prepared the folder."""
    (tmp_path / "secret").write_text("secret")
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "index.html").symlink_to("../secret")

    with pytest.raises(CompareError, match=r"it is a link to .*, in another folder"):
        write_site(history_of(MadeLedger(runs=1), tmp_path), tmp_path / "site")

    assert (tmp_path / "secret").read_text() == "secret"


def test_a_folder_that_is_a_file_is_refused(tmp_path, capsys):
    """With one sentence."""
    path = MadeLedger(runs=1).write(tmp_path / "ledger.jsonl")

    assert run("history", str(path), "-o", str(path)) == 2
    assert f"can't write '{path}'" in capsys.readouterr().err


def test_a_grid_that_is_too_large_is_refused(tmp_path, monkeypatch):
    """Each of many cells may be of a model and a backend of its own."""
    monkeypatch.setattr(_site, "_MAX_GRID", 11)

    with pytest.raises(CompareError, match="the grid of 3 models and 4 backends would have more than 11 boxes"):
        as_site(history_of(MadeLedger(runs=1), tmp_path))


def outcomes(*errors):
    return [CellOutcome(run_name(at), "k", "close", error, "", None) for at, error in enumerate(errors)]


def drawn(*errors):
    made = outcomes(*errors)
    return timeline(made, {outcome.run: place for place, outcome in enumerate(made)})


def test_the_scale_of_a_timeline_is_logarithmic():
    """Equal factors are equal distances; the scale ends at powers of ten."""
    found = drawn(1e-6, 1e-4, 1e-2)

    heights = [top for _, top, _ in found.points]
    assert (found.low, found.high) == ("1e-06", "1e-02")
    assert heights[0] - heights[1] == pytest.approx(heights[1] - heights[2], abs=0.2)
    assert heights == sorted(heights, reverse=True)


@pytest.mark.parametrize("error", [0.0, math.inf, math.nan, -1.0, 5e-324, 1.7e308, 10**300, None])
def test_a_timeline_has_any_error(error):
    """What has no logarithm is at the bottom, inf and NaN are at the top; nothing is outside of the drawing."""
    found = drawn(1e-6, error, 1e-5)

    assert len(found.points) == (2 if error is None else 3)
    assert all(0 <= top <= HEIGHT for _, top, _ in found.points)
    if error is not None and not math.isfinite(error):
        assert found.points[1][1] == min(top for _, top, _ in found.points)


def test_streaks_are_of_one_status_and_one_blame(site):
    """A cell that differs for another reason than before begins a new one."""
    made = MadeLedger(runs=9)
    cell = made.of("models.py:bert", "inductor", "float16")
    made.spoil(cell[3:6], "norm", "LayerNorm")
    made.spoil(cell[6:], "attn", "MatMul")
    rows, _ = read_ledgers([made.write(site.parent / "streaks.jsonl")])
    labels = {"model": "models.py:bert", "backend": "inductor", "dtype": "float16"}

    found = streaks_of([CellOutcome.of(row) for row in rows if row.labels == labels])

    assert [(one.status, one.count, one.blame) for one in found] == [
        *(("close", 3, ""), ("different", 3, "LayerNorm in norm"), ("different", 3, "MatMul in attn"))
    ]
