"""Runs a program with some transformations left out, and keeps what came of it."""

from collections import Counter
from collections.abc import Collection, Iterator, Mapping

import torch

from filch.export import Program, fingerprint
from filch.export.backends import Backend, Compiled, CompiledVariant, Switch, Switches
from filch.steal import FilchError

from ..common._progress import step as say
from ..results._bisection import Step
from ..results._precision import Outcome
from ._criterion import Criterion
from ._journal import Journal
from ._variants import PASS, PRECISION, ProgramVariants

_OWN = (PASS, PRECISION)


class VariantRunner:
    """One program on one backend, run with one set of transformations left out after the other.

    Args:
        making: makes the program.
        engine: runs it.
        criterion: judges it.
        journal: knows the runs of before, and is told of each.
    """

    def __init__(self, making: ProgramVariants, engine: Backend, criterion: Criterion, journal: Journal) -> None:
        self._making = making
        self._engine = engine
        self._criterion = criterion
        self._journal = journal
        self._told = {frozenset(one.off): one for one in journal.steps}
        self._known: dict[frozenset[Switch], Step] = {}
        self.notes: dict[str, None] = {}

    @property
    def steps(self) -> tuple[Step, ...]:
        """All that were asked for, in their order."""
        return tuple(self._known.values())

    @property
    def resumed(self) -> int:
        """How many of them the journal told."""
        return sum(off in self._told for off in self._known)

    def without(self, off: Collection[Switch]) -> Step:
        """What comes of it with these left out; a program that can't be run is no pass.

        Raises:
            FilchError: nothing is left out, and it can't be run.
        """
        left = frozenset(off)
        if left not in self._known:
            say(f"run {len(self._known) + 1}, {len(left)} off", 0, 1)
            known = self._told.get(left)
            self._known[left] = self._tried(tuple(off), left) if known is None else known
            if known is None:
                self._journal.add(self._known[left])
        return self._known[left]

    def _tried(self, off: tuple[Switch, ...], left: frozenset[Switch]) -> Step:
        try:
            return self._run(off, left)
        except FilchError as error:
            if not off:
                raise
            return Step(off, Outcome(passes=False, error=float("inf"), snr=float("-inf"), problem=str(error)))

    def _run(self, off: tuple[Switch, ...], left: frozenset[Switch]) -> Step:
        program, done = self._making.made(left)
        made = self._compiled(program, [one for one in off if one.kind not in _OWN])
        self.notes |= dict.fromkeys(made.compiled.notes)
        outcome = self._criterion.judge(list(self._found(made.compiled)))
        ops = dict(sorted(Counter(node.op for node in made.compiled.graph.nodes).items()))
        return Step(off, outcome, made.fingerprint, ops, (*done, *made.switches))

    def _compiled(self, program: Program, off: Collection[Switch]) -> CompiledVariant:
        if isinstance(self._engine, Switches):
            return self._engine.compile_without(program, off)
        made = self._engine.compile(program, optimize="compiled" in self._engine.stages)
        return CompiledVariant(made, (), fingerprint(program.model))

    def _found(self, made: Compiled) -> Iterator[Mapping[str, torch.Tensor]]:
        shown = {name: made.value_aliases.get(name, name) for name in made.graph.producer}
        watch = [name for name, exported in shown.items() if exported in self._criterion.watch]
        for inputs in self._criterion.inputs:
            found = self._engine.run(made, inputs, watch)
            yield {shown.get(name, name): tensor for name, tensor in found.items()}
