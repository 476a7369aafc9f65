"""Compare what a graph computes with what the model computed, node by node, and find the first node that differs.

Names are imported when they are first used, because importing torch takes longer than most commands.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ._blame import blame
    from ._compare import compare
    from ._compiled_graph import compiled_graph
    from ._diff import diff
    from ._pass_errors import CompareInstrument
    from .bisection import BisectReport, bisect
    from .common._errors import CompareError
    from .dynamo._gradients import compare_gradients
    from .float64 import RoundingVerdict
    from .metrics._metrics import Difference, compare_tensors
    from .metrics._tolerance import Tolerance, default_tolerance
    from .models._demo import tiny_llm
    from .precision._precision import keep_precise
    from .repro import Repro, write_repro
    from .results._dump_diff import DiffRow, DumpDiff
    from .results._explanation import Explanation
    from .results._load_report import load_report
    from .results._passes import PassRow
    from .results._precision import Goal, Outcome, PrecisionReport, Sensitivity
    from .results._report import Report
    from .results._rows import ModuleRow, Operator, Row
    from .testing._checks import Checks
    from .testing._golden import Golden

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
    "ModuleRow",
    "Operator",
    "Outcome",
    "PassRow",
    "PrecisionReport",
    "Report",
    "Repro",
    "RoundingVerdict",
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
    "BisectReport": "results._bisection",
    "Checks": "testing._checks",
    "CompareError": "common._errors",
    "CompareInstrument": "_pass_errors",
    "DiffRow": "results._dump_diff",
    "Difference": "metrics._metrics",
    "DumpDiff": "results._dump_diff",
    "Explanation": "results._explanation",
    "Golden": "testing._golden",
    "Goal": "results._precision",
    "RoundingVerdict": "float64",
    "ModuleRow": "results._rows",
    "Operator": "results._rows",
    "Outcome": "results._precision",
    "PassRow": "results._passes",
    "PrecisionReport": "results._precision",
    "Report": "results._report",
    "Repro": "repro",
    "Row": "results._rows",
    "Sensitivity": "results._precision",
    "Tolerance": "metrics._tolerance",
    "bisect": "bisection._bisect",
    "blame": "_blame",
    "compare": "_compare",
    "compare_gradients": "dynamo._gradients",
    "compare_tensors": "metrics._metrics",
    "compiled_graph": "_compiled_graph",
    "default_tolerance": "metrics._tolerance",
    "diff": "_diff",
    "keep_precise": "precision._precision",
    "load_report": "results._load_report",
    "tiny_llm": "models._demo",
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
