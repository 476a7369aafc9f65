"""The backends `eager` and `reference`."""

import re
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

import onnx_ir as ir
import pytest
import torch
from torch import nn

from filch.compare import compare, diff
from filch.export import BackendError, Program, export
from filch.export.backends import get_backend
from support.models.small import capture_of, module_of, onnx_model, recorded


def attention():
    """A projection, attention over it, another one."""

    def forward(self, x):
        q, k, v = self.into(x).view(2, 5, 3, 2, 4).permute(2, 0, 3, 1, 4)
        mixed = nn.functional.scaled_dot_product_attention(q, k, v)
        return self.out(mixed.transpose(1, 2).reshape(2, 5, 8))

    return module_of(forward, into=nn.Linear(8, 24), out=nn.Linear(8, 8))


@pytest.fixture(scope="module")
def subject():
    torch.manual_seed(0)
    model, x = attention().eval(), torch.randn(2, 5, 8)
    return recorded(model, x, submodules=True)


def values_of(program, **options):
    backend = get_backend("eager", **options)
    made = backend.compile(program, optimize=False)
    x = torch.randn(2, 5, 8, generator=torch.Generator().manual_seed(1))
    return dict(backend.run(made, {"x": x}, made.graph.producer))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float64", "torch.float16", torch.float64])
def test_another_dtype_is_what_is_computed_in(subject, dtype):
    """Given as a dtype or as its name; the program's own weights stay as they are."""
    _, program = subject
    wanted = getattr(torch, str(dtype).removeprefix("torch."))

    values = values_of(program, dtype=dtype)

    assert {value.dtype for value in values.values() if value.is_floating_point()} == {wanted}
    assert {tensor.dtype for tensor in program.exported_program.state_dict.values()} == {torch.float32}


def test_autocast_computes_matrix_products_in_its_type(subject):
    """And is over after the run."""
    capture, program = subject

    report = compare(capture, program, backend=get_backend("eager", autocast="bfloat16"))

    assert "bfloat16" in {row.dtype for row in report.rows}
    assert not torch.is_autocast_enabled("cpu")


def test_another_attention_is_within_the_tolerance_and_not_the_same(subject):
    """The exact one and the fused one round differently; both are asked for by name."""
    capture, program = subject
    reports = {
        name: compare(capture, program, backend=get_backend("eager", attention=name)) for name in ("math", "flash")
    }
    values = {name: values_of(program, attention=name) for name in ("math", "flash")}

    assert all(report.close for report in reports.values())
    assert any(not torch.equal(value, values["flash"][name]) for name, value in values["math"].items())


def test_an_attention_that_this_device_does_not_have_is_an_error(subject):
    """PyTorch would otherwise take another one."""
    with pytest.raises(BackendError, match="No viable backend for scaled_dot_product_attention"):
        values_of(subject[1], attention="cudnn")


@pytest.mark.parametrize("deterministic", [True, "true"])
def test_deterministic_algorithms_are_on_in_the_run_alone(subject, deterministic, monkeypatch):
    """Whatever the user had set is set again."""
    seen = []

    def seeing(*args, **how):
        seen.append(torch.are_deterministic_algorithms_enabled())
        return ()

    monkeypatch.setattr("filch.export.backends._eager.walk_eager", seeing)

    values_of(subject[1], deterministic=deterministic)
    values_of(subject[1], deterministic="false")

    assert seen == [True, False]
    assert not torch.are_deterministic_algorithms_enabled()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"dtype": "float15"}, "backend 'eager' has no dtype 'float15'; did you mean 'float16'"),
        ({"dtype": "int8"}, "backend 'eager' has no dtype 'int8'"),
        ({"autocast": "half a float"}, "backend 'eager' has no autocast 'half a float'"),
        ({"attention": "flesh"}, "backend 'eager' has no attention 'flesh'; did you mean 'flash'"),
        ({"deterministic": "maybe"}, "backend 'eager' has no deterministic 'maybe'; there are true, false"),
        ({"device": "toaster"}, "backend 'eager': torch has no device 'toaster'"),
    ],
)
def test_options_that_there_are_not_are_errors(options, message):
    """With the value, and what to write instead."""
    with pytest.raises(BackendError, match=message):
        get_backend("eager", **options)


