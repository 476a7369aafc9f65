"""Run modules on the inputs that a dump has for them: which modules introduce an error, and which inherit one."""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import nn

from filch.steal import AssembledRecords, Key, Records, missing_tensors, steal_forward

from ..common._errors import CompareError, reason_of
from ..float64._stored_level import StoredLevel
from ..models._state import preserved_buffers
from ..references._rerun import Rerun, reason_not_stored, repeat_call
from ..results._rows import DiffRow

CompareRecords = Callable[[Key, Any, Any, Mapping[str, StoredLevel]], Iterable[DiffRow]]


def isolated_modules(
    rows: Sequence[DiffRow], actual: Records, name: str, model: nn.Module, compare: CompareRecords
) -> tuple[dict[str, DiffRow], tuple[str, ...]]:
    """Return the rows of what modules compute alone, by the place of their wrong outputs, and why modules did not run.

    A module is not run if another one in it introduces an error, or has other replicas on some ranks: its output can
    only be wrong.

    Args:
        rows: the rows of two dumps, in the order of the run.
        actual: the second dump, whose inputs the modules get.
        name: the name of the model in the keys.
        model: the model.
        compare: returns the rows of the values of a record in two runs, with the rounding levels of the first.
    """
    prefix = f"{name}." if name else ""
    modules = {prefix + path if path else name: module for path, module in model.named_modules(remove_duplicate=False)}
    in_parts = _called_in_parts(rows, actual) if isinstance(actual, AssembledRecords) else frozenset()
    alone: dict[Key, Mapping[str, DiffRow]] = {}
    isolated: dict[str, DiffRow] = {}
    introducing: set[str] = set()  # the modules that introduce an error
    problems: dict[str, list[str]] = {}  # the modules that did not run, by the reason
    for row in rows:
        key = row.key
        if row.faulty:
            introducing.add(row.module)
        if not _is_wrong_output(row) or key not in actual or any(_is_in(other, row.module) for other in introducing):
            continue
        if key not in alone:
            try:
                alone[key] = _alone(modules, in_parts, actual, key, compare)
            except Exception as error:  # noqa: BLE001  modules raise errors of all types
                alone[key] = {}
                problems.setdefault(reason_of(error), []).append(key.label)
        if row.path in alone[key]:
            isolated[row.place] = alone[key][row.path]
            introducing |= {row.module} if isolated[row.place].diverged else set()
    return isolated, tuple(_problem(reason, labels) for reason, labels in problems.items())


def _called_in_parts(rows: Iterable[DiffRow], actual: Records) -> frozenset[str]:
    """Return the modules that are called more or less often than in the first dump, as with microbatches."""
    expected, found = (
        Counter(key.name for key in keys if key.kind == "O") for keys in ({row.key for row in rows}, actual)
    )
    return frozenset(name for name in expected if expected[name] != found[name])


def _is_wrong_output(row: DiffRow) -> bool:
    """Return whether the tensors of two outputs were compared and differ; `faulty` is about parts or replicas."""
    return row.diverged and row.key.kind == "O" and row.difference is not None and not row.faulty


def _is_in(name: str, parent: str) -> bool:
    """Return whether a module is a submodule of another one, at any depth; `""` is the model."""
    return name != parent and (not parent or name.startswith(f"{parent}."))


def _alone(
    modules: Mapping[str, nn.Module], in_parts: Collection[str], actual: Records, key: Key, compare: CompareRecords
) -> Mapping[str, DiffRow]:
    """Run a module on its inputs in a dump, also in float64, and return the rows of its output there by path."""
    module, first = modules.get(key.name), key._replace(iteration=0)
    if module is None:
        raise CompareError("the model has no module of this name")
    if key.name in in_parts:
        raise CompareError("the ranks call it on parts of the inputs of one process")
    if isinstance(actual, AssembledRecords):
        _check_replicas(actual, key, actual.arguments_key(key.name, key.iteration))
    output = actual[key]
    if missing := [*missing_tensors(output).values()]:
        raise CompareError(f"its output was not stored: {reason_not_stored(missing[0])}")
    rerun = Rerun(key.name, module)
    capturing = steal_forward((key.name, module), on_error="raise", strict=True)
    forked = torch.random.fork_rng(devices=range(torch.cuda.device_count()))
    with forked, preserved_buffers(module.buffers()), capturing as here:
        repeat_call(module, actual, key)
        rerun.finish(lambda: repeat_call(module, actual, key))
    if rerun.draws_random:
        raise CompareError("it draws random numbers")
    levels, _ = rerun.levels(here)
    rows = {row.path: row for row in compare(first, here[first], output, levels)}
    if any(row.diverged for row in rows.values()):
        open_values = rerun.float64().changed_decisions
        rows = {path: row for path, row in rows.items() if row.place not in open_values}
        if not any(row.diverged for row in rows.values()):
            raise CompareError("rounding may change a decision in it")
    return rows


def _check_replicas(actual: AssembledRecords, *keys: Key) -> None:
    """Check that records of several ranks are those of one process.

    Raises:
        CompareError: replicas differ, so that a module gets other inputs on one rank than on another.
    """
    items = ((key, path, item) for key in keys if key in actual for path, item in actual.distributed(key).items())
    problems = (problem for key, path, item in items for problem in actual.resolve(key, path, item).problems)
    if problem := next(problems, ""):
        raise CompareError(problem)


def _problem(reason: str, labels: Sequence[str]) -> str:
    """Return a sentence about the modules, by the labels of their outputs, that did not run for one reason."""
    more = f" and {len(labels) - 1} more" if len(labels) > 1 else ""
    return f"the module of {labels[0]}{more} was not judged alone, so that its error may be inherited: {reason}"
