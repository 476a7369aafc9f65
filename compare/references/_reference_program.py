"""An ONNX program as the source of references for another one."""

from collections.abc import Mapping, Sequence
from functools import cached_property

import torch

from filch.export import Graph, Program
from filch.export.backends import Backend, Compiled

from ..common._complex import complex_as_real
from ..common._dtypes import torch_dtype
from ..pairing._paired_value import Pairs
from ..runs._onnx_original import OnnxOriginal
from ._renamed import renamed_model
from ._resolver import Reference


class ReferenceProgram(OnnxOriginal):
    """An ONNX program, with the names that its values have in another program, as the source of that one's references.

    The references are what the program computes on a backend, node by node.

    Args:
        program: the program.
        pairs: its values that the other program has.
        judged: the graph of the other program.
        backend: the backend that runs the program.
        compiled: what the backend compiled, without optimizations.
        feeds: the inputs of each call, by name.
        first: what the first call has computed, by name.
    """

    def __init__(  # noqa: PLR0917  called in one place
        self,
        program: Program,
        pairs: Pairs,
        judged: Graph,
        backend: Backend,
        compiled: Compiled,
        feeds: Sequence[Mapping[str, torch.Tensor]],
        first: Mapping[str, torch.Tensor],
    ) -> None:
        super().__init__(renamed_model(program.model, pairs, judged)[0])
        self._pairs, self._backend, self._compiled, self._feeds = pairs, backend, compiled, feeds
        constants = {source: program.constant(source) for pair in pairs.by_value.values() for source in pair.sources}
        self._constants = pairs.references(
            {source: tensor for source, tensor in constants.items() if tensor is not None}
        )
        # Outputs that no node computes are constants or inputs; the latter differ from call to call.
        unchanged = (name for name in compiled.graph.outputs if name not in compiled.graph.producer)
        known = {name: program.constant(name) for name in unchanged}
        self._passed = {name: tensor for name, tensor in known.items() if tensor is not None}
        computed = {name: first[name] for name in compiled.graph.producer if name in first}
        self._values = 0, self._with_passed(0, computed)  # the last call, and its values

    def _with_passed(self, call: int, computed: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Return the computed values of a call, and the inputs and constants that are outputs."""
        feed, graph = self._feeds[call], self._compiled.graph
        inputs = {name: feed[name] for name in graph.outputs if name in feed}
        return {name: complex_as_real(tensor) for name, tensor in {**self._passed, **inputs, **computed}.items()}

    def values(self, call: int) -> Mapping[str, torch.Tensor]:
        """Return all values of a call that nodes compute or that are outputs, by their own names.

        Those of the last call are kept.

        Raises:
            BackendError: the program can't be run.
        """
        if self._values[0] != call:
            graph = self._compiled.graph
            values = self._backend.run(self._compiled, self._feeds[call], tuple(graph.producer))
            self._values = call, self._with_passed(call, values)
        return self._values[1]

    def references(self, call: int) -> dict[str, Reference]:
        """Return the references of a call, by the names of the other program's values."""
        known, pairs = {**self._pairs.references(self.values(call)), **self._constants}, self._pairs.by_value
        inferred = {name for name, pair in pairs.items() if pair.evidence == "numbers"}
        return {name: Reference(item, "inferred" if name in inferred else "program") for name, item in known.items()}

    @cached_property
    def types(self) -> Mapping[str, torch.dtype]:
        """The dtypes of the values by name: those of the first call, as the graph may not declare them."""
        declared = {name: torch_dtype(value.dtype) for name, value in self.graph.values.items()}
        known = {name: dtype for name, dtype in declared.items() if dtype is not None}
        return known | {name: reference.tensor.dtype for name, reference in self.references(0).items()}
