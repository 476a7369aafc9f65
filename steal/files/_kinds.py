"""The kinds of files that are read, each with its limits; `docs/security.md` has a row for each."""

from dataclasses import replace
from typing import Any

from ._budget import Budget, FileKind

FILE_KINDS = {
    kind.name: kind
    for kind in (
        FileKind("accepted values", size=2**20, depth=3),
        FileKind("GGUF file", size=2**63, items=2**22),
        FileKind("dump", line=2**24),
        FileKind("exported program", memory=400 * 2**20, steps=20_000_000, seconds=120.0),
        FileKind("fleet", size=2**24, items=100_000, depth=8),
        FileKind("index of a checkpoint", size=2**28),
        FileKind("inputs of programs", size=2**31),
        FileKind("journal of a bisection", size=2**26, line=2**20, items=100_000),
        FileKind("journal of a capture", size=2**31, line=2**24, items=2**26),
        FileKind("layouts", size=2**24, items=2**19, depth=2),
        FileKind("ledger", size=2**28, memory=2**26, items=2**18),
        FileKind("list of drawings", size=2**20),
        FileKind("mapping", size=2**24, depth=3),
        FileKind("program"),
        FileKind("report"),
        FileKind("table of expected failures", size=2**20, depth=2),
        FileKind("trace", size=200 * 2**20, memory=200 * 2**20),
        FileKind("weights", size=2**63, items=2**18, depth=32),
    )
}


def budget_of(name: str, **limits: Any) -> Budget:
    """Return a new budget for reading one file of a kind, or several together.

    Args:
        name: of the kind, a key of `FILE_KINDS`.
        limits: those that a user has changed, by the names of `FileKind`.
    """
    return Budget(replace(FILE_KINDS[name], **limits))
