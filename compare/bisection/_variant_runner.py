"""Run a program with some transformations disabled, or with other versions of a backend's library."""

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import torch

from filch.export import BackendError, Program, fingerprint
from filch.export.backends import (
    Backend,
    Compiled,
    CompiledVariant,
    NotCompiledError,
    RunsOtherVersions,
    Switch,
    Switches,
)
from filch.steal import FilchError, phase

from ..common._errors import CompareError
from ..results._bisection import Step, Version
from ..results._precision import OutputDifferences
from ._criterion import Criterion
from ._journal import Journal
from ._variants import ProgramVariants


@dataclass
class VariantRunner:
    """Runs one program on one backend with different sets of transformations disabled.

    Attributes:
        variants: makes the programs.
        backend: runs them.
        criterion: judges the results.
        journal: has earlier runs, and stores each new one.
        notes: the notes of the compiled programs, in order.
    """

    variants: ProgramVariants
    backend: Backend
    criterion: Criterion
    journal: Journal
    notes: dict[str, None] = field(default_factory=dict)
    _steps: dict[frozenset[Switch], Step] = field(default_factory=dict)

    @property
    def steps(self) -> tuple[Step, ...]:
        """The runs in the order in which they were requested."""
        return tuple(self._steps.values())

    @property
    def resumed(self) -> int:
        """How many of them are from the journal."""
        return sum(off in self.journal.steps for off in self._steps)

    def without(self, off: Collection[Switch]) -> Step:
        """Run the program with some transformations disabled; one that can't be run does not pass.

        Raises:
            FilchError: nothing is disabled, the program can't be run, and no transformation is known to be applied.
        """
        key = frozenset(off)
        if key not in self._steps:
            stored = self.journal.steps.get(key)
            if stored is None:
                with phase(f"run {len(self._steps) + 1} with {len(key)} transformations off"):
                    try:
                        self._steps[key] = self._run(tuple(off))
                    except FilchError as error:
                        applied = error.switches if isinstance(error, NotCompiledError) else ()  # before it failed
                        if not off and not applied:
                            raise
                        self._steps[key] = Step(tuple(off), OutputDifferences.failed(str(error)), switches=applied)
                self.journal.add(self._steps[key])
            else:
                self._steps[key] = stored
        return self._steps[key]

    def _run(self, off: tuple[Switch, ...]) -> Step:
        """Compile the program without some transformations, run it and judge the results; see `without`."""
        program, applied = self.variants.without(frozenset(off))
        variant = self._compile(program, [switch for switch in off if not self.variants.has(switch)])
        self.notes |= dict.fromkeys(variant.compiled.notes)
        switches = (*applied, *variant.switches)
        try:
            outcome = self.criterion.judge(list(self._results(variant.compiled)))
        except BackendError as error:
            if not (off or switches):  # no transformation can be to blame
                raise
            outcome = OutputDifferences.failed(str(error))
        ops = dict(sorted(Counter(node.op for node in variant.compiled.graph.nodes).items()))
        return Step(off, outcome, variant.fingerprint, ops, switches)

    def _compile(self, program: Program, off: Collection[Switch]) -> CompiledVariant:
        """Compile a program; only a backend whose transformations can be disabled leaves some out."""
        if isinstance(self.backend, Switches):
            return self.backend.compile_without(program, off)
        compiled = self.backend.compile(program, optimize="compiled" in self.backend.stages)
        return CompiledVariant(compiled, (), fingerprint(program.model))

    def _results(self, compiled: Compiled) -> Iterator[Mapping[str, torch.Tensor]]:
        """Yield the outputs and watched values of each call, by their names in the exported graph."""
        exported_names = {name: compiled.exported_name(name) for name in compiled.graph.producer}
        watch = [name for name, exported in exported_names.items() if exported in self.criterion.watch]
        for inputs in self.criterion.inputs:
            values = self.backend.run(compiled, inputs, watch)
            yield {exported_names.get(name, name): tensor for name, tensor in values.items()}


def run_versions(
    interpreters: Sequence[str], program: Program, backend: Backend, criterion: Criterion
) -> Iterator[Version]:
    """Yield the outcome in each interpreter; one that can't run the program does not pass.

    Raises:
        CompareError: the backend can't run in another interpreter, or a value other than the outputs is judged.
    """
    if not interpreters:
        return
    if not isinstance(backend, RunsOtherVersions):
        raise CompareError(f"backend {backend.name!r} can't run in another interpreter")
    if criterion.watch:
        raise CompareError("other interpreters return only the outputs: `interpreters` can't be used with `value`")
    for interpreter in interpreters:
        try:
            with phase(f"running in {interpreter}"):
                version, results = backend.run_in(interpreter, program, criterion.inputs)
        except FilchError as error:
            yield Version(interpreter, "", OutputDifferences.failed(str(error)))
        else:
            yield Version(interpreter, version, criterion.judge(results))
