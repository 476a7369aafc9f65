"""Every table at the widths that terminals have: numbers are whole, no word is broken, no line is too long."""

import re

import pytest
import torch
from torch import nn

from filch.compare import compare, diff
from filch.compare.results._bisection import BisectReport, Step
from filch.compare.results._cells import Cell, CellTable
from filch.compare.results._passes import PassErrors, PassRow
from filch.compare.results._precision import Goal, OutputDifferences, PrecisionReport, Sensitivity
from filch.compare.results._report import TABLES
from filch.export import export
from filch.export.backends import Switch
from support.faults.fakes import WrongBackend
from support.models.small import capture_of, module_of

WIDTHS = (60, 80, 100)
PARTS = ("attention.output_projection", "feed_forward.output_projection", "post_attention_layernorm")
NODE = "node_convert_element_type_default_{}"


class Attention(nn.Module):
    """The last projection has the name that the feed-forward part's has."""

    def __init__(self):
        super().__init__()
        self.qkv_projection = nn.Linear(8, 24)
        self.output_projection = nn.Linear(8, 8)

    def forward(self, x):
        query, key, value = self.qkv_projection(x).chunk(3, dim=-1)
        return self.output_projection((query @ key.transpose(-1, -2)).softmax(-1) @ value)


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.attention = Attention()
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
    capture = capture_of(model, x, submodules=True)
    program = export(model, (x,))
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


def _without_commands(text):
    """Return the lines without those of the next command, which is not wrapped."""
    return text.partition("\nNext, ")[0].splitlines()


def _check(text, whole, width):
    lines = _without_commands(text)
    numbers = r"\d\.\de[+-]\d\d"
    assert max(map(len, lines)) <= width
    assert len(re.findall(numbers, text)) == len(re.findall(numbers, whole))
    words = set(whole.split())
    broken = {word for line in lines for word in line.split() if word not in words and not re.search("[…─]", word)}
    assert not broken


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("view", TABLES)
@pytest.mark.parametrize("kind", ["close", "different"])
def test_a_view_of_a_report_fits(reports, kind, view, width):
    """In all views, whether values differ or not."""
    _check(reports[kind].table(view, width=width), reports[kind].table(view, width=1000), width)


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("kind", ["diff", "passes", "precision", "bisection"])
def test_a_result_fits(results, kind, width):
    """Those of the other commands."""
    _check(results[kind].table(width=width), results[kind].table(width=1000), width)


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
