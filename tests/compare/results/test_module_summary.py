"""The table of modules in a summary."""

import pytest

from filch.compare.rendering._console import as_text
from filch.compare.results._module_summary import module_summary
from filch.compare.results._rows import Row


def rows_of(modules, wrong=()):
    """A row for each module, in order; those of `wrong` differ."""
    return [
        Row(
            0,
            "exported",
            index,
            "node",
            f"n{index}",
            "Add",
            f"v{index}",
            name,
            status="different" if name in wrong else "same",
        )
        for index, name in enumerate(modules)
    ]


def table(rows, first=None):
    return as_text(module_summary(rows, first), width=80).splitlines()[2:]


@pytest.mark.parametrize("module", [None, "linear"])
def test_a_model_without_submodules_has_a_row(module):
    """Its values have no module, or that of the model."""
    assert table(rows_of([module] * 3))[-1].split() == [module or "(model)", "3"]


def test_layers_that_are_alike_are_one_row():
    """The layer of the first divergence has a row of its own, and those after it are one."""
    names = [f"layers.{index}" for index in range(30)]
    rows = rows_of(names, wrong=names[12:])

    lines = table(rows, rows[12])

    assert [line.split()[:3] for line in lines] == [
        ["layers.0", "to", "11"],
        ["layers.12", "1", "1"],
        ["layers.13", "to", "29"],
    ]
    assert "<------" in lines[1]


def test_a_model_with_many_modules_still_fits_on_a_screen():
    """Modules that differ are shown, and how many others there are."""
    names = [f"block_{chr(97 + index)}" for index in range(26)]
    rows = rows_of(names, wrong=names[20:22])

    lines = table(rows, rows[20])

    assert len(lines) == 11
    assert {"block_u", "block_v"} <= {line.split()[0] for line in lines}
    assert lines[-1] == "and 16 more, none of which differ"
