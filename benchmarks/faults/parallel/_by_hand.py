"""Ways to run the small transformer on several processes whose collectives are written by hand, without DTensors.

All collectives are functions in attributes, so that a fault can replace one of them.
"""

import functools
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F  # noqa: N812  as everybody does
from torch import nn

from support.models.parallel import (
    HEADS,
    KINDS,
    LENGTH,
    WIDTH,
    Mlp,
    Transformer,
    batch_of,
    loss_of,
    make_batch,
    make_model,
)

EXPERTS, CHOSEN = 4, 2  # CHOSEN experts for each token

Collective = Callable[[torch.Tensor], torch.Tensor]


def unchanged(tensor: torch.Tensor) -> torch.Tensor:
    """Return the tensor, instead of a collective."""
    return tensor


def all_reduce(tensor: torch.Tensor, group: Any = None) -> torch.Tensor:
    """Return the sum over the ranks of a group."""
    tensor = tensor.contiguous().clone()
    dist.all_reduce(tensor, group=group)
    return tensor


def average(tensor: torch.Tensor, group: Any = None) -> torch.Tensor:
    """Return the mean over the ranks of a group."""
    return all_reduce(tensor, group) / dist.get_world_size(group)


def gather(tensor: torch.Tensor, group: Any = None, dim: int = 0) -> torch.Tensor:
    """Return the tensors of all ranks, concatenated."""
    parts = [torch.empty_like(tensor, memory_format=torch.contiguous_format) for _ in range(dist.get_world_size(group))]
    dist.all_gather(parts, tensor.contiguous(), group=group)
    return torch.cat(parts, dim)


def own_chunk(tensor: torch.Tensor, group: Any = None, dim: int = 0) -> torch.Tensor:
    """Return the chunk of a tensor that belongs to this rank."""
    return tensor.chunk(dist.get_world_size(group), dim)[dist.get_rank(group)]


def zigzag_order(world: int, length: int = LENGTH) -> torch.Tensor:
    """Return the positions of all ranks' tokens under context parallelism, rank by rank: int64[length]."""
    pieces = torch.arange(length).chunk(2 * world)
    return torch.cat([torch.cat([pieces[rank], pieces[-1 - rank]]) for rank in range(world)])


class _Communicate(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, forward: Collective, backward: Collective) -> torch.Tensor:
        ctx.backward_collective = backward
        return forward(tensor.view_as(tensor))

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        return ctx.backward_collective(gradients[0]), None, None


def communicate(tensor: torch.Tensor, forward: Collective, backward: Collective) -> torch.Tensor:
    """Run one collective in the forward pass, and another one in the backward pass."""
    result: torch.Tensor = _Communicate.apply(tensor, forward, backward)  # type: ignore[no-untyped-call]
    return result


# Tensor parallelism


