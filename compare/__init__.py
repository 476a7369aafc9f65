"""Where a graph leaves the model that it was made of: node by node, and which node did it first.

Nothing is imported until a name is asked for: importing torch takes longer than most that is done here.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ._bisect import BisectReport, bisect
    from ._blame import blame
    from ._checks import Checks
    from ._compare import compare
    from ._compiled_graph import compiled_graph
    from ._demo import tiny_llm
    from ._diff import DiffRow, DumpDiff, diff
    from ._errors import CompareError
    from ._explained import Explanation
    from ._golden import Golden
    from ._gradients import compare_gradients
    from ._load_report import load_report
    from ._metrics import Difference, compare_tensors
    from ._pass_errors import CompareInstrument
    from ._pass_row import PassRow
    from ._precision import PrecisionReport, keep_precise
    from ._report import ModuleRow, Operator, Report, Row
    from ._sensitivity import Sensitivity
    from ._tolerance import Tolerance, default_tolerance
    from ._trial import Goal, Outcome
    from .repro import Repro, write_repro
    from .truth import Judgement

__all__ = [
    "BisectReport",
    "Checks",
    "CompareError",
    "CompareInstrument",
    "DiffRow",
    "Difference",
    "DumpDiff",
    "Explanation",
    "Goal",
    "Golden",
    "Judgement",
    "ModuleRow",
    "Operator",
    "Outcome",
    "PassRow",
    "PrecisionReport",
    "Report",
    "Repro",
    "Row",
    "Sensitivity",
    "Tolerance",
    "bisect",
    "blame",
    "compare",
    "compare_gradients",
    "compare_tensors",
    "compiled_graph",
    "default_tolerance",
    "diff",
    "keep_precise",
    "load_report",
    "tiny_llm",
    "write_repro",
]

_PLACES = {
    "BisectReport": "_bisect",
    "Checks": "_checks",
    "CompareError": "_errors",
    "CompareInstrument": "_pass_errors",
    "DiffRow": "_diff",
    "Difference": "_metrics",
    "DumpDiff": "_diff",
    "Explanation": "_explained",
    "Golden": "_golden",
    "Goal": "_trial",
    "Judgement": "truth",
    "ModuleRow": "_report",
    "Operator": "_report",
    "Outcome": "_trial",
    "PassRow": "_pass_row",
    "PrecisionReport": "_precision",
    "Report": "_report",
    "Repro": "repro",
    "Row": "_report",
    "Sensitivity": "_sensitivity",
    "Tolerance": "_tolerance",
    "bisect": "_bisect",
    "blame": "_blame",
    "compare": "_compare",
    "compare_gradients": "_gradients",
    "compare_tensors": "_metrics",
    "compiled_graph": "_compiled_graph",
    "default_tolerance": "_tolerance",
    "diff": "_diff",
    "keep_precise": "_precision",
    "load_report": "_load_report",
    "tiny_llm": "_demo",
    "write_repro": "repro",
}


def __getattr__(name: str) -> object:
    if name not in _PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = getattr(import_module(f".{_PLACES[name]}", __name__), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return __all__
