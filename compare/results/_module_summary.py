"""A table of the modules of a report: how many of their values differ, and the largest error."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from ..float64._verdict import RoundingVerdict
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
        has_first: whether the first divergence is among them.
    """

    names: tuple[str, ...]
    last: tuple[str, ...]
    rows: tuple[ModuleValue, ...]
    has_first: bool

    @property
    def differs(self) -> bool:
        """Whether any of the values differs."""
        return any(row.diverged for row in self.rows)

    @property
    def title(self) -> str:
        """The path of the module, or `layers.0 to 3`."""
        name = ".".join(self.names) or "(model)"
        return name if self.last == self.names else f"{name} to {self.last[-1]}"

    @property
    def worst_verdict(self) -> RoundingVerdict | None:
        """The verdict of the value that is furthest from float64, as a multiple of rounding."""
        verdicts = (row.float64 for row in self.rows if row.float64 is not None)
        return max(verdicts, key=lambda verdict: verdict.ratio, default=None)

    def may_include(self, following: "_ModuleGroup") -> bool:
        """Return whether the next group is the next module of the same list, and shows the same in the table."""
        *parents, name = following.names or ("",)
        *own_parents, last = self.last or ("",)
        is_next = parents == own_parents and last.isdecimal() and name.isdecimal() and int(name) == int(last) + 1
        return is_next and (self.differs, self.has_first) == (following.differs, following.has_first)


def module_summary(rows: Sequence[ModuleValue], first: ModuleValue | None) -> Iterable[Block]:
    """Yield a table with a row for each module, or for neighboring modules that are alike, and how many it leaves out.

    Args:
        rows: the values.
        first: the first divergence, whose module has a row of its own; None if there is none.
    """
    paths = [tuple(row.module.split(".")) if row.module else () for row in rows]
    groups: list[_ModuleGroup] = []
    for depth in range(1, max((1, *map(len, paths))) + 1):  # as deep as the table has room for
        deeper = _merged(_grouped(rows, paths, depth, first))
        if groups and len(deeper) > _MAX_GROUPS:
            break
        groups = deeper
    shown_groups = _most_important(groups)
    yield table_of(_COLUMNS, shown_groups, marked=lambda group: group.differs, skip_empty=True)
    if hidden := len(groups) - len(shown_groups):
        differ = sum(group.differs for group in groups) - sum(group.differs for group in shown_groups)
        yield f"and {hidden} more, {differ or 'none'} of which differ"


def _grouped(
    rows: Iterable[ModuleValue], paths: Iterable[tuple[str, ...]], depth: int, first: ModuleValue | None
) -> list[_ModuleGroup]:
    """Return the values by the first `depth` names of their modules, in the order of their first values."""
    groups = defaultdict[tuple[str, ...], list[ModuleValue]](list)
    for row, path in zip(rows, paths, strict=True):
        groups[path[:depth]].append(row)
    return [
        _ModuleGroup(names, names, tuple(found), any(row is first for row in found)) for names, found in groups.items()
    ]


def _merged(groups: Sequence[_ModuleGroup]) -> list[_ModuleGroup]:
    """Return groups in which neighboring modules of a list that all differ, or do not differ, are one."""
    merged: list[_ModuleGroup] = []
    for group in groups:
        if merged and merged[-1].may_include(group):
            merged[-1] = replace(merged[-1], last=group.names, rows=merged[-1].rows + group.rows)
        else:
            merged.append(group)
    return merged


def _most_important(groups: Sequence[_ModuleGroup]) -> list[_ModuleGroup]:
    """Return at most `_MAX_GROUPS` groups, in order: that of the first divergence, then those that differ."""
    ranked = sorted(groups, key=lambda group: (not group.has_first, not group.differs))
    chosen = {id(group) for group in ranked[:_MAX_GROUPS]}
    return [group for group in groups if id(group) in chosen]


_COLUMNS: Columns[_ModuleGroup] = {
    Column("module", fit_paths, least=12, preferred=20): lambda group: group.title,
    "values": lambda group: len(group.rows),
    Column("not judged", right=True, optional=1): lambda group: sum(not row.judged for row in group.rows) or None,
    Column("differ", right=True): lambda group: sum(row.diverged for row in group.rows) or None,
    Column("largest error", right=True): lambda group: max(
        (row.error for row in group.rows if row.error is not None), default=None
    ),
    Column("times rounding", right=True): lambda group: rounding_ratio(group.worst_verdict),
    "": lambda group: ARROW if group.has_first else "",
}
