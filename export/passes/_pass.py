"""What a pass is, and what is taken for one."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import onnx_ir as ir

from .._errors import PassError
from ..program._program import Program

Function = Callable[[Program], "Program | ir.Model | ir.passes.PassResult"]


@dataclass(frozen=True)
class Pass:
    """One step of an optimisation.

    Attributes:
        name: what the time it takes is printed under, and its graph's file is called after.
        function: takes a program, whose model is a copy for it to change, and returns the program, or the model alone.
            The values that it keeps, it leaves their names, and the graph its inputs and outputs.
    """

    name: str
    function: Function

    def __call__(self, given: Program) -> Program:
        """What it makes of a program; it may change the model that it is given.

        Raises:
            PassError: it returned something else.
        """
        made: Any = self.function(given)
        if isinstance(made, ir.passes.PassResult):
            made = made.model
        if isinstance(made, ir.Model):
            return replace(given, model=made)
        if not isinstance(made, Program):
            raise PassError(f"it returned a {type(made).__name__}; a pass returns the Program, or its ir.Model")
        return made


def as_pass(given: Any, name: str | None = None) -> Pass:
    """What is taken for a pass, as one.

    Args:
        given: a pass of onnx-ir's, which takes a model; anything else that can be called, which takes a program; or a
            class of one of them, which is made.
        name: None is the one that it has: its attribute `name`, or that of the function or class.

    Raises:
        PassError: it is nothing of these.
    """
    if isinstance(given, Pass):
        return given
    made = _instance(given) if isinstance(given, type) else given
    if not callable(made):
        raise PassError(f"a pass is a name, a pass of onnx-ir's or a function of a Program, not {given!r}")
    if isinstance(made, ir.passes.PassBase):
        return Pass(name or _name_of(made), partial(_on_model, made))
    return Pass(name or _name_of(made), made)  # pyright: ignore[reportArgumentType]  what it takes shows when it is called


def _instance(kind: type) -> Any:
    try:
        return kind()
    except TypeError as error:
        raise PassError(f"{kind.__name__} can't be made without arguments: {error}; give one that is made") from error


def _on_model(given: ir.passes.PassBase, program: Program) -> ir.passes.PassResult:
    return given(program.model)


def _name_of(given: Any) -> str:
    while isinstance(given, partial):
        given = given.func
    named = getattr(given, "name", None)
    return named if isinstance(named, str) and named else getattr(given, "__name__", type(given).__name__)
