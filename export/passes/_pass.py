"""A pass, and the conversion of callables to passes."""

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
    """One step of an optimization.

    Attributes:
        name: the name in logs and in the files of `SaveGraphInstrument`.
        function: takes a program whose model it may change, and returns the program or the model. It keeps the names of
            the values that it keeps, and the inputs and outputs of the graph.
    """

    name: str
    function: Function

    def __call__(self, given: Program) -> Program:
        """Transform a program; this may change its model.

        Raises:
            PassError: the function returned neither a program nor a model.
        """
        result: Any = self.function(given)
        if isinstance(result, ir.passes.PassResult):
            result = result.model
        if isinstance(result, ir.Model):
            return replace(given, model=result)
        if not isinstance(result, Program):
            raise PassError(f"it returned a {type(result).__name__}; a pass returns the Program, or its ir.Model")
        return result


def as_pass(given: Any, name: str | None = None) -> Pass:
    """Convert an object to a pass.

    Args:
        given: a pass of onnx-ir, which takes a model; another callable, which takes a program; or a class of one of
            these, which is instantiated.
        name: the name; None is its attribute `name`, or the name of the function or class.

    Raises:
        PassError: the object is none of these.
    """
    if isinstance(given, Pass):
        return given
    result = _instance(given) if isinstance(given, type) else given
    if not callable(result):
        raise PassError(f"a pass is a name, a pass of onnx-ir's or a function of a Program, not {given!r}")
    if isinstance(result, ir.passes.PassBase):
        return Pass(name or _name_of(result), partial(_on_model, result))
    return Pass(name or _name_of(result), result)  # pyright: ignore[reportArgumentType]  what it takes shows when it is called


def _instance(kind: type) -> Any:
    try:
        return kind()
    except TypeError as error:
        raise PassError(f"{kind.__name__} needs arguments: {error}; pass an instance instead of the class") from error


def _on_model(given: ir.passes.PassBase, program: Program) -> ir.passes.PassResult:
    return given(program.model)


def _name_of(given: Any) -> str:
    while isinstance(given, partial):
        given = given.func
    named = getattr(given, "name", None)
    return named if isinstance(named, str) and named else getattr(given, "__name__", type(given).__name__)
