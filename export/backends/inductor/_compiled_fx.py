"""A torch graph that Inductor compiled, run as it is or with every buffer shown."""

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import fx

from ..._errors import BackendError, reason
from ...common._process_state import preserve_process_state
from ...common._quiet import quiet
from ._buffer_map import BufferMap
from ._kernels import Call, Lowered, lowering
from ._wrapper import Look, watched

# Provenance is what says which operations a kernel computes. A whole graph from a cache was lowered by nobody who could
# tell; the compiled code of its kernels still comes from Inductor's files.
_TELLING = {"trace.provenance_tracking_level": 1, "fx_graph_cache": False, "fx_graph_remote_cache": False}


@dataclass(frozen=True)
class Part:
    """One graph that Inductor made: of a graph with gradients, forward and backward are two.

    Attributes:
        lowered: what Inductor made.
        holding: which values of the graph that was compiled its buffers hold.
        plain: runs the generated code; empties the list that it is given.
        watched: the same, with every buffer shown.
    """

    lowered: Lowered
    holding: BufferMap
    plain: Call
    watched: Callable[[list[Any], Look], Any]


Observer = Callable[[Part, list[Any]], Any]


class CompiledGraph:
    """One torch graph, compiled by Inductor for inputs of one shape.

    Observing runs the same compiled kernels: nothing is compiled a second time, and nothing is fused otherwise.

    Args:
        module: a graph that takes flat inputs and returns flat outputs.
        examples: the inputs, or tensors like them.
        config: Inductor's settings, by its own names.

    Attributes:
        parts: what Inductor made; a backward graph may be compiled only when it is needed.
        observer: runs the generated code; called with the part and its inputs. None lets it run as it is.

    Raises:
        BackendError: Inductor can't compile the graph.
    """

    def __init__(self, module: fx.GraphModule, examples: Sequence[Any], config: Mapping[str, Any]) -> None:
        self.parts: list[Part] = []
        self.observer: Observer | None = None
        self._given = module.graph
        try:
            self._call = self._compiled(module, examples, {**config, **_TELLING})
        except Exception as error:  # Inductor raises whatever its parts meet
            from torch._dynamo.exc import RestartAnalysis  # noqa: PLC0415  loaded by now

            if isinstance(error, BackendError | RestartAnalysis):  # Dynamo traces once more, and comes again
                raise
            raise BackendError(f"backend 'inductor' can't compile the program: {reason(error)}") from error

    def __call__(self, *inputs: Any) -> Any:
        """Run it as it is."""
        return self._call(*inputs)

    @contextlib.contextmanager
    def observed_by(self, observer: Observer) -> Iterator[None]:
        """Let `observer` run the generated code inside of the block."""
        before, self.observer = self.observer, observer
        try:
            yield
        finally:
            self.observer = before

    def _compiled(
        self, module: fx.GraphModule, examples: Sequence[Any], settings: dict[str, Any]
    ) -> Callable[..., Any]:
        with quiet():
            from torch._functorch import config as functorch_config  # noqa: PLC0415  seconds that others need not wait
            from torch._inductor.compile_fx import compile_fx, compile_fx_inner  # noqa: PLC0415  as above

        def inner(given: fx.GraphModule, inputs: Sequence[Any], **options: Any) -> Any:
            with quiet(), lowering(given, self._take, backward=bool(options.get("is_backward"))):
                return compile_fx_inner(given, inputs, **options)

        with quiet(), preserve_process_state(), functorch_config.patch(enable_autograd_cache=False):
            return compile_fx(module, list(examples), inner_compile=inner, config_patches=settings)  # type: ignore[return-value]

    def _take(self, lowered: Lowered, plain: Call) -> Call:
        part = Part(lowered, BufferMap(self._given, lowered), plain, watched(lowered.module, lowered.kernels))
        self.parts.append(part)
        return lambda inputs: plain(inputs) if self.observer is None else self.observer(part, inputs)
