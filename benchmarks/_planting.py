"""What the benchmarks share that plant faults and count which of them are named."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Sequence
from random import Random
from typing import Protocol

from _zoo import ZOO

from filch.compare import Report

NODE, INSIDE, MISSED = "the node", "inside", "missed"
OUTCOMES = (NODE, INSIDE, MISSED)


class InNode(Protocol):
    """A fault in a node.

    Attributes:
        node: the node's name.
    """

    node: str


def parser_of(
    doc: str | None, models: Sequence[str], choices: Iterable[str] = tuple(sorted(ZOO))
) -> argparse.ArgumentParser:
    """Return a parser with the options `--seed` and `--models`, which has a default and choices."""
    parser = argparse.ArgumentParser(description=doc)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--models", nargs="+", choices=choices, default=models, metavar="MODEL")
    return parser


def seeded(*parts: object) -> Random:
    """Return a source of random numbers that a seed and names determine."""
    return Random(" ".join(map(str, parts)))  # noqa: S311  not for security


def detection(report: Report, fault: InNode) -> str:
    """Return where the report finds a fault: `NODE`, `INSIDE` or `MISSED`.

    `INSIDE` means that the first row names the node among its origins: those that a compiled node computes, and those
    before it that could not be judged. The model has no value for a node that was inserted.
    """
    first = report.first_divergence
    if first is None or report.close:
        return MISSED
    if first.stage == "exported" and first.node == fault.node:
        return NODE
    return INSIDE if fault.node in first.origins else MISSED
