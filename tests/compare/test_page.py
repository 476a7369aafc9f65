"""The page of a real report in a browser: each number on it is the report's."""

import math
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from chromium import Chromium, missing
from fakes import WrongBackend
from pages import headers, table

from filch.compare import Report, compare, tiny_llm
from filch.export import export
from filch.steal import steal_forward

pytestmark = pytest.mark.skipif(missing() is not None, reason=str(missing()))


@pytest.fixture(scope="module")
def reports() -> dict[str, Report]:
    """The tiny language model on ONNX Runtime, and with a fault in its first norm."""
    model, args = tiny_llm()
    with torch.no_grad(), steal_forward(model, submodules=True) as capture:
        model(*args)
    program = export(model, args)
    wrong = WrongBackend({"layer_norm": lambda t: t * 1.01})
    return {
        "clean": compare(capture, program, statistics=True),
        "wrong": compare(capture, program, backend=wrong, statistics=True),
    }


@pytest.fixture(scope="module")
def page() -> Iterator[Chromium]:
    """A browser."""
    with Chromium() as made:
        yield made


@pytest.mark.parametrize("name", ["clean", "wrong"])
def test_every_number_of_every_row_is_read_back(
    page: Chromium, reports: dict[str, Report], name: str, tmp_path
) -> None:
    """From the table, scrolled to its end: status, error, measures of all rows of both graphs."""
    report = reports[name]
    page.open(report.view("html", tmp_path / "report.html"))
    titles = headers(page)

    shown = [dict(zip(titles, row, strict=True)) for row in table(page)]

    assert len(shown) == len(report.rows)
    told = sorted(_told(row) for row in shown)
    expected = [
        (row.stage if name == "clean" else "", row.value, row.status, *_measures(row.difference)) for row in report.rows
    ]
    assert told == sorted(expected)
    assert page.text(".remarks").startswith(report.headline())


def _told(row: dict[str, str]) -> tuple[object, ...]:
    numbers = (_number(row.get(name, "")) for name in MEASURED)
    return row.get("graph", ""), row["value"], row["status"], *numbers


MEASURED = ("error_max", "error_mean", "absolute", "relative", "scale", "snr", "mismatched", "count")


def _measures(difference) -> tuple[float, ...]:
    if difference is None or difference.problem:
        return (-math.pi,) * len(MEASURED)  # stands for nothing, and can be sorted
    return tuple(float(difference.measures[name]) for name in MEASURED)


def _number(text: str) -> float:
    return float(text.replace("Infinity", "inf")) if text else -math.pi


def test_it_opens_at_the_first_divergence(page: Chromium, reports: dict[str, Report], tmp_path: Path) -> None:
    """With the statistics of the value and of its reference; a clean report opens at nothing."""
    report = reports["wrong"]
    page.open(report.view("html", tmp_path / "wrong.html"))
    first = report.first_divergence
    assert first is not None and first.spread is not None

    panel = page.text(".panel")

    assert first.node in panel and "first divergence" in panel
    assert "reference" in panel and page.run("document.querySelectorAll('.panel svg').length") >= 1
    page.open(reports["clean"].view("html", tmp_path / "clean.html"))
    assert "first divergence" not in page.text(".panel")
