"""The default verdict of `torch.compile(backend="filch")` and `compare_gradients`: by float64."""

import pytest
import torch
from torch import nn
from torch.nn import functional

from filch.compare import CompareError, Tolerance, compare_gradients
from support.models.small import module_of
from support.processes.compilers import needs_compiler
from support.thorough import slow


class Attention(nn.Module):
    """Embeddings, a causal attention, a dropout and tied weights."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(20, 16)
        self.before, self.after = nn.LayerNorm(16), nn.LayerNorm(16)
        self.project, self.out = nn.Linear(16, 48), nn.Linear(16, 16)
        self.dropout = nn.Dropout(0.2)

    def forward(self, tokens):
        x = self.embed(tokens)
        batch, length, width = x.shape
        q, k, v = self.project(self.before(x)).view(batch, length, 3, 2, width // 2).permute(2, 0, 3, 1, 4)
        y = functional.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2)
        x = x + self.dropout(self.out(y.reshape(x.shape)))
        return self.after(x) @ self.embed.weight.T


class Rotary(nn.Module):
    """The attention of Llama: an RMSNorm and a softmax in float32, rotary embeddings and a mask of -inf."""

    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(16))
        self.project, self.out = nn.Linear(16, 48, bias=False), nn.Linear(16, 16, bias=False)

    def forward(self, x):
        wide = x.float()
        y = self.scale * (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + 1e-6)).to(x.dtype)
        q, k, v = self.project(y).chunk(3, -1)
        angles = torch.arange(x.shape[1])[:, None].float() / 10000.0 ** (torch.arange(0, 16, 2).float() / 16)
        cos, sin = (torch.cat([part, part], -1).to(x.dtype) for part in (angles.cos(), angles.sin()))
        q, k = (item * cos + torch.cat([-item[..., 8:], item[..., :8]], -1) * sin for item in (q, k))
        mask = torch.full((x.shape[1], x.shape[1]), -torch.inf, dtype=x.dtype).triu(1)
        weights = (q @ k.transpose(-1, -2) / 4 + mask).float().softmax(-1).to(x.dtype)
        return x + self.out(weights @ v)


def convolutions():
    """The bias before a BatchNorm has a gradient of 0, plus rounding."""

    def forward(self, x):
        x = functional.max_pool2d(functional.relu(self.norm(self.conv(x))), 2)
        return self.head(x.mean((2, 3)))

    return module_of(forward, conv=nn.Conv2d(3, 8, 3, padding=1), norm=nn.BatchNorm2d(8), head=nn.Linear(8, 5))


def in_place(self, x):
    """Writes to views, to zeros and to uninitialized memory."""
    y = self.first(x)
    y.mul_(2)
    shifted = torch.zeros_like(y)
    shifted[:, 1:] = y[:, :-1].sin()
    shifted.add_(y)[:, 0] += 1
    filled = torch.empty_like(y)
    filled.copy_(shifted.exp())
    return self.second(filled.log1p_())


class Autocast(nn.Module):
    """Computes in bfloat16 what autocast selects."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, x):
        with torch.autocast("cpu", torch.bfloat16):
            return self.model(x)


