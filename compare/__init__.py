"""Compare what a graph computes with what the model computed, node by node, and find the first node that differs.

Names are imported when they are first used, because importing torch takes longer than most commands.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ._align import align
    from ._blame import blame
    from ._compare import compare
    from ._compare_files import compare_files
    from ._compare_programs import compare_programs
    from ._compiled_graph import compiled_graph
    from ._decode import compare_decode
    from ._diff import diff
    from ._invariance import check_invariance
    from ._load_quantized import load_quantized
    from ._map_to_export import map_to_export
    from ._pass_errors import CompareInstrument
    from ._record_reference import record_reference
    from .alignment._value_map import MappedValue, ValueMap, load_value_map
    from .bisection._bisect import bisect
    from .common._errors import CompareError
    from .dynamo._gradients import compare_gradients
    from .float64._verdict import Flips, RoundingVerdict
    from .metrics._metrics import Difference, compare_tensors
    from .metrics._tolerance import Tolerance, default_tolerance
    from .models._demo import tiny_llm
    from .models._input_files import load_inputs
    from .precision._precision import keep_precise
    from .repro._result import Repro
    from .repro._write import write_repro
    from .results._alignment import Alignment
    from .results._bisection import BisectReport
    from .results._decoding import DecodeBreak, DecodeDecision, DecodePosition, Decoding, LayerErrors
    from .results._dump_diff import DumpDiff
    from .results._explanation import Explanation
    from .results._invariance import Invariance, InvarianceBreak, InvarianceRow
    from .results._passes import PassRow
    from .results._precision import Goal, OutputDifferences, PrecisionReport, Sensitivity
    from .results._report import Report, load_report
    from .results._rows import DiffRow, ModelOperation, ModuleRow, Row
    from .testing._checks import Checks
    from .testing._golden import Golden

__all__ = [
    "Alignment",
    "BisectReport",
    "Checks",
    "CompareError",
    "CompareInstrument",
    "DecodeBreak",
    "DecodeDecision",
    "DecodePosition",
    "Decoding",
    "DiffRow",
    "Difference",
    "DumpDiff",
    "Explanation",
    "Flips",
    "Goal",
    "Golden",
    "Invariance",
    "InvarianceBreak",
    "InvarianceRow",
    "LayerErrors",
    "MappedValue",
    "ModelOperation",
    "ModuleRow",
    "OutputDifferences",
    "PassRow",
    "PrecisionReport",
    "Report",
    "Repro",
    "RoundingVerdict",
    "Row",
    "Sensitivity",
    "Tolerance",
    "ValueMap",
    "align",
    "bisect",
    "blame",
    "check_invariance",
    "compare",
    "compare_decode",
    "compare_files",
    "compare_gradients",
    "compare_programs",
    "compare_tensors",
    "compiled_graph",
    "default_tolerance",
    "diff",
    "keep_precise",
    "load_inputs",
    "load_quantized",
    "load_report",
    "load_value_map",
    "map_to_export",
    "record_reference",
    "tiny_llm",
    "write_repro",
]

_NAMES_BY_MODULE = {
    "_align": ("align",),
    "_blame": ("blame",),
    "_compare": ("compare",),
    "_compare_files": ("compare_files",),
    "_compare_programs": ("compare_programs",),
    "_compiled_graph": ("compiled_graph",),
    "_decode": ("compare_decode",),
    "_diff": ("diff",),
    "_invariance": ("check_invariance",),
    "_load_quantized": ("load_quantized",),
    "_map_to_export": ("map_to_export",),
    "_pass_errors": ("CompareInstrument",),
    "_record_reference": ("record_reference",),
    "alignment._value_map": ("MappedValue", "ValueMap", "load_value_map"),
    "bisection._bisect": ("bisect",),
    "common._errors": ("CompareError",),
    "dynamo._gradients": ("compare_gradients",),
    "float64._verdict": ("Flips", "RoundingVerdict"),
    "metrics._metrics": ("Difference", "compare_tensors"),
    "metrics._tolerance": ("Tolerance", "default_tolerance"),
    "models._demo": ("tiny_llm",),
    "models._input_files": ("load_inputs",),
    "precision._precision": ("keep_precise",),
    "repro._result": ("Repro",),
    "repro._write": ("write_repro",),
    "results._alignment": ("Alignment",),
    "results._bisection": ("BisectReport",),
    "results._decoding": ("DecodeBreak", "DecodeDecision", "DecodePosition", "Decoding", "LayerErrors"),
    "results._dump_diff": ("DumpDiff",),
    "results._explanation": ("Explanation",),
    "results._invariance": ("Invariance", "InvarianceBreak", "InvarianceRow"),
    "results._passes": ("PassRow",),
    "results._precision": ("Goal", "OutputDifferences", "PrecisionReport", "Sensitivity"),
    "results._report": ("Report", "load_report"),
    "results._rows": ("DiffRow", "ModelOperation", "ModuleRow", "Row"),
    "testing._checks": ("Checks",),
    "testing._golden": ("Golden",),
}
_MODULES = {name: module for module, names in _NAMES_BY_MODULE.items() for name in names}


def __getattr__(name: str) -> object:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = getattr(import_module(f".{_MODULES[name]}", __name__), name)
    return globals()[name]


def __dir__() -> list[str]:
    return __all__
