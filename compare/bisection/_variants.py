"""Make variants of a program, with some passes or some lowered nodes left out."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import onnx_ir as ir
import torch

from filch.export import Precision, Program, fingerprint, optimize
from filch.export.backends import Switch
from filch.export.lowering._lower import Lowering
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

    def has(self, switch: Switch) -> bool:
        """Return whether a switch is of a transformation here, and not of the backend: it may have passes, too."""
        return switch.kind == PRECISION or switch in pass_switches(self.passes)

    def without(self, off: frozenset[Switch]) -> tuple[Program, tuple[Switch, ...]]:
        """Return the program without the transformations in `off`, and the applied ones that changed it.

        Raises:
            FilchError: a pass fails, or the program can't be lowered.
        """
        program, applied = self._optimize(off.intersection(pass_switches(self.passes)))
        if self.to is None:
            return program, applied
        lowering = Lowering(program, self.to, calibration=self.calibration, simulate=self.simulate)
        names = {switch.name for switch in off if switch.kind == PRECISION}
        lowered = tuple(Switch(PRECISION, name) for name in lowering.nodes if name not in names)
        return lowering.keeping([name for name in lowering.nodes if name in names]), (*applied, *lowered)

    def _optimize(self, off: frozenset[Switch]) -> tuple[Program, tuple[Switch, ...]]:
        """Return the program optimized without some passes, and the switches of the passes that changed it."""
        if off not in self._optimized:
            pairs = zip(pass_switches(self.passes), self.passes, strict=True)
            passes = {switch: item for switch, item in pairs if switch not in off}
            detector: Any = _ChangeDetector(passes)  # it has some of the methods of `Instrument`
            with PassContext() as context:
                context.instrument(detector)
                program = optimize(self.program, list(passes.values())) if passes else self.program
            self._optimized[off] = program, tuple(detector.changed)
        return self._optimized[off]


class _ChangeDetector:
    """Records the switches of the passes that change the graph; `switches` has one for each pass, in order."""

    def __init__(self, switches: Iterable[Switch]) -> None:
        self._switches = iter(switches)
        self._fingerprint = ""
        self.changed: list[Switch] = []

    def before_all_passes(self, program: Program) -> None:
        """See `Instrument`."""
        self._fingerprint = fingerprint(program.model)

    def after_pass(self, _: str, program: Program) -> None:
        """See `Instrument`; called for each pass that runs, in order."""
        before, self._fingerprint = self._fingerprint, fingerprint(program.model)
        switch = next(self._switches)
        if self._fingerprint != before:
            self.changed.append(switch)


def pass_switches(passes: Sequence[AnyPass]) -> list[Switch]:
    """Return a switch for each pass, by its name; a repeated pass has its number behind the name."""
    names = [_pass_name(item) for item in passes]
    return [
        Switch(PASS, name if names.index(name) == index else f"{name} ({names[: index + 1].count(name)})")
        for index, name in enumerate(names)
    ]


def _pass_name(item: Any) -> str:
    """Return the name of a pass: a string itself, else its `name`, else that of the function or class."""
    name = item if isinstance(item, str) else getattr(item, "name", None)
    return name if isinstance(name, str) and name else getattr(item, "__name__", type(item).__name__)
