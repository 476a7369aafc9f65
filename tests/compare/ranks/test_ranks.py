"""Faults of parallel code are named with module and rank, and runs without a fault differ nowhere."""

import copy
import functools
from collections import OrderedDict

import pytest
import torch
from torch import nn

from faults.parallel import BY_HAND, FIRST, record, record_clean, record_faulty, reference_of
from filch.compare import diff, record_reference
from filch.compare.ranks._inference import infer, wrong_ranks
from filch.steal import Layouts, assemble, steal_forward
from filch.steal.ranks._distributed import Distributed, Piece, RankPart
from support.models.parallel import KINDS, run_jobs
from support.thorough import slow

CLEAN = [
    *((kind, 2) for kind in BY_HAND),
    *((kind, 4) for kind in ("megatron", "outer", "1f1b", "expert_stacked", "context")),
]
LEARNED = {"outer_no_reduce": ("layers.0.mlp.O",), "fsdp_loss_scale": (".GO", "head.GO")}  # the same tensor
FAULTS = (
    "no_reduce", "no_reduce_embedding", "average_for_sum", "two_reduces_backward", "swapped_shards",
    "stale_replica_first", "own_seeds", "outer_no_reduce", "outer_no_reduce_backward", "same_data", "no_sync",
    "loss_scale_of_one", "clipped_first", "target_order", "microbatch_loss", "split_order", "wrong_gate",
    "expert_gradient", "wrong_zigzag", "no_mask", "key_gradients", "wrong_group", "hsdp_stale_replica",
    "stage_not_averaged",
)  # fmt: skip


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
    clean, names = {*CLEAN, ("fsdp", 2)}, {*FAULTS, "sequential", "fsdp_loss_scale", *ALONE}
    for world in (2, 4):
        jobs = [functools.partial(record_clean, kind, path) for kind, size in sorted(clean) if size == world]
        jobs += [functools.partial(record_faulty, name, path) for name in sorted(names) if FIRST[name].world == world]
        run_jobs(world, jobs, path)
    return path


def _diff(folder, kind, run, *, model=None, **layouts):
    reference = f"{folder}/{'single' if kind in KINDS else kind}.onnx"
    return diff(reference, assemble(f"{folder}/{run}.[0-9].onnx", layouts=Layouts(**layouts)), model=model)


@slow
@pytest.mark.parametrize(("kind", "world"), CLEAN)
def test_a_run_without_a_fault_equals_one_process(folder, kind, world):
    """All values are judged, and none differs, with inferred layouts and with those learned from the run itself."""
    result = _diff(folder, kind, f"{kind}.{world}")
    again = _diff(folder, kind, f"{kind}.{world}", learned=result.learned)
    assert (result.diverged, again.diverged) == ((), ())
    assert all(row.judged for row in (*result.rows, *again.rows))


@slow
@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_named_with_value_and_ranks(folder, name):
    """The first value that differs is the faulty one, and the ranks are those that have it wrong."""
    fault = FIRST[name]
    first = _diff(folder, fault.parallelism, f"fault_{name}").first_divergence
    assert first is not None
    assert fault.is_at(first), first
    assert fault.has_ranks(first), first


@slow
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
    assert [row.key.label for row in result.introduced] == introduced
    assert fault.is_at(first) or first.key.label in introduced
    assert reason in "".join(text for text in result.reasons if "was not judged alone" in text)


@slow
@pytest.mark.parametrize("name", LEARNED)
def test_learned_layouts_name_what_values_alone_leave_open(folder, name):
    """A partial value that was none before, and a loss that is scaled as another convention would, are named."""
    kind = FIRST[name].parallelism
    learned = _diff(folder, kind, f"{kind}.2").learned
    first = _diff(folder, kind, f"fault_{name}", learned=learned).first_divergence
    assert first is not None
    assert f"{first.key.name}.{first.key.kind}" in LEARNED[name]


@slow
def test_a_declared_layout_is_compared(folder):
    """A run in zigzag order equals one process; tokens in another order are named on both ranks."""
    declared = {"mesh": {"cp": 2}, "dims": {"**": "b s[cp:zigzag] d", "positions": "s[cp:zigzag] d"}}
    clean = _diff(folder, "context", "context.2", **declared)
    assert not clean.diverged
    assert sum("(declared)" in row.layout for row in clean.rows) > len(clean.rows) / 2
    first = _diff(folder, "context", "fault_sequential", **declared).first_divergence
    assert first is not None
    assert (first.key.name, first.key.kind, first.ranks) == ("", "I", (0, 1))


OPTIONS = {"submodules": True, "gradients": True, "parameters": True}


