"""A model with its programs, what plants faults in them, and the judge of what `compare` says of those."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import onnx
import torch
from onnx_ir import serde
from torch.utils._pytree import tree_map_only

from filch.compare import compare
from filch.export import export, lower, optimize
from filch.export.backends import get_backend
from filch.steal import ModuleInfo, steal_forward
from filch.steal.values._arguments import argument_tensors

from .compiled import WrongOnnxRuntime
from .kinds import INFINITE, NOISE, QDQ, STALE, Faults, planted

EXPORTED, COMPILED, INT8 = "exported", "compiled", "int8"
NODE, INSIDE, MISSED = "the node", "inside", "missed"
REPEATS = 3


def wheres(kind):
    """Return the graphs in which faults of a kind are planted in turn."""
    return (INT8,) if kind == QDQ else (EXPORTED, EXPORTED, COMPILED)


class Subject:
    """A model with its programs, its capture, and objects that plant faults in the programs.

    Its second call has the batch the other way round.
    """

    def __init__(self, name, model, args, kwargs):
        self.name = name
        self.program = export(model, args, kwargs)
        runs = [(args, kwargs), (flipped(args), flipped(kwargs))]
        self.once, self.twice = stolen(model, runs[:1]), stolen(model, runs)
        self.calls = [self._inputs(model, *run) for run in runs]
        self.numbers = [{name: tensor.numpy() for name, tensor in call.items()} for call in self.calls]

    def _inputs(self, model, args, kwargs):
        taken = argument_tensors(ModuleInfo.of(model).parameters, args, kwargs)
        return {value: taken[path] for value, path in self.program.inputs.items()}

    @cached_property
    def programs(self):
        """The programs that are compared, by the graph with the faults."""
        shipped = optimize(self.program)
        numbers = Faults(serde.serialize_model(shipped.model), *self.numbers).calls[0]
        # With a mask's infinity in its range, a value has one step for all of its other numbers.
        far = {name for name, array in numbers.items() if array.size and np.any(np.abs(array) > INFINITE)}
        keep = [node.name for node in shipped.graph.nodes if far.intersection((*node.reads, *node.outputs))]
        lowered = lower(shipped, "int8", keep=keep, calibration=self.calls)
        return {EXPORTED: self.program, COMPILED: shipped, INT8: lowered}

    @cached_property
    def clean(self):
        """The backend in whose compiled graph faults are planted."""
        return get_backend("onnxruntime-cpu", level="extended")

    @cached_property
    def faults(self):
        """The objects that plant faults, by graph."""
        made = self.clean.compile(self.programs[COMPILED], optimize=True)
        models = {where: serde.serialize_model(self.programs[where].model) for where in (EXPORTED, INT8)}
        models[COMPILED] = onnx.load(made.handle.path)
        return {where: Faults(model, *self.numbers) for where, model in models.items()}

    def compare(self, where, faults=()):
        """Compare the graph with the faults in the calls and repeats that they need; a clean graph in all."""
        noisy = not faults or any(fault.kind == NOISE for fault in faults)
        capture = self.twice if not faults or any(fault.kind == STALE for fault in faults) else self.once
        wanted = {"stages": ("compiled" if where == COMPILED else "exported",)}
        wanted |= {"lower_precision": True} if where == INT8 else {}
        wanted |= {"repeats": REPEATS} if noisy else {}
        program = self.programs[where]
        if not faults:
            return compared(capture, program, backend=self.clean, **wanted)
        model = planted(self.faults[where].model, faults)
        if where == COMPILED:
            backend = WrongOnnxRuntime(**vars(self.clean), wrong=model.SerializeToString())
            return compared(capture, program, backend=backend, **wanted)
        return compared(capture, replace(program, model=serde.deserialize_model(model)), backend=self.clean, **wanted)


def stolen(model, runs):
    """Return a capture of the model, called with each of these arguments."""
    with torch.no_grad(), steal_forward(model, submodules=True) as capture:
        for args, kwargs in runs:
            model(*args, **kwargs)
    return capture


def flipped(given):
    """Return arguments with the batch in reverse order."""
    return tree_map_only(torch.Tensor, lambda tensor: tensor.flip(0), given)


def compared(capture, program, **wanted):
    """Compare with `truth`."""
    return compare(capture, program, every_node=True, **wanted)


def blamed(report):
    """Return the rows whose own nodes are wrong."""
    return list(report.introduced)


def named_by(row, faults):
    """Yield the faults that a row names, by its node or, where inserted nodes are not mapped, by its origins."""
    for fault in faults:
        if row.node in fault.culprits:
            yield fault, NODE
        elif fault.culprits.intersection((*row.origins, *row.behind)):
            yield fault, INSIDE


@dataclass(frozen=True)
class Verdict:
    """The result of a report on planted faults.

    Attributes:
        at: where it finds them; of several, the worst.
        besides: how many other nodes it blames.
    """

    at: str
    besides: int


def judge(report, faults):
    """Return the verdict: every fault has to be named, one by the first row blamed, and noise as unstable."""
    rows = [(row, dict(named_by(row, faults))) for row in blamed(report)]
    besides = len({row.node for row, named in rows if not named})
    ways = [{named[fault] for row, named in rows if fault in named and shows(report, row, fault)} for fault in faults]
    if not all(ways) or not rows[0][1]:
        return Verdict(MISSED, besides)
    return Verdict(NODE if all(NODE in way for way in ways) else INSIDE, besides)


def shows(report, row, fault):
    """Return whether a row shows a fault: in a call with that fault, and for noise as unstable."""
    late = row.call - report.rows[0].call >= fault.since
    return late and (fault.kind != NOISE or row.unstable)
