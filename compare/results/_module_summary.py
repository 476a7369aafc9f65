"""A table of the modules of a report: how many of their values differ, and the largest error."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ..rendering._table import Block, Column, Columns, fit_paths, table_of
from ._row_tables import ARROW, rounding_ratio
from ._rows import DiffRow, Row

_MAX_GROUPS = 10


ModuleValue = Row | DiffRow


@dataclass(frozen=True)
class _ModuleGroup:
    """Values of a module and its submodules, or of neighboring modules of a list.

    Attributes:
        names: the path of the module, as a tuple of names.
        last: the last module of a list that the group has, as `names`; the same if there is only one.
        rows: its values.
    """

    names: tuple[str, ...]
    last: tuple[str, ...]
    rows: tuple[ModuleValue, ...]


def module_summary(rows: Sequence[ModuleValue], first: ModuleValue | None) -> Iterable[Block]:
    """Yield a table with a row for each module, or for neighboring modules that are alike, and how many it leaves out.

    Args:
        rows: the values.
        first: the first divergence, whose module has a row of its own; None if there is none.
    """
    paths = [tuple(row.module.split(".")) if row.module else () for row in rows]
    groups: list[_ModuleGroup] = []
    for depth in range(1, max((1, *map(len, paths))) + 1):
        deeper = _merged(_grouped(rows, paths, depth), first)
        if groups and len(deeper) > _MAX_GROUPS:
            break
        groups = deeper
    shown_groups = _most_important(groups, first)
    columns: Columns[_ModuleGroup] = {
        Column("module", fit_paths, least=12, preferred=20): _title,
        "values": lambda group: len(group.rows),
        Column("not judged", right=True, optional=1): lambda group: _count(not row.judged for row in group.rows),
        Column("differ", right=True): lambda group: _count(row.diverged for row in group.rows),
        Column("largest error", right=True): lambda group: _largest(row.error for row in group.rows),
        Column("times rounding", right=True): _times_rounding,
        "": lambda group: ARROW if _has(group, first) else "",
    }
    yield table_of(columns, shown_groups, marked=_differs, skip_empty=True)
    if hidden := len(groups) - len(shown_groups):
        differ = sum(map(_differs, groups)) - sum(map(_differs, shown_groups))
        yield f"and {hidden} more, {differ or 'none'} of which differ"


def _most_important(groups: Sequence[_ModuleGroup], first: ModuleValue | None) -> list[_ModuleGroup]:
    """Return at most `_MAX_GROUPS` groups, in order: that of the first divergence, then those that differ."""
    ranked = sorted(groups, key=lambda group: (not _has(group, first), not _differs(group)))
    chosen = {id(group) for group in ranked[:_MAX_GROUPS]}
    return [group for group in groups if id(group) in chosen]


def _grouped(rows: Iterable[ModuleValue], paths: Iterable[tuple[str, ...]], depth: int) -> list[_ModuleGroup]:
    """Return the values by the first names of their modules, in the order of their first values."""
    groups: dict[tuple[str, ...], list[ModuleValue]] = {}
    for row, path in zip(rows, paths, strict=True):
        groups.setdefault(path[:depth], []).append(row)
    return [_ModuleGroup(names, names, tuple(found)) for names, found in groups.items()]


def _merged(groups: Sequence[_ModuleGroup], first: ModuleValue | None) -> list[_ModuleGroup]:
    """Return groups in which neighboring modules of a list that all differ, or do not differ, are one."""
    merged: list[_ModuleGroup] = []
    for group in groups:
        before = merged[-1] if merged else None
        if before is not None and _is_next(before, group) and _state(before, first) == _state(group, first):
            merged[-1] = _ModuleGroup(before.names, group.names, before.rows + group.rows)
        else:
            merged.append(group)
    return merged


def _is_next(before: _ModuleGroup, group: _ModuleGroup) -> bool:
    *parents, name = group.names or ("",)
    *last_parents, last = before.last or ("",)
    return parents == last_parents and last.isdecimal() and name.isdecimal() and int(name) == int(last) + 1


def _state(group: _ModuleGroup, first: ModuleValue | None) -> tuple[bool, bool]:
    return _differs(group), _has(group, first)


def _differs(group: _ModuleGroup) -> bool:
    return any(row.diverged for row in group.rows)


def _has(group: _ModuleGroup, first: ModuleValue | None) -> bool:
    return any(row is first for row in group.rows)


def _title(group: _ModuleGroup) -> str:
    name = ".".join(group.names) or "(model)"
    return name if group.last == group.names else f"{name} to {group.last[-1]}"


def _count(flags: Iterable[bool]) -> int | None:
    return sum(flags) or None


def _largest(numbers: Iterable[float | None]) -> float | None:
    return max((number for number in numbers if number is not None), default=None)


def _times_rounding(group: _ModuleGroup) -> str:
    verdicts = (row.float64 for row in group.rows if row.float64 is not None)
    return rounding_ratio(max(verdicts, key=lambda verdict: verdict.ratio, default=None))