@pytest.mark.parametrize(
    ("factors", "max_norm", "first", "scaled"),
    [
        ({}, 0.1, None, False),
        ({"2.weight": 2}, 0.1, "2.weight#0.GF", True),  # changes the norm, and by it all others
        ({"2.weight": 2}, 1e6, "2.weight#0.GF", False),
        (dict.fromkeys(("0.weight", "0.bias", "2.weight", "2.bias"), 2), 1e6, "0.weight#0.GF", True),
    ],
    ids=["right", "one summed and clipped", "one summed", "all summed"],
)
def test_a_gradient_is_named_before_those_that_clipping_has_scaled(tmp_path, factors, max_norm, first, scaled):
    """The factor that most gradients have in common is reported."""
    torch.manual_seed(0)
    model, x = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3)), torch.randn(6, 4)
    gradients = torch.autograd.grad(model(x).square().mean(), [*model.parameters()])  # as averaged over the ranks
    for name, rows in {"reference": x, "run.0": x[:3], "run.1": x[3:]}.items():
        model.zero_grad()
        with steal_forward(model, dump_file=tmp_path / f"{name}.onnx", **OPTIONS):
            model(rows).square().mean().backward()
            for (path, parameter), gradient in zip(model.named_parameters(), gradients, strict=True):
                parameter.grad = gradient * (1 if name == "reference" else factors.get(path, 1))
            nn.utils.clip_grad_norm_(model.parameters(), max_norm)

    result = diff(tmp_path / "reference.onnx", f"{tmp_path}/run.*.onnx")
    assert (result.first_divergence and result.first_divergence.key.label) == first
    assert any("times those of one process" in reason for reason in result.reasons) == scaled


@pytest.mark.parametrize("reduced", [True, False])
def test_tied_parameters_of_two_stages_are_compared(tmp_path, reduced):
    """Each stage has another name of the parameter, whose gradient must be the sum of both."""
    torch.manual_seed(0)
    ids, whole = torch.tensor([0, 3, 1]), nn.Sequential(nn.Embedding(5, 4), nn.Linear(4, 5, bias=False))
    stages = [nn.Sequential(OrderedDict({str(index): copy.deepcopy(layer)})) for index, layer in enumerate(whole)]
    whole[1].weight = whole[0].weight
    stages[1][0].weight.data = stages[0][0].weight.data.clone()
    record_reference(whole, lambda: whole(ids).square().mean().backward(), tmp_path / "reference.onnx")
    with (
        steal_forward(stages[0], dump_file=tmp_path / "run.0.onnx", **OPTIONS),
        steal_forward(stages[1], dump_file=tmp_path / "run.1.onnx", **OPTIONS),
    ):
        sent = stages[0](ids)
        received = sent.detach().requires_grad_()
        stages[1](received).square().mean().backward()
        sent.backward(received.grad)
        own, other = (next(stage.parameters()) for stage in stages)
        own.grad += other.grad
        if reduced:
            other.grad = own.grad.clone()

    result = diff(tmp_path / "reference.onnx", f"{tmp_path}/run.*.onnx")
    assert all(row.judged and row.ratio is not None for row in result.rows if row.key.kind != "P")
    first = result.first_divergence
    assert (first and (first.key.label, first.ranks)) == (None if reduced else ("1.weight#0.GF", (1,)))


REFERENCE = torch.arange(24.0).view(6, 4)


def _distributed(*tensors):
    whole = ((rank, tensor, (Piece(rank, tensor, lambda value: value),)) for rank, tensor in enumerate(tensors))
    return Distributed([RankPart((rank,), tensor, pieces) for rank, tensor, pieces in whole])


@pytest.mark.parametrize(
    ("tensors", "layout"),
    [
        ((REFERENCE, REFERENCE), "2: R"),
        (REFERENCE.chunk(2), "2: S(0)"),
        (REFERENCE.split([5, 1]), "2: S(0)"),
        (REFERENCE.split([6, 0]), "2: S(0)"),
        ((REFERENCE[:, [0, 3]], REFERENCE[:, [1, 2]]), "2: Z(1)"),
        ((REFERENCE / 4, REFERENCE * 0.75), "2: P(sum)"),
    ],
)
def test_the_layout_that_fits_is_found(tensors, layout):
    """Replicas, shards of equal or other sizes, in zigzag order, and partial values are told from each other."""
    found = infer(_distributed(*tensors), REFERENCE, tolerance=None)
    assert found is not None
    assert (found.layout, found.difference.close) == (layout, True)


def test_equal_parts_may_be_shards():
    """Two equal halves of a mask are shards of it, not replicas."""
    mask = torch.ones(4, 8)
    found = infer(_distributed(mask, mask.clone()), torch.ones(8, 8), tolerance=None)
    assert found is not None
    assert (found.layout, found.difference.close) == ("2: S(0)", True)


