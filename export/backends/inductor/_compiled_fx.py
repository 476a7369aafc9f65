"""A torch graph compiled by Inductor, which can run with an observer of its buffers."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import fx

from ..._errors import BackendError, reason
from ...common._process_state import preserve_process_state
from ...common._quiet import quiet
from ._buffer_map import BufferMap
from ._kernels import Call, LoweredGraph, record_lowering
from ._wrapper import Observe, instrument

# Provenance tracking records which operations a kernel computes. A graph from the cache has none, so the cache is off;
# compiled kernels still come from Inductor's files.
_PROVENANCE = {"trace.provenance_tracking_level": 1, "fx_graph_cache": False, "fx_graph_remote_cache": False}


@dataclass(frozen=True)
class CompiledPart:
    """One graph that Inductor generated: a graph with gradients has two, forward and backward.

    Attributes:
        lowered: the generated kernels.
        buffers: maps the buffers to the values of the graph before compilation.
        plain: runs the generated code; empties its argument.
        watched: like `plain`, but calls a function with the buffers of each kernel.
    """

    lowered: LoweredGraph
    buffers: BufferMap
    plain: Call
    watched: Callable[[list[Any], Observe], Any]


Observer = Callable[[CompiledPart, list[Any]], Any]


class CompiledGraph:
    """One torch graph, compiled by Inductor for inputs of one shape.

    An observed run uses the same compiled kernels: nothing is compiled again or fused differently.

    Args:
        module: a graph with flat inputs and flat outputs.
        examples: the inputs, or tensors like them.
        config: Inductor's settings, by its own names.

    Attributes:
        parts: the generated graphs; a backward graph may be compiled only when it is needed.
        observer: called with a part and its inputs to run the part; None runs it without observation.

    Raises:
        BackendError: Inductor can't compile the graph.
    """

    def __init__(self, module: fx.GraphModule, examples: Sequence[Any], config: Mapping[str, Any]) -> None:
        self.parts: list[CompiledPart] = []
        self.observer: Observer | None = None
        self._source = module.graph
        try:
            self._call = self._compiled(module, examples, {**config, **_PROVENANCE})
        except Exception as error:  # Inductor raises errors of all types
            from torch._dynamo.exc import RestartAnalysis  # noqa: PLC0415  loaded by now

            if isinstance(error, BackendError | RestartAnalysis):  # Dynamo traces again
                raise
            raise BackendError(f"backend 'inductor' can't compile the program: {reason(error)}") from error

    def __call__(self, *inputs: Any) -> Any:
        """Run the graph."""
        return self._call(*inputs)

    def _compiled(
        self, module: fx.GraphModule, examples: Sequence[Any], settings: dict[str, Any]
    ) -> Callable[..., Any]:
        with quiet():
            from torch._functorch import config as functorch_config  # noqa: PLC0415  seconds that others need not wait
            from torch._inductor.compile_fx import compile_fx, compile_fx_inner  # noqa: PLC0415  as above

        def inner(aot_module: fx.GraphModule, inputs: Sequence[Any], **options: Any) -> Any:
            with quiet(), record_lowering(aot_module, self._add_part, backward=bool(options.get("is_backward"))):
                return compile_fx_inner(aot_module, inputs, **options)

        with quiet(), preserve_process_state(), functorch_config.patch(enable_autograd_cache=False):
            return compile_fx(module, list(examples), inner_compile=inner, config_patches=settings)  # type: ignore[return-value]

    def _add_part(self, lowered: LoweredGraph, plain: Call) -> Call:
        part = CompiledPart(
            lowered, BufferMap(self._source, lowered), plain, instrument(lowered.module, lowered.kernels)
        )
        self.parts.append(part)
        return lambda inputs: plain(inputs) if self.observer is None else self.observer(part, inputs)
