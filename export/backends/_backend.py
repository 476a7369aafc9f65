"""What a backend has to be able to do."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from .._graph import Graph
from .._program import Program

Values = Mapping[str, torch.Tensor]


@dataclass(frozen=True)
class Compiled:
    """What a backend made of a program.

    Attributes:
        graph: the graph that really runs.
        handle: the backend's own, to run it.
    """

    graph: Graph
    handle: Any


class Backend(Protocol):
    """Compiles a program, and runs what it compiled.

    Attributes:
        name: what `compare(backend=…)` calls it.
        optimizes: whether it makes another graph of the program; if not, `compile` is asked for the program as it is
            alone.
    """

    name: str
    optimizes: bool

    def compile(self, program: Program, *, optimize: bool) -> Compiled:
        """Make `program` ready to run.

        Args:
            program: its ONNX model is what runs; backends of torch take the exported program.
            optimize: as the backend runs it for its users; otherwise, node by node as it stands.

        Raises:
            BackendError: the backend's library, device or an operator is missing.
        """

    def run(self, compiled: Compiled, inputs: Values, watch: Collection[str] = ()) -> Values:
        """Run what was compiled.

        Args:
            compiled: what `compile` returned.
            inputs: the tensors that the graph takes, by name, on the CPU.
            watch: names of values in `compiled.graph` to return besides the outputs. Watching must not change what
                runs; a backend that can't promise this is found out by the comparison of the outputs.

        Returns:
            the outputs and the watched values by name, on the CPU; a value that can't be had (it is no tensor) is left
            out.

        Raises:
            BackendError: running fails.
        """
