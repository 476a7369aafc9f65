"""Make variants of a program, with some passes or some lowered nodes left out."""

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
    """The transformations of a program before a backend compiles it.

    Attributes:
        program: the program before them.
        passes: the passes that `optimize` runs.
        to: the precision it is lowered to; None does not lower it.
        calibration: see `lower`.
        simulate: see `lower`.
    """

    program: Program
    passes: Sequence[AnyPass] = ()
    to: Precision | None = None
    calibration: Sequence[Mapping[str, torch.Tensor]] = ()
    simulate: bool = False
    _optimized: dict[frozenset[Switch], tuple[Program, tuple[Switch, ...]]] = field(default_factory=dict)

    def without(self, off: frozenset[Switch]) -> tuple[Program, tuple[Switch, ...]]:
        """Return the program without the transformations in `off`, and the applied ones that changed it.

        Raises:
            FilchError: a pass fails, or the program can't be lowered.
        """
        program, applied = self._optimize(frozenset(one for one in off if one.kind == PASS))
        if self.to is None:
            return program, applied
        lowering = Lowering(program, self.to, calibration=self.calibration, simulate=self.simulate)
        kept = {one.name for one in off if one.kind == PRECISION}
        lowered = tuple(Switch(PRECISION, name) for name in lowering.nodes if name not in kept)
        return lowering.keeping([name for name in lowering.nodes if name in kept]), (*applied, *lowered)

    def _optimize(self, off: frozenset[Switch]) -> tuple[Program, tuple[Switch, ...]]:
        if off not in self._optimized:
            switches = pass_switches(self.passes)
            steps = [(one, each) for one, each in zip(switches, self.passes, strict=True) if one not in off]
            detector: Any = _ChangeDetector([one for one, _ in steps])  # it has some of an instrument's methods
            with PassContext() as context:
                context.instrument(detector)
                program = optimize(self.program, [each for _, each in steps]) if steps else self.program
            self._optimized[off] = program, tuple(detector.changed)
        return self._optimized[off]


class _ChangeDetector:
    """A pass instrument that records which passes change the graph."""

    def __init__(self, steps: Sequence[Switch]) -> None:
        self._pending = list(steps)
        self._fingerprint = ""
        self.changed: list[Switch] = []

    def before_all_passes(self, program: Program) -> None:
        """See `Instrument`."""
        self._fingerprint = fingerprint(program.model)

    def after_pass(self, _: str, program: Program) -> None:
        """See `Instrument`; called for each pass that runs, in order."""
        before, self._fingerprint, one = self._fingerprint, fingerprint(program.model), self._pending.pop(0)
        if self._fingerprint != before:
            self.changed.append(one)


def pass_switches(passes: Sequence[AnyPass]) -> list[Switch]:
    """Return a switch for each pass, by its name; a repeated pass has its number behind the name."""
    names = [each if isinstance(each, str) else _pass_name(each) for each in passes]
    return [
        Switch(PASS, name if names.index(name) == place else f"{name} ({names[: place + 1].count(name)})")
        for place, name in enumerate(names)
    ]


def _pass_name(step: Any) -> str:
    name = getattr(step, "name", None)
    return name if isinstance(name, str) and name else getattr(step, "__name__", type(step).__name__)
