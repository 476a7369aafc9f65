"""What `torch.compile(model, backend="filch", options=…)` may say, in hidet's words."""

import difflib
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from ..common._errors import CompareError
from ..metrics._tolerance import Tolerance
from ..results._report import Report

Collect = bool | list[Report] | Callable[[Report], object]


@dataclass(frozen=True)
class DynamoOptions:
    """How each graph that Dynamo hands over is compiled, checked and shown.

    Attributes:
        correctness_report: True prints a report for each graph, at its first call; a list or a function is given it.
        print_input_graph: print each graph as it is handed over.
        dump_graph_ir: a folder; in `graph_0`, `graph_1` and so on there, each graph is drawn as it was handed over, and
            as what the compiler made of it step by step: as hidet's JSON and as text.
        search_space: how far the compiler searches: 0, 1 or 2 (see the compiler's own backend).
        use_cuda_graph: whether kernels are recorded once and replayed.
        use_fp16: compute in float16.
        use_fp16_reduction: add up in float16, too.
        inner: what compiles: `inductor`, `onnxruntime` or another of Filch's backends, any of torch.compile's, or a
            function that is one.
        config: settings of Inductor by its own names.
        mode: torch.compile's.
        tolerance: see `compare`.
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
    tolerance: float | Tolerance | None = None

    def __post_init__(self) -> None:
        if not (isinstance(self.correctness_report, bool | list) or callable(self.correctness_report)):
            raise CompareError(
                f"correctness_report is True, a list or a function that takes a report, not {self.correctness_report!r}"
            )

    @classmethod
    def of(cls, given: Mapping[str, Any], mode: str | None) -> "DynamoOptions":
        """Read what torch.compile passes on.

        Raises:
            CompareError: an option that there is not.
        """
        known = [item.name for item in fields(cls)]
        for name in given:
            if name not in known:
                close = difflib.get_close_matches(name, known, n=1)
                hint = f"did you mean {close[0]!r}?" if close else f"there are {', '.join(known)}"
                raise CompareError(f"backend 'filch' has no option {name!r}; {hint}")
        return cls(**{"mode": mode, **given})

    def of_compiler(self) -> dict[str, Any]:
        """What the compiler is told: the options that were given."""
        names = ("search_space", "use_cuda_graph", "use_fp16", "use_fp16_reduction", "config", "mode")
        return {name: value for name in names if (value := getattr(self, name)) not in (None, False, {})}
