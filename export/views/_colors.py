"""The hexadecimal colors of findings of a comparison."""

import math

from ..graph._finding import Finding

# Worse is darker, so that the colors differ for color-blind readers and in gray.
CLOSE = "#d6e6f4"
UNJUDGED = "#dddddd"
MISSHAPEN = "#b9a3d3"
WORST = "#b02318"
_DIVERGED = ("#fee3c0", "#fdc58a", "#fa9b58", "#ea6a3a", "#d3402a", WORST)  # from 1e-5 to 1, a power of ten each


def color(finding: Finding) -> str:
    """Return the background color of a finding; black text is readable on all but the two darkest (see `is_dark`)."""
    if not finding.judged:
        return UNJUDGED
    if not finding.diverged:
        return CLOSE
    if finding.error is None:  # another shape, for example: there is no error to measure
        return MISSHAPEN
    if not finding.error < 1:  # NaN and infinity, too
        return WORST
    power = math.log10(finding.error) if finding.error > 0 else -math.inf
    return _DIVERGED[int(min(max(power + 5, 0), len(_DIVERGED) - 1))]


def is_dark(shade: str) -> bool:
    """Return whether text on this background has to be white."""
    return shade in _DIVERGED[-2:]
