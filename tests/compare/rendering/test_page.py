"""The page of a real report in a browser: each number on it is the report's."""

import math

import pytest

from filch.compare import compare, tiny_llm
from filch.export import export
from support.faults.fakes import WrongBackend
from support.models.small import capture_of, recorded
from support.models.zoo import MODELS
from support.views.chromium import Chromium, missing
from support.views.pages import headers, table

pytestmark = pytest.mark.skipif(missing() is not None, reason=str(missing()))


@pytest.fixture(scope="module")
def reports():
    """The tiny language model on ONNX Runtime, and with a fault in its first norm; ResNet-18 on ONNX Runtime."""
    model, args = tiny_llm()
    capture, program = recorded(model, *args, submodules=True)
    resnet, pixels, _ = MODELS["ResNet-18"]()
    seen = capture_of(resnet, *pixels, submodules=True)
    wrong = WrongBackend({"layer_norm": lambda t: t * 1.01})
    return {
        "clean": compare(capture, program, statistics=True),
        "wrong": compare(capture, program, backend=wrong, statistics=True),
        "resnet": compare(seen, export(resnet, pixels), statistics=True),
    }


@pytest.fixture(scope="module")
def page():
    """Return a browser page that fails the test on any console message or network request."""
    with Chromium() as made:
        yield made
        made.heard()
        assert made.log == []
        assert all(url.startswith("file://") for url in made.requests)


@pytest.mark.parametrize("name", ["clean", "wrong", "resnet"])
def test_every_number_of_every_row_is_read_back(page, reports, name, tmp_path):
    """Status, error and measures are read from the table, which is scrolled to its end, for all rows of both graphs."""
    report = reports[name]
    page.open(report.view("html", tmp_path / "report.html"))
    titles = headers(page)

    shown = [dict(zip(titles, row, strict=True)) for row in table(page)]

    assert len(shown) == len(report.rows)
    told = sorted(_told(row) for row in shown)
    expected = [
        (row.stage if name != "wrong" else "", row.value, row.status, *_measures(row.difference)) for row in report.rows
    ]
    assert told == sorted(expected)
    assert page.text(".remarks").startswith(report.headline)


def _told(row):
    numbers = (_number(row.get(name, "")) for name in MEASURED)
    return row.get("graph", ""), row["value"], row["status"], *numbers


MEASURED = ("error", "mean_error", "absolute", "relative", "scale", "snr", "mismatched", "count")


def _measures(difference):
    if difference is None or difference.problem:
        return (-math.pi,) * len(MEASURED)  # stands for nothing, and can be sorted
    return tuple(float(difference.measures[name]) for name in MEASURED)


def _number(text):
    return float(text.replace("Infinity", "inf")) if text else -math.pi


def test_it_opens_at_the_first_divergence(page, reports, tmp_path):
    """The page shows statistics of the value and of its reference; the page of a clean report selects nothing."""
    report = reports["wrong"]
    page.open(report.view("html", tmp_path / "wrong.html"))
    first = report.first_divergence
    assert first is not None and first.spread is not None

    panel = page.text(".panel")

    assert first.node in panel and "first divergence" in panel
    assert "reference" in panel and page.run("document.querySelectorAll('.panel svg').length") >= 1
    page.open(reports["clean"].view("html", tmp_path / "clean.html"))
    assert "first divergence" not in page.text(".panel")


def test_layers_of_resnet_18_are_opened_searched_and_sorted(page, reports, tmp_path):
    """These are the first steps of a reader."""
    report = reports["resnet"]
    page.resize(1280, 1100)  # in a small picture, boxes are joined and can't be clicked
    page.open(report.view("html", tmp_path / "resnet.html"))
    assert int(page.run("document.documentElement.dataset.drawn")) < 3000
    page.run("document.querySelector('svg.graph').focus()")
    page.press("c")
    page.press("f")
    closed = page.run("document.querySelectorAll('.box.open').length")

    page.click(".box.group", times=2)
    assert page.run("document.querySelectorAll('.box.open').length") > closed
    page.press("/")
    page.type("layer4.1.conv2")
    page.press("ArrowDown")
    page.press("Enter")
    assert "layer4" in page.text(".panel") and "conv2" in page.text(".panel")
    for _ in range(2):
        page.run("document.querySelector('.rows th[data-name=error] button').click()")
        page.settle()
    assert report.worst is not None
    errors = [row[headers(page).index("error")] for row in table(page)]
    assert {float(errors[0]), float([text for text in errors if text][-1])} >= {report.worst.error}
