"""Faults of parallel code to plant, and the value and ranks that a right verdict on each names."""

import functools
from collections.abc import Callable
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from filch.compare import DiffRow
from filch.steal import steal_forward

from ..models.parallel import loss_of, make_batch
from ..models.parallel_by_hand import (
    EXPERTS,
    PipelineStep,
    Step,
    all_reduce,
    average,
    clip,
    gather,
    own_chunk,
    step_of,
    unchanged,
    zigzag_order,
)

SEED = 7
Change = Callable[[Step, int], None]


@dataclass(frozen=True)
class ParallelFault:
    """A fault in one kind of parallelism.

    Attributes:
        kind: the kind of fault.
        parallelism: see `step_of`.
        change: changes the step of a rank, given the rank.
        places: what a right verdict names first, as patterns of `name.kind`; several names of one tensor, or all final
            gradients if none of them is right. The model's name is `model`.
        ranks: the ranks that have the wrong value; empty if it is wrong on all that have it.
        world: the number of processes.
    """

    kind: str
    parallelism: str
    change: Change
    places: tuple[str, ...]
    ranks: tuple[int, ...] = ()
    world: int = 2

    def is_at(self, row: DiffRow) -> bool:
        """Return whether a row is of the right value."""
        label = f"{row.key.name or 'model'}.{row.key.kind}"
        return any(fnmatchcase(label, place) for place in self.places)

    def has_ranks(self, row: DiffRow) -> bool:
        """Return whether a row names the right ranks: none, or all that have the value, if all of them are wrong."""
        return row.ranks == self.ranks or (not self.ranks and len(row.ranks) in (self.world, self._holders))

    @property
    def _holders(self) -> int:
        """How many ranks have a value: those of one stage of a pipeline, or of one expert."""
        if self.parallelism in ("gpipe", "1f1b"):
            return self.world // 2
        return 1 if self.parallelism == "expert" and all(".experts." in place for place in self.places) else self.world


def _module(step: Step, path: str) -> Any:
    return getattr(step.model, "module", step.model).get_submodule(path)


def _set(path: str, attribute: str, value: Any, *, rank: int | None = None) -> Change:
    """Set an attribute of a module, on one rank or on all."""

    def change(step: Step, own: int) -> None:
        if rank in (None, own):
            setattr(_module(step, path), attribute, value)

    return change


def _alter(
    path: str, attribute: str, change_tensor: Callable[[torch.Tensor], Any], *, rank: int | None = None
) -> Change:
    """Change a parameter in place, on one rank or on all; of a DTensor its local part."""

    def change(step: Step, own: int) -> None:
        if rank in (None, own):
            parameter = getattr(_module(step, path), attribute).detach()
            with torch.no_grad():
                change_tensor(getattr(parameter, "_local_tensor", parameter))

    return change


def _swap_shards(tensor: torch.Tensor) -> None:
    """Give each of two ranks the shard of the other."""
    parts = gather(tensor.unsqueeze(0))
    tensor.copy_(parts[1 - dist.get_rank()])


def _hook(path: str, hook: Callable[..., Any], *, rank: int | None = None, before: bool = False) -> Change:
    """Register a forward hook, on one rank or on all."""

    def change(step: Step, own: int) -> None:
        if rank in (None, own):
            module = _module(step, path)
            (module.register_forward_pre_hook if before else module.register_forward_hook)(hook)

    return change


def _with(**changes: Any) -> Change:
    """Change the step itself: each value is called with the step and the rank."""

    def change(step: Step, rank: int) -> None:
        for name, value in changes.items():
            setattr(step, name, value(step, rank))

    return change


def _twice(tensor: torch.Tensor) -> torch.Tensor:
    return all_reduce(all_reduce(tensor))


