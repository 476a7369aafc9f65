"""Generated code that shows the buffers as its kernels write them: the same kernels, in the same order.

Inductor's code is a Python function that calls one kernel after the other. A copy of that function, with a call between
them that looks at the buffers, runs what the user's runs: nothing is compiled again and nothing is fused otherwise.
"""

import ast
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from ..._errors import BackendError
from ._kernels import Kernel

_LOOK = "filch_look"
Look = Callable[[Kernel, Mapping[str, torch.Tensor]], None]


def watched(module: ModuleType, kernels: Sequence[Kernel]) -> Callable[[list[Any], Look], Any]:
    """A copy of the generated `module.call` that shows the buffers that a kernel wrote right after it.

    Args:
        module: the generated code.
        kernels: what it calls.

    Returns:
        takes what `call` takes (a list, which it empties) and what to call with each kernel and its buffers, by name:
        more than once, where the code takes apart what a kernel returned. Later kernels may write over a buffer.

    Raises:
        BackendError: the code is not as Inductor wrote it up to now.
    """
    tree = ast.parse(Path(module.__file__ or "").read_text("utf-8"))
    instrumented = _Instrumented(kernels)
    kept = [instrumented.visit(item) for item in tree.body if _is_part(item)]
    if instrumented.left:
        raise BackendError(f"the call of kernel {instrumented.left[0].name!r} is not found in Inductor's code")
    by_name = {kernel.name: kernel for kernel in kernels}
    space: dict[str, Any] = {**vars(module)}
    code = compile(ast.fix_missing_locations(ast.Module(kept, [])), module.__file__ or "", "exec")
    exec(code, space)  # noqa: S102  Inductor's own code
    call = space["call"]

    def run(inputs: list[Any], look: Look) -> Any:
        space[_LOOK] = lambda name, held: _show(by_name[name], held, look)
        return call(inputs)

    return run


def _show(kernel: Kernel, held: Mapping[str, Any], look: Look) -> None:
    stored = {name: held.get(variable) for name, variable in zip(kernel.writes, kernel.variables, strict=True)}
    look(kernel, {name: tensor for name, tensor in stored.items() if isinstance(tensor, torch.Tensor)})


def _is_part(item: ast.stmt) -> bool:
    """Whether a statement is needed to make `call` once more; the kernels themselves are there already."""
    if isinstance(item, ast.Assign):
        return isinstance(item.targets[0], ast.Name) and item.targets[0].id in ("runner", "call")
    return isinstance(item, ast.ClassDef) or (
        isinstance(item, ast.FunctionDef) and item.name.startswith(("call", "partition_"))
    )


class _Instrumented(ast.NodeTransformer):
    """Puts a look behind each kernel's call, and behind the statements that take its result apart."""

    def __init__(self, kernels: Sequence[Kernel]) -> None:
        self.left = sorted(kernels, key=lambda kernel: kernel.line)

    def generic_visit(self, node: ast.AST) -> ast.AST:
        super().generic_visit(node)
        for name in ("body", "orelse"):
            body = getattr(node, name, None)
            if isinstance(body, list) and not isinstance(node, ast.ClassDef):
                setattr(node, name, self._looking(body))
        return node

    def _looking(self, body: list[ast.stmt]) -> list[ast.stmt]:
        found: list[ast.stmt] = []
        called: dict[str, Kernel] = {}
        for statement in body:
            found.append(statement)
            if self._calls_next(statement):
                kernel = self.left.pop(0)
                called |= dict.fromkeys(kernel.variables, kernel)
                found.append(_look(kernel, "locals()"))
            elif (name := _named(statement)) in called:  # its other buffers may have been written to since
                found.append(_look(called[name], f"{{{name!r}: {name}}}"))
        return found

    def _calls_next(self, statement: ast.stmt) -> bool:
        if not self.left or statement.lineno <= self.left[0].line or not isinstance(statement, ast.Expr | ast.Assign):
            return False
        return isinstance(statement.value, ast.Call) and _is_called(self.left[0].op, ast.unparse(statement.value.func))


def _is_called(op: str, function: str) -> bool:
    return function == op or function.removesuffix(".run") == op or function.endswith(op.rpartition(".")[2])


def _named(statement: ast.stmt) -> str:
    """The name that a statement gives to what a kernel returned, or to an item of it; "" if it does nothing such."""
    if not isinstance(statement, ast.Assign) or not isinstance(statement.value, ast.Subscript | ast.Name):
        return ""
    return statement.targets[0].id if isinstance(statement.targets[0], ast.Name) else ""


def _look(kernel: Kernel, held: str) -> ast.stmt:
    return ast.parse(f"{_LOOK}({kernel.name!r}, {held})").body[0]