class Choices(nn.Module):
    """Sorts and selects among numbers with exact ties, the zeros of a ReLU."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(16, 16)

    def forward(self, x):
        y = functional.relu(self.linear(x))
        values, indices = y.topk(3, -1)
        spread = torch.zeros_like(y).scatter(-1, indices, values.softmax(-1))
        return spread.cumsum(-1) + y.sort(-1).values, y.argmax(-1), y.max(1).indices


class Gelu(nn.Module):
    """Two layers with a GELU between them."""

    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(16, 32), nn.Linear(32, 8)

    def forward(self, x):
        return self.down(functional.gelu(self.up(x)))


MODELS = {
    "attention": lambda: (Attention(), torch.randint(0, 20, (2, 9))),
    "rotary": lambda: (Rotary(), torch.randn(2, 9, 16)),
    "rotary in float16": lambda: (Rotary().half(), torch.randn(2, 9, 16).half()),
    "convolutions": lambda: (convolutions(), torch.randn(4, 3, 16, 16)),
    "in-place": lambda: (module_of(in_place, first=nn.Linear(8, 8), second=nn.Linear(8, 8)), torch.randn(5, 8)),
    "autocast": lambda: (Autocast(Gelu()), torch.randn(6, 16)),
    "choices": lambda: (Choices(), torch.randn(6, 16)),
}


def _checked(model, x, **options):
    """Return the report of one call without gradients."""
    reports = []
    with torch.no_grad():
        torch.compile(model, backend="filch", options={"correctness_report": reports, **options})(x)
    return reports[0]


def _by_float64(report):
    """Check that float64 judged each floating-point value that was judged."""
    judged = [row for row in report.rows if row.judged]
    assert judged
    assert [row for row in judged if row.float64 is None] == []
    assert not any("by tolerance" in note for note in report.notes)


@slow
@needs_compiler
@pytest.mark.parametrize("name", MODELS)
def test_a_clean_model_has_no_value_that_rounding_does_not_explain(name):
    """Forward, backward and the gradients of all parameters, with Inductor."""
    model, x = MODELS[name]()

    report = compare_gradients(model, (x,))

    assert report.close, report.verdict()
    _by_float64(report)
    gradients = [row for row in report.rows if row.op == "gradient"]
    assert len(gradients) == len(list(model.parameters()))
    assert any(row.float64.verdict == "rounding" for row in report.rows if row.float64 is not None)


@slow
@pytest.mark.parametrize("name", MODELS)
def test_a_clean_model_is_close_with_any_compiler(name):
    """AOTAutograd without Inductor runs the operations in eager PyTorch."""
    model, x = MODELS[name]()
    report = compare_gradients(model, (x,), inner="aot_eager")
    assert report.close, report.verdict()
    _by_float64(report)


def _off_by(relative):
    """Return a compiler whose `tanh` is too large by a factor."""

    def compile_wrong(module, inputs):
        class Wrong(torch.fx.Interpreter):
            def run_node(self, n):
                value = super().run_node(n)
                return value * (1 + relative) if n.name == "tanh" else value

        return Wrong(module).run

    return compile_wrong


def tanh_module():
    """Two nodes after each other."""
    return module_of(lambda self, x: torch.tanh(self.linear(x)).exp(), linear=nn.Linear(8, 8))


def test_an_error_within_the_tolerance_is_found():
    """An error of twelve times the rounding level, a tenth of the default tolerance."""
    model, x = tanh_module(), torch.randn(4, 8)
    assert _checked(model, x, inner=_off_by(0.0)).close
    for tolerance in ("default", 1.0, Tolerance(1e-3, 1e-1)):
        report = _checked(model, x, inner=_off_by(1e-6), tolerance=tolerance)
        assert report.close
        assert not any(row.float64 for row in report.rows)

    report = _checked(model, x, inner=_off_by(1e-6))

    assert not report.close
    assert report.first_divergence.value == "tanh"
    assert report.first_divergence.float64.verdict == "wrong"


def test_an_error_of_three_times_the_rounding_level_is_suspicious():
    """It is shown, and no failure, as in `compare`."""
    report = _checked(tanh_module(), torch.randn(4, 8), inner=_off_by(2e-7))
    row = next(row for row in report.rows if row.value == "tanh")
    assert row.float64.verdict == "suspicious"
    assert 2 < row.float64.ratio < 5
    linear = next(row for row in report.rows if row.value == "linear")
    assert linear.float64.sound


@slow
@needs_compiler
def test_a_small_error_of_a_lowering_is_found_in_the_operation_and_the_kernel(monkeypatch):
    """The tolerance accepts it."""
    from torch._inductor import lowering

    tanh = torch.ops.aten.tanh.default
    right = lowering.lowerings[tanh]
    monkeypatch.setitem(lowering.lowerings, tanh, lambda x: lowering.mul(right(x), 1 + 5e-6))
    model, x = tanh_module(), torch.randn(4, 8)
    report = _checked(model, x)
    diverged = [row for row in report.diverged if row.kind != "output"]
    assert diverged[0].value == "tanh"
    assert {row.stage for row in diverged} == {"exported", "compiled"}
    assert any("tanh" in row.operators for row in diverged)

    torch._dynamo.reset()  # noqa: SLF001  as above
    assert _checked(model, x, tolerance="default").close


@slow
@needs_compiler
def test_a_wrong_decomposition_is_found_at_the_parameters_whose_gradient_it_computes(monkeypatch):
    """The kernels agree with it, and the tolerance accepts the gradients."""
    from torch._inductor.decomposition import fast_random_decomps

    decompositions = fast_random_decomps()
    operator = torch.ops.aten.gelu_backward.default
    right = decompositions[operator]
    monkeypatch.setitem(decompositions, operator, lambda *args, **kwargs: right(*args, **kwargs) * (1 + 8e-6))
    model, x = Gelu(), torch.randn(6, 16)

    report = compare_gradients(model, (x,))

    assert {row.module for row in report.diverged} == {"up.weight", "up.bias"}
    assert report.first_divergence.module == "up.bias"
    torch._dynamo.reset()  # noqa: SLF001  as above
    assert compare_gradients(model, (x,), tolerance="default").close


@slow
@needs_compiler
def test_a_small_error_of_a_backward_kernel_is_found(monkeypatch):
    """Its own row comes before those of the gradients that inherit it."""
    from torch._inductor import lowering

    sign = torch.ops.aten.sign.default
    right = lowering.lowerings[sign]
    monkeypatch.setitem(lowering.lowerings, sign, lambda x: lowering.mul(right(x), 1 + 5e-6))

    class Absolute(Gelu):
        def forward(self, x):
            return self.down(self.up(x).abs())

    report = compare_gradients(Absolute(), (torch.randn(6, 16),))

    assert "sign" in report.first_divergence.operators
    alone = [row for row in report.rows if row.isolated is not None]
    assert [row.diverged for row in alone if row.introduced] == [True]
    assert any(row.diverged and row.isolated.sound for row in alone)
    assert {row.module for row in report.diverged if row.op == "gradient"} == {"up.weight", "up.bias"}


def test_what_has_no_float64_kernel_is_judged_by_tolerance():
    """Values before it are judged by float64; a note names the operator."""

    @torch.library.custom_op("filch_tests::only_float32", mutates_args=())
    def only_float32(x: torch.Tensor) -> torch.Tensor:
        if x.dtype != torch.float32:
            raise TypeError("expected float32")
        return x * 2

    only_float32.register_fake(torch.empty_like)

    class Custom(nn.Module):
        def forward(self, x):
            return torch.tanh(only_float32(torch.sin(x)))

    report = _checked(Custom(), torch.randn(4, 8), inner=_off_by(1e-6))

    rows = {row.op: row for row in report.rows}
    assert rows["sin"].float64 is not None
    assert rows["tanh"].float64 is None
    assert rows["tanh"].status == "same"
    (note,) = (note for note in report.notes if "by tolerance" in note)
    assert "filch_tests.only_float32" in note and "expected float32" in note
    assert not _checked(Custom(), torch.randn(4, 8), inner=_off_by(1e-3)).close


def test_uninitialized_memory_is_not_judged():
    """What is written into it is."""

    class Filled(nn.Module):
        def forward(self, x):
            memory = torch.empty_like(x)
            memory.copy_(x.sin())
            return memory.tanh()

    report = _checked(Filled(), torch.randn(4, 8), inner=_off_by(5e-6))

    rows = {row.op: row for row in report.rows if row.kind != "output"}
    assert rows["empty_like"].status == "no value"
    assert "uninitialized memory" in rows["empty_like"].reason
    assert rows["copy_"].status == "same"
    assert [row.op for row in report.diverged if row.kind != "output"] == ["tanh"]


@slow
@needs_compiler
def test_a_graph_in_float16_is_judged_by_the_tolerance_of_float16():
    """With `use_fp16`, the kernels are less precise than the model."""
    report = _checked(tanh_module(), torch.randn(4, 8), use_fp16=True)
    assert report.close
    assert not any(row.float64 for row in report.rows)


def test_a_tolerance_is_a_number_a_tolerance_or_the_default():
    """As in `compare`; torch.compile passes the error on."""
    message = "tolerance must be a number, a Tolerance or 'default', not 'none'"
    with pytest.raises(CompareError, match=message):
        compare_gradients(tanh_module(), (torch.randn(4, 8),), tolerance="none")
    with pytest.raises(torch._dynamo.exc.BackendCompilerFailed, match=message):  # noqa: SLF001  what torch raises
        _checked(tanh_module(), torch.randn(4, 8), tolerance="none")


def thresholds(dtype, scores=lambda x: x @ torch.eye(4).to(x.dtype)):
    """Return a module that compares scores with 0.2, and scores at both sides of it that are equal in bfloat16."""

    def forward(self, x):
        return (scores(x) > 0.2).float() @ torch.ones(4, 4)

    return module_of(forward), torch.tensor([[0.1, 0.2001, 0.3, 0.4], [0.2, 0.5, 0.1, 0.2002]]).to(dtype)


@needs_compiler
def test_a_comparison_with_a_number_that_is_not_rounded_is_wrong_in_the_kernel(monkeypatch):
    """Float64 decides as the wrong kernel does: PyTorch rounds the number to bfloat16."""
    from torch._inductor import lowering

    right = lowering.promote_constants
    monkeypatch.setattr(lowering, "promote_constants", lambda inputs, *_, **__: right(inputs))
    with torch._inductor.config.patch(fx_graph_cache=False):  # noqa: SLF001  it has no public name
        report = _checked(*thresholds(torch.bfloat16))
    assert report.outcome == "different"
    assert "gt" in report.first_divergence.op
    assert "comparing does not round" in str(report.first_divergence.float64)


@needs_compiler
@pytest.mark.parametrize(
    "made",
    [
        thresholds(torch.bfloat16),
        thresholds(torch.float32),
        thresholds(torch.bfloat16, lambda x: x * 1.0013),  # the kernel compares the product before it is rounded
        thresholds(torch.float32, lambda x: x.bfloat16() * 1.0013),
        thresholds(torch.float32, lambda x: x.half()),
    ],
)
def test_right_comparisons_and_those_of_numbers_that_a_kernel_does_not_round_are_close(made):
    assert _checked(*made).close
