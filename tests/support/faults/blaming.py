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
from filch.steal import ModuleInfo, argument_tensors, steal_forward
from support.faults.compiled_plants import WrongOnnxRuntime
from support.faults.kinds import INFINITE, NOISE, QDQ, STALE, Faults, planted

EXPORTED, COMPILED, INT8 = "exported", "compiled", "int8"
NODE, INSIDE, MISSED = "the node", "inside", "missed"
REPEATS = 3


def wheres(kind):
    """The graphs that faults of a kind are planted in, by turns."""
    return (INT8,) if kind == QDQ else (EXPORTED, EXPORTED, COMPILED)


class Subject:
    """A model: its programs, what was stolen from it, and what plants faults in them.

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
        """What is compared, by where the faults are."""
        shipped = optimize(self.program)
        numbers = Faults(serde.serialize_model(shipped.model), *self.numbers).calls[0]
        # With a mask's infinity in its range, a value has one step for all of its other numbers.
        far = {name for name, array in numbers.items() if array.size and np.any(np.abs(array) > INFINITE)}
        keep = [node.name for node in shipped.graph.nodes if far.intersection((*node.reads, *node.outputs))]
        lowered = lower(shipped, "int8", keep=keep, calibration=self.calls)
        return {EXPORTED: self.program, COMPILED: shipped, INT8: lowered}

    @cached_property
    def clean(self):
        """The backend whose compiled graph faults are planted in."""
        return get_backend("onnxruntime-cpu", level="extended")

    @cached_property
    def faults(self):
        """What plants faults, by where they are."""
        made = self.clean.compile(self.programs[COMPILED], optimize=True)
        models = {where: serde.serialize_model(self.programs[where].model) for where in (EXPORTED, INT8)}
        models[COMPILED] = onnx.load(made.handle.path)
        return {where: Faults(model, *self.numbers) for where, model in models.items()}

    def compare(self, where, faults=()):
        """Compare the graph that the faults are in, with the calls and runs that they need; a clean one with all."""
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
    """What the model does when it is called with each of these."""
    with torch.no_grad(), steal_forward(model, submodules=True) as capture:
        for args, kwargs in runs:
            model(*args, **kwargs)
    return capture


def flipped(given):
    """Arguments with the batch the other way round."""
    return tree_map_only(torch.Tensor, lambda tensor: tensor.flip(0), given)


def compared(capture, program, **wanted):
    """Compare with the truth."""
    return compare(capture, program, truth="float64", **wanted)


def blamed(report):
    """The rows whose own nodes make them wrong."""
    return list(report.introduced)


def named_by(row, faults):
    """The faults that a row names, and how: as its node, or inside, where nothing says what inserted nodes make."""
    for fault in faults:
        if row.node in fault.culprits:
            yield fault, NODE
        elif fault.culprits.intersection((*row.origins, *row.behind)):
            yield fault, INSIDE


@dataclass(frozen=True)
class Verdict:
    """What a report says of the faults that were planted.

    Attributes:
        at: where it finds them; of several, the worst.
        besides: how many other nodes it blames.
    """

    at: str
    besides: int


def judge(report, faults):
    """All faults have to be named, and the first row that is blamed has to name one; noise has to be called so."""
    rows = [(row, dict(named_by(row, faults))) for row in blamed(report)]
    besides = len({row.node for row, named in rows if not named})
    ways = [{named[fault] for row, named in rows if fault in named and shows(report, row, fault)} for fault in faults]
    if not all(ways) or not rows[0][1]:
        return Verdict(MISSED, besides)
    return Verdict(NODE if all(NODE in way for way in ways) else INSIDE, besides)


def shows(report, row, fault):
    """Whether a row says what is wrong: in a call in which it is, and of noise, that it is unstable."""
    late = row.call - report.rows[0].call >= fault.since
    return late and (fault.kind != NOISE or row.unstable)
