"""Two dumps and the model: values are judged by rounding, and modules run alone on the second dump's inputs."""

import shlex

import pytest
import torch
from torch import nn
from torch.nn import functional

from filch.compare import CompareError, diff, record_reference
from filch.compare.float64._levels_file import levels_of
from filch.steal import restore, steal_forward
from support.processes.commands import run

X = torch.randn(3, 16, generator=torch.Generator().manual_seed(1))
FACTORY = f"{__file__}:make"


class _Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.up, self.down, self.shift = nn.LayerNorm(16), nn.Linear(16, 32), nn.Linear(32, 16), 0.0

    def forward(self, x):
        return x + self.down(functional.gelu(self.up(self.norm(x)))) + self.shift


class _InTwoParts(nn.Module):
    """Computes what a linear layer does, in another order."""

    def __init__(self, linear):
        super().__init__()
        self.weight, self.bias = linear.weight, linear.bias

    def forward(self, x):
        rest = x[:, 7:] @ self.weight[:, 7:].T
        return x[:, :7] @ self.weight[:, :7].T + (rest if self.bias is None else rest + self.bias)


def make():
    """Return a model with its arguments, as `--model` loads them."""
    torch.manual_seed(0)
    return nn.Sequential(_Block(), _Block(), _Block()), (X,)


def _changed(change):
    model, _ = make()
    change(model)
    return model


def _dump(model, path, x=X, **options):
    with torch.no_grad(), steal_forward(model, submodules=True, dump_file=path, **options):
        model(x)
    return path


@pytest.fixture
def reference(tmp_path):
    """Return the dump of the model as it is."""
    return _dump(make()[0], tmp_path / "ref.onnx")


def _with_epsilon(model):
    model[1].norm.eps = 1.2e-5


def _with_shift(model):
    model[1].shift = 0.01


def _with_two_errors(model):
    _with_epsilon(model)
    with torch.no_grad():
        model[0].up.weight[0, 0] += 0.05


def _with_other_order(model):
    for block in model:
        block.up, block.down = _InTwoParts(block.up), _InTwoParts(block.down)


@pytest.mark.parametrize(
    ("change", "introduced"),
    [
        (_with_epsilon, ["1.norm#0.O"]),
        (_with_shift, ["1#0.O"]),  # code of a module, after right submodules
        (_with_two_errors, ["0.up#0.O", "1.norm#0.O"]),  # the second one gets wrong inputs
        (_with_other_order, []),
    ],
)
def test_modules_that_are_wrong_by_themselves_are_told_from_those_that_inherit(tmp_path, reference, change, introduced):
    """The first row that differs is of such a module; a tolerance would accept the epsilon."""
    actual = _dump(_changed(change), tmp_path / "b.onnx")

    result = diff(reference, actual, model=make()[0])

    assert [row.key.label for row in result.introduced] == introduced
    assert result.close == (not introduced) and result.reasons == ()
    if introduced:
        assert result.first_divergence.key.label == introduced[0]
        assert "wrong from its own inputs is " + introduced[0] in str(result).replace("\n", " ")
        inherited = [row for row in result.diverged if row.place in result.isolated and row not in result.introduced]
        assert all(result.isolated[row.place].ratio <= 2 for row in inherited)


def test_levels_are_those_of_record_reference(tmp_path):
    """The rows are the same as with levels that were recorded with the reference."""
    model = make()[0]
    record_reference(model, lambda: model(X), tmp_path / "levels.onnx")
    actual = _dump(_changed(_with_other_order), tmp_path / "b.onnx")
    assert levels_of(restore(tmp_path / "levels.onnx"))

    with_levels = diff(tmp_path / "levels.onnx", actual)
    measured = diff(_dump(model, tmp_path / "ref.onnx"), actual, model=model)

    ratios = {row.key.label + row.path: row.ratio for row in measured.rows}
    expected = {row.key.label + row.path: row.ratio for row in with_levels.rows if row.key.kind in ("I", "O")}
    assert ratios == expected and all(ratio is not None for ratio in ratios.values())


def test_wrong_inputs_of_the_model_come_first(tmp_path, reference):
    """Then no module is wrong by itself, and one that is comes after them."""
    same = diff(reference, _dump(make()[0], tmp_path / "a.onnx", X * 1.01), model=make()[0])
    wrong = diff(reference, _dump(_changed(_with_epsilon), tmp_path / "b.onnx", X * 1.01), model=make()[0])

    assert not same.introduced
    assert "each module that ran alone is right for its own inputs" in str(same).replace("\n", " ")
    assert [row.key.label for row in wrong.introduced] == ["1.norm#0.O"]
    assert {one.first_divergence.key.label for one in (same, wrong)} == {"(root)#0.I"}


