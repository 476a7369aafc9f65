"""Programs in float64 whose values are computed on demand, also from given numbers."""

from __future__ import annotations

import weakref
from typing import Any

import pytest
import torch
from torch import nn

from filch.compare.runs._evaluation import Float64Evaluator, ProgramRun, RunOptions
from filch.export import Program, export

X = torch.tensor([1.0, -2.0])


@pytest.fixture(scope="module")
def program() -> Program:
    """Return a program of three operations, of which each reads the one before it."""
    return export(nn.Sequential(nn.ReLU(), nn.Tanh(), nn.Sigmoid()), (X,))


def run_of(program: Program, **options: Any) -> ProgramRun:
    return ProgramRun(Float64Evaluator(program), {program.graph.inputs[0]: X}, RunOptions(**options))


def names_of(program: Program) -> list[str]:
    assert program.original is not None
    return program.original.names


def exact(run: ProgramRun, name: str) -> torch.Tensor:
    found = run.computed(name)
    assert found is not None
    result: torch.Tensor = found[0]
    return result


def test_others_read_the_forced_number_in_place_of_a_value(program: Program) -> None:
    """The value itself is the computed one."""
    relu, tanh, sigmoid = names_of(program)
    run = run_of(
        program, wanted=[tanh, sigmoid], forced=lambda name, value: value * 0 if name == tanh else value, noisy=False
    )
    assert exact(run, sigmoid).tolist() == [0.5, 0.5]
    assert torch.equal(exact(run, tanh), X.double().relu().tanh())
    assert run.read(tanh) == (pytest.approx([0.0, 0.0]),)
    assert run.computed(relu) is None  # nobody wants it


def test_what_is_known_is_not_computed(program: Program) -> None:
    """Neither is what only it reads."""
    _, tanh, sigmoid = names_of(program)
    run = run_of(program, wanted=[sigmoid], known={tanh: X}.get, forced=lambda *_: pytest.fail("computed"), noisy=False)
    assert torch.equal(exact(run, sigmoid), X.double().sigmoid())


@pytest.mark.parametrize("is_kept", [False, True])
def test_a_value_is_freed_after_its_last_use(program: Program, is_kept: bool) -> None:
    """One that is wanted stays until it is released."""
    relu, tanh, sigmoid = names_of(program)
    seen: dict[str, Any] = {}

    def watched(name: str, value: torch.Tensor) -> torch.Tensor:
        seen[name] = weakref.ref(value)
        return value

    run = run_of(program, wanted=[tanh, sigmoid], keep=is_kept, forced=watched, noisy=False)
    assert run.computed(sigmoid) is not None
    assert (seen[relu]() is not None, seen[tanh]() is not None) == (is_kept, True)
    run.release(tanh)
    assert (seen[tanh]() is not None) == is_kept


def test_after_an_error_a_run_computes_no_more(program: Program, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was computed before stays; each node by itself is computed nevertheless."""
    relu, tanh, sigmoid = names_of(program)
    run = run_of(program, wanted=[relu, tanh, sigmoid])
    before = run.get(relu)
    monkeypatch.setattr(torch.ops.aten.tanh.default, "_op", lambda *_: torch.zeros(2)[5])
    assert run.get(tanh) is None and run.problem
    assert run.get(sigmoid) is None
    assert before is not None and run.get(relu) is not None
    assert run_of(program, known={tanh: X}.get).get(sigmoid) is not None
