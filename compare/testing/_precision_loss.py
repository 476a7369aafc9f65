"""Refuse to replace a golden dump by one whose values are further from float64."""

import torch

from filch.steal import Dump, tensors
from filch.steal.text._visible import for_terminal

from ..float64._stored_level import StoredLevel
from ..float64._verdict import SUSPICIOUS, WRONG, format_ratio
from ..results._dump_diff import DumpDiff
from ._golden_file import GoldenRecord

ALLOW = "--filch-allow-less-precise"
DumpAndRecord = tuple[Dump, GoldenRecord]


def lost_precision(golden: DumpAndRecord, new: DumpAndRecord, changes: DumpDiff) -> str:
    """Return which values of a new dump are further from float64 than those of a golden dump, or `""`.

    Values are left out that have no rounding level, as integers do, or whose level is not reliable. The distance is
    relative to the magnitude of a value, which may have changed. Typically it may be up to 3 times the rounding level
    of the golden dump, as that of a value that differs from the golden dump by rounding; in the worst element, up to 8
    times.

    Args:
        golden: the golden dump, and what it stores besides the values.
        new: the same of the dump that would replace it.
        changes: the differences of the two.

    Returns:
        how many there are, which one is the first, and what changes.
    """
    losses = []
    for key in golden[0]:
        before, now = (tensors(dump[key]) if key in dump else {} for dump, _ in (golden, new))
        for path in before:
            place = key.label + path
            level = golden[1].levels.get(place)
            if path in now and level is not None and level.unit and level.reliable:
                reason = _loss((before[path], level), (now[path], new[1].levels.get(place)))
                losses += [f"{place} in module `{key.name or '(root)'}`: {reason}"] if reason else []
    if not losses:
        return ""
    values = "value is" if len(losses) == 1 else "values are"
    problem = f" ({new[1].problem})" if new[1].problem else ""
    title = (
        f"the golden dump {golden[0].source!r} was not overwritten: {len(losses)} {values} further from float64 than "
        f"before; first {losses[0]}{problem}; if this is intended, run pytest --filch-update {ALLOW}"
    )
    lines = [
        title,
        "",
        f"What changes: {changes.headline}; the first is {changes.first_divergence}",
        "",
        changes.excerpt(),
    ]
    return for_terminal("\n".join(lines))


def _loss(before: tuple[torch.Tensor, StoredLevel], now: tuple[torch.Tensor, StoredLevel | None]) -> str:
    """Return how much less precise a value has become, or `""` if rounding explains it.

    A level counts errors, and what rounding explains of them, in rounding errors. One rounding error is larger in a
    coarser dtype, so the counts of two dumps are only comparable once each is multiplied by its dump's rounding error,
    relative to the magnitude of the value.

    Args:
        before: the golden dump's value and its level.
        now: the same of the new dump.
    """
    (golden_value, golden), (new_value, new) = before, now
    if new is None:
        return "its distance from float64 is not known any more"
    if not new.unit:  # integers have no rounding errors
        return ""
    golden_rounding, new_rounding = golden.relative_to(golden_value), new.relative_to(new_value)
    largest, typical = (
        error * new_rounding / (limit * golden_rounding) if golden_rounding else 0.0
        for error, limit in ((new.largest_error, golden.largest), (new.typical_error, golden.typical))
    )
    # The golden dump may be 1 level from float64, and a dump that is within rounding of it another 2.
    if typical <= 1 + SUSPICIOUS and largest <= WRONG:
        return ""
    ratio = max(largest, typical)
    precision = "; a lower precision is used on the way to it" if new.unit > golden.unit else ""
    return f"it is {format_ratio(ratio)} times the rounding level of the golden dump from float64{precision}"