def test_calls_with_a_cache_and_keywords_are_run_as_they_were(tmp_path):
    """Each call gets its own inputs, and buffers keep their numbers."""

    class Cached(nn.Module):
        def __init__(self, scale=1.0):
            super().__init__()
            self.inner, self.scale = nn.Linear(4, 4), scale
            self.register_buffer("count", torch.zeros(1))

        def forward(self, x, *, cache):
            cache.append(self.inner(x))
            self.count += 1
            return {"sum": torch.stack(cache).sum(0) * (self.scale if len(cache) == 2 else 1.0)}

    def dump(path, **options):
        torch.manual_seed(0)
        model, cache = Cached(**options), []
        with torch.no_grad(), steal_forward(("m", model), submodules=True, dump_file=path):
            for step in range(3):
                model(torch.arange(4.0) + step, cache=cache)
        return model

    model = dump(tmp_path / "a.onnx")
    dump(tmp_path / "b.onnx", scale=1.001)

    result = diff(tmp_path / "a.onnx", tmp_path / "b.onnx", model=model)

    assert [row.key.label for row in result.diverged] == [row.key.label for row in result.introduced] == ["m#1.O"]
    assert result.reasons == () and model.count == 3


@pytest.mark.parametrize(
    ("options", "reason"),
    [({"statistics_only": True}, "only its statistics were"), ({"kinds": "O"}, "the inputs of a call were not stored")],
)
def test_what_can_not_run_is_said(tmp_path, reference, options, reason):
    """Without the inputs, values are judged by tolerance, and errors may be inherited."""
    partial = _dump(_changed(_with_shift), tmp_path / "b.onnx", **options)

    by_tolerance = diff(partial, reference, model=make()[0])
    not_alone = diff(reference, partial, model=make()[0])

    assert any("were judged by tolerance" in note and reason in note for note in by_tolerance.reasons)
    assert not not_alone.introduced
    if "statistics_only" in options:
        assert "was not judged alone, so that its error may be inherited" in not_alone.reasons[0]


def test_random_numbers_and_other_models_are_no_evidence(tmp_path, reference):
    """A module that draws random numbers draws others, and one of another name does not exist."""
    dropping = nn.Sequential(nn.Linear(16, 16), nn.Dropout())
    first, second = (_dump(dropping, tmp_path / f"{name}.onnx") for name in "ab")

    drawn = diff(first, second, model=dropping)
    other = diff(reference, _dump(_changed(_with_shift), tmp_path / "c.onnx"), model=nn.Sequential(nn.Identity()))

    assert not drawn.introduced
    assert {row.module for row in other.introduced} == {""}
    assert any("it draws random numbers" in reason for reason in drawn.reasons)
    assert any("the model has no module of this name" in reason for reason in other.reasons)


class _Router(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.score, self.scale = nn.Linear(16, 8, bias=False), 1.0
        with torch.no_grad():
            self.score.weight[4:] = self.score.weight[:4] * (1 + 1e-7 * torch.randn(4, 16))

    def forward(self, x):
        return (self.score(x) * self.scale).topk(1, -1)


@pytest.mark.parametrize("is_wrong", [False, True])
def test_a_choice_that_rounding_changes_is_not_the_modules_fault(tmp_path, is_wrong):
    """It differs, as dumps don't show by how little; wrong numbers beside it are still named."""
    x = torch.randn(64, 16, generator=torch.Generator().manual_seed(2))
    other = _Router()
    other.score = _InTwoParts(other.score)
    other.scale = 1.001 if is_wrong else 1.0
    first, second = _dump(_Router(), tmp_path / "a.onnx", x), _dump(other, tmp_path / "b.onnx", x)

    result = diff(first, second, model=_Router())

    assert any(row.key.label == "(root)#0.O" and row.path == "[1]" for row in result.diverged)
    assert [row.place for row in result.introduced] == (["(root)#0.O[0]"] if is_wrong else [])
    assert any("rounding may change a decision in it" in reason for reason in result.reasons) != is_wrong


def test_a_model_of_several_needs_its_name(tmp_path):
    """The keys of both have names."""
    first, second = nn.Linear(16, 16), nn.Linear(16, 16)
    with steal_forward([("a", first), ("b", second)], dump_file=tmp_path / "r.onnx"):
        second(first(X))

    with pytest.raises(CompareError, match=r"has calls of 2 modules: give model=\(name, module\)"):
        diff(tmp_path / "r.onnx", tmp_path / "r.onnx", model=first)
    result = diff(tmp_path / "r.onnx", tmp_path / "r.onnx", model=("a", first))
    assert [row.key.name for row in result.rows if row.ratio is not None] == ["a", "a"]


def test_the_command_loads_the_model_of_a_factory(tmp_path, reference, capsys):
    """Its next command judges in the same way."""
    actual = _dump(_changed(_with_epsilon), tmp_path / "b.onnx")
    command = ["diff", str(reference), str(actual), "--model", FACTORY]

    assert run("diff", str(reference), str(actual), "-q") == 0
    assert run(*command) == 1

    printed = capsys.readouterr().out
    assert "1.norm#0.O" in printed and "<------" in printed and "inherited" in printed
    assert shlex.join(["filch", *command, "--all"]) in printed.replace("\n", "")
