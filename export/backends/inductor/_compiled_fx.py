"""A torch graph compiled by Inductor, which can run with an observer of its buffers."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import fx

from filch.steal.private import _torch

from ..._errors import BackendError, EmptyProgramError, reason
from ...common._process_state import preserve_process_state
from ...common._quiet import quiet
from ._buffer_map import BufferMap
from ._kernels import Call, LoweredGraph, record_lowering
from ._steps import Steps
from ._wrapper import Observe, instrument

# Provenance tracking records which operations a kernel computes. A graph from the cache has none, so the cache is off;
# compiled kernels still come from Inductor's files.
_PROVENANCE = {"trace.provenance_tracking_level": 1, "fx_graph_cache": False, "fx_graph_remote_cache": False}


@dataclass(frozen=True)
class GeneratedCode:
    """The code that Inductor generated for one graph; for training there are two, of the forward and backward graphs.

    Attributes:
        lowered: the graph and its kernels.
        buffers: maps the buffers to the nodes of the graph before compilation.
        run: runs the code; empties its argument.
        run_observed: like `run`, but calls a function with each kernel and its buffers.
    """

    lowered: LoweredGraph
    buffers: BufferMap
    run: Call
    run_observed: Callable[[list[Any], Observe], Any]


Observer = Callable[[GeneratedCode, list[Any]], Any]


class CompiledGraph:
    """One torch graph, compiled by Inductor for inputs of one shape.

    An observed run uses the same compiled kernels: nothing is compiled again or fused differently.

    Args:
        module: a graph with flat inputs and flat outputs; Inductor's first passes change it.
        examples: the inputs, or tensors like them.
        config: Inductor's settings, by its own names.
        without: see `InductorOptions`.

    Attributes:
        steps: what Inductor has applied to the graph, and to its backward graph if that is compiled with it.
        codes: the generated code of each graph; a backward graph may be compiled only when it is needed.
        observer: called with code and its inputs in order to run it; None runs it without observation.

    Raises:
        BackendError: Inductor can't compile the graph.
    """

    def __init__(
        self,
        module: fx.GraphModule,
        examples: Sequence[Any],
        config: Mapping[str, Any],
        without: Collection[str] = (),
    ) -> None:
        self.codes: list[GeneratedCode] = []
        self.steps = Steps(without)
        self.observer: Observer | None = None
        self._source = module.graph
        try:
            self._call = self._compiled(module, examples, {**config, **_PROVENANCE})
        except Exception as error:  # Inductor raises errors of all types
            if isinstance(error, BackendError | _torch.RestartAnalysis):  # Dynamo traces again
                raise
            raise BackendError(f"backend 'inductor' can't compile the program: {reason(error)}") from error

    def __call__(self, *inputs: Any) -> Any:
        """Run the graph."""
        return self._call(*inputs)

    @property
    def forward(self) -> GeneratedCode:
        """The code of the forward graph."""
        if not self.codes:
            raise EmptyProgramError("backend 'inductor' has nothing to compile: the program computes nothing")
        return next(code for code in self.codes if not code.lowered.backward)

    def _compiled(
        self, module: fx.GraphModule, examples: Sequence[Any], settings: dict[str, Any]
    ) -> Callable[..., Any]:
        """Compile the graph; each graph that AOTAutograd makes of it is recorded by `_add_code`."""
        with quiet():  # they are imported now, which takes seconds
            config, compile_fx, compile_inner = _torch.functorch_config, _torch.compile_fx, _torch.compile_fx_inner

        def compile_aot_graph(aot_module: fx.GraphModule, inputs: Sequence[Any], **options: Any) -> Any:
            with quiet(), record_lowering(aot_module, self._add_code, backward=bool(options.get("is_backward"))):
                return compile_inner(aot_module, inputs, **options)

        with quiet(), preserve_process_state(), config.patch(enable_autograd_cache=False), self.steps.recorded():
            return compile_fx(  # type: ignore[return-value]
                module,
                list(examples),
                inner_compile=compile_aot_graph,
                config_patches=settings,
                decompositions=self.steps.decompositions(settings),
            )

    def _add_code(self, lowered: LoweredGraph, run: Call) -> Call:
        """Add the code of a graph; return the function that runs in place of `run`."""
        buffers, run_observed = BufferMap(self._source, lowered), instrument(lowered.module, lowered.kernels)
        code = GeneratedCode(lowered, buffers, run, run_observed)
        self.codes.append(code)
        return lambda inputs: run(inputs) if self.observer is None else self.observer(code, inputs)
