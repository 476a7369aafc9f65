"""Tables on a terminal: what is shortened, left out and colored."""

import re

import pytest

from filch.compare.rendering._console import as_text
from filch.compare.rendering._table import Column, Line, Table, cut, fit_names, folded, table_of

COLUMNS = (
    Column("", right=True),
    Column("kind", optional=2),
    Column("module", folded, least=8),
    Column("error", right=True),
    Column("seconds", right=True, optional=1),
)
ROWS = (
    ("7", "fused", "decoder layers 3 self attention", "1.2e-07", "12.125"),
    ("153", "node", "head", "9.0e-01", "0.500"),
)


@pytest.mark.parametrize("width", range(20, 90, 5))
def test_no_number_is_cut_and_no_line_is_too_long(width):
    """Columns of text shrink and optional columns are left out; indices and errors are always whole."""
    text = as_text([Table(COLUMNS, ROWS)], width=width)

    assert max(map(len, text.splitlines())) <= width
    assert {"7", "153", "1.2e-07", "9.0e-01"} <= set(text.split())


def test_optional_columns_are_left_out_the_largest_number_first():
    """The kind goes before the seconds, and neither goes if there is room."""
    shown = {width: as_text([Table(COLUMNS, ROWS)], width=width).splitlines()[0].split() for width in (80, 32, 22)}

    assert shown == {
        80: ["kind", "module", "error", "seconds"],
        32: ["module", "error", "seconds"],
        22: ["module", "error"],
    }


def test_two_long_columns_share_the_width():
    """The one that needs less keeps its text whole."""
    table = Table((Column("a", fit_names), Column("b", fit_names)), (("x" * 100, "y" * 30), ("1", "2")))

    line = as_text([table], width=80).splitlines()[2]

    assert line == f"{'x' * 24}…{'x' * 24} {'y' * 30}"


def test_optional_columns_make_room_for_a_name():
    """A column without text goes first, and none goes if the names have their preferred width."""
    columns = (Column("module", fit_names, preferred=20), Column("dtype", optional=1), Column("attention"))
    table = Table(columns, (("a_module_with_a_long_name", "float32", ""),))

    shown = {width: as_text([table], width=width).splitlines()[0].split() for width in (38, 37, 28, 27)}

    assert shown == {
        38: ["module", "dtype", "attention"],
        37: ["module", "dtype"],
        28: ["module", "dtype"],
        27: ["module"],
    }


def test_a_reason_is_cut_after_a_word():
    """A word that is longer than the column loses its middle."""
    assert cut(["missing: the backend needs a GPU", "close", "x" * 20], 14) == [
        ("missing: the …",),
        ("close",),
        ("xxxxx…xxxxxx",),
    ]


def test_columns_of_numbers_stay_whole_and_text_is_folded():
    """`table_of` knows them by their values."""
    rows = [("a sentence of several words", 1.5e-7, 12345), ("other", None, 7)]
    columns = {"text": lambda row: row[0], "error": lambda row: row[1], "count": lambda row: row[2]}

    text = as_text([table_of(columns, rows)], width=24)

    assert "1.5e-07" in text and "12345" in text
    assert max(map(len, text.splitlines())) <= 24
    assert " ".join(re.findall(r"a|sentence|of|several|words", text)) == "a sentence of several words"


def test_only_styles_are_escape_sequences():
    """An escape in a name is made visible, and without color there is none at all."""
    blocks = [Line("DIFFERENT: \x1b[2Jname", "different"), Table((Column("n"),), (("\x1b[31mred",),), frozenset({0}))]

    plain, colored = as_text(blocks, width=40), as_text(blocks, width=40, color=True)

    assert "\x1b" not in plain
    stripped = re.sub(r"\x1b\[[\d;]*m", "", colored)
    assert [line.rstrip() for line in stripped.splitlines()] == plain.splitlines()
    assert "\x1b[1;31mDIFFERENT" in colored and "\x1b[2J" not in colored and "\\u001b[31mred" in colored


def test_a_command_is_not_wrapped():
    """A line that is copied has no line breaks."""
    command = "filch check " + "x" * 100

    assert as_text([Line(command, "command")], width=40) == command
    assert len(as_text([command], width=40).splitlines()) > 1