def through(extra=None):
    """Returns what it is given, too."""
    return module_of(lambda self, x: (x, x * 2, self.extra), extra=extra)


@pytest.mark.parametrize("number", [None, 3])
def test_an_input_that_is_returned_is_judged_and_a_number_is_left_out(number):
    """No operation gives the input; the number is no tensor."""
    model, x = through(number), torch.randn(3)

    report = compare(capture_of(model, x), export(model, (x,)), backend="eager")

    assert report.close and [row.judged for row in report.rows if row.kind == "output"] == [True, True]


def test_a_device_that_is_not_there_is_an_error():
    """Never the CPU instead."""
    device = f"cuda:{torch.cuda.device_count()}"

    with pytest.raises(BackendError, match=f"backend 'eager': torch has no device '{device}'"):
        get_backend("eager", device=device)


@pytest.mark.parametrize("options", [{"dtype": "float16"}, {"autocast": "bfloat16"}, {"attention": "math"}])
def test_an_option_without_effect_on_the_program_is_an_error(options):
    """Nobody should believe that they compared what they did not."""
    x = torch.arange(3)
    program = export(module_of(lambda self, x: x + 1), (x,))
    backend = get_backend("eager", **options)

    with pytest.raises(BackendError, match="has no effect on"):
        backend.run(backend.compile(program, optimize=False), {"x": x})


def test_the_same_model_in_two_settings_is_compared_without_an_export():
    """Two captures and `diff`, as docs/guides/torch_compile.md shows it; a fault in one is found at its module."""
    docs = (Path(__file__).resolve().parents[3] / "docs" / "guides" / "torch_compile.md").read_text()
    (shown,) = (text for text in re.findall(r"```python\n(.*?)```", docs, re.DOTALL) if "diff(exact, fused)" in text)
    torch.manual_seed(0)
    scope: dict[str, Any] = {"nn": nn, "torch": torch}

    with redirect_stdout(StringIO()) as printed:
        exec(shown, scope)  # noqa: S102  our own docs
    model = scope["attention"].requires_grad_(requires_grad=False)
    model.linear1.bias += 0.1
    changed = capture_of(model, scope["tokens"], submodules=True)
    found = diff(scope["fused"], changed)

    assert diff(scope["exact"], scope["fused"]).close
    assert printed.getvalue()
    assert not found.close
    assert "linear1" in str(found)


def test_an_input_and_weights_that_are_results_are_given_as_they_are():
    class Given(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.ones(4))
            self.register_buffer("held", torch.zeros(3))

        def forward(self, x):
            return x * 2, self.weight, x, self.held

    model, x = Given(), torch.arange(4.0)
    program = export(model, (x,))
    capture = capture_of(model, x)
    assert compare(capture, program, backend="eager").close
    found = get_backend("eager").run(get_backend("eager").compile(program, optimize=False), {"x": x})
    assert [found[name].tolist() for name in program.graph.outputs] == [[0, 2, 4, 6], [1] * 4, [0, 1, 2, 3], [0] * 3]


def test_texts_are_no_values_of_the_reference_evaluator():
    """An honest program may have a text in it, which nothing compares."""
    text = '(float[2] x) => (float[2] y) { text = Constant<value_string = "a">() written = Cast<to=8>(x) y = Relu(x) }'
    backend = get_backend("reference")
    compiled = backend.compile(Program(ir.from_proto(onnx_model(text))), optimize=False)

    found = backend.run(compiled, {"x": torch.tensor([-1.0, 2.0])}, ["text", "written"])

    assert {name: value.tolist() for name, value in found.items()} == {"y": [0, 2]}


def test_a_regular_expression_that_nothing_stops_is_refused():
    model = onnx_model('(string[1] x) => (bool[1] y) { y = RegexFullMatch<pattern = "(a+)+$">(x) }')

    with pytest.raises(BackendError, match="runs RegexFullMatch by Python's re, which no time limit stops"):
        get_backend("reference").compile(Program(ir.from_proto(model)), optimize=False)
