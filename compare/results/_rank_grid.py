"""A grid of modules and ranks that shows where several processes differ from one."""

from collections.abc import Sequence

from ..rendering._table import Block, Column, Table, fit_paths
from ._rows import DiffRow

_MAX_MODULES = 10  # on a terminal
_MAX_RANKS = 16  # on a terminal
_WRONG, _RIGHT, _UNKNOWN = "differs", "ok", "?"


def rank_grid(rows: Sequence[DiffRow], *, whole: bool = False) -> list[Block]:
    """Return a table with a row for each module and a column for each rank; nothing for dumps of one process.

    A cell is `differs` if a value of the module is wrong on the rank, `?` if one is wrong on some rank and it is not
    known on which, `ok`, or empty if the rank has no value of the module.

    Args:
        rows: the values.
        whole: show all modules, for a page; else the first that differ, if the ranks fit on a terminal.
    """
    all_ranks = sorted({rank for row in rows for rank in row.held_by})
    by_module: dict[str, list[DiffRow]] = {}
    for row in rows:
        if row.held_by:
            by_module.setdefault(row.module or "(model)", []).append(row)
    names = [name for name, values in by_module.items() if whole or any(value.diverged for value in values)]
    if not names or (not whole and len(all_ranks) > _MAX_RANKS):
        return []
    shown = names if whole else names[:_MAX_MODULES]
    cells = [[_state(by_module[name], rank) for rank in all_ranks] for name in shown]
    wrong = {
        (row, column + 1)
        for row, states in enumerate(cells)
        for column, state in enumerate(states)
        if state in (_WRONG, _UNKNOWN)
    }
    columns = (Column("module", fit_paths), *(Column(str(rank)) for rank in all_ranks))
    table = Table(
        columns, tuple((name, *states) for name, states in zip(shown, cells, strict=True)), wrong=frozenset(wrong)
    )
    hidden = len(names) - len(shown)
    return [table, f"and {hidden} more modules that differ"] if hidden else [table]


def _state(values: Sequence[DiffRow], rank: int) -> str:
    """Return what a module's values are on a rank."""
    held = [value for value in values if rank in value.held_by]
    wrong = [value for value in held if value.diverged]
    if any(rank in value.ranks for value in wrong):
        return _WRONG
    if any(not value.ranks for value in wrong):
        return _UNKNOWN
    return _RIGHT if any(value.judged for value in held) else ""
