"""Tests of programs that are compared with the capture of another implementation, by a mapping."""

import pytest
import torch

from filch.compare import CompareError, MappedValue, ValueMap, align, compare
from filch.compare.layouts._layout import Layout
from filch.export import Program, export
from filch.steal import steal_forward
from support.models.port import Ported, port
from support.models.small import capture_of
from support.processes.commands import run


@pytest.fixture(scope="module")
def mapping():
    a, b, args = port()
    return ValueMap.of(align(a, b, args))


@pytest.fixture(scope="module")
def capture():
    """Return a capture of two calls of the original."""
    model, _, (tokens,) = port()
    with torch.no_grad(), steal_forward(model, submodules=True) as capture:
        model(tokens)
        model(tokens.flip(1))
    return capture


def program(bug=""):
    model, args = port({1: bug} if bug else {})[1:]
    assert isinstance(model, Ported)
    return export(model, args)


def test_a_right_port_is_close(capture, mapping):
    """Its module outputs are judged in each call, joined ones too, and other values are not."""
    report = compare(capture, program(), mapping=mapping, stages=("exported",))
    assert report.close, report
    assert report.calls == (2, 2)
    judged = [row for row in report.rows if row.judged and row.kind != "input"]
    modules = {f"blocks.{index}.{name}" for index in range(3) for name in ("ln1", "qkv", "proj", "ln2")}
    assert modules < {row.module for row in judged}
    assert len({row.value for row in judged}) < len({row.value for row in report.rows}) / 2
    assert report.notes[0] == "18 values of modules have a reference by the mapping"


@pytest.mark.parametrize("fault", [("epsilon", "blocks.1.ln1"), ("gelu", "blocks.1")])
def test_a_bug_of_the_port_is_named(capture, mapping, tmp_path, capsys, fault):
    """Although the program does what the port does; on the command line, too."""
    bug, module = fault
    wrong = program(bug)
    first = compare(capture, wrong, mapping=mapping).first_divergence
    assert first is not None
    assert first.module == module
    model, _, args = port()
    capture_of(model, *args, submodules=True, dump_file=tmp_path / "a.onnx")
    wrong.save(tmp_path / "b.onnx")
    mapping.save(tmp_path / "map.toml")
    files = [str(tmp_path / name) for name in ("a.onnx", "b.onnx")]
    assert run("compare", *files, "--mapping", str(tmp_path / "map.toml")) == 1
    output = " ".join(capsys.readouterr().out.split())
    assert "by a mapping" in output
    assert module in output
    assert "--blame" not in output


def test_a_value_of_which_a_part_is_missing_is_not_judged(capture, mapping):
    """Queries alone don't tell what queries, keys and values are together."""
    values = {name: row for name, row in mapping.values.items() if ".key" not in name}
    report = compare(capture, program("scale"), mapping=ValueMap(values), stages=("exported",))
    assert "blocks.0.qkv" not in {row.module for row in report.rows if row.judged}
    assert not report.close


def test_what_does_not_fit_is_refused(capture, mapping):
    """A module that is not there, a part that is not there, and a program without modules."""
    exported = program()
    with pytest.raises(CompareError, match=r"'blocks.1.ln', which no module of the program returned; did you mean"):
        compare(capture, exported, mapping=ValueMap({"norm": MappedValue("blocks.1.ln")}))
    layout = Layout.of(24, [(14 * 24, 1)])
    with pytest.raises(CompareError, match=r"'norm', f32\[2, 7, 24\], is in 'final', .*, which has no such part"):
        compare(capture, exported, mapping=ValueMap({"norm": MappedValue("final", layout)}))
    with pytest.raises(CompareError, match="does not say what they return"):
        compare(capture, Program(exported.model), mapping=mapping)
