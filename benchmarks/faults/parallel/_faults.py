"""Faults of parallel code, read from the file beside this one, and what runs and records them."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from faults._expressions import load, made
from filch import record_reference
from filch.compare import DiffRow
from filch.steal import steal_forward
from support.models.parallel import loss_of, make_batch  # noqa: F401

from ._by_hand import (
    EXPERTS,
    MixtureOfExperts,
    PipelineStep,
    Step,
    all_reduce,
    average,  # noqa: F401  for statements
    clip,
    gather,
    own_chunk,
    step_of,
    unchanged,  # noqa: F401
)
from ._transformer import Parallel, make
from ._transformer import step as run_step

SEED = 7


@dataclass(frozen=True)
class ParallelFault:
    """A fault in one kind of parallelism, and where it is.

    Attributes:
        kind: the kind of fault.
        parallelism: see `step_of`, or `Parallel` for those of the second set.
        places: patterns of the labels of the values at which it may show first.
        ranks: the ranks that have the wrong value; empty if it is wrong on all that have a part of it.
        world: the number of processes.
        change: a statement that changes the `step` of a `rank`, with the names of this file; empty in the second set:
            the code of `_transformer` asks which fault is set.
        on: the only rank that is changed; None for all.
    """

    kind: str
    parallelism: str
    places: tuple[str, ...]
    ranks: tuple[int, ...] = ()
    world: int = 2
    change: str = ""
    on: int | None = None

    def is_at(self, row: DiffRow) -> bool:
        """Return whether a row is of the right value."""
        return any(fnmatchcase(row.key.label, place) for place in self.places)

    def has_ranks(self, row: DiffRow) -> bool:
        """Return whether a row names the right ranks: none, or all that have the value, if all of them are wrong."""
        return row.ranks == self.ranks or (not self.ranks and row.ranks == row.held_by)

    def plant(self, step: Step, rank: int) -> None:
        """Change the step of a rank."""
        if self.on in (None, rank):
            names = {**globals(), "step": step, "rank": rank, "module": functools.partial(module, step)}
            exec(self.change, names)  # noqa: S102  the file beside this one is as trusted as its code


# What statements do to a step, besides setting attributes.


def module(step: Step, path: str) -> Any:
    """Return a module of the model."""
    return getattr(step.model, "module", step.model).get_submodule(path)


def local(parameter: nn.Parameter) -> torch.Tensor:
    """Return a parameter, or the local part of a DTensor, to change it in place."""
    tensor = parameter.detach()
    return getattr(tensor, "_local_tensor", tensor)


def swap_shards(parameter: nn.Parameter) -> None:
    """Give each of two ranks the shard of the other."""
    local(parameter).copy_(gather(local(parameter).unsqueeze(0))[1 - dist.get_rank()])


def scale(parameter: nn.Parameter) -> None:
    """Make a parameter 1 % larger."""
    local(parameter).mul_(1.01)


def add(parameter: nn.Parameter) -> None:
    """Make a row of a parameter larger."""
    local(parameter)[3] += 0.01


def twice(tensor: torch.Tensor) -> torch.Tensor:
    """Return the sum of the sums over the ranks."""
    return all_reduce(all_reduce(tensor))


def in_reverse(gathered: Callable[[torch.Tensor], torch.Tensor], dim: int) -> Callable[[torch.Tensor], torch.Tensor]:
    """Reverse the order in which the tensors of two ranks are concatenated."""
    return lambda tensor: torch.cat(gathered(tensor).chunk(2, dim)[::-1], dim)


def half(tensor: torch.Tensor) -> torch.Tensor:
    """Round to bfloat16."""
    return tensor.bfloat16().to(tensor.dtype)


def averaged(step: Step, collective: Any, pattern: str = "*") -> None:
    """Average the gradients of some parameters in another way, or not at all."""
    right = step.averaged
    step.averaged = lambda name: collective if fnmatchcase(name, pattern) else right(name)


def summed(layer: Any) -> None:
    """Let a layer under FSDP add gradients instead of averaging them."""
    layer.set_force_sum_reduction_for_comms(enable=True)  # gloo can't scale and sum at once
    layer.set_gradient_divide_factor(1.0)


def clipped_first(step: Step) -> None:
    """Clip the gradients of each rank before they are averaged."""
    step.finish.clear()
    compute = step.compute
    step.compute = lambda: (compute(), clip(step.model))  # type: ignore[method-assign]


def not_synchronized(step: Step) -> None:
    """Do not average gradients."""
    compute = step.compute

    def compute_alone() -> None:
        with step.model.no_sync():
            compute()

    step.compute = compute_alone  # type: ignore[method-assign]


def seeded(step: Step, seed: int) -> None:
    """Seed dropout otherwise."""
    compute = step.compute
    step.compute = lambda: (torch.manual_seed(seed), compute())  # type: ignore[method-assign]


def first_chunk(step: Step) -> tuple[torch.Tensor, ...]:
    """Return the data of the first rank."""
    return (make_batch()[0][: len(step.inputs[0])],)


def in_sequence(step: Step) -> None:
    """Give each rank consecutive tokens where attention expects zigzag order."""
    tokens, targets = make_batch()
    step.inputs = own_chunk(tokens, dim=1), own_chunk(torch.arange(tokens.shape[1]))
    step.targets = own_chunk(targets, dim=1)


def shuffled(step: PipelineStep, tensor: torch.Tensor) -> torch.Tensor:
    """Return inputs or targets with the microbatches in reverse order."""
    return torch.cat(tensor.chunk(step.microbatches)[::-1])


def by_expert(parts: list[torch.Tensor]) -> list[torch.Tensor]:
    """Take rows that are ordered by source, then by expert, for rows ordered by expert, then by source."""
    sizes = [len(part) for part in parts]
    order = [source * 2 + expert for expert in range(2) for source in range(2)]
    cut = torch.cat(parts).split([sizes[index] for index in order])
    return [cut[order.index(index)] for index in range(len(parts))]


def to_other_rank(layer: MixtureOfExperts) -> None:
    """Send each row to the expert of the other rank in place of its own, and take back what that one made."""
    layer.order_sent = layer.order_returned = lambda parts: parts[EXPERTS // 2 :] + parts[: EXPERTS // 2]


FIRST, SECOND = (
    {name: made(ParallelFault, fields) for name, fields in load(__file__, "faults.toml")[group].items()}
    for group in ("first", "second")
)


def record(step: Step, path: str) -> None:
    """Run a step, and record it."""
    torch.manual_seed(SEED)
    with steal_forward(step.captured, submodules=True, gradients=True, parameters=True, strict=True, dump_file=path):
        step.run()


def record_clean(kind: str, folder: str, rank: int, world: int) -> None:
    """Record a step without a fault, as a job of `run_jobs`."""
    record(step_of(kind, rank, world), f"{folder}/{kind}.{world}.{{rank}}.onnx")


def record_faulty(name: str, folder: str, rank: int, world: int) -> None:
    """Record a step with a fault, as a job of `run_jobs`."""
    step = step_of(FIRST[name].parallelism, rank, world)
    FIRST[name].plant(step, rank)
    record(step, f"{folder}/fault_{name}.{{rank}}.onnx")


def record_single(kind: str, file: str) -> None:
    """Record the reference of a kind of parallelism of the second set."""
    p = Parallel(kind)
    model = make(p)
    record_reference(model, functools.partial(run_step, model, p), file)


def record_run(rank: int, world: int, *, kind: str, files: str, fault: str = "") -> None:
    """Record one rank of a run of the second set, with a fault or without, to the file that a pattern gives."""
    p = Parallel(kind, fault, rank, world)
    model = make(p)
    options: dict[str, Any] = dict.fromkeys(("submodules", "gradients", "parameters", "collectives"), True)
    with steal_forward(model, dump_file=files, **options):
        run_step(model, p)
