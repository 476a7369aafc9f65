"""Tell rounding from errors by evaluating in float64."""

from ._decision_values import differ, differing
from ._decisions import Decisions
from ._evaluation import Float64Evaluator
from ._fingerprint import Fingerprint
from ._levels_file import levels_of, write_levels
from ._margins import Compared, deciding_node, flips_of, margins_of, nearest_alternative
from ._measured_levels import measured_levels
from ._mode import float64_values
from ._noise import unit_of
from ._reductions import ObservedShapes, product_of, reduction_length, running_length
from ._stored_level import StoredLevel, stored_level
from ._values import Float64Values, RecordedValues
from ._verdict import (
    Flips,
    Float64Value,
    RoundingLevel,
    RoundingVerdict,
    Verdict,
    format_ratio,
    identical_verdict,
    largest_distance,
    rounding_level,
    rounding_verdict,
)

__all__ = [
    "Compared",
    "Decisions",
    "Fingerprint",
    "Flips",
    "Float64Evaluator",
    "Float64Value",
    "Float64Values",
    "ObservedShapes",
    "RecordedValues",
    "RoundingLevel",
    "RoundingVerdict",
    "StoredLevel",
    "Verdict",
    "deciding_node",
    "differ",
    "differing",
    "flips_of",
    "float64_values",
    "format_ratio",
    "identical_verdict",
    "largest_distance",
    "levels_of",
    "margins_of",
    "measured_levels",
    "nearest_alternative",
    "product_of",
    "reduction_length",
    "rounding_level",
    "rounding_verdict",
    "running_length",
    "stored_level",
    "unit_of",
    "write_levels",
]
