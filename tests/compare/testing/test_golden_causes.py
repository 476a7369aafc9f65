"""Why a run differs from a golden dump: the code, the environment, the inputs; planted, one at a time."""

import copy
import json
from functools import partial

import pytest
import torch
from torch import nn

from filch.compare import CompareError
from filch.compare.testing import _cause
from filch.compare.testing._golden import Golden
from filch.compare.testing._golden_file import KEY, GoldenRecord
from filch.steal import add_properties, restore
from filch.steal.files._untrusted import parse_json
from support.models.small import capture_of, module_of

X = torch.linspace(-1, 1, 24).reshape(2, 12)


def triple():
    """Three times the input, by one of two formulas that round differently."""
    return module_of(lambda self, x: x / 7 * 21 if self.by_division else 3 * x, by_division=False)


class Model(nn.Module):
    """Linear, triple, GELU, LayerNorm, with a rounding error that a test can switch on."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.triple, self.last = nn.Linear(12, 16), triple(), nn.Linear(16, 8)
        self.act, self.norm = nn.GELU(), nn.LayerNorm(8)

    def forward(self, x):
        return self.norm(self.last(self.act(self.triple(self.first(x)))))


@pytest.fixture
def model():
    return Model().eval()


@pytest.fixture
def golden(tmp_path, model):
    """Return a function that compares a model with the golden dump of `model`, and returns the result."""
    path = tmp_path / "model.onnx"
    Golden(path, True, None, print, print).check(model, (X,))

    def compare(changed, x=X, tolerance=None):
        results = []
        Golden(path, False, tolerance, results.append, print).check(changed, (x,))
        return results[0]

    compare.path = path
    return compare


@pytest.fixture
def other_environment(monkeypatch):
    """Pretend that the golden dump is of another number of threads."""
    present = _cause.environment
    monkeypatch.setattr(_cause, "environment", lambda names: present(names) | {"threads": "77"})


def _round_differently(model):
    """Change all weights by some units in the last place, as if they were drawn under another instruction set."""
    generator = torch.Generator().manual_seed(1)
    for weight in model.parameters():
        noise = torch.randn(weight.shape, generator=generator)
        weight.data.add_(4 * 2**-24 * weight.detach().square().mean().sqrt() * noise)


def _update(path, model, x=X, *, allow=False):
    """Store a golden dump anew, and return the message."""
    messages = []
    Golden(path, True, None, print, messages.append, allow_less_precise=allow).check(model, (x,))
    return messages[0]


def test_an_unchanged_model_passes(golden, model):
    """Each value has a level, and none has moved."""
    result = golden(model)

    assert result.close and result.cause == ""
    assert {row.ratio for row in result.rows} == {0.0}


def test_a_module_that_is_called_without_tensors_passes(tmp_path):
    """Its inputs have no rows, and are there nevertheless."""

    class Biased(nn.Module):
        def __init__(self):
            super().__init__()
            self.table = module_of(lambda self: torch.arange(12.0))

        def forward(self, x):
            return x + self.table()

    path, results = tmp_path / "model.onnx", []
    Golden(path, True, None, print, print).check(Biased(), (X,))
    Golden(path, False, None, results.append, print).check(Biased(), (X,))

    assert results[0].close, results[0].first_divergence


def test_another_function_is_code_and_its_module_is_named(golden, model):
    """The values behind it are of the same kind."""
    model.act = nn.GELU("tanh")

    result = golden(model)

    assert result.cause == "code"
    assert str(result.first_divergence).startswith("act#0.O: ")
    assert {result.causes[row.place] for row in result.diverged} == {"function"}
    assert "first in module `act`" in result.reasons[0]
    assert "The environment is the same" in result.reasons[-1]


@pytest.mark.parametrize("factor", [1.5, 1.001, 1 + 1e-5, 1 + 3e-6])
def test_other_weights_are_code_and_named(golden, model, factor):
    """They are compared by fingerprints, as the dump does not contain them."""
    with torch.no_grad():
        model.last.weight *= factor

    result = golden(model)

    assert result.cause == "code"
    assert result.reasons[0].startswith("The weights differ: `last.weight` of module `last`.")


def test_an_epsilon_that_a_tolerance_accepts_is_found(golden, model):
    """It changes each element by a few millionths: 1e-5 of float32 is a hundred times more than rounding."""
    model.norm.eps = 4e-5

    assert golden(model, tolerance=1e-3).close
    assert golden(model).cause == "code"


def test_a_lower_precision_is_code_though_float64_computes_the_same(golden, model):
    """Casts are exact in float64; the rounding level tells."""
    forward = model.last.forward
    model.last.forward = lambda x: forward(x.bfloat16().float())

    result = golden(model)

    assert result.cause == "code"
    assert {result.causes[row.place] for row in result.diverged} == {"precision"}
    assert "a lower precision is used on the way to it" in result.reasons[0]


@pytest.mark.parametrize("changed", ["added", "renamed", "dropped"])
def test_other_modules_are_code(golden, model, changed):
    """The first that is new or missing is named."""
    if changed == "added":
        model.act = nn.Sequential(model.act, nn.Identity())
    else:
        other = model.triple
        del model.triple
        if changed == "renamed":
            model.other = other
        model.triple = other.forward

    result = golden(model)

    assert result.cause == "code"
    assert {result.causes[row.place] for row in result.diverged} == {"structure"}
    assert ("act.0#0.I" if changed == "added" else "triple#0.I") in result.reasons[0]


def test_other_inputs_are_a_cause_of_their_own(golden, model):
    """Nothing is said about the code."""
    model.act = nn.GELU("tanh")

    result = golden(model, X + 0.5)

    assert result.cause == "inputs"
    assert result.reasons[0].startswith("The inputs differ, so that the code can't be compared: (root)#0.I[0][0]")
    assert golden(model, X[:1]).cause == "inputs"


def test_rounding_is_no_difference(golden, model):
    """Another formula moves values, and passes."""
    model.triple.by_division = True

    result = golden(model)

    assert result.close
    assert 0 < max(row.ratio for row in result.rows) < 2


@pytest.mark.usefixtures("other_environment")
def test_weights_that_were_drawn_again_are_the_environment(golden, model):
    """Random numbers differ by some units between instruction sets; in the same environment that is code."""
    _round_differently(model)

    result = golden(model)

    assert result.cause == "environment", result.reasons
    assert {result.causes[row.place] for row in result.diverged} == {"environment"}
    assert result.reasons[-1].startswith("The environment differs: threads was ")
    assert result.reasons[-1].endswith(" and is 77.")


def test_such_weights_in_the_same_environment_are_code(golden, model):
    """Nothing else explains them."""
    _round_differently(model)

    assert golden(model).cause == "code"


@pytest.mark.usefixtures("other_environment")
def test_a_fault_in_another_environment_is_both_if_rounding_moved_earlier_values(golden, model):
    """It is the code alone if no value before the fault has moved."""
    model.act = nn.GELU("tanh")
    assert golden(model).cause == "code"

    model.triple.by_division = True
    result = golden(model)

    assert result.cause == "both"
    assert "Rounding moved 2 earlier values, the first in module `triple`." in result.reasons


def test_another_version_of_a_package_that_defines_modules_may_be_the_code_that_changed(golden, model, monkeypatch):
    """The message names it; a package that defines none is only part of the environment."""
    present = _cause.environment
    monkeypatch.setattr(_cause, "environment", lambda names: present(names) | {"torch": "1.0", "numpy": "1.0"})
    model.act = nn.GELU("tanh")

    reasons = golden(model).reasons

    assert "The code that changes may be that of torch, whose modules the model contains." in reasons
    assert "numpy was " in reasons[-2]


@pytest.mark.usefixtures("other_environment")
@pytest.mark.parametrize(("moved", "cause"), [("triple", "both"), ("last", "code")])
def test_values_behind_a_new_module_are_not_earlier_ones(golden, model, moved, cause):
    """The rows of new modules come last, though they run before others."""
    model.act = nn.Sequential(model.act, nn.Identity())
    model.triple.by_division = moved == "triple"
    if moved == "last":
        model.last.register_forward_hook(lambda _module, _args, output: output / 7 * 7)

    result = golden(model)

    assert result.cause == cause
    assert any(row.difference and row.difference.absolute > 0 for row in result.rows)


@pytest.mark.usefixtures("other_environment")
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_another_environment_does_not_explain_a_lower_precision(golden, model, dtype):
    """A cast is code whatever else differs."""
    forward = model.act.forward
    model.act.forward = lambda x: forward(x).to(dtype).float()

    assert golden(model).cause == "code"


def test_random_numbers_are_not_reproducible(tmp_path):
    """Without a seed they differ; with one, the run is the same."""

    class Noisy(nn.Module):
        def forward(self, x):
            return x + torch.rand_like(x)

    path, results = tmp_path / "noisy.onnx", []
    torch.manual_seed(0)
    Golden(path, True, None, print, print).check(Noisy(), (X,))
    Golden(path, False, None, results.append, print).check(Noisy(), (X,))
    torch.manual_seed(0)
    Golden(path, False, None, results.append, print).check(Noisy(), (X,))

    assert results[0].cause == "not reproducible"
    assert "set the same seed" in results[0].reasons[0]
    assert results[1].close


def test_a_model_that_remembers_its_calls_is_not_reproducible(golden, model):
    """A second run on the same inputs shows it."""
    calls = []
    model.act.register_forward_hook(lambda _module, _args, output: calls.append(1) or output * len(calls))

    golden(model)  # the first call is right
    result = golden(model)

    assert result.cause == "not reproducible"
    assert "in module `act`" in result.reasons[0]


@torch.library.custom_op("filch_tests::float32_only", mutates_args=())
def _float32_only(x: torch.Tensor) -> torch.Tensor:
    if x.dtype != torch.float32:
        raise TypeError("float32 alone")
    return x * 2


@pytest.mark.usefixtures("other_environment")
def test_without_a_float64_kernel_the_cause_is_unknown(tmp_path):
    """The message names the operator; the code before it can still be told."""
    path, results = tmp_path / "model.onnx", []
    model = nn.Sequential(nn.Linear(12, 4), nn.Identity(), nn.Tanh())
    model[1].forward = torch.ops.filch_tests.float32_only
    stored = []
    Golden(path, True, None, print, stored.append).check(model, (X,))
    assert "not all values have a rounding level: filch_tests.float32_only.default" in stored[0]

    model[2] = nn.Hardtanh()
    Golden(path, False, None, results.append, print).check(model, (X,))
    with torch.no_grad():
        model[0].weight *= 1.01
    Golden(path, False, None, results.append, print).check(model, (X,))

    assert results[0].cause == "unknown"
    assert "filch_tests.float32_only.default in float64: float32 alone" in results[0].reasons[0]
    assert results[1].cause == "code"


def test_a_dump_of_an_older_version_is_compared_by_tolerance(tmp_path, model):
    """The message says why nothing is known of the cause, and an update adds the levels."""
    path, results = tmp_path / "model.onnx", []
    capture_of(model, X, submodules=True, dump_file=path)
    changed = copy.deepcopy(model)
    changed.act = nn.GELU("tanh")
    for subject in (model, changed):
        Golden(path, False, None, results.append, print).check(subject, (X,))

    assert results[0].close
    assert results[1].cause == "unknown" and "older version" in results[1].reasons[0]
    assert _update(path, model) == f"changed {path}: the same values, now with rounding levels"
    assert GoldenRecord.of(restore(path)).levels


def test_an_update_with_less_precise_values_is_refused(golden, model):
    """It says what changes and which value is the first; a separate option allows it."""
    before = golden.path.read_bytes()
    forward = model.last.forward
    model.last.forward = lambda x: forward(x.bfloat16().float())

    with pytest.raises(AssertionError) as caught:
        _update(golden.path, model)

    text = str(caught.value)
    assert "was not overwritten: 4 values are further from float64 than before; first last#0.O in module `last`" in text
    assert "a lower precision is used on the way to it" in text and "--filch-allow-less-precise" in text
    assert "What changes: judged 12 of 12 values; 4 differ" in text
    assert golden.path.read_bytes() == before
    assert _update(golden.path, model, allow=True).startswith("changed ")
    assert golden(model).close


def test_an_update_with_another_function_is_stored(golden, model):
    """Its values are as close to float64 as the former ones."""
    model.act = nn.Tanh()

    assert _update(golden.path, model).startswith("changed ")
    assert golden(model).close


def test_a_block_with_several_calls_has_levels_and_a_cause(tmp_path, model):
    """The calls are repeated with the inputs of the dump."""
    path, results = tmp_path / "block.onnx", []

    def run(update):
        with Golden(path, update, None, results.append, print).steal(("net", model)), torch.no_grad():
            model(X)
            model(2 * X)

    run(update=True)
    assert "net.act#1.O" in GoldenRecord.of(restore(path)).levels
    run(update=False)
    model.act = nn.GELU("tanh")
    run(update=False)

    assert results[0].close
    assert results[1].cause == "code" and str(results[1].first_divergence).startswith("net.act#0.O")


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_models_of_other_dtypes_have_levels(tmp_path, dtype):
    """A fault above their rounding is code, and rounding passes."""
    path, results = tmp_path / "model.onnx", []
    model, x = Model().to(dtype).eval(), X.to(dtype)
    Golden(path, True, None, print, print).check(model, (x,))
    model.triple.by_division = True
    Golden(path, False, None, results.append, print).check(model, (x,))
    model.last.weight.data *= 1.25
    Golden(path, False, None, results.append, print).check(model, (x,))

    assert results[0].close, results[0].first_divergence
    assert results[1].cause == "code"


def test_a_given_tolerance_judges_instead_of_the_levels(golden, model):
    """The cause is told all the same."""
    model.act = nn.GELU("tanh")

    assert golden(model, tolerance=0.1).close
    result = golden(model, tolerance=1e-6)
    assert result.cause == "code" and {row.ratio for row in result.rows} == {None}


def test_the_model_is_left_as_it_was(golden, model):
    """Telling the cause runs it again, without effect on buffers and random numbers."""
    norm = nn.BatchNorm1d(8)
    model.norm = norm.train()
    torch.manual_seed(5)
    expected = torch.rand(1)
    torch.manual_seed(5)

    assert golden(model).cause == "code"

    assert int(norm.num_batches_tracked) == 1
    assert torch.equal(torch.rand(1), expected)


def test_a_golden_dump_of_many_values_is_read_again(golden, monkeypatch):
    """Its levels are parsed one by one: 400,000 of them would take more memory than JSON may take."""
    dump = restore(golden.path)
    whole = GoldenRecord.of(dump)
    monkeypatch.setattr("filch.compare.testing._golden_file.parse_json", partial(parse_json, memory=12_000))

    assert len(whole.levels) > 4
    assert GoldenRecord.of(dump) == whole


def test_a_golden_dump_with_its_levels_among_the_rest_is_read(tmp_path, model):
    """As Filch wrote them before."""
    path = tmp_path / "model.onnx"
    capture_of(model, X, submodules=True, dump_file=path)
    level = [0.0] * 6 + [[0.0] * 8]
    add_properties(path, {KEY: json.dumps({"levels": {"a": level}, "weights": {}, "random": "", "problem": ""})})

    assert GoldenRecord.of(restore(path)).levels["a"].row() == level


@pytest.mark.parametrize("text", ["[]", "{", '{"levels": {"a": [1]}, "weights": {}, "random": "", "problem": ""}'])
def test_a_damaged_golden_dump_is_refused(tmp_path, model, text):
    """The message names the file."""
    path = tmp_path / "model.onnx"
    capture_of(model, X, submodules=True, dump_file=path)
    add_properties(path, {KEY: text})

    with pytest.raises(CompareError, match=r"'filch.golden' in .*model.onnx' is damaged"):
        Golden(path, False, None, print, print).check(model, (X,))