@pytest.mark.parametrize("wrong", [0, 1])
@pytest.mark.parametrize("split", [lambda tensor: [tensor, tensor], lambda tensor: tensor.split([4, 2])])
def test_the_rank_that_differs_from_the_reference_is_named(split, wrong):
    """It is named among two replicas or shards, whichever of them it is."""
    parts = [part.clone() for part in split(REFERENCE)]
    parts[wrong][0] += 1
    found = infer(_distributed(*parts), REFERENCE, tolerance=None)
    assert found is not None
    assert wrong_ranks(found.item, REFERENCE, None) == (wrong,)


def test_parts_that_cannot_give_the_shape_have_no_layout():
    """Rows that are missing on a rank are not made up for."""
    assert infer(_distributed(*REFERENCE[:5].split([3, 2])), REFERENCE, tolerance=None) is None


class WithLoss(nn.Module):
    """A classifier that returns the mean loss of its batch beside its scores."""

    def __init__(self):
        super().__init__()
        self.scores = nn.Linear(4, 3)

    def forward(self, x, targets):
        scores = self.scores(x)
        return {"loss": nn.functional.cross_entropy(scores, targets), "scores": scores}


@pytest.fixture(params=[1.0, 3.0], ids=["right", "scaled"])
def run(tmp_path, request):
    """Dumps of the whole batch, and of two ranks with half of it, whose loss may have a wrong scale."""
    torch.manual_seed(0)
    model, x, targets = WithLoss(), torch.randn(6, 4, requires_grad=True), torch.tensor([0, 1, 2, 2, 1, 0])
    parts = {"reference": slice(0, 6), "run.0": slice(0, 3), "run.1": slice(3, 6)}
    for name, rows in parts.items():
        with steal_forward(model, submodules=True, gradients=True, dump_file=tmp_path / f"{name}.onnx"):
            loss = model(x[rows], targets[rows])["loss"]
            (loss if name == "reference" else loss * request.param).backward()
    return tmp_path, request.param


def test_the_gradient_of_a_mean_loss_is_not_divided(run):
    """It is 1 on each rank, as in one process; the other gradients are twice as large on two ranks."""
    folder, scale = run
    result = diff(folder / "reference.onnx", f"{folder}/run.*.onnx")
    rows = {row.key.label + row.path: row for row in result.rows}

    assert result.close == (scale == 1)
    assert all(row.judged for row in result.rows)
    assert not rows["scores#0.O"].diverged
    assert rows["(root)#0.GO['loss']"].diverged == (scale != 1)
    learned = assemble(f"{folder}/run.*.onnx", layouts=Layouts(learned=result.learned))
    assert diff(folder / "reference.onnx", learned).close == (scale == 1)


def _trained(path, *, rate=0.1, again=False):
    """Record three steps of training, of which the second one has another rate or is made once more."""
    torch.manual_seed(0)
    model = nn.Linear(4, 4)
    with steal_forward(("m", model), parameters=True, gradients=True, dump_file=path):
        for step in (0, 1, 1, 2) if again else range(3):
            optimizer = torch.optim.SGD(model.parameters(), rate if step == 1 else 0.1)
            optimizer.zero_grad()
            model(torch.ones(2, 4) * (step + 1)).square().mean().backward()
            optimizer.step()


@pytest.mark.parametrize(("rate", "first"), [(0.1, None), (0.2, ("m.weight", 2, "P"))])
def test_each_step_of_training_is_compared(tmp_path, rate, first):
    """Parameters and the gradients that an optimizer uses, step by step."""
    for name, used in (("reference", 0.1), ("run.0", rate), ("run.1", rate)):
        _trained(tmp_path / f"{name}.onnx", rate=used)

    result = diff(tmp_path / "reference.onnx", f"{tmp_path}/run.*.onnx")

    assert all(row.judged for row in result.rows)
    assert (result.first_divergence and result.first_divergence.key) == first


def test_which_records_are_compared_is_said_if_the_ranks_have_more_of_them(tmp_path):
    """Parameters are recorded whenever they change: it is not known which records are of one step."""
    _trained(tmp_path / "reference.onnx")
    for rank in range(2):
        _trained(tmp_path / f"run.{rank}.onnx", again=True)

    rows = {row.key: row for row in diff(tmp_path / "reference.onnx", f"{tmp_path}/run.*.onnx").rows}

    reason = "the ranks have 5 of them: only the first and the last are compared"
    assert [rows["m.weight", index, "P"].reason == reason for index in range(4)] == [False, True, True, False]
    assert not rows["m.weight", 1, "P"].judged
