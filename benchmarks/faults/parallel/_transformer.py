"""A tiny decoder with grouped queries, and its parallel forms written by hand; faults of the second set can be set.

Each form is one kind: `tp` (vocabulary-parallel embedding and loss, dropout, clipped gradients), `sp` (sequence
parallel, as Megatron does it), `cp` and `zigzag` (context parallel), `ddp` (with accumulated gradients), `fsdp`
(clipped gradients), `pp` (two stages, microbatches), `ep` (mixture of experts), `llama_tp` and `llama_fsdp` (of Hugging
Face). The same code runs in one process, where `world` is 1.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional

KINDS = ("tp", "sp", "cp", "zigzag", "ddp", "fsdp", "pp", "ep", "llama_tp", "llama_fsdp")
VOCABULARY, WIDTH, HEADS, KV_HEADS, HEAD, HIDDEN, LAYERS, EXPERTS, ACTIVE = 32, 16, 4, 2, 4, 32, 2, 4, 2
BATCH, LENGTH, MICROBATCHES, MAX_NORM = 4, 8, 2, 0.1

Exchange = Callable[[Tensor], Tensor]


@dataclasses.dataclass(frozen=True)
class Parallel:
    """How a process takes part: the kind, the fault that is set, and its rank."""

    kind: str
    fault: str = ""
    rank: int = 0
    world: int = 1

    def fails(self, fault: str, *ranks: int) -> bool:
        """Return whether a fault is set here, on this rank."""
        return self.fault == fault and (not ranks or self.rank in ranks)

    def is_any(self, *kinds: str) -> bool:
        """Return whether several processes run one of some kinds."""
        return self.world > 1 and self.kind in kinds

    @property
    def tensors(self) -> int:
        """Over how many processes the weights are sharded."""
        return self.world if self.kind in ("tp", "sp") else 1

    @property
    def replicas(self) -> int:
        """How many processes have the same heads of keys and values."""
        return max(self.tensors // KV_HEADS, 1)


class _Apply(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, forward: Exchange, backward: Exchange) -> Tensor:
        ctx.exchange = backward
        return forward(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        return ctx.exchange(gradient), None, None


def exchange(x: Tensor, forward: Exchange, backward: Exchange) -> Tensor:
    """Apply one exchange to a tensor, and another to its gradient."""
    return _Apply.apply(x, forward, backward)  # type: ignore[no-any-return, no-untyped-call]


def same(x: Tensor) -> Tensor:
    """Exchange nothing."""
    return x.view_as(x)


def summed(x: Tensor, group: Any = None) -> Tensor:
    """Return the sum over the processes."""
    x = x.clone(memory_format=torch.contiguous_format)
    dist.all_reduce(x, group=group)
    return x


def summed_twice(x: Tensor) -> Tensor:
    """Return the sum over the processes as often as there are processes: a fault."""
    return summed(summed(x))


def averaged(x: Tensor) -> Tensor:
    """Return the mean over the processes: a fault."""
    return summed(x) / dist.get_world_size()


def parts_of(x: Tensor) -> list[Tensor]:
    """Return the tensors of all processes."""
    parts = [torch.empty_like(x, memory_format=torch.contiguous_format) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, x.contiguous())
    return parts


def gathered(x: Tensor) -> Tensor:
    """Return the whole sequence."""
    return torch.cat(parts_of(x), 1)


def gathered_in_reverse(x: Tensor) -> Tensor:
    """Return the whole sequence in a wrong order: a fault."""
    return torch.cat(parts_of(x)[::-1], 1)


def own(x: Tensor, index: int | None = None) -> Tensor:
    """Return this process' part of the sequence."""
    return x.chunk(dist.get_world_size(), 1)[dist.get_rank() if index is None else index].contiguous()


def scattered(x: Tensor) -> Tensor:
    """Return the sum over the processes, this process' part of the sequence."""
    return own(summed(x))


def scattered_to_first(x: Tensor) -> Tensor:
    """Return the sum over the processes, the first process' part of the sequence: a fault."""
    return own(summed(x), 0)