def _reverse(path: str, attribute: str, *, dim: int, rank: int | None = None) -> Change:
    """Reverse the order in which a module concatenates the tensors of two ranks, on one rank or on all."""

    def change(step: Step, own: int) -> None:
        module = _module(step, path)
        right = getattr(module, attribute)
        if rank in (None, own):
            setattr(module, attribute, lambda tensor: torch.cat(right(tensor).chunk(2, dim)[::-1], dim))

    return change


def _half(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.bfloat16().to(tensor.dtype)


def _half_inputs(_: nn.Module, args: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
    return tuple(map(_half, args))


def _half_output(_module: nn.Module, _args: Any, output: torch.Tensor) -> torch.Tensor:
    return _half(output)


def _first_chunk(step: Step, rank: int) -> tuple[torch.Tensor, ...]:
    return (make_batch()[0][: len(step.inputs[0])],)


def _scaled_loss(factor: float, rank: int | None = None) -> Change:
    def change(step: Step, own: int) -> None:
        if rank in (None, own):
            step.loss = lambda output, targets: factor * loss_of(output, targets)

    return change


def _not_averaged(*, pattern: str = "*", collective: Any = None, rank: int | None = None) -> Change:
    """Average the gradients of some parameters in another way, or not at all."""

    def change(step: Step, own: int) -> None:
        right = step.averaged
        if rank in (None, own):
            step.averaged = lambda name: collective if fnmatchcase(name, pattern) else right(name)

    return change


def _clip_first(step: Step, _rank: int) -> None:
    """Clip the gradients of each rank before they are averaged."""
    step.finish.clear()
    compute = step.compute

    def compute_and_clip() -> None:
        compute()
        clip(step.model)

    step.compute = compute_and_clip  # type: ignore[method-assign]


def _no_sync(step: Step, _rank: int) -> None:
    compute = step.compute

    def compute_alone() -> None:
        with step.model.no_sync():
            compute()

    step.compute = compute_alone  # type: ignore[method-assign]


def _own_seed(step: Step, rank: int) -> None:
    """Seed dropout with the rank."""
    compute = step.compute

    def compute_with_seed() -> None:
        torch.manual_seed(SEED + rank)
        compute()

    step.compute = compute_with_seed  # type: ignore[method-assign]


def _no_reduction_in_backward(step: Step, _rank: int) -> None:
    """Let each rank keep the gradient of keys and values that its own queries give."""
    _module(step, "layers.1.attn").reduce_gradient = functools.partial(own_chunk, dim=1)


def _swap_pieces(step: Step, rank: int) -> None:
    """Exchange the two pieces of the sequence that rank 1 has."""
    if rank == 1:
        tokens, positions = step.inputs
        half = tokens.shape[1] // 2
        step.inputs = torch.cat([tokens[:, half:], tokens[:, :half]], 1), positions


def _sequential(step: Step, _rank: int) -> None:
    """Give each rank consecutive tokens where attention expects zigzag order."""
    tokens, targets = make_batch()
    step.inputs = own_chunk(tokens, dim=1), own_chunk(torch.arange(tokens.shape[1]))
    step.targets = own_chunk(targets, dim=1)


def _shift_positions(step: Step, rank: int) -> None:
    if rank == 1:
        tokens, positions = step.inputs
        step.inputs = tokens, (positions + 1) % zigzag_order(2).numel()


def _zero_last(parts: list[torch.Tensor]) -> list[torch.Tensor]:
    return [torch.cat([part[:-1], part[-1:] * 0]) for part in parts]


def _to_other_rank(step: Step, _rank: int) -> None:
    """Send each row to the expert of the other rank in place of its own, and take back what that one made."""

    def swap(parts: list[torch.Tensor]) -> list[torch.Tensor]:
        return parts[EXPERTS // 2 :] + parts[: EXPERTS // 2]

    layer = _module(step, "layers.1.mlp")
    layer.order_sent = layer.order_returned = swap


def _by_expert(parts: list[torch.Tensor]) -> list[torch.Tensor]:
    """Take rows that are ordered by source, then by expert, for rows ordered by expert, then by source."""
    sizes = [len(part) for part in parts]
    order = [source * 2 + expert for expert in range(2) for source in range(2)]
    cut = torch.cat(parts).split([sizes[index] for index in order])
    return [cut[order.index(index)] for index in range(len(parts))]


def _wrong_divisor(step: Step, _rank: int) -> None:
    step.model.layers[1].set_force_sum_reduction_for_comms(enable=True)  # gloo can't scale and sum at once
    step.model.layers[1].set_gradient_divide_factor(1.0)


def _reshuffle(step: Step, name: str) -> Any:
    """Return inputs or targets with the microbatches in reverse order."""
    microbatches = step.microbatches if isinstance(step, PipelineStep) else 1
    value = getattr(step, name)
    if isinstance(value, tuple):
        return tuple(torch.cat(tensor.chunk(microbatches)[::-1]) for tensor in value)
    return torch.cat(value.chunk(microbatches)[::-1])


def _scale(tensor: torch.Tensor) -> None:
    tensor.mul_(1.01)


def _add(tensor: torch.Tensor) -> None:
    tensor[3] += 0.01


_QKV = ("layers.0.attn.q.GI", "layers.0.attn.k.GI", "layers.0.attn.v.GI", "layers.0.attn.GI", "layers.0.norm1.GO")
_UP = ("layers.1.mlp.up.GI", "layers.1.mlp.GI", "layers.1.norm2.GO")
_LOSS = ("model.GO", "head.GO")
_INPUT = ("model.I", "embed.I")
_FINAL = ("*.GF",)
_KV = ("layers.1.attn.k.GO", "layers.1.attn.v.GO")
_DOWN, _O = "layers.1.mlp.down", "layers.0.attn.o"
Fault = ParallelFault

FAULTS: dict[str, ParallelFault] = {
    # Megatron
    "no_reduce": Fault("missing all-reduce", "megatron", _set(_DOWN, "reduce", unchanged), (f"{_DOWN}.O",)),
    "no_reduce_attention": Fault("missing all-reduce", "megatron", _set(_O, "reduce", unchanged), (f"{_O}.O",)),
    "no_reduce_embedding": Fault("missing all-reduce", "megatron", _set("embed", "reduce", unchanged), ("embed.O",)),
    "two_reduces": Fault("doubled all-reduce", "megatron", _set(_DOWN, "reduce", _twice), (f"{_DOWN}.O",)),
    "average_for_sum": Fault("average for sum", "megatron", _set(_O, "reduce", average), (f"{_O}.O",)),
    "no_reduce_backward": Fault(
        "missing all-reduce in backward", "megatron", _set("layers.1.mlp.up", "reduce_gradient", unchanged), _UP
    ),
    "no_reduce_backward_query": Fault(
        "missing all-reduce in backward", "megatron", _set("layers.0.attn.q", "reduce_gradient", unchanged), _QKV
    ),
    "two_reduces_backward": Fault(
        "doubled all-reduce in backward", "megatron", _set("layers.0.attn.k", "reduce_gradient", _twice), _QKV
    ),
    "two_reduces_backward_mlp": Fault(
        "doubled all-reduce in backward", "megatron", _set("layers.1.mlp.up", "reduce_gradient", _twice), _UP
    ),
    "average_backward": Fault(
        "average for sum in backward", "megatron", _set("layers.1.mlp.up", "reduce_gradient", average), _UP
    ),
    "swapped_shards": Fault(
        "swapped shards",
        "megatron",
        _alter("layers.1.mlp.up", "weight", _swap_shards),
        ("layers.1.mlp.up.weight.P",),
        (0, 1),
    ),
    "stale_shard": Fault(
        "stale shard",
        "megatron",
        _alter("layers.0.mlp.up", "weight", _scale, rank=1),
        ("layers.0.mlp.up.weight.P",),
        (1,),
    ),
    "stale_shard_first": Fault(
        "stale shard",
        "megatron",
        _alter("layers.1.attn.o", "weight", _add, rank=0),
        ("layers.1.attn.o.weight.P",),
        (0,),
    ),
    "stale_replica": Fault(
        "stale replica",
        "megatron",
        _alter("layers.1.norm2", "weight", _add, rank=1),
        ("layers.1.norm2.weight.P",),
        (1,),
    ),
    "stale_replica_first": Fault(
        "stale replica", "megatron", _alter("norm", "bias", _add, rank=0), ("norm.bias.P",), (0,)
    ),
    "bias_on_each": Fault(
        "bias added on each rank", "megatron", _set(_DOWN, "adds_bias_first", value=True), (f"{_DOWN}.O",)
    ),
    "vocabulary_offset": Fault("vocabulary offset", "megatron", _set("embed", "first_word", 15, rank=1), ("embed.O",)),
    "gather_order": Fault(
        "gather in the wrong order", "megatron", _reverse("head", "gather_output", dim=-1), ("head.O",)
    ),
    "gather_order_one": Fault(
        "gather in the wrong order",
        "megatron",
        _reverse("head", "gather_output", dim=-1, rank=1),
        ("head.O",),
        (1,),
    ),
    "half_rank": Fault(
        "wrong precision", "megatron", _hook("layers.0.norm2", _half_output, rank=0), ("layers.0.norm2.O",), (0,)
    ),
    "wrong_group": Fault(
        "wrong process group", "megatron", _set(_DOWN, "reduce", all_reduce), (f"{_DOWN}.O",), world=4
    ),
    "wrong_group_backward": Fault(
        "wrong process group", "megatron", _set("layers.1.mlp.up", "reduce_gradient", all_reduce), _UP, world=4
    ),
    "stale_shard_of_four": Fault(
        "stale shard",
        "megatron",
        _alter("layers.1.mlp.up", "weight", _scale, rank=3),
        ("layers.1.mlp.up.weight.P",),
        (3,),
        world=4,
    ),
    "no_data_average": Fault("missing gradient reduction", "megatron", _not_averaged(), _FINAL, world=4),
    "own_seeds": Fault("seeds that differ", "dropout", _own_seed, ("layers.0.mlp.drop.O",), (1,)),
    # Collectives outside of the linear layers
    "outer_no_reduce": Fault(
        "missing all-reduce", "outer", _set("layers.0.mlp", "reduce", unchanged), ("layers.0.mlp.*.O", "layers.0.mlp.O")
    ),
    "outer_two_reduces": Fault(
        "doubled all-reduce", "outer", _set("layers.0.attn", "reduce", _twice), ("layers.0.attn.O",)
    ),
    "outer_no_reduce_backward": Fault(
        "missing all-reduce in backward", "outer", _set("layers.1.mlp", "reduce_gradient", unchanged), _UP
    ),
    # Data parallelism
    "same_data": Fault("same data on all ranks", "ddp", _with(inputs=_first_chunk), _INPUT, (1,)),
    "no_sync": Fault("no_sync left on", "ddp", _no_sync, _FINAL),
    "stale_after_broadcast": Fault(
        "stale replica", "ddp", _alter("layers.0.attn.v", "weight", _scale, rank=1), ("layers.0.attn.v.weight.P",), (1,)
    ),
    "ddp_loss_scale": Fault("wrong loss scale", "ddp", _scaled_loss(2.0), _LOSS),
    "loss_scale_of_one": Fault("wrong loss scale", "clipped", _scaled_loss(0.5, 1), _LOSS, (1,)),
    "clipped_first": Fault("clipped before the all-reduce", "clipped", _clip_first, _FINAL),
    "sum_for_average": Fault("sum for average", "context", _not_averaged(collective=all_reduce), _FINAL),
    "wrong_group_gradients": Fault(
        "wrong process group",
        "megatron",
        _not_averaged(collective=average),
        ("*.attn.*.GF", "*.mlp.*.GF", "embed.*.GF", "head.*.GF"),
        world=4,
    ),
    "parameter_forgotten": Fault(
        "missing gradient reduction",
        "expert",
        _not_averaged(pattern="layers.0.norm1.weight"),
        ("layers.0.norm1.weight.GF",),
    ),
    "wrong_targets": Fault(
        "wrong data on one rank", "clipped", _with(targets=lambda step, rank: make_batch()[1][:4]), _LOSS, (1,)
    ),
    # FSDP
    "divide_factor": Fault("wrong gradient divide factor", "fsdp", _wrong_divisor, ("layers.1.*.GF",)),
    "fsdp_stale_shard": Fault(
        "stale shard", "fsdp", _alter("layers.1.mlp.up", "weight", _scale, rank=1), ("layers.1.mlp.up.weight.P",), (1,)
    ),
    "fsdp_same_data": Fault("same data on all ranks", "fsdp", _with(inputs=_first_chunk), _INPUT, (1, 2, 3), world=4),
    "fsdp_loss_scale": Fault("wrong loss scale", "fsdp", _scaled_loss(0.5), _LOSS),
    "hsdp_stale_replica": Fault(
        "stale replica",
        "hsdp",
        _alter("layers.0.mlp.up", "weight", _scale, rank=3),
        ("layers.0.mlp.up.weight.P",),
        (3,),
        world=4,
    ),
    # DTensors
    "sequence_stale_replica": Fault(
        "stale replica",
        "sequence",
        _alter("layers.1.norm2", "weight", _add, rank=0),
        ("layers.1.norm2.weight.P",),
        (0,),
    ),
    "sequence_stale_of_four": Fault(
        "stale replica",
        "sequence",
        _alter("layers.1.norm2", "weight", _add, rank=2),
        ("layers.1.norm2.weight.P",),
        (2,),
        world=4,
    ),
    "tensor_swapped": Fault(
        "swapped shards",
        "tensor",
        _alter("layers.0.attn.q", "weight", _swap_shards),
        ("layers.0.attn.q.weight.P",),
        (0, 1),
    ),
    # Pipelines
    "stale_stage": Fault(
        "stale weights in a stage",
        "gpipe",
        _alter("layers.1.mlp.up", "weight", _scale, rank=1),
        ("layers.1.mlp.up.weight.P",),
        (1,),
    ),
    "microbatch_loss": Fault("microbatch loss not divided", "gpipe", _with(scales=lambda *_: False), _FINAL),
    "microbatch_loss_1f1b": Fault("microbatch loss not divided", "1f1b", _with(scales=lambda *_: False), _FINAL),
    "microbatch_order": Fault(
        "wrong microbatch order", "1f1b", _with(inputs=lambda step, rank: _reshuffle(step, "inputs")), _INPUT, (0,)
    ),
    "target_order": Fault(
        "wrong microbatch order", "gpipe", _with(targets=lambda step, rank: _reshuffle(step, "targets")), _LOSS, (1,)
    ),
    "half_between_stages": Fault(
        "wrong precision",
        "1f1b",
        _hook("layers.1", _half_inputs, rank=1, before=True),
        ("layers.1.I", "layers.1.norm1.I"),
        (1,),
    ),
    "stage_not_averaged": Fault(
        "missing gradient reduction", "gpipe", _not_averaged(pattern="layers.1.*"), ("layers.1.*.GF",), world=4
    ),
    # Experts
    "wrong_rank": Fault(
        "expert on the wrong rank",
        "expert",
        _to_other_rank,
        ("layers.1.mlp.experts.0*.I",),
        (0,),
    ),
    "wrong_gate": Fault(
        "wrong gate",
        "expert",
        _set("layers.0.mlp", "shares", lambda shares: shares.flip(-1), rank=1),
        ("layers.0.mlp.O",),
        (1,),
    ),
    "split_order": Fault(
        "all_to_all splits in the wrong order",
        "expert",
        _set("layers.0.mlp", "order_received", _by_expert, rank=1),
        ("layers.0.mlp.experts.2*.I",),
        (1,),
    ),
    "dropped_tokens": Fault(
        "dropped tokens",
        "expert",
        _set("layers.0.mlp", "order_returned", _zero_last, rank=1),
        ("layers.0.mlp.O",),
        (1,),
    ),
    "swapped_return": Fault(
        "results in the wrong order",
        "expert_stacked",
        _set("layers.1.mlp", "order_returned", lambda parts: [part.flip(0) for part in parts], rank=0),
        ("layers.1.mlp.O",),
        (0,),
    ),
    "stale_expert": Fault(
        "stale shard",
        "expert",
        _alter("layers.0.mlp.experts.3.up", "weight", _scale, rank=1),
        ("layers.0.mlp.experts.3.up.weight.P",),
        (1,),
    ),
    "expert_gradient": Fault(
        "wrong gradient divide factor",
        "expert",
        _not_averaged(pattern="layers.1.mlp.experts.*"),
        ("layers.1.mlp.experts.*.GF",),
    ),
    "gate_not_averaged": Fault(
        "missing gradient reduction",
        "expert",
        _not_averaged(pattern="layers.1.mlp.gate.*"),
        ("layers.1.mlp.gate.weight.GF",),
    ),
    "half_gate": Fault(
        "wrong precision",
        "expert_stacked",
        _hook("layers.0.mlp.gate", _half_output, rank=1),
        ("layers.0.mlp.gate.O",),
        (1,),
    ),
    "swapped_experts": Fault(
        "swapped shards",
        "expert_stacked",
        _alter("layers.0.mlp.experts", "up", _swap_shards),
        ("layers.0.mlp.experts.up.P",),
        (0, 1),
    ),
    "stacked_split_order": Fault(
        "all_to_all splits in the wrong order",
        "expert_stacked",
        _set("layers.1.mlp", "order_received", _by_expert, rank=0),
        ("layers.1.mlp.experts.I",),
        (0,),
    ),
    # Context parallelism
    "wrong_zigzag": Fault("wrong zigzag", "context", _swap_pieces, _INPUT, (1,)),
    "sequential": Fault("wrong zigzag", "context", _sequential, (*_INPUT, "layers.0.attn.o.I"), (0, 1)),
    "position_offset": Fault("wrong position offset", "context", _shift_positions, ("model.I", "positions.I"), (1,)),
    "key_order": Fault(
        "gather in the wrong order",
        "context",
        _reverse("layers.0.attn", "gather", dim=1),
        ("layers.0.attn.o.I",),
        (0, 1),
    ),
    "key_order_one": Fault(
        "wrong zigzag", "context", _set("layers.1.attn", "order", torch.arange(8), rank=1), ("layers.1.attn.o.I",), (1,)
    ),
    "no_mask": Fault(
        "wrong mask", "context", _set("layers.1.attn", "is_causal", value=False, rank=0), ("layers.1.attn.o.I",), (0,)
    ),
    "shifted_mask": Fault(
        "wrong mask",
        "context",
        _set("layers.0.attn", "own", torch.tensor([1, 2, 3, 4]), rank=1),
        ("layers.0.attn.o.I",),
        (1,),
    ),
    "key_gradients": Fault("missing all-reduce in backward", "context", _no_reduction_in_backward, _KV),
    "context_not_averaged": Fault("missing gradient reduction", "context", _not_averaged(), _FINAL),
    "no_mask_of_four": Fault(
        "wrong mask",
        "context",
        _set("layers.1.attn", "is_causal", value=False, rank=2),
        ("layers.1.attn.o.I",),
        (2,),
        world=4,
    ),
}


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
    step = step_of(FAULTS[name].parallelism, rank, world)
    FAULTS[name].change(step, rank)
    record(step, f"{folder}/fault_{name}.{{rank}}.onnx")
