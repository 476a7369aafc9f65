"""What commands cost is what `benchmarks/budgets.toml` says: runs, exports, sessions, and passes over the values."""

import functools
from pathlib import Path
from pkgutil import resolve_name

import budgets
import pytest
import torch
from _costs import COMMANDS

from support.thorough import kept

pytestmark = [
    pytest.mark.skipif(not Path("/proc/self/io").exists(), reason="only Linux tells what a process has written"),
    pytest.mark.skipif(
        not torch.__version__.startswith(budgets.torch_version()), reason="another torch may run other operations"
    ),
]
QUICK = "steal_forward in memory", "steal", "restore", "check", "compare a.onnx b.onnx", "diff", "diff --model"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("files")


def wrong_figures(command, folder):
    figures = budgets.counts(command, folder / COMMANDS[command].counted)
    return budgets.problems(figures, budgets.load()["small"][command])


@pytest.mark.parametrize("command", kept(COMMANDS, *QUICK))
def test_a_command_costs_what_is_written(command, folder):
    """No more; and no less, so that the file stays true: `python benchmarks/budgets.py --write` updates it."""
    assert wrong_figures(command, folder) == {}


# A command, what it calls twice, and the figure that shows it.
TWICE = [
    ("steal", "filch.compare.models._subject.Subject.run", "forward runs"),
    ("diff", "filch.compare.metrics._summed_sizes.compare_tensors", "passes"),
    ("diff --model", "filch.compare._diff.repeat_calls", "float64 evaluations"),
    ("compare a.onnx b.onnx", "filch.compare.engine._value_comparator.compare_tensors", "passes"),
    (
        "compare a.onnx b.onnx",
        "filch.export.backends.onnxruntime._backend.OnnxRuntimeBackend._session",
        "sessions",
    ),
    ("compare a.onnx b.onnx", "filch.export.backends.onnxruntime._backend.run", "session runs"),
    ("check", "filch.compare.models._subject.Subject.export", "exports"),
]


@pytest.mark.parametrize(("command", "name", "figure"), kept(TWICE, *TWICE[:3]))
def test_what_is_done_twice_is_found(command, name, figure, folder, monkeypatch):
    """The figure is above what is allowed."""
    place, _, attribute = name.rpartition(".")
    function = getattr(resolve_name(place), attribute)

    @functools.wraps(function)
    def twice(*args, **options):
        function(*args, **options)
        return function(*args, **options)

    monkeypatch.setattr(name, twice)
    assert wrong_figures(command, folder)[figure].startswith(budgets.ABOVE)


def test_what_is_less_or_not_known_is_found():
    """A figure that shrinks, one that nobody has written down, and one that is not counted any more."""
    written = {"runs": 3, "peak": [2.0, 2.2], "gone": 1}
    found = budgets.problems({"runs": 2, "peak": 1.9, "new": 0}, written)
    assert {name: text.partition(":")[0] for name, text in found.items()} == {
        "runs": budgets.BELOW,
        "gone": budgets.GONE,
        "new": budgets.NEW,
    }
    assert budgets.verdict(1.7, [2.0, 2.2]) == budgets.BELOW
    assert budgets.verdict(2.3, [2.0, 2.2]) == budgets.ABOVE


def test_each_command_has_budgets():
    """With the small model, and with each size of which its memory is measured; there are no others."""
    expected = {
        size: {name for name, command in COMMANDS.items() if size == "small" or size in command.measured}
        for size in budgets.SIZES
    }
    assert {size: {*commands} for size, commands in budgets.load().items()} == expected


def test_the_table_of_the_results_is_that_of_the_file():
    """`python benchmarks/budgets.py --write` prints it."""
    assert budgets.summary(budgets.load()) in budgets.FILE.with_name("RESULTS.md").read_text("utf-8")
