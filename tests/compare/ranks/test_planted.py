"""Faults of parallel code are named with module and rank, and runs without a fault differ nowhere."""

import functools

import pytest

from faults.parallel import BY_HAND, FIRST, record, record_clean, record_faulty, reference_of
from filch.compare import diff
from filch.steal import Layouts, assemble
from support.models.parallel import KINDS, run_jobs

CLEAN = [
    *((kind, 2) for kind in BY_HAND),
    *((kind, 4) for kind in ("megatron", "outer", "1f1b", "expert_stacked", "context")),
]
LEARNED = {"outer_no_reduce": ("layers.0.mlp.O",), "fsdp_loss_scale": (".GO", "head.GO")}  # the same tensor
PLANTED = (
    "no_reduce",
    "no_reduce_embedding",
    "average_for_sum",
    "two_reduces_backward",
    "swapped_shards",
    "stale_replica_first",
    "own_seeds",
    "outer_no_reduce",
    "outer_no_reduce_backward",
    "same_data",
    "no_sync",
    "loss_scale_of_one",
    "clipped_first",
    "target_order",
    "microbatch_loss",
    "split_order",
    "wrong_gate",
    "expert_gradient",
    "wrong_zigzag",
    "no_mask",
    "key_gradients",
    "wrong_group",
    "hsdp_stale_replica",
    "stage_not_averaged",
)


ALONE = {  # the modules that are wrong by themselves on what all ranks have, and why others can't be run
    "wrong_gate": (["layers.0.mlp#0.O"], ""),
    "no_mask": (["layers.1.attn#0.O"], ""),
    "own_seeds": ([], "the replica of rank 1 differs from that of rank 0"),
    "stale_stage": ([], "the ranks call it on parts of the inputs of one process"),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Record all runs, each number of processes in one process group, and return their folder."""
    path = str(tmp_path_factory.mktemp("runs"))
    for kind in ("single", *BY_HAND):
        record(reference_of(kind), f"{path}/{kind}.onnx")
    clean, names = {*CLEAN, ("fsdp", 2)}, {*PLANTED, "sequential", "fsdp_loss_scale", *ALONE}
    for world in (2, 4):
        jobs = [functools.partial(record_clean, kind, path) for kind, size in sorted(clean) if size == world]
        jobs += [functools.partial(record_faulty, name, path) for name in sorted(names) if FIRST[name].world == world]
        run_jobs(world, jobs, path)
    return path


def _diff(folder, kind, run, *, model=None, **layouts):
    reference = f"{folder}/{'single' if kind in KINDS else kind}.onnx"
    return diff(reference, assemble(f"{folder}/{run}.[0-9].onnx", layouts=Layouts(**layouts)), model=model)


@pytest.mark.parametrize(("kind", "world"), CLEAN)
def test_a_run_without_a_fault_equals_one_process(folder, kind, world):
    """All values are judged, and none differs, with inferred layouts and with those learned from the run itself."""
    result = _diff(folder, kind, f"{kind}.{world}")
    again = _diff(folder, kind, f"{kind}.{world}", learned=result.learned)
    assert (result.diverged, again.diverged) == ((), ())
    assert all(row.judged for row in (*result.rows, *again.rows))


@pytest.mark.parametrize("name", PLANTED)
def test_a_fault_is_named_with_value_and_ranks(folder, name):
    """The first value that differs is the faulty one, and the ranks are those that have it wrong."""
    fault = FIRST[name]
    first = _diff(folder, fault.parallelism, f"fault_{name}").first_divergence
    assert first is not None
    assert fault.is_at(first), first
    assert fault.has_ranks(first), first


@pytest.mark.parametrize("name", ALONE)
def test_modules_run_alone_on_what_the_ranks_have_together(folder, name):
    """A module that gets replicas that differ, or a part of the inputs, is not blamed, and the result says why."""
    fault = FIRST[name]
    model = reference_of("single" if fault.parallelism in KINDS else fault.parallelism).captured
    clean = _diff(folder, fault.parallelism, f"{fault.parallelism}.{fault.world}", model=model)
    assert clean.close and clean.reasons == ()

    result = _diff(folder, fault.parallelism, f"fault_{name}", model=model, learned=clean.learned)

    introduced, reason = ALONE[name]
    first = result.first_divergence
    assert [row.key.label for row in result.diverged if row.introduced] == introduced
    assert fault.is_at(first) or first.key.label in introduced
    assert reason in "".join(text for text in result.reasons if "was not judged alone" in text)


@pytest.mark.parametrize("name", LEARNED)
def test_learned_layouts_name_what_values_alone_leave_open(folder, name):
    """A partial value that was none before, and a loss that is scaled as another convention would, are named."""
    kind = FIRST[name].parallelism
    learned = _diff(folder, kind, f"{kind}.2").learned
    first = _diff(folder, kind, f"fault_{name}", learned=learned).first_divergence
    assert first is not None
    assert f"{first.key.name}.{first.key.kind}" in LEARNED[name]


def test_a_declared_layout_is_compared(folder):
    """A run in zigzag order equals one process; tokens in another order are named on both ranks."""
    declared = {"mesh": {"cp": 2}, "dims": {"**": "b s[cp:zigzag] d", "positions": "s[cp:zigzag] d"}}
    clean = _diff(folder, "context", "context.2", **declared)
    assert not clean.diverged
    assert sum("(declared)" in row.layout for row in clean.rows) > len(clean.rows) / 2
    first = _diff(folder, "context", "fault_sequential", **declared).first_divergence
    assert first is not None
    assert (first.key.name, first.key.kind, first.ranks) == ("", "I", (0, 1))
