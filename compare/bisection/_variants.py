"""Makes a program with some of its own transformations left out: passes, and nodes of lower precision."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import onnx_ir as ir
import torch

from filch.export import Lowering, Precision, Program, fingerprint, optimize
from filch.export.backends import Switch
from filch.export.passes import Pass, PassContext

AnyPass = str | Pass | ir.passes.PassBase | Callable[[Program], Any]
PASS, PRECISION = "pass", "node in lower precision"


@dataclass
class ProgramVariants:
    """What is done to a program before a backend has it.

    Attributes:
        program: as it was given.
        passes: what `optimize` is told; nothing is done if there are none.
        to: what it is lowered to, if it is.
        calibration: see `lower`.
        simulate: likewise.
    """

    program: Program
    passes: Sequence[AnyPass] = ()
    to: Precision | None = None
    calibration: Sequence[Mapping[str, torch.Tensor]] = ()
    simulate: bool = False
    _known: dict[frozenset[Switch], tuple[Program, tuple[Switch, ...]]] = field(default_factory=dict)

    def made(self, off: frozenset[Switch]) -> tuple[Program, tuple[Switch, ...]]:
        """The program without what is `off`, and what was done to it that changed it.

        Raises:
            FilchError: it can't be made.
        """
        program, done = self._optimized(frozenset(one for one in off if one.kind == PASS))
        if self.to is None:
            return program, done
        lowering = Lowering(program, self.to, calibration=self.calibration, simulate=self.simulate)
        kept = {one.name for one in off if one.kind == PRECISION}
        lowered = tuple(Switch(PRECISION, name) for name in lowering.nodes if name not in kept)
        return lowering.keeping([name for name in lowering.nodes if name in kept]), (*done, *lowered)

    def _optimized(self, off: frozenset[Switch]) -> tuple[Program, tuple[Switch, ...]]:
        if off not in self._known:
            steps = [(one, each) for one, each in zip(named(self.passes), self.passes, strict=True) if one not in off]
            watch: Any = _Watch([one for one, _ in steps])  # it has some of an instrument's methods
            with PassContext() as context:
                context.instrument(watch)
                made = optimize(self.program, [each for _, each in steps]) if steps else self.program
            self._known[off] = made, tuple(watch.changed)
        return self._known[off]


class _Watch:
    """Sees which passes change the graph."""

    def __init__(self, steps: Sequence[Switch]) -> None:
        self._left = list(steps)
        self._seen = ""
        self.changed: list[Switch] = []

    def before_all_passes(self, program: Program) -> None:
        """See `Instrument`."""
        self._seen = fingerprint(program.model)

    def after_pass(self, _: str, program: Program) -> None:
        """See `Instrument`: it hears of all passes that run, in their order."""
        before, self._seen, one = self._seen, fingerprint(program.model), self._left.pop(0)
        if self._seen != before:
            self.changed.append(one)


def named(passes: Sequence[AnyPass]) -> list[Switch]:
    """Passes by name; one that comes again has its number behind it."""
    names = [each if isinstance(each, str) else _name(each) for each in passes]
    return [
        Switch(PASS, name if names.index(name) == place else f"{name} ({names[: place + 1].count(name)})")
        for place, name in enumerate(names)
    ]


def _name(given: Any) -> str:
    found = getattr(given, "name", None)
    return found if isinstance(found, str) and found else getattr(given, "__name__", type(given).__name__)