def pairs() -> Any:
    """Return the group of two neighbours that this process is in."""
    groups = [dist.new_group([first, first + 1]) for first in range(0, dist.get_world_size(), 2)]
    return groups[dist.get_rank() // 2]


class Norm(nn.LayerNorm):
    """A layer norm; under sequence parallelism of a part of the sequence."""


class Row(nn.Linear):
    """A linear layer whose inputs are sharded: the outputs are summed, then the bias is added."""

    def __init__(self, inputs: int, p: Parallel, place: str, group: Any) -> None:
        super().__init__(inputs, WIDTH)
        self.p, self.place, self.group = p, place, group

    def forward(self, x: Tensor) -> Tensor:
        p, place = self.p, self.place
        y = functional.linear(x, self.weight)
        if p.is_any("sp"):
            part = scattered_to_first if p.fails("sp_scatter_stale") and place == "o0" else scattered
            y = exchange(y, part, gathered)
        elif p.is_any("tp"):
            total: Exchange = summed
            if p.fails("tp_forward_missing") and place == "o0":
                total = same
            if p.fails("tp_forward_mean") and place == "down1":
                total = averaged
            if p.fails("tp_wrong_group") and place == "down1":
                total = functools.partial(summed, group=self.group)
            if p.fails("tp_bias_per_rank") and place == "down0":
                return exchange(y + self.bias, summed, same)
            y = exchange(y, total, same)
        return y + self.bias


def entered(x: Tensor, p: Parallel, place: str) -> Tensor:
    """Return what enters sharded layers; its gradient is the sum over the processes."""
    if p.is_any("sp"):
        forward, backward = gathered, scattered
        if p.fails("sp_gather_order") and place == "mlp1":
            forward = gathered_in_reverse
        if p.fails("sp_backward_slice") and place == "attention0":
            backward = own
        return exchange(x, forward, backward)
    if p.is_any("tp"):
        backward = summed
        if p.fails("tp_backward_missing") and place == "mlp1":
            backward = same
        if p.fails("tp_backward_doubled") and place == "attention0":
            backward = summed_twice
        return exchange(x, same, backward)
    return x


def rotated(x: Tensor, positions: Tensor, base: float = 100.0) -> Tensor:
    """Rotate queries or keys by their positions."""
    angles = positions[:, None].to(x.dtype) * base ** -torch.arange(0, 1, 2 / HEAD, dtype=x.dtype)
    cos, sin = angles.cos()[:, None], angles.sin()[:, None]
    a, b = x.chunk(2, -1)
    return torch.cat([a * cos - b * sin, a * sin + b * cos], -1)


class Attention(nn.Module):
    """Causal attention with grouped queries and rotary positions."""

    def __init__(self, p: Parallel, index: int, group: Any) -> None:
        super().__init__()
        self.p, self.index = p, index
        heads, kv_heads = HEADS // p.tensors, max(KV_HEADS // p.tensors, 1)
        self.q = nn.Linear(WIDTH, heads * HEAD, bias=False)
        self.k = nn.Linear(WIDTH, kv_heads * HEAD, bias=False)
        self.v = nn.Linear(WIDTH, kv_heads * HEAD, bias=False)
        self.o = Row(heads * HEAD, p, f"o{index}", group)

    def forward(self, x: Tensor, positions: Tensor) -> Tensor:
        p = self.p
        x = entered(x, p, f"attention{self.index}")
        q, k, v = (layer(x).unflatten(-1, (-1, HEAD)) for layer in (self.q, self.k, self.v))
        base = 50.0 if p.fails("tp_rope_base", 1) and self.index == 1 else 100.0
        turned = positions
        if p.fails("cp_positions", 1):
            turned = positions - positions[0]
        if p.fails("zigzag_positions", 0):
            turned = torch.arange(len(positions))
        q, k = rotated(q, turned, base), rotated(k, turned, base)
        key_positions = positions
        if p.is_any("cp", "zigzag"):
            key_positions = torch.cat(parts_of(positions))
            missing = p.fails("cp_kv_gradient") and self.index == 1
            k = exchange(k, gathered, own if missing else scattered)
            v = exchange(v, gathered, own if missing else scattered)
            if p.fails("cp_gather_order", 2):
                v = v.roll(v.shape[1] // p.world, 1)
            if p.fails("cp_mask", 1):
                positions = positions - positions[0]
        k, v = (self._repeated(part, q.shape[2]) for part in (k, v))
        scores = torch.einsum("bqhd,bkhd->bhqk", q, k) / HEAD**0.5
        visible = positions[:, None] >= key_positions
        weights = scores.masked_fill(~visible, float("-inf")).softmax(-1)
        return self.o(torch.einsum("bhqk,bkhd->bqhd", weights, v).flatten(2))  # type: ignore[no-any-return]

    def _repeated(self, x: Tensor, heads: int) -> Tensor:
        times = heads // x.shape[2]
        if self.p.fails("ddp_tiled_heads", 1) and self.index == 0:
            return x.repeat(1, 1, times, 1)
        return x.repeat_interleave(times, 2)


class Expert(nn.Module):
    """A feed-forward network."""

    def __init__(self, p: Parallel, place: str = "", group: Any = None) -> None:
        super().__init__()
        self.p, self.place = p, place
        self.up = nn.Linear(WIDTH, HIDDEN // p.tensors)
        self.down = Row(HIDDEN // p.tensors, p, place.replace("mlp", "down"), group)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(functional.gelu(self.up(entered(x, self.p, self.place))))  # type: ignore[no-any-return]


class Experts(nn.Module):
    """A mixture of experts; under expert parallelism, tokens are sent to the process that has their experts."""

    def __init__(self, p: Parallel, index: int) -> None:
        super().__init__()
        self.p, self.index = p, index
        self.router = nn.Linear(WIDTH, EXPERTS, bias=False)
        local = EXPERTS // p.world
        owned = range(p.rank * local, (p.rank + 1) * local)
        self.experts = nn.ModuleDict({str(i): Expert(p) for i in owned})

    def forward(self, x: Tensor) -> Tensor:
        p = self.p
        tokens = x.flatten(0, 1)
        gates, chosen = self.router(tokens).softmax(-1).topk(ACTIVE)
        if not (p.fails("ep_gates", 1) and self.index == 0):
            gates = gates / gates.sum(-1, keepdim=True)
        order = chosen.flatten().argsort(stable=True)
        counts = torch.bincount(chosen.flatten(), minlength=EXPERTS)
        if p.fails("ep_capacity", 1):  # this process has forgotten that the capacity is unlimited
            first = torch.cat([torch.zeros(1, dtype=torch.long), counts.cumsum(0)[:-1]])
            order = torch.cat([order[a : a + min(n, 2)] for a, n in zip(first.tolist(), counts.tolist(), strict=True)])
            counts = counts.clamp(max=2)
        results = torch.zeros(chosen.numel(), WIDTH, dtype=x.dtype)
        computed = self._computed(tokens[order // ACTIVE], counts)
        if p.fails("ep_order", 1) and self.index == 1:
            computed = computed.roll(1, 0)
        results = results.index_put((order,), computed)
        return (results.unflatten(0, (-1, ACTIVE)) * gates[..., None]).sum(1).view_as(x)

    def _computed(self, tokens: Tensor, counts: Tensor) -> Tensor:
        """Return the experts' results for tokens sorted by expert."""
        if self.p.world == 1:
            return torch.cat([e(x) for e, x in zip(self.experts.values(), tokens.split(counts.tolist()), strict=True)])
        table = torch.stack(parts_of(counts)).unflatten(1, (self.p.world, -1))  # source, destination, expert there
        here = table[:, self.p.rank]
        sent, received = table[self.p.rank].sum(-1).tolist(), here.sum(-1).tolist()
        there = functools.partial(_all_to_all, sent=sent, received=received)
        back = functools.partial(_all_to_all, sent=received, received=sent)
        arrived = exchange(tokens, there, back)
        sizes = here.flatten().tolist()  # by source, then expert
        if self.p.fails("ep_split", 1) and self.index == 0:
            sizes[0], sizes[1] = sizes[0] - 1, sizes[1] + 1
        pieces = arrived.split(sizes)
        local = len(self.experts)
        done = [
            expert(torch.cat(pieces[number::local])).split(sizes[number::local])
            for number, expert in enumerate(self.experts.values())
        ]
        return exchange(torch.cat([done[i][j] for j in range(self.p.world) for i in range(local)]), back, there)


def _all_to_all(x: Tensor, sent: list[int], received: list[int]) -> Tensor:
    result = x.new_empty(sum(received), *x.shape[1:])
    dist.all_to_all_single(result, x.contiguous(), received, sent)
    return result


class Layer(nn.Module):
    """A layer of the decoder."""

    def __init__(self, p: Parallel, index: int, group: Any) -> None:
        super().__init__()
        self.norm1, self.norm2 = Norm(WIDTH), Norm(WIDTH)
        self.attention = Attention(p, index, group)
        self.mlp = Experts(p, index) if p.kind == "ep" else Expert(p, f"mlp{index}", group)
        self.dropout = nn.Dropout(0.2 if p.kind == "tp" else 0.0)

    def forward(self, x: Tensor, positions: Tensor) -> Tensor:
        x = x + self.attention(self.norm1(x), positions)
        return x + self.dropout(self.mlp(self.norm2(x)))  # type: ignore[no-any-return]


class Embedding(nn.Module):
    """An embedding, under tensor parallelism of a part of the vocabulary."""

    def __init__(self, p: Parallel) -> None:
        super().__init__()
        self.p = p
        self.weight = nn.Parameter(torch.randn(VOCABULARY // p.tensors, WIDTH))

    def forward(self, ids: Tensor) -> Tensor:
        p = self.p
        if p.tensors == 1:
            return functional.embedding(ids, self.weight)
        size = len(self.weight)
        ids = ids - p.rank * size
        foreign = (ids < (1 if p.fails("tp_vocabulary_mask") else 0)) | (ids >= size)
        weight = self.weight.detach() if p.fails("tp_tied_detached", 1) else self.weight
        y = functional.embedding(ids.masked_fill(foreign, 0), weight).masked_fill(foreign[..., None], 0.0)
        return exchange(y, scattered, gathered) if p.is_any("sp") else exchange(y, summed, same)


class Decoder(nn.Module):
    """Embedding, layers, norm and head; a stage of a pipeline has a part of them."""

    def __init__(self, p: Parallel) -> None:
        super().__init__()
        self.p = p
        group = pairs() if p.tensors == 4 else None
        stages = p.world if p.kind == "pp" else 1
        self.first, self.last = p.rank == 0 or stages == 1, p.rank == stages - 1 or stages == 1
        if self.first:
            self.embedding = Embedding(p)
        layers = range(LAYERS) if stages == 1 else [p.rank]
        self.layers = nn.ModuleDict({str(i): Layer(p, i, group) for i in layers})
        if self.last:
            self.norm = Norm(WIDTH)
            self.head = nn.Linear(WIDTH, VOCABULARY // p.tensors, bias=False)
            if self.first:
                self.head.weight = self.embedding.weight

    def forward(self, x: Tensor, positions: Tensor) -> Tensor:
        if self.first:
            x = self.embedding(x)
        for layer in self.layers.values():
            x = layer(x, positions)
        if self.last:
            x = self.head(entered(self.norm(x), self.p, "head"))
        return x


def sharded(name: str, whole: Tensor, p: Parallel) -> Tensor:
    """Return this process' part of a parameter."""
    rank, world = p.rank, p.tensors
    leaf = name.split(".")[-2]
    if world == 1:
        return whole
    if leaf in ("k", "v"):
        parts = min(world, KV_HEADS)
        index = rank % parts if p.fails("tp_kv_heads") else rank // p.replicas
        return whole.chunk(parts)[index]
    if leaf in ("q", "up", "head", "embedding"):
        return whole.chunk(world)[rank]
    return whole.chunk(world, 1)[rank] if leaf in ("o", "down") and name.endswith("weight") else whole


def make(p: Parallel) -> nn.Module:
    """Make the model of a process: its part of the same random weights."""
    torch.manual_seed(0)
    if p.kind.startswith("llama"):
        return _llama(p)
    whole = Decoder(Parallel(p.kind)).state_dict()
    for name, value in whole.items():
        if name.endswith("bias"):
            value.normal_(std=0.3)
        if "norm" in name:
            value.add_(torch.randn_like(value) * 0.2)
    model = Decoder(p)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            source = "embedding.weight" if name == "head.weight" else name
            if p.fails("ep_swapped"):
                source = _swapped(source)
            if p.fails("pp_wrong_layer"):
                source = source.replace("layers.1.mlp", "layers.0.mlp")
            parameter.copy_(sharded(name, whole[source], p))
        if p.fails("tp_stale_replica", 3):
            model.layers["1"].norm1.weight.mul_(1 + 1e-4)  # type: ignore[operator, union-attr]
    return _wrapped(model, p) if p.is_any("ddp", "fsdp") else model


def _swapped(name: str) -> str:
    if "layers.1" not in name:
        return name
    return name.replace("experts.1", "experts.x").replace("experts.2", "experts.1").replace("experts.x", "experts.2")


def _wrapped(model: Any, p: Parallel) -> nn.Module:
    if p.kind == "ddp":
        wrapped = nn.parallel.DistributedDataParallel(model)
        if p.fails("ddp_hook_sums"):
            wrapped.register_comm_hook(None, lambda _, bucket: _sum_of(bucket))
        return wrapped
    from torch.distributed.fsdp import fully_shard

    layers = getattr(model, "layers", None) or model.model.layers
    layers = [*(layers.values() if isinstance(layers, nn.ModuleDict) else layers)]
    ignored = {model.model.norm.weight} if p.fails("llama_fsdp_ignored") else None
    for layer in layers:
        fully_shard(layer)
    fully_shard(model, ignored_params=ignored)
    if p.fails("fsdp_divide") or p.fails("llama_fsdp_divide"):
        layers[1].set_gradient_divide_factor(1.0)
        layers[1].set_force_sum_reduction_for_comms(True)  # gloo has no sum that divides
    if p.fails("llama_fsdp_unsynced"):
        layers[0].set_requires_gradient_sync(False)
    if p.fails("fsdp_drift", 1):
        with torch.no_grad():
            model.layers["0"].mlp.up.weight.to_local()[0, 0] += 1e-3
    if p.fails("llama_fsdp_epsilon", 1):
        layers[1].input_layernorm.variance_epsilon = 1e-2
    return model  # type: ignore[no-any-return]


def _sum_of(bucket: Any) -> Any:
    work = dist.all_reduce(bucket.buffer(), async_op=True)
    return work.get_future().then(lambda future: future.value()[0])  # type: ignore[union-attr, no-any-return]


def _llama(p: Parallel) -> nn.Module:
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=VOCABULARY, hidden_size=WIDTH, intermediate_size=HIDDEN, num_hidden_layers=LAYERS,
        num_attention_heads=HEADS, num_key_value_heads=KV_HEADS, attn_implementation="eager", initializer_range=0.2,
    )  # fmt: skip
    model: Any = LlamaForCausalLM(config)
    if p.is_any("llama_fsdp"):
        return _wrapped(model, p)
    if p.is_any("llama_tp"):
        _parallelize(model, p)
    return model  # type: ignore[no-any-return]


def _parallelize(model: Any, p: Parallel) -> None:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Partial, Replicate
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    mesh = init_device_mesh("cpu", (p.world,))
    for index, layer in enumerate(model.model.layers):
        broken = p.fails("llama_tp_partial") and index == 0
        plan: dict[str, Any] = {
            **dict.fromkeys(("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"), ColwiseParallel()),
            "self_attn.o_proj": RowwiseParallel(output_layouts=Partial() if broken else Replicate()),
            **dict.fromkeys(("mlp.gate_proj", "mlp.up_proj"), ColwiseParallel()),
            "mlp.down_proj": RowwiseParallel(),
        }
        parallelize_module(layer, mesh, plan)
    parallelize_module(model, mesh, {"lm_head": ColwiseParallel(output_layouts=Replicate())})
    if p.fails("llama_tp_rotary", 1):
        model.model.rotary_emb.inv_freq[1] *= 1.5
    if p.fails("llama_tp_scaling", 1):
        model.model.layers[1].self_attn.scaling *= 1.1
    if p.fails("llama_tp_epsilon", 1):
        model.model.layers[1].input_layernorm.variance_epsilon = 1e-2


def data() -> tuple[Tensor, Tensor]:
    """Return token ids and targets, each int64 [BATCH, LENGTH]."""
    generator = torch.Generator().manual_seed(1)
    ids, targets = torch.randint(VOCABULARY, (2, BATCH, LENGTH), generator=generator)
    return ids, targets


def step(model: Any, p: Parallel) -> None:
    """Run a training step, without the optimizer."""
    torch.manual_seed(5 + p.rank if p.fails("tp_dropout_seed") else 5)
    model.zero_grad()
    ids, targets = data()
    if p.kind == "pp":
        _pipeline(model, p, ids, targets)
    elif p.kind == "ddp":
        for index in range(MICROBATCHES):
            last = index == MICROBATCHES - 1
            part = slice(index * BATCH // MICROBATCHES, (index + 1) * BATCH // MICROBATCHES)
            rank = 0 if p.fails("ddp_same_data") else p.rank
            pieces = [x[part].chunk(p.world)[rank] for x in (ids, targets)]
            model.require_backward_grad_sync = last and not p.fails("ddp_unsynced")
            loss = _loss(model(pieces[0], torch.arange(LENGTH)), pieces[1], p)
            if p.fails("ddp_loss_weight", 1):
                loss = loss / 2
            (loss if p.fails("ddp_undivided") else loss / MICROBATCHES).backward()
    else:
        positions = torch.arange(LENGTH)
        if p.is_any("fsdp", "ep", "llama_fsdp"):
            ids, targets = (x.chunk(p.world)[p.rank] for x in (ids, targets))
        if p.is_any("cp", "zigzag"):
            positions = _positions(p)
            ids, targets = ids[:, positions], targets[:, positions]
        if p.kind.startswith("llama"):
            shift = int(p.fails("llama_tp_positions", 1))
            steps = (positions * (1 + shift)).expand(len(ids), -1)
            output = model(input_ids=ids, position_ids=steps, use_cache=False).logits
        else:
            output = model(ids, positions)
        _loss(output, targets, p).backward()
    with torch.no_grad():
        _finish(model, p)


def _positions(p: Parallel) -> Tensor:
    if p.kind == "cp":
        return torch.arange(LENGTH).chunk(p.world)[p.rank]
    chunks = torch.arange(LENGTH).chunk(2 * p.world)
    return torch.cat([chunks[p.rank], chunks[2 * p.world - 1 - p.rank]])


def _loss(logits: Tensor, targets: Tensor, p: Parallel) -> Tensor:
    """Return the mean loss of what this process has; of all if it has a part of the vocabulary."""
    if p.tensors == 1:
        loss = functional.cross_entropy(logits.flatten(0, 1), targets.flatten())
        return loss / p.world if p.is_any("cp", "zigzag", "ep") else loss
    maximum = logits.detach().amax(-1, keepdim=True)
    if not p.fails("tp_loss_maximum"):
        dist.all_reduce(maximum, dist.ReduceOp.MAX)
    local = targets - p.rank * logits.shape[-1]
    foreign = (local < 0) | (local >= logits.shape[-1])
    shifted = logits - maximum
    total = exchange(shifted.exp().sum(-1), summed, same)
    picked = shifted.gather(-1, local.masked_fill(foreign, 0)[..., None])[..., 0].masked_fill(foreign, 0.0)
    return (total.log() - exchange(picked, summed, same)).mean()


def _pipeline(model: Any, p: Parallel, ids: Tensor, targets: Tensor) -> None:
    """Run all microbatches forward, then all backward; in one process all at once."""
    positions = torch.arange(LENGTH)
    if p.world == 1:
        _loss(model(ids, positions), targets, p).backward()
        return
    inputs, outputs = [], []
    for part in ids.chunk(MICROBATCHES):
        if model.first:
            outputs.append(model(part, positions))
            dist.send(outputs[-1].detach(), 1)
        else:
            buffer = torch.empty(*part.shape, WIDTH)
            dist.recv(buffer, 0)
            if p.fails("pp_stale_buffer") and inputs:
                buffer = inputs[0].detach().clone()
            inputs.append(buffer.requires_grad_())
            outputs.append(model(buffer, positions))
    for index, part in enumerate(targets.chunk(MICROBATCHES)):
        if model.last:
            loss = _loss(outputs[index], part, p)
            (loss if p.fails("pp_undivided") else loss / MICROBATCHES).backward()
            other = 0 if p.fails("pp_stale_gradient") else index
            dist.send(inputs[other].grad, 0)  # type: ignore[arg-type]
        else:
            gradient = torch.empty_like(outputs[index])
            dist.recv(gradient, 1)
            outputs[index].backward(gradient)


def _finish(model: Any, p: Parallel) -> None:
    """Reduce the gradients that no wrapper reduces, then clip them."""
    named = dict(model.named_parameters())
    group = pairs() if p.replicas > 1 else None
    for name, parameter in named.items():
        gradient, leaf = parameter.grad, name.split(".")[-2]
        if p.fails("ep_expert_mean") and "experts" in name:
            gradient.div_(p.world)
        if p.fails("pp_tied_reduced_to_one") and leaf in ("embedding", "head"):
            dist.reduce(gradient, 0)
        elif _is_partial(name, leaf, p):
            dist.all_reduce(gradient)
        if p.fails("cp_mean"):
            gradient.div_(p.world)
        if group is not None and leaf in ("k", "v") and not p.fails("tp_kv_unreduced"):
            dist.all_reduce(gradient, group=group)
    if p.kind == "fsdp" and not p.fails("fsdp_clip_local"):
        nn.utils.clip_grad_norm_(model.parameters(), MAX_NORM)
    elif p.kind in ("fsdp", "tp"):
        _clip(named, p)


def _is_partial(name: str, leaf: str, p: Parallel) -> bool:
    """Return whether the gradient of a parameter is to be added to those of the other processes."""
    if p.is_any("cp", "zigzag"):
        return not (p.fails("cp_bias_unreduced") and name.endswith("1.mlp.up.bias"))
    if p.is_any("sp"):
        return name.endswith(("o.bias", "down.bias")) or ("norm" in name and not p.fails("sp_norm_unreduced"))
    if p.is_any("ep"):
        return "experts" not in name and not (p.fails("ep_router_unreduced") and leaf == "router")
    return p.is_any("pp") and leaf in ("embedding", "head") and not p.fails("pp_tied_unreduced")


def _clip(named: dict[str, Any], p: Parallel) -> None:
    local = [getattr(parameter.grad, "_local_tensor", parameter.grad) for parameter in named.values()]
    squares = torch.zeros(())
    for name, gradient in zip(named, local, strict=True):
        square, leaf = gradient.square().sum(), name.split(".")[-2]
        if p.is_any("tp"):
            whole = "norm" in name or name.endswith(("o.bias", "down.bias"))
            copies = p.world if whole else p.replicas if leaf in ("k", "v") else 1
            square = square if p.fails("tp_clip_local") else square / copies
        squares = squares + square
    if p.is_any("tp") and not p.fails("tp_clip_local"):
        dist.all_reduce(squares)
    scale = (MAX_NORM / (squares.sqrt() + 1e-6)).clamp(max=1.0)
    for gradient in local:
        gradient.mul_(scale)
