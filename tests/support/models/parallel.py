"""A small transformer, each way to run it on several processes, and faults of parallel code to plant."""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F  # noqa: N812  as everybody does
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

WIDTH, HEADS, WORDS, LENGTH, BATCH = 16, 4, 32, 8, 8
# What takes seconds to import is imported once, by the process from which those of the ranks are forked.
_IMPORTED_ONCE = ["torch.distributed.fsdp", "torch.distributed.tensor.parallel", "torch._dynamo", "filch.compare._diff"]


class Attention(nn.Module):
    """Causal attention."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v, self.o = (nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, _ = x.shape
        heads = (layer(x).view(batch, length, -1, WIDTH // HEADS).transpose(1, 2) for layer in (self.q, self.k, self.v))
        attended = F.scaled_dot_product_attention(*heads, is_causal=True)
        return self.o(attended.transpose(1, 2).reshape(batch, length, -1))


class Mlp(nn.Module):
    """Two linear layers with bias, and dropout of probability 0."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.act, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH)
        self.drop = nn.Dropout(0.0)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.drop(self.down(self.act(self.up(x))))


class Block(nn.Module):
    """Attention and a multilayer perceptron with residual connections."""

    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.attn = nn.LayerNorm(WIDTH), Attention()
        self.norm2, self.mlp = nn.LayerNorm(WIDTH), Mlp()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attn(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class Transformer(nn.Module):
    """A language model."""

    def __init__(self, layers: int = 2) -> None:
        super().__init__()
        self.embed = nn.Embedding(WORDS, WIDTH)
        self.layers = nn.ModuleList(Block() for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WORDS, bias=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embed(tokens)
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x))


def make_model() -> Transformer:
    """Return the model, with the same weights in each process."""
    torch.manual_seed(0)
    return Transformer()


def make_batch() -> tuple[torch.Tensor, torch.Tensor]:
    """Return tokens and targets, int64[BATCH, LENGTH]."""
    generator = torch.Generator().manual_seed(1)
    tokens = torch.randint(0, WORDS, (2, BATCH, LENGTH), generator=generator)
    return tokens[0], tokens[1]


def loss_of(output: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Return the mean cross entropy."""
    return F.cross_entropy(output.reshape(-1, WORDS), targets.reshape(-1))


Parallel = Callable[[nn.Module], nn.Module]


def single(model: nn.Module) -> nn.Module:
    """One process."""
    return model


def tensor_parallel(model: nn.Module, mesh: DeviceMesh | None = None, *, sequence: bool = False) -> nn.Module:
    """Tensor parallelism, with `sequence` also over the sequence in norms and residual connections."""
    from torch.distributed.tensor import Replicate, Shard
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        PrepareModuleInput,
        RowwiseParallel,
        SequenceParallel,
        parallelize_module,
    )

    mesh = mesh or init_device_mesh("cpu", (dist.get_world_size(),), mesh_dim_names=("tp",))
    whole, along = Replicate(), Shard(1) if sequence else Replicate()
    columns = ["attn.q", "attn.k", "attn.v", "mlp.up"]
    plan: dict[str, Any] = {name: ColwiseParallel() for name in columns}
    plan |= {name: RowwiseParallel(output_layouts=along) for name in ("attn.o", "mlp.down")}
    top: dict[str, Any] = {
        "embed": RowwiseParallel(input_layouts=whole, output_layouts=along),
        "head": ColwiseParallel(input_layouts=along, output_layouts=whole),
    }
    if sequence:
        prepare = {"input_layouts": (along,), "desired_input_layouts": (whole,)}
        plan |= {"attn": PrepareModuleInput(**prepare), "mlp": PrepareModuleInput(**prepare)}
        plan |= {"norm1": SequenceParallel(), "norm2": SequenceParallel()}
        top["norm"] = SequenceParallel()
    parallelize_module(model, mesh, top)
    for layer in model.layers:  # type: ignore[union-attr]
        parallelize_module(layer, mesh, plan)
    return model


def sequence_parallel(model: nn.Module) -> nn.Module:
    """Tensor and sequence parallelism."""
    return tensor_parallel(model, sequence=True)


def fully_sharded(model: nn.Module, mesh: DeviceMesh | None = None) -> nn.Module:
    """Parameters sharded over all ranks (FSDP2)."""
    from torch.distributed.fsdp import fully_shard

    mesh = mesh or init_device_mesh("cpu", (dist.get_world_size(),), mesh_dim_names=("dp",))
    for layer in model.layers:  # type: ignore[union-attr]
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return model


def hybrid_sharded(model: nn.Module) -> nn.Module:
    """Parameters sharded in groups, and replicated between them (HSDP)."""
    shape = (2, dist.get_world_size() // 2)
    return fully_sharded(model, init_device_mesh("cpu", shape, mesh_dim_names=("replicate", "shard")))


def two_dimensional(model: nn.Module) -> nn.Module:
    """Tensor parallelism in groups, with parameters sharded between them."""
    mesh = init_device_mesh("cpu", (2, dist.get_world_size() // 2), mesh_dim_names=("dp", "tp"))
    return fully_sharded(tensor_parallel(model, mesh["tp"]), mesh["dp"])


def data_parallel(model: nn.Module) -> nn.Module:
    """Replicas with different batches (DDP)."""
    return nn.parallel.DistributedDataParallel(model)


KINDS: dict[str, Parallel] = {
    "single": single, "tensor": tensor_parallel, "sequence": sequence_parallel, "fsdp": fully_sharded,
    "hsdp": hybrid_sharded, "fsdp_tensor": two_dimensional, "ddp": data_parallel,
}  # fmt: skip


def batch_of(kind: str, rank: int, world: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the part of the batch that a rank has under a kind of parallelism."""
    groups = {"fsdp": world, "hsdp": world, "ddp": world, "fsdp_tensor": 2}.get(kind, 1)
    index = rank * groups // world
    tokens, targets = (tensor.chunk(groups)[index] for tensor in make_batch())
    return tokens, targets


def step(model: nn.Module, batch: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    """Run forward and backward; return the loss."""
    tokens, targets = batch
    loss = loss_of(model(tokens), targets)
    loss.backward()
    return loss


@contextlib.contextmanager
def process_group(rank: int, world: int, store: str) -> Iterator[None]:
    """Join a gloo process group whose store is a file."""
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=world)
    try:
        yield
    finally:
        dist.destroy_process_group()


def run_jobs(world: int, jobs: list[Callable[[int, int], None]], folder: str) -> None:
    """Run jobs one after the other in `world` processes of one process group.

    Args:
        world: the number of processes.
        jobs: called with rank and world size; they are pickled.
        folder: for the store of the process group.

    Raises:
        Exception: a job has raised.
    """
    import torch.multiprocessing as mp

    mp.set_forkserver_preload(_IMPORTED_ONCE)
    mp.start_processes(  # type: ignore[no-untyped-call]
        _run_rank, args=(world, jobs, f"{folder}/store{world}"), nprocs=world, start_method="forkserver"
    )


def _run_rank(rank: int, world: int, jobs: list[Callable[[int, int], None]], store: str) -> None:
    torch.set_num_threads(1)
    with process_group(rank, world, store):
        for job in jobs:
            job(rank, world)
            dist.barrier()
