"""Tables on a terminal of any width: what is shortened, left out and colored; no line is too long."""

import re

import pytest
import torch
from torch import nn

from filch.compare import compare, diff
from filch.compare.rendering._console import as_text
from filch.compare.rendering._names import shortened_names, shortened_paths
from filch.compare.rendering._table import Column, Line, Table, cut, fit_names, folded, table_of
from filch.compare.results._bisection import BisectReport, Step
from filch.compare.results._cells import Cell, CellTable
from filch.compare.results._passes import PassErrors, PassRow
from filch.compare.results._precision import Goal, OutputDifferences, PrecisionReport, Sensitivity
from filch.compare.results._report import TABLES
from filch.export.backends import Switch
from support.faults.fakes import WrongBackend
from support.models.small import capture_of, module_of, recorded

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


WIDTHS = (60, 80, 100)
PARTS = ("attention.output_projection", "feed_forward.output_projection", "post_attention_layernorm")
NODE = "node_convert_element_type_default_{}"


def attention():
    """The last projection has the name that the feed-forward part's has."""

    def forward(self, x):
        query, key, value = self.qkv_projection(x).chunk(3, dim=-1)
        return self.output_projection((query @ key.transpose(-1, -2)).softmax(-1) @ value)

    return module_of(forward, qkv_projection=nn.Linear(8, 24), output_projection=nn.Linear(8, 8))


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.attention = attention()
        self.post_attention_layernorm = nn.LayerNorm(8)
        self.feed_forward = module_of(
            lambda self, x: self.output_projection(self.activation_function(x)),
            activation_function=nn.GELU(),
            output_projection=nn.Linear(8, 8),
        )

    def forward(self, x):
        return x + self.feed_forward(self.post_attention_layernorm(x + self.attention(x)))


class Transformer(nn.Module):
    """Two layers with long names, as those of Hugging Face have them."""

    def __init__(self):
        super().__init__()
        self.language_model = nn.Module()
        self.language_model.hidden_layers = nn.ModuleList([Block(), Block()])

    def forward(self, x):
        for layer in self.language_model.hidden_layers:
            x = layer(x)
        return {"last_hidden_state": x}


@pytest.fixture(scope="module")
def reports():
    """Return reports of both graphs, one without and one with an error in the second layer."""
    torch.manual_seed(0)
    model, x = Transformer().eval(), torch.randn(1, 4, 8)
    capture, program = recorded(model, x, submodules=True)
    wrong = WrongBackend({"layer_norm_1": lambda t: t + 0.1}, stages=("exported", "compiled"))
    return {
        "close": compare(capture, program, backend="onnxruntime-cpu"),
        "different": compare(capture, program, backend=wrong),
    }


@pytest.fixture(scope="module")
def results():
    """Return one of each result that has a table, with long names and reasons."""
    torch.manual_seed(0)
    model, other = Transformer().eval(), Transformer().eval()
    expected = capture_of(model, torch.ones(1, 4, 8), submodules=True)
    actual = capture_of(other, torch.ones(1, 4, 8), submodules=True)
    bad, good = (
        OutputDifferences(passes=False, error=0.125, snr=18.0),
        OutputDifferences(passes=True, error=1.5e-7, snr=140.0),
    )
    measured = next(row.difference for row in diff(expected, actual).rows if row.difference is not None)
    switches = tuple(Switch("optimizer", f"SkipLayerNormalizationFusion{index}") for index in range(3))
    costs = [
        Sensitivity(NODE.format(i), "ai.onnx::LayerNormalization", f"h.{i}.{PARTS[i]}", measured, bad)
        for i in (0, 1, 2)
    ]
    texts = {
        "close": "",
        "different": "exported node node_linear_1 (Gemm) → linear_1 in h.0.attention: error 4.5e-02 exceeds 1.0e-03",
        "missing": "backend 'onnxruntime-cuda' needs a CUDA device, and torch sees none",
        "failed": "torch.export can't export the model: a branch depends on the values of a tensor",
    }
    cells = [
        Cell(
            {"model": f"my_package.models.vision_transformers:{size}", "backend": "onnxruntime-cuda"},
            status,
            0.25,
            text,
        )
        for size in ("small", "large")
        for status, text in texts.items()
    ]
    return {
        "diff": diff(expected, actual),
        "cells": CellTable(tuple(cells)),
        "passes": PassErrors(tuple(PassRow(i, f"FuseConvolutionsWithActivation{i}", 1234, 0.5) for i in range(3))),
        "precision": PrecisionReport(
            to="float16",
            backend="eager",
            goal=Goal(snr=20.0),
            before=bad,
            after=good,
            keep=(NODE.format(1),),
            without={NODE.format(1): bad},
            best=good,
            order=tuple(costs),
            runs=7,
        ),
        "bisection": BisectReport(
            backend="onnxruntime-cpu",
            reference="dump.onnx",
            program="program.onnx",
            value=None,
            before=bad,
            after=None,
            best=bad,
            culprits=(),
            candidates=switches,
            steps=tuple(Step(switches[:count], bad, "0123456789", {"Gemm": 12345}) for count in range(3)),
        ),
    }


