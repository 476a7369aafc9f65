"""Instrument generated code to observe the buffers after each kernel.

Inductor generates a Python function that calls one kernel after the other. A copy of that function, with calls of an
observer inserted, runs the same compiled kernels in the same order.
"""

import ast
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from ..._errors import BackendError
from ._kernels import Kernel

_OBSERVER = "filch_observe"
Observe = Callable[[Kernel, Mapping[str, torch.Tensor]], None]


def instrument(module: ModuleType, kernels: Sequence[Kernel]) -> Callable[[list[Any], Observe], Any]:
    """Return a copy of the generated `module.call` that calls an observer after each kernel.

    Args:
        module: the generated code.
        kernels: the kernels that it calls.

    Returns:
        a function of the argument of `call` (a list, which it empties) and of an observer. The observer is called with
        each kernel and its buffers by name, again for each item that the code takes from the kernel's result. Later
        kernels may overwrite a buffer.

    Raises:
        BackendError: the code has no call of a kernel in the expected form.
    """
    tree = ast.parse(Path(module.__file__ or "").read_text("utf-8"))
    instrumented = _Instrumented(kernels)
    body = [instrumented.visit(item) for item in tree.body if _is_needed(item)]
    if instrumented.remaining:
        raise BackendError(f"Inductor's code has no call of kernel {instrumented.remaining[0].name!r}")
    by_name = {kernel.name: kernel for kernel in kernels}
    namespace: dict[str, Any] = {**vars(module)}
    code = compile(ast.fix_missing_locations(ast.Module(body, [])), module.__file__ or "", "exec")
    exec(code, namespace)  # noqa: S102  Inductor's own code

    def run(inputs: list[Any], observe: Observe) -> Any:
        namespace[_OBSERVER] = lambda name, variables: _call_observer(by_name[name], variables, observe)
        return namespace["call"](inputs)

    return run


def _call_observer(kernel: Kernel, variables: Mapping[str, Any], observe: Observe) -> None:
    """Call the observer with the tensors that a kernel has written, of the variables of the generated code."""
    stored = {name: variables.get(variable) for name, variable in zip(kernel.writes, kernel.variables, strict=True)}
    observe(kernel, {name: tensor for name, tensor in stored.items() if isinstance(tensor, torch.Tensor)})


def _is_needed(item: ast.stmt) -> bool:
    """Return whether a statement is needed to define `call` again; the kernels exist already."""
    if isinstance(item, ast.Assign):
        return isinstance(item.targets[0], ast.Name) and item.targets[0].id in ("runner", "call")
    return isinstance(item, ast.ClassDef | ast.FunctionDef)  # the functions of branches and loops, too


class _Instrumented(ast.NodeTransformer):
    """Inserts a call of the observer after each kernel's call, and after the statements that unpack its result.

    Attributes:
        remaining: the kernels whose calls have not been found so far, in order.
    """

    def __init__(self, kernels: Sequence[Kernel]) -> None:
        self.remaining = sorted(kernels, key=lambda kernel: kernel.line)

    def generic_visit(self, node: ast.AST) -> ast.AST:
        """Insert the calls into each list of statements of a node."""
        for name, body in ast.iter_fields(node):
            if isinstance(body, list) and all(isinstance(item, ast.stmt) for item in body):
                setattr(node, name, self._with_observer_calls(body))
            elif isinstance(body, list):  # of handlers of exceptions, for example
                for item in body:
                    if isinstance(item, ast.AST):
                        self.visit(item)
        return node

    def _with_observer_calls(self, body: list[ast.stmt]) -> list[ast.stmt]:
        """Return the statements with calls of the observer after those that write buffers.

        A kernel's call may return a tuple, of which later statements assign the items to variables: the observer is
        called again with each of these.
        """
        statements: list[ast.stmt] = []
        called: dict[str, Kernel] = {}  # by the variable that the kernel writes
        for statement in body:
            statements.append(self.visit(statement))  # in the order of execution
            if self._calls_next(statement):
                kernel = self.remaining.pop(0)
                called |= dict.fromkeys(kernel.variables, kernel)
                statements.append(_observer_call(kernel, "locals()"))
            elif (name := _assigned_name(statement)) in called:  # its other buffers may have been overwritten since
                statements.append(_observer_call(called[name], f"{{{name!r}: {name}}}"))
        return statements

    def _calls_next(self, statement: ast.stmt) -> bool:
        """Return whether a statement is the call of the next kernel."""
        if not self.remaining or not isinstance(statement, ast.Expr | ast.Assign):
            return False
        kernel, call = self.remaining[0], statement.value
        is_after_comment = statement.lineno > kernel.line  # an earlier call may be of the same function
        return is_after_comment and isinstance(call, ast.Call) and _is_called(kernel.op, ast.unparse(call.func))


def _is_called(op: str, function: str) -> bool:
    """Return whether the called expression `function` is the kernel: `op`, `op.run` (Triton) or another path to it."""
    return function.removesuffix(".run") == op or function.endswith(op.rpartition(".")[2])


def _assigned_name(statement: ast.stmt) -> str:
    """Return the name that a statement assigns to a kernel's result or an item of it, or `""`."""
    if not isinstance(statement, ast.Assign) or not isinstance(statement.value, ast.Subscript | ast.Name):
        return ""
    return statement.targets[0].id if isinstance(statement.targets[0], ast.Name) else ""


def _observer_call(kernel: Kernel, variables: str) -> ast.stmt:
    """Return the statement that calls the observer with a kernel and its variables (an expression)."""
    return ast.parse(f"{_OBSERVER}({kernel.name!r}, {variables})").body[0]
