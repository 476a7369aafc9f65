"""Faults of parallel code that were written, with their truth, by someone who had not seen how `diff` judges them.

All but `pp_tied_reduced_to_one`, which shows what the first comparison left open. `parallel_transformer` has the code
that each fault changes. The places are all values at which the fault shows first.
"""

from __future__ import annotations

import dataclasses
import fnmatch
import functools
from typing import Any

from filch import record_reference, steal_forward

from ..models.parallel_transformer import Parallel, make, step

ALL = None
"""The value is wrong on all ranks that have a part of it."""


@dataclasses.dataclass(frozen=True)
class HeldOut:
    """A fault of one kind of parallelism, and where it is.

    Attributes:
        parallelism: the kind of parallelism.
        world: the number of processes.
        places: patterns of the values at which it may show first.
        ranks: the ranks whose values are wrong there.
    """

    parallelism: str
    world: int
    places: tuple[str, ...]
    ranks: tuple[int, ...] | None

    @property
    def kind(self) -> str:
        """The kind of parallelism, by which results are summed up."""
        return self.parallelism

    def is_at(self, row: Any) -> bool:
        """Return whether a row of a `DumpDiff` is where the fault shows first."""
        return any(fnmatch.fnmatchcase(row.key.label, place) for place in self.places)

    def has_ranks(self, row: Any) -> bool:
        """Return whether a row of a `DumpDiff` names the ranks that are wrong."""
        return row.ranks == self.ranks or (self.ranks is ALL and row.ranks in ((), row.held_by))


