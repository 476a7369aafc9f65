"""Align two published implementations of a model, as they are or with a bug in B."""

from __future__ import annotations

import time
import tomllib
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

import torch
from _measure import MIB, peak_memory
from _questions import Answer
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from corpus.pairs import PAIRS
from faults.porting import PortingBug, Style, weigh
from filch.compare import align
from filch.compare.results._alignment import Departure
from ports._port import expanded

OPERATION, MODULE, ELSEWHERE, UNNAMED, PASSED = "operation", "module", "elsewhere", "unnamed", "passed"
OUTCOMES = (OPERATION, MODULE, ELSEWHERE, UNNAMED, PASSED)
STYLES: tuple[Style, ...] = get_args(Style)
LEAST_CHANGE = 1e-5  # of the outputs, relative to their size


@dataclass(frozen=True)
class PublishedBug:
    """A bug that implementation B is given.

    Attributes:
        pair: the name of the pair.
        name: what is wrong.
        edit: what makes the bug.
        places: the modules of B, with the operators there, that are right to name.
    """

    pair: str
    name: str
    edit: PortingBug
    places: tuple[tuple[str, frozenset[str]], ...]

    def found(self, departure: Departure) -> str:
        """Return how precisely a departure names a place of the bug."""
        operator, path = departure.operator.removesuffix("_"), departure.module.partition("@")[0]
        if any(path == module and operator in operators for module, operators in self.places):
            return OPERATION
        return MODULE if path in dict(self.places) else ELSEWHERE


def published_bugs() -> Iterator[PublishedBug]:
    """Yield the bugs of `bugs.toml`."""
    data = tomllib.loads(Path(__file__).with_name("bugs.toml").read_text(encoding="utf-8"))
    operators: Mapping[str, str] = data["operators"]
    for pair, bugs in data["bugs"].items():
        for name, entry in bugs.items():
            places = []
            for text in entry["places"]:
                modules, _, names = text.partition(": ") if text[0] != ":" else ("", "", text[2:])
                known = frozenset(" ".join(operators.get(word, word) for word in names.split()).split())
                places += [(module, known) for (module,) in expanded(modules)]
            yield PublishedBug(pair, name, PortingBug(pair, entry["kind"], (entry,), ()), tuple(places))


def style_of(index: int) -> Style:
    """Return the style of the weights: every other bug is in a model like a trained one."""
    return STYLES[index % len(STYLES)]


def made(pair: str, style: Style) -> tuple[nn.Module, nn.Module]:
    """Return both implementations of a pair, with the same weights."""
    with torch.no_grad():
        original = PAIRS[pair].original()
        if style == "trained":
            weigh(original)
        port = PAIRS[pair].port().eval().requires_grad_(requires_grad=False)
        port.load_state_dict(PAIRS[pair].weights(original.state_dict()))
    return original, port


def outputs(model: nn.Module, args: tuple[Any, ...]) -> Tensor:
    """Return the outputs of a model, as one vector."""
    with torch.no_grad():
        leaves = tree_leaves(model(*args))
    return torch.cat([leaf.flatten().double() for leaf in leaves if isinstance(leaf, Tensor)])


def plant(bug: PublishedBug, original: nn.Module, port: nn.Module) -> None:
    """Make a bug in implementation B."""
    with torch.no_grad():
        bug.edit.plant(original, port)


def effect(bug: PublishedBug, style: Style, args: tuple[Any, ...]) -> float:
    """Return how much a bug changes the outputs, relative to their size, in models of its own: some keep tables."""
    (_, port), planted = made(bug.pair, style), made(bug.pair, style)
    plant(bug, *planted)
    before = outputs(port, args)
    return float((outputs(planted[1], args) - before).norm() / before.norm())


def answer(pair: str, style: Style, bug: PublishedBug | None = None) -> Answer:
    """Return what `align` says of a pair, and how right that is."""
    warnings.simplefilter("ignore")
    original, port = made(pair, style)
    args, actual_args = PAIRS[pair].inputs()
    if bug is not None:
        plant(bug, original, port)
        change = effect(bug, style, actual_args)
        if not change > LEAST_CHANGE:
            return {"error": f"the bug changes the outputs by {change:.1e} of their size"}
    start = time.perf_counter()
    result = align(original, port, args, actual_args)
    found = {
        "outcome": result.outcome,
        "says": result.headline,
        "departures": [*map(str, result.departures[:6])],
        "seconds": round(time.perf_counter() - start, 1),
        "mib": peak_memory() // MIB,
    }
    if bug is not None:
        places = [bug.found(departure) for departure in result.departures]
        passed = PASSED if result.outcome == "close" else UNNAMED
        found |= {"place": places[0] if places else passed, "further": places[1:].count(ELSEWHERE)}
    return found
