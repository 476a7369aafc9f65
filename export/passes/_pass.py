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

    def __call__(self, program: Program) -> Program:
        """Transform a program; this may change its model.

        Raises:
            PassError: the function returned neither a program nor a model.
        """
        result: Any = self.function(program)
        if isinstance(result, ir.passes.PassResult):
            result = result.model
        if isinstance(result, ir.Model):
            return replace(program, model=result)
        if not isinstance(result, Program):
            raise PassError(f"it returned a {type(result).__name__}; a pass returns the Program, or its ir.Model")
        return result


def as_pass(item: Any, name: str | None = None) -> Pass:
    """Convert an object to a pass.

    Args:
        item: a pass of onnx-ir, which takes a model; another callable, which takes a program; or a class of one of
            these, which is instantiated.
        name: the name; None is its attribute `name`, or the name of the function or class.

    Raises:
        PassError: the object is none of these.
    """
    if isinstance(item, Pass):
        return item
    function: Any = item
    if isinstance(item, type):
        try:
            function = item()
        except TypeError as error:
            raise PassError(
                f"{item.__name__} needs arguments: {error}; pass an instance instead of the class"
            ) from error
    if not callable(function):
        raise PassError(f"a pass is a name, a pass of onnx-ir's or a function of a Program, not {item!r}")
    if isinstance(function, ir.passes.PassBase):
        return Pass(name or _name_of(function), lambda program: function(program.model))
    return Pass(name or _name_of(function), function)  # pyright: ignore[reportArgumentType]  what it takes shows when it is called


def _name_of(function: Any) -> str:
    while isinstance(function, partial):
        function = function.func
    name = getattr(function, "name", None)
    return name if isinstance(name, str) and name else getattr(function, "__name__", type(function).__name__)