class ColumnParallel(nn.Module):
    """A linear layer whose output features are sharded."""

    def __init__(self, linear: nn.Linear, group: Any) -> None:
        super().__init__()
        self.weight = nn.Parameter(own_chunk(linear.weight.detach(), group).clone())
        bias = linear.bias
        self.bias = None if bias is None else nn.Parameter(own_chunk(bias.detach(), group).clone())
        self.reduce_gradient: Collective = functools.partial(all_reduce, group=group)
        self.gather_output: Collective | None = None
        self.scatter_gradient: Collective = functools.partial(own_chunk, group=group, dim=-1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = F.linear(communicate(x, unchanged, self.reduce_gradient), self.weight, self.bias)
        return x if self.gather_output is None else communicate(x, self.gather_output, self.scatter_gradient)


class RowParallel(nn.Module):
    """A linear layer whose input features are sharded."""

    def __init__(self, linear: nn.Linear, group: Any) -> None:
        super().__init__()
        self.weight = nn.Parameter(own_chunk(linear.weight.detach(), group, 1).clone())
        self.bias = None if linear.bias is None else nn.Parameter(linear.bias.detach().clone())
        self.reduce: Collective = functools.partial(all_reduce, group=group)
        self.adds_bias_first = False

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        first, last = (self.bias, None) if self.adds_bias_first else (None, self.bias)
        x = communicate(F.linear(x, self.weight, first), self.reduce, unchanged)
        return x if last is None else x + last


class VocabularyParallel(nn.Module):
    """An embedding whose rows are sharded."""

    def __init__(self, embedding: nn.Embedding, group: Any) -> None:
        super().__init__()
        self.weight = nn.Parameter(own_chunk(embedding.weight.detach(), group).clone())
        self.first_word = dist.get_rank(group) * len(self.weight)
        self.reduce: Collective = functools.partial(all_reduce, group=group)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        rows = tokens - self.first_word
        is_own = (rows >= 0) & (rows < len(self.weight))
        found = F.embedding(rows.where(is_own, 0), self.weight) * is_own.unsqueeze(-1)
        return communicate(found, self.reduce, unchanged)


def megatron(model: Any, group: Any = None) -> Any:
    """Replace the layers by tensor parallel ones, as Megatron-LM does."""
    model.embed = VocabularyParallel(model.embed, group)
    for layer in model.layers:
        for name in "qkv":
            setattr(layer.attn, name, ColumnParallel(getattr(layer.attn, name), group))
        layer.attn.o = RowParallel(layer.attn.o, group)
        layer.mlp.up, layer.mlp.down = ColumnParallel(layer.mlp.up, group), RowParallel(layer.mlp.down, group)
    model.head = ColumnParallel(model.head, group)
    model.head.gather_output = functools.partial(gather, group=group, dim=-1)
    return model


class OuterParallel(nn.Module):
    """Attention or a multilayer perceptron whose collectives are around it: its linear layers have partial values."""

    def __init__(self, inner: Any, columns: tuple[str, ...], row: str) -> None:
        super().__init__()
        for name, module in inner.named_children():
            self.add_module(name, module)
        for name in columns:
            getattr(self, name).weight = nn.Parameter(own_chunk(getattr(self, name).weight.detach()).clone())
            if getattr(self, name).bias is not None:
                getattr(self, name).bias = nn.Parameter(own_chunk(getattr(self, name).bias.detach()).clone())
        last = getattr(self, row)
        last.weight = nn.Parameter(own_chunk(last.weight.detach(), dim=1).clone())
        self.run = type(inner).forward
        self.reduce: Collective = all_reduce
        self.reduce_gradient: Collective = all_reduce

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return communicate(self.run(self, communicate(x, unchanged, self.reduce_gradient)), self.reduce, unchanged)


def outer_parallel(model: Any) -> Any:
    """Shard the linear layers, and reduce around attention and multilayer perceptron, as gpt-fast does.

    The last linear layer has no bias, as each rank would add it.
    """
    for layer in model.layers:
        layer.attn = OuterParallel(layer.attn, ("q", "k", "v"), "o")
        layer.mlp = OuterParallel(layer.mlp, ("up",), "down")
    return model


def without_last_bias(model: Any) -> Any:
    """Remove the biases of `mlp.down`."""
    for layer in model.layers:
        layer.mlp.down.bias = None
    return model


# Expert parallelism


class Exchange:
    """Sends the rows of a tensor to the ranks that have the experts, and back.

    Attributes:
        sent: how many rows are sent to each rank.
        received: how many rows each rank sends to this one.
    """

    def __init__(self, sent: list[int], received: list[int]) -> None:
        self.sent, self.received = sent, received

    def there(self, rows: torch.Tensor) -> torch.Tensor:
        """Send rows to their experts."""
        return self._run(rows, self.sent, self.received)

    def back(self, rows: torch.Tensor) -> torch.Tensor:
        """Send rows back."""
        return self._run(rows, self.received, self.sent)

    @staticmethod
    def _run(rows: torch.Tensor, sent: list[int], received: list[int]) -> torch.Tensor:
        result = rows.new_empty(sum(received), *rows.shape[1:])
        dist.all_to_all_single(result, rows.contiguous(), received, sent)
        return result


class Experts(nn.Module):
    """Experts whose weights are stacked."""

    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Parameter(torch.randn(EXPERTS, WIDTH, 2 * WIDTH) / 4)
        self.down = nn.Parameter(torch.randn(EXPERTS, 2 * WIDTH, WIDTH) / 6)

    def forward(self, rows: torch.Tensor, counts: list[int]) -> torch.Tensor:
        """Run each expert on its rows; `counts` has how many each has."""
        up, down = (getattr(weight, "to_local", lambda weight=weight: weight)() for weight in (self.up, self.down))
        parts = rows.split(counts)
        return torch.cat([F.gelu(part @ up[index]) @ down[index] for index, part in enumerate(parts)])


class MixtureOfExperts(nn.Module):
    """Experts of which each token chooses two; with `world` above 1, each rank has some of them.

    Attributes:
        owned: the numbers of this rank's experts.
    """

    def __init__(self, *, stacked: bool) -> None:
        super().__init__()
        self.gate = nn.Linear(WIDTH, EXPERTS, bias=False)
        self.experts: Any = Experts() if stacked else nn.ModuleDict({str(index): Mlp() for index in range(EXPERTS)})
        self.stacked, self.world, self.owned = stacked, 1, list(range(EXPERTS))
        self.order_sent: Callable[[list[torch.Tensor]], list[torch.Tensor]] = list
        self.order_received: Callable[[list[torch.Tensor]], list[torch.Tensor]] = list
        self.order_returned: Callable[[list[torch.Tensor]], list[torch.Tensor]] = list
        self.shares: Collective = unchanged

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows = x.reshape(-1, WIDTH)
        shares, chosen = self.gate(rows).softmax(-1).topk(CHOSEN)
        shares = self.shares(shares)
        places = [(chosen == expert).nonzero(as_tuple=True) for expert in range(EXPERTS)]  # rows, which of CHOSEN
        parts = self.order_sent([rows[place[0]] for place in places])
        made = self.order_returned(self._run([parts[expert] for expert in range(EXPERTS)]))
        result = torch.zeros_like(rows)
        for (index, slot), part in zip(places, made, strict=True):
            result = result.index_add(0, index, part * shares[index, slot].unsqueeze(-1))
        return result.view_as(x)

    def _run(self, parts: list[torch.Tensor]) -> list[torch.Tensor]:
        """Return what the experts make of their rows."""
        if self.world == 1:
            return self._run_own(parts)
        own = EXPERTS // self.world
        sent = torch.tensor([len(part) for part in parts])
        counts = torch.empty_like(sent)
        dist.all_to_all_single(counts, sent)
        exchange = Exchange(sent.view(self.world, own).sum(1).tolist(), counts.view(self.world, own).sum(1).tolist())
        rows = communicate(torch.cat(parts), exchange.there, exchange.back)
        received = self.order_received(list(rows.split(counts.tolist())))  # by source, then by expert
        made = self._run_own([torch.cat(received[expert::own]) for expert in range(own)])
        split = [part.split(counts.view(self.world, own)[:, expert].tolist()) for expert, part in enumerate(made)]
        rows = torch.cat([split[expert][source] for source in range(self.world) for expert in range(own)])
        return list(communicate(rows, exchange.back, exchange.there).split(sent.tolist()))

    def _run_own(self, parts: list[torch.Tensor]) -> list[torch.Tensor]:
        if self.stacked:
            counts = [len(part) for part in parts]
            return list(self.experts(torch.cat(parts), counts).split(counts))
        return [self.experts[str(expert)](part) for expert, part in zip(self.owned, parts, strict=True)]


def make_moe(*, stacked: bool = False) -> Transformer:
    """Return the model with experts in its layers, with the same weights in each process."""
    model = make_model()
    for layer in model.layers:
        layer.mlp = MixtureOfExperts(stacked=stacked)
    return model


def expert_parallel(model: Any) -> Any:
    """Leave each rank its experts."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Shard, distribute_tensor

    rank, world = dist.get_rank(), dist.get_world_size()
    own = EXPERTS // world
    for layer in model.layers:
        moe = layer.mlp
        moe.world, moe.owned = world, list(range(rank * own, (rank + 1) * own))
        if moe.stacked:
            mesh = init_device_mesh("cpu", (world,), mesh_dim_names=("ep",))
            for name in ("up", "down"):
                weight = distribute_tensor(getattr(moe.experts, name).detach(), mesh, [Shard(0)])
                setattr(moe.experts, name, nn.Parameter(weight))
        else:
            for expert in range(EXPERTS):
                if expert not in moe.owned:
                    del moe.experts[str(expert)]
    return model


# Context parallelism


class PositionedTransformer(Transformer):
    """The model with learned embeddings of positions, which are an input."""

    def __init__(self) -> None:
        super().__init__()
        self.positions = nn.Embedding(LENGTH, WIDTH)

    def forward(self, tokens: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        x = self.embed(tokens) + self.positions(positions)
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x))


class ContextParallelAttention(nn.Module):
    """Attention of a part of the sequence, in zigzag order, to the whole.

    Attributes:
        order: the positions of all ranks' tokens, rank by rank.
        own: the positions of this rank's tokens.
    """

    def __init__(self, attention: Any) -> None:
        super().__init__()
        self.q, self.k, self.v, self.o = attention.q, attention.k, attention.v, attention.o
        self.order = zigzag_order(dist.get_world_size())
        self.own = own_chunk(self.order)
        self.gather: Collective = functools.partial(gather, dim=1)
        self.reduce_gradient: Collective = lambda gradient: own_chunk(all_reduce(gradient), dim=1)
        self.is_causal = True

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, _ = x.shape
        query = self._heads(self.q(x))
        key, value = (
            self._heads(communicate(layer(x), self.gather, self.reduce_gradient))[:, :, self.order.argsort()]
            for layer in (self.k, self.v)
        )
        mask = self.own.unsqueeze(1) >= torch.arange(LENGTH) if self.is_causal else None
        attended = F.scaled_dot_product_attention(query, key, value, attn_mask=mask)
        return self.o(attended.transpose(1, 2).reshape(batch, length, -1))

    @staticmethod
    def _heads(x: torch.Tensor) -> torch.Tensor:
        return x.view(*x.shape[:2], -1, WIDTH // HEADS).transpose(1, 2)


def make_positioned() -> PositionedTransformer:
    """Return the model with positions, with the same weights in each process."""
    torch.manual_seed(0)
    return PositionedTransformer()


def context_parallel(model: Any) -> Any:
    """Replace attention."""
    for layer in model.layers:
        layer.attn = ContextParallelAttention(layer.attn)
    return model


# A step of training


@dataclass
class Step:
    """A forward and a backward pass on one rank, and what follows; a fault changes it before it runs.

    Attributes:
        model: what is run.
        captured: the module that is captured.
        inputs: of the model.
        targets: of the loss.
        loss: of output and targets.
        averaged: over which ranks gradients are averaged after the backward pass: of each parameter's name, a
            collective, or None if they are not.
        finish: called with the model in the end.
    """

    model: Any
    inputs: tuple[torch.Tensor, ...]
    targets: torch.Tensor
    loss: Callable[[torch.Tensor, torch.Tensor], torch.Tensor] = loss_of
    averaged: Callable[[str], Collective | None] = lambda _: None
    finish: list[Callable[[nn.Module], None]] = field(default_factory=list)

    @property
    def captured(self) -> nn.Module:
        """The module that is captured."""
        return self.model

    def run(self) -> None:
        """Run forward and backward, average the gradients, and finish."""
        self.compute()
        for name, parameter in self.model.named_parameters():
            collective = self.averaged(name)
            if collective is not None and parameter.grad is not None:
                parameter.grad.copy_(collective(parameter.grad))
        for action in self.finish:
            action(self.model)

    def compute(self) -> None:
        """Run forward and backward."""
        self.loss(self.model(*self.inputs), self.targets).backward()


class Stage(nn.Module):
    """A stage of a pipeline: some modules of the model, with the names they have there."""

    def __init__(self, model: Any, index: int) -> None:
        super().__init__()
        self.index = str(index)
        self.is_first, self.is_last = index == 0, index == len(model.layers) - 1
        if self.is_first:
            self.embed = model.embed
        self.layers = nn.ModuleDict({self.index: model.layers[index]})
        if self.is_last:
            self.norm, self.head = model.norm, model.head

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.layers[self.index](self.embed(x) if self.is_first else x)
        return self.head(self.norm(x)) if self.is_last else x


@dataclass
class PipelineStep(Step):
    """A step of one stage of a pipeline.

    Attributes:
        schedule: the schedule class of `torch.distributed.pipelining`.
        microbatches: how many.
        group: of the stages.
        scales: whether gradients are divided by the number of microbatches.
        order: the order of the microbatches of this rank's inputs or targets.
    """

    schedule: str = "ScheduleGPipe"
    microbatches: int = 2
    group: Any = None
    scales: bool = True

    def compute(self) -> None:
        """Run the schedule."""
        from torch.distributed import pipelining

        stages = dist.get_world_size(self.group)
        stage = pipelining.PipelineStage(
            self.model, int(self.model.index), stages, torch.device("cpu"), group=self.group
        )
        schedule = getattr(pipelining, self.schedule)(
            stage, self.microbatches, loss_fn=self.loss, scale_grads=self.scales
        )
        schedule.step(
            *(self.inputs if self.model.is_first else ()), target=self.targets if self.model.is_last else None
        )


def _groups(outer: int, inner: int) -> tuple[Any, Any]:
    """Return this rank's group of each dimension of a mesh of `outer` times `inner` ranks."""
    ranks = torch.arange(outer * inner).view(outer, inner)
    groups = [_new_groups(ranks.T.tolist()), _new_groups(ranks.tolist())]
    return groups[0], groups[1]


@functools.cache
def _all_groups(ranks: tuple[tuple[int, ...], ...]) -> list[Any]:
    return [dist.new_group(list(group)) for group in ranks]


def _new_groups(ranks: list[list[int]]) -> Any:
    groups = _all_groups(tuple(map(tuple, ranks)))
    return next(group for group, members in zip(groups, ranks, strict=True) if dist.get_rank() in members)


def _positions() -> torch.Tensor:
    return torch.arange(LENGTH)


def reference_of(kind: str) -> Step:
    """Return the step of one process that a kind of parallelism must equal."""
    tokens, targets = make_batch()
    if kind.startswith("context"):
        return Step(make_positioned(), (tokens, _positions()), targets)
    if kind.startswith("expert"):
        return Step(make_moe(stacked=kind == "expert_stacked"), (tokens,), targets)
    model: Any = without_last_bias(make_model()) if kind == "outer" else make_model()
    step = Step(model, (tokens,), targets)
    if kind == "dropout":
        for layer in model.layers:
            layer.mlp.drop.p = 0.2
    if kind == "clipped":
        step.finish.append(clip)
    return step


def clip(model: nn.Module) -> None:
    """Clip the gradients to a norm that they exceed."""
    nn.utils.clip_grad_norm_(model.parameters(), 0.1)


def step_of(kind: str, rank: int, world: int) -> Step:
    """Return the step of a rank under a kind of parallelism."""
    if kind in KINDS:
        tokens, targets = batch_of(kind, rank, world)
        return Step(KINDS[kind](make_model()), (tokens,), targets)
    step = reference_of(kind)
    return _MAKERS[kind](step, world)


def _megatron_step(step: Step, world: int) -> Step:
    """Tensor parallelism over 2 ranks, data parallelism over the others."""
    data, tensor = _groups(world // 2, 2)
    step.model = megatron(step.model, tensor)
    if world > 2:
        step.inputs, step.targets = (own_chunk(step.inputs[0], data),), own_chunk(step.targets, data)
        step.averaged = lambda _: functools.partial(average, group=data)
    return step


def _outer_step(step: Step, _world: int) -> Step:
    step.model = outer_parallel(step.model)
    return step


def _clipped_step(step: Step, _world: int) -> Step:
    step.inputs, step.targets = (own_chunk(step.inputs[0]),), own_chunk(step.targets)
    step.averaged = lambda _: average
    return step


def _pipeline_step(schedule: str, microbatches: int) -> Callable[[Step, int], Step]:
    def make(step: Step, world: int) -> Step:
        data, stages = _groups(world // 2, 2)
        inputs, targets = own_chunk(step.inputs[0], data), own_chunk(step.targets, data)
        stage = Stage(step.model, dist.get_rank(stages))
        made = PipelineStep(stage, (inputs,), targets, schedule=schedule, microbatches=microbatches, group=stages)
        if world > 2:
            made.averaged = lambda _: functools.partial(average, group=data)
        return made

    return make


def _expert_step(step: Step, world: int) -> Step:
    step.model = expert_parallel(step.model)
    step.inputs, step.targets = (own_chunk(step.inputs[0]),), own_chunk(step.targets)
    step.averaged = lambda name: (lambda gradient: gradient / world) if ".experts." in name else average
    return step


def _context_step(step: Step, world: int) -> Step:
    own = own_chunk(zigzag_order(world))
    step.model = context_parallel(step.model)
    step.inputs, step.targets = (step.inputs[0][:, own], own), step.targets[:, own]
    step.averaged = lambda _: average
    return step


_MAKERS: dict[str, Callable[[Step, int], Step]] = {
    "megatron": _megatron_step,
    "dropout": _megatron_step,
    "outer": _outer_step,
    "clipped": _clipped_step,
    "gpipe": _pipeline_step("ScheduleGPipe", 2),
    "1f1b": _pipeline_step("Schedule1F1B", 4),
    "expert": _expert_step,
    "expert_stacked": _expert_step,
    "context": _context_step,
}
BY_HAND = tuple(_MAKERS)