HELD_OUT = {
    # Tensor parallel, by hand.
    "tp_forward_missing": HeldOut("tp", 2, ("layers.0.attention.o#0.O",), ALL),
    "tp_forward_mean": HeldOut("tp", 4, ("layers.1.mlp.down#0.O",), ALL),
    "tp_wrong_group": HeldOut("tp", 4, ("layers.1.mlp.down#0.O",), ALL),
    "tp_bias_per_rank": HeldOut("tp", 2, ("layers.0.mlp.down#0.O",), ALL),
    "tp_backward_missing": HeldOut("tp", 2, ("layers.1.mlp#0.GI", "layers.1.norm2#0.GO"), ALL),
    "tp_backward_doubled": HeldOut("tp", 2, ("layers.0.attention#0.GI", "layers.0.norm1#0.GO"), ALL),
    "tp_vocabulary_mask": HeldOut("tp", 2, ("embedding#0.O",), ALL),
    "tp_rope_base": HeldOut("tp", 2, ("layers.1.attention.o#0.I",), (1,)),
    "tp_dropout_seed": HeldOut("tp", 2, ("layers.0.dropout#0.O",), (1,)),
    "tp_loss_maximum": HeldOut("tp", 2, ("head#0.GO",), ALL),
    "tp_tied_detached": HeldOut("tp", 2, ("embedding.weight#0.GF",), (1,)),
    "tp_clip_local": HeldOut("tp", 2, ("*.GF",), ALL),
    "tp_kv_heads": HeldOut("tp", 4, ("layers.0.attention.k.weight#0.P", "layers.0.attention.o#0.I"), (1, 2)),
    "tp_kv_unreduced": HeldOut("tp", 4, ("layers.*.attention.[kv].weight#0.GF",), ALL),
    "tp_stale_replica": HeldOut("tp", 4, ("layers.1.norm1.weight#0.P",), (3,)),
    # Sequence parallel, by hand.
    "sp_norm_unreduced": HeldOut("sp", 2, ("*norm*.GF",), ALL),
    "sp_gather_order": HeldOut("sp", 2, ("layers.1.mlp.up#0.I",), ALL),
    "sp_scatter_stale": HeldOut("sp", 4, ("layers.0.attention.o#0.O",), (1, 2, 3)),
    "sp_backward_slice": HeldOut("sp", 2, ("layers.0.attention#0.GI", "layers.0.norm1#0.GO"), ALL),
    # Context parallel, by hand.
    "cp_positions": HeldOut("cp", 2, ("layers.0.attention.o#0.I",), (1,)),
    "cp_mask": HeldOut("cp", 2, ("layers.0.attention.o#0.I",), (1,)),
    "cp_gather_order": HeldOut("cp", 4, ("layers.0.attention.o#0.I",), (2,)),
    "cp_kv_gradient": HeldOut("cp", 2, ("layers.1.attention.[kv]#0.GO",), (0,)),
    "cp_mean": HeldOut("cp", 2, ("*.GF",), ALL),
    "cp_bias_unreduced": HeldOut("cp", 4, ("layers.1.mlp.up.bias#0.GF",), ALL),
    "zigzag_positions": HeldOut("zigzag", 2, ("layers.0.attention.o#0.I",), (0,)),
    # DistributedDataParallel, two accumulated backward passes.
    "ddp_undivided": HeldOut("ddp", 2, ("head#0.GO",), ALL),
    "ddp_hook_sums": HeldOut("ddp", 2, ("*.GF",), ALL),
    "ddp_unsynced": HeldOut("ddp", 2, ("*.GF",), ALL),
    "ddp_same_data": HeldOut("ddp", 2, ("(root)#0.I", "embedding#0.I"), (1,)),
    "ddp_loss_weight": HeldOut("ddp", 2, ("head#0.GO",), (1,)),
    "ddp_tiled_heads": HeldOut("ddp", 2, ("layers.0.attention.o#0.I",), (1,)),
    # FSDP2.
    "fsdp_divide": HeldOut("fsdp", 2, ("layers.1.*.GF",), ALL),
    "fsdp_drift": HeldOut("fsdp", 2, ("layers.0.mlp.up.weight#0.P",), (1,)),
    "fsdp_clip_local": HeldOut("fsdp", 2, ("*.GF",), ALL),
    # A pipeline of two stages.
    "pp_stale_buffer": HeldOut("pp", 2, ("layers.1#[01].I", "layers.1.norm1#[01].I"), (1,)),
    "pp_stale_gradient": HeldOut("pp", 2, ("layers.0#[01].GO", "layers.0.dropout#[01].GO"), (0,)),
    "pp_undivided": HeldOut("pp", 2, ("head#[01].GO",), (1,)),
    "pp_tied_unreduced": HeldOut("pp", 2, ("embedding.weight#0.GF", "head.weight#0.GF"), ALL),
    "pp_tied_reduced_to_one": HeldOut("pp", 2, ("head.weight#0.GF",), (1,)),
    "pp_wrong_layer": HeldOut("pp", 2, ("layers.1.mlp.*.P",), (1,)),
    # Expert parallel, by hand.
    "ep_gates": HeldOut("ep", 2, ("layers.0.mlp#0.O",), (1,)),
    "ep_order": HeldOut("ep", 2, ("layers.1.mlp#0.O",), (1,)),
    "ep_split": HeldOut("ep", 2, ("layers.0.mlp.experts.[23]*#0.I",), (1,)),
    "ep_capacity": HeldOut("ep", 2, ("layers.0.mlp.experts.0*#0.I",), (0,)),
    "ep_swapped": HeldOut("ep", 4, ("layers.1.mlp.experts.1.*.P",), (1,)),
    "ep_router_unreduced": HeldOut("ep", 2, ("layers.*.mlp.router.weight#0.GF",), ALL),
    "ep_expert_mean": HeldOut("ep", 2, ("layers.*.mlp.experts.[01].*.GF",), (0,)),
    # A Llama of Hugging Face, with DTensor's plans and with FSDP2.
    "llama_tp_partial": HeldOut(
        "llama_tp",
        2,
        ("model.layers.0.self_attn.o_proj#0.O", "model.layers.0.self_attn#0.O", "model.layers.0.post*norm#0.I"),
        ALL,
    ),
    "llama_tp_rotary": HeldOut("llama_tp", 2, ("model.rotary_emb#0.O",), (1,)),
    "llama_tp_positions": HeldOut("llama_tp", 2, ("(root)#0.I", "model#0.I", "model.rotary_emb#0.I"), (1,)),
    "llama_tp_scaling": HeldOut("llama_tp", 2, ("model.layers.1.self_attn.o_proj#0.I",), (1,)),
    "llama_tp_epsilon": HeldOut("llama_tp", 2, ("model.layers.1.input_layernorm#0.O",), (1,)),
    "llama_fsdp_divide": HeldOut("llama_fsdp", 2, ("model.layers.1.*.GF",), ALL),
    "llama_fsdp_ignored": HeldOut("llama_fsdp", 2, ("model.norm.weight#0.GF",), ALL),
    "llama_fsdp_unsynced": HeldOut("llama_fsdp", 2, ("model.layers.0.*.GF",), ALL),
    "llama_fsdp_epsilon": HeldOut("llama_fsdp", 2, ("model.layers.1.input_layernorm#0.O",), (1,)),
}


def record_single(kind: str, file: str) -> None:
    """Record the reference of a kind of parallelism."""
    p = Parallel(kind)
    model = make(p)
    record_reference(model, functools.partial(step, model, p), file)


def record_run(rank: int, world: int, *, kind: str, files: str, fault: str = "") -> None:
    """Record one rank of a run, with a fault or without, to the file that a pattern with `{rank}` gives."""
    p = Parallel(kind, fault, rank, world)
    model = make(p)
    options: dict[str, Any] = dict.fromkeys(("submodules", "gradients", "parameters", "collectives"), True)
    with steal_forward(model, dump_file=files, **options):
        step(model, p)
