"""Eager PyTorch: the exported program node by node, in any dtype and on any device."""

import copy
from collections.abc import Collection
from dataclasses import dataclass

import torch
from torch.export import ExportedProgram

from .._eager import run_eager
from .._errors import BackendError
from .._program import Program
from ._backend import Compiled, Stage, Values


@dataclass(frozen=True)
class EagerBackend:
    """Runs the torch program behind the ONNX graph; there is no compiled graph.

    Attributes:
        dtype: what floating-point weights and inputs are turned into; None leaves them.
        device: where it runs; None is the CPU.
    """

    dtype: torch.dtype | None = None
    device: str | None = None
    name: str = "eager"
    stages: tuple[Stage, ...] = ("exported",)

    def compile(self, program: Program, *, optimize: bool) -> Compiled:  # noqa: ARG002  it never does
        """See `Backend.compile`."""
        if program.exported_program is None:
            raise BackendError(
                "backend 'eager' needs the exported program: use what export() returned, "
                "or a file saved by Program.save with its .pt2 beside it"
            )
        if program.is_changed():
            raise BackendError(
                "backend 'eager' runs the exported program, not its graph, and this graph was changed since"
            )
        if self.device is not None and torch.device(self.device).type == "cuda" and not torch.cuda.is_available():
            raise BackendError(f"backend 'eager' on {self.device!r} needs a CUDA device, and torch sees none")
        return Compiled(program.graph, self._moved(program.exported_program))

    def run(self, compiled: Compiled, inputs: Values, watch: Collection[str] = ()) -> Values:
        """See `Backend.run`."""
        wanted = {*compiled.graph.outputs, *watch}
        found: dict[str, torch.Tensor] = {}

        def visit(name: str, value: torch.Tensor) -> None:
            if name in wanted:
                found[name] = value.detach().cpu()

        try:
            run_eager(compiled.handle, {name: self._move(value) for name, value in inputs.items()}, visit)
        except Exception as error:
            raise BackendError(f"the exported program can't run in eager PyTorch: {error}") from error
        return found

    def _moved(self, program: ExportedProgram) -> ExportedProgram:
        if self.dtype is None and self.device is None:
            return program
        moved = copy.copy(program)
        moved._state_dict = {name: self._move(tensor) for name, tensor in program.state_dict.items()}  # noqa: SLF001  it has no setter
        moved._constants = {name: self._move(value) for name, value in program.constants.items()}  # noqa: SLF001  nor has this
        return moved

    def _move(self, value: object) -> object:
        if not isinstance(value, torch.Tensor):
            return value
        dtype = self.dtype if value.is_floating_point() else None
        return value.detach().to(device=self.device, dtype=dtype)
