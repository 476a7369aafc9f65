"""Run a torch graph, exported to ONNX, with one of Filch's backends."""

from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

import torch
from torch import fx, nn

from filch.export import Program, export
from filch.export.backends import Backend, Compiled
from filch.steal import ModuleInfo, steal_forward
from filch.steal.values._arguments import argument_tensors

from .._compare import compare
from ..common._errors import CompareError
from ..metrics._tolerance import ToleranceOption
from ..results._report import Report
from ._changed_inputs import changed_rows


class ThroughOnnx:
    """A callable with the signature of the graph, which is exported at the first call, for the shapes of that call.

    Args:
        module: the graph.
        backend: the backend that runs it.
        name: the name of the graph in messages and reports.
    """

    def __init__(self, module: fx.GraphModule, backend: Backend, name: str) -> None:
        self._module = _GraphAsModule(module)
        self._names = [node.name for node in module.graph.nodes if node.op == "placeholder"]
        self._backend = backend
        self._name = name
        self._inputs: tuple[torch.Tensor, ...] = ()

    def __call__(self, *inputs: Any) -> Any:
        """Run the program; no gradients flow through ONNX."""
        tensors = self._copies(inputs)
        paths = argument_tensors(ModuleInfo.of(self._module).parameters, tensors, {})
        feeds = {value: paths[path].cpu() for value, path in self._program.inputs.items()}
        results = self._backend.run(self._compiled, feeds)
        return tuple(results[value].to(tensors[0].device) for value in self._program.graph.outputs)

    def report(self, inputs: Sequence[Any], tolerance: ToleranceOption) -> Report:
        """Compare the program with the graph in eager PyTorch (see `compare`); it changes no input."""
        tensors = self._copies(inputs)
        with torch.no_grad(), steal_forward(self._module) as capture:
            self._module(*tensors)
        report = compare(capture, self._program, backend=self._backend, tolerance=tolerance)
        before, changed = (dict(zip(self._names, item, strict=True)) for item in (inputs, tensors))
        # The program changes no input, so that after its call they are as before it.
        rows = changed_rows(before, changed, before, stage=report.rows[-1].stage, tolerance=tolerance)
        whole = [row for row in report.rows if row.op != "input"]  # those of inputs could not be judged
        return replace(report, program=self._name, rows=(*whole, *rows))

    def _copies(self, inputs: Sequence[Any]) -> tuple[torch.Tensor, ...]:
        """Return copies of the inputs of a call; those of the first call are kept for the export.

        Raises:
            CompareError: an input is a size, which ONNX programs can't take.
        """
        if not all(isinstance(item, torch.Tensor) for item in inputs):
            raise CompareError(
                f"{self._name} has sizes among its inputs, which {self._backend.name!r} can't take: "
                "use torch.compile(…, dynamic=False)"
            )
        copied = tuple(item.detach().clone() for item in inputs)  # an operation of the graph may be in-place
        self._inputs = self._inputs or copied
        return copied

    @cached_property
    def _program(self) -> Program:
        return export(self._module, self._inputs)

    @cached_property
    def _compiled(self) -> Compiled:
        return self._backend.compile(self._program, optimize="compiled" in self._backend.stages)


class _GraphAsModule(nn.Module):
    """The graph as a module whose hooks run; Dynamo calls its own module without them."""

    def __init__(self, module: fx.GraphModule) -> None:
        super().__init__()
        self._run = module.forward

    def forward(self, *values: torch.Tensor) -> Any:
        return self._run(*values)