def _check(text, whole, width):
    lines = text.partition("\nNext, ")[0].splitlines()
    numbers = r"\d\.\de[+-]\d\d"
    assert max(map(len, lines)) <= width
    assert len(re.findall(numbers, text)) == len(re.findall(numbers, whole))
    words = set(whole.split())
    broken = {word for line in lines for word in line.split() if word not in words and not re.search("[…─]", word)}
    assert not broken


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize(
    ("kind", "view"),
    [
        *((kind, (view,)) for kind in ("close", "different") for view in TABLES),
        *((kind, ()) for kind in ("diff", "passes", "precision", "bisection")),
    ],
)
def test_a_table_fits(reports, results, kind, view, width):
    """In all views of a report, whether values differ or not, and for the results of the other commands."""
    result = (reports | results)[kind]
    _check(result.table(*view, width=width), result.table(*view, width=1000), width)


@pytest.mark.parametrize("width", WIDTHS)
def test_the_reasons_of_a_matrix_are_cut_after_a_word(results, width):
    """The whole reasons are below the table."""
    text, whole = (results["cells"].table(width=columns) for columns in (width, 1000))

    words = set(whole.split())
    assert max(map(len, text.splitlines())) <= width
    assert not {word for word in text.split() if word not in words and not re.search("[…─]", word)}
    assert text.count("2.5e-01") == 8
    assert all(cell.detail in " ".join(text.split()) for cell in results["cells"].cells)
    lines = text.splitlines()
    start = next(index for index, line in enumerate(lines) if line.startswith("─")) + 1
    assert len({line.split()[0] for line in lines[start : start + 8]}) == 2


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("kind", ["close", "different"])
def test_different_modules_are_written_differently(reports, kind, width):
    """Two layers have projections of the same name, in two parts of each."""

    def first_words(columns):
        lines = reports[kind].table("modules", width=columns).splitlines()
        start = next(index for index, line in enumerate(lines) if line.startswith("─")) + 1
        return [line.split()[0] for line in lines[start : lines.index("", start)]]

    assert len(set(first_words(width))) == len(set(first_words(1000))) > 10
    assert len(first_words(width)) == len(first_words(1000))


@pytest.mark.parametrize("width", WIDTHS)
def test_the_excerpt_in_the_message_of_a_test_fits(reports, width):
    """It shows the first difference and the rows around it."""
    report = reports["different"]

    _check(report.excerpt(width=width), report.excerpt(width=1000), width)


GPT2 = [
    f"transformer.h.{layer}.{name}"
    for layer in range(12)
    for name in ("ln_1", "attn", "attn.c_attn", "attn.c_proj", "ln_2", "mlp", "mlp.c_fc", "mlp.act", "mlp.c_proj")
]


@pytest.mark.parametrize(
    ("width", "short"),
    [(26, "transformer.h.6.mlp.c_proj"), (25, "…h.6.mlp.c_proj"), (14, "…6.mlp.c_proj"), (12, "…6…c_proj")],
)
def test_a_path_keeps_as_many_names_as_fit(width, short):
    """Those at its end first, and always the number of a layer."""
    assert shortened_paths(["transformer.h.6.mlp.c_proj"], width).popitem()[1] == (short,)


def test_a_long_last_name_loses_its_middle():
    """The number before it is kept."""
    path = "model.layers.3.post_attention_layernorm"

    assert shortened_paths([path], 24)[path] == ("…3.post_atten…_layernorm",)


@pytest.mark.parametrize("width", range(4, 30))
def test_two_paths_never_look_alike(width):
    """No line is too long, and a path for which no short form remains is continued on the next lines."""
    short = shortened_paths(GPT2, width)

    assert list(short) == GPT2
    assert len(set(short.values())) == len(GPT2)
    assert max(len(line) for lines in short.values() for line in lines) <= width


@pytest.mark.parametrize("width", range(12, 30))
def test_paths_of_a_model_have_one_line(width):
    """This is the least width of a column of modules."""
    assert {len(lines) for lines in shortened_paths(GPT2, width).values()} == {1}


def test_a_short_form_that_fits_another_path_is_not_used():
    """`…6…c_proj` could be both, so a part of the name that distinguishes them is shown."""
    paths = ["transformer.h.6.attn.c_proj", "transformer.h.6.mlp.c_proj"]

    assert list(shortened_paths(paths, 12).values()) == [("…6.at…c_proj",), ("…6.ml…c_proj",)]


def test_names_that_differ_only_in_their_middle_have_several_lines():
    """Lines end at punctuation; a name that differs at its end has one line."""
    names = ["node_convert_1_element_type", "node_convert_2_element_type", "node_convert_1_element_type_7"]

    short = shortened_names(names, 13)

    assert short[names[0]] == ("node_convert_", "1_element_", "type")
    assert short[names[1]] == ("node_convert_", "2_element_", "type")
    assert short[names[2]] == ("node_c…type_7",)
