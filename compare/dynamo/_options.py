"""The options of `torch.compile(model, backend="filch", options=…)`, named as in hidet."""

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

from filch.export.common._suggestions import hint

from ..common._errors import CompareError
from ..metrics._tolerance import ToleranceOption, given_limits
from ..results._report import Report

Collect = bool | list[Report] | Callable[[Report], object]


@dataclass(frozen=True)
class DynamoOptions:
    """How each graph from Dynamo is compiled, checked and shown.

    Attributes:
        correctness_report: True judges each call of a graph, and prints a report of the first one, and of later ones
            that differ; a list or a function receives them.
        print_input_graph: print each graph from Dynamo.
        dump_graph_ir: a folder; its subfolders `graph_0`, `graph_1` and so on hold the drawings of each graph from
            Dynamo and of the compiler's steps, as hidet's JSON and as text.
        search_space: the size of the compiler's search: 0, 1 or 2 (see the backend of the compiler).
        use_cuda_graph: whether kernels are recorded once and replayed.
        use_fp16: compute in float16.
        use_fp16_reduction: sum in float16, too.
        inner: the compiler: `inductor`, `onnxruntime` or another backend of Filch, a backend of `torch.compile` by
            name, or a function that is one.
        config: settings of Inductor by their own names.
        mode: the mode of `torch.compile`.
        without: steps of Inductor to leave out (see its backend).
        tolerance: see `compare`; None judges by float64. With `use_fp16`, None and `"default"` are the tolerance of
            float16.
    """

    correctness_report: Collect = False
    print_input_graph: bool = False
    dump_graph_ir: str | os.PathLike[str] | None = None
    search_space: int | None = None
    use_cuda_graph: bool | None = None
    use_fp16: bool = False
    use_fp16_reduction: bool | None = None
    inner: str | Callable[..., Any] = "inductor"
    config: Mapping[str, Any] = field(default_factory=dict)
    mode: str | None = None
    without: str | Sequence[str] = ()
    tolerance: ToleranceOption = None

    def __post_init__(self) -> None:
        if not (isinstance(self.correctness_report, bool | list) or callable(self.correctness_report)):
            raise CompareError(
                f"correctness_report is True, a list or a function that takes a report, not {self.correctness_report!r}"
            )
        given_limits(self.tolerance)  # raises an error if it is invalid

    @classmethod
    def of(cls, options: Mapping[str, Any], mode: str | None) -> "DynamoOptions":
        """Read the options that `torch.compile` passes on.

        Raises:
            CompareError: an option is unknown.
        """
        known = [item.name for item in fields(cls)]
        for name in options:
            if name not in known:
                raise CompareError(f"backend 'filch' has no option {name!r}; {hint(name, known)}")
        return cls(**{"mode": mode, **options})

    def of_compiler(self) -> dict[str, Any]:
        """Return the options of the compiler that were set.

        One that is False or 0 is left out, as a compiler without it does as much, unless it would be on otherwise: CUDA
        graphs with a mode, and sums in float16 with `use_fp16`.
        """
        names = ("search_space", "use_cuda_graph", "use_fp16", "use_fp16_reduction", "config", "mode", "without")
        found = {name: value for name in names if (value := getattr(self, name))}
        if self.mode and self.use_cuda_graph is False:
            found["use_cuda_graph"] = False
        if self.use_fp16 and self.use_fp16_reduction is False:
            found["use_fp16_reduction"] = False
        return found
