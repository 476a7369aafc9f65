"""The dumps of several processes are put together as DTensor does it; layouts of unknown origin use bounded memory."""

import functools
import itertools
import json
import re
from itertools import product

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.utils._pytree import tree_leaves

from filch.compare import diff
from filch.steal import (
    DumpError,
    FilchError,
    Layouts,
    LocalShard,
    Mesh,
    Placement,
    Sharding,
    Skipped,
    assemble,
    load_layouts,
    restore,
    save_layouts,
    steal_append,
    steal_forward,
    tensors,
)
from filch.steal._key import Key
from filch.steal.ranks._distributed import Distributed, RankPart
from filch.steal.ranks._join import join
from filch.steal.ranks._layouts import _expression
from filch.steal.ranks._module_names import unwrapped
from filch.steal.ranks._part_layout import layout_of
from filch.steal.ranks._write import write_assembled
from support.thorough import slow
from tests.support.models import parallel

_SHAPES = [(8, 6), (7, 5), (3, 4), (1, 4), (13, 3)]  # most of them are not divisible by the number of ranks


def _named_cases():
    """Yield name, DTensor and the tensor that was distributed, or None; in each process."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
    from torch.distributed.tensor.parallel import ColwiseParallel, parallelize_module

    grid = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    line = init_device_mesh("cpu", (4,))
    choices = [Replicate(), Shard(0), Shard(1)]
    layouts = [(grid, placements) for placements in itertools.product(choices, repeat=2)]
    layouts += [(line, (placement,)) for placement in choices]
    for shape, (mesh, placements) in itertools.product(_SHAPES, layouts):
        whole = torch.randn(shape, generator=torch.Generator().manual_seed(1))
        yield f"{shape} {placements}", distribute_tensor(whole, mesh, placements), whole
    for size, width in [(8, 8), (12, 8), (10, 6), (6, 4), (14, 5)]:  # FSDP of tensor parallel layers: strided shards
        torch.manual_seed(0)
        layer = nn.Linear(width, size)
        wholes = {name: parameter.detach().clone() for name, parameter in layer.named_parameters()}
        fully_shard(parallelize_module(layer, grid["tp"], ColwiseParallel()), mesh=grid["dp"])
        for name, parameter in layer.named_parameters():
            yield f"linear {size} {width} {name}", parameter.detach(), wholes[name]
    for operation in ("sum", "avg", "max", "min", "product"):
        torch.manual_seed(dist.get_rank())
        yield f"partial {operation}", DTensor.from_local(torch.randn(3, 2), line, [Partial(operation)]), None


def _capture_cases(folder, rank, _):
    with steal_forward(nn.Identity(), dump_file=f"{folder}/cases.{{rank}}.onnx", strict=True):
        cases = list(_named_cases())
        for name, distributed, _ in cases:
            steal_append(name, distributed)
    wholes = {name: distributed.full_tensor() for name, distributed, _ in cases}  # a collective: on all ranks
    if rank == 0:
        originals = {name: whole for name, _, whole in cases if whole is not None}
        torch.save({"full": wholes, "original": originals}, f"{folder}/cases.pt")


def _capture_kind(kind, folder, rank, world):
    """Capture a training step twice after one without capture; note whether all have the same bits."""
    batch = parallel.batch_of(kind, rank, world)
    plain = parallel.KINDS[kind](parallel.make_model())
    loss = parallel.step(plain, batch)
    options = {"submodules": True, "gradients": True, "parameters": True, "strict": True}
    same = True
    for name, collectives in ((kind, True), (f"direct.{kind}", False)):
        model = parallel.KINDS[kind](parallel.make_model())
        file = f"{folder}/{name}.{{rank}}.onnx"
        with steal_forward(model, dump_file=file, collectives=collectives, **options):
            same &= torch.equal(loss, parallel.step(model, batch))
        pairs = zip(plain.parameters(), model.parameters(), strict=True)
        same &= all(torch.equal(_local(a.grad), _local(b.grad)) for a, b in pairs)
    (folder / f"{kind}.{rank}.json").write_text(json.dumps(same))


def _local(tensor):
    return getattr(tensor, "_local_tensor", tensor)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """The folder with the dumps of four processes, and of one."""
    folder = tmp_path_factory.mktemp("ranks")
    model = parallel.make_model()
    with steal_forward(model, submodules=True, dump_file=folder / "single.onnx", gradients=True, parameters=True):
        parallel.step(model, parallel.make_batch())
    kinds = [kind for kind in parallel.KINDS if kind != "single"]
    jobs = [
        functools.partial(_capture_cases, folder),
        *(functools.partial(_capture_kind, kind, folder) for kind in kinds),
    ]
    parallel.run_jobs(4, jobs, str(folder))
    return folder


@pytest.mark.parametrize("root", ["", "m"])
def test_names_are_those_without_wrappers(root):
    """Of the wrapped module, of those in it, and of the ATen calls of each."""
    inner = f"{root}.module" if root else "module"
    names = [unwrapped(f"{inner}{rest}", {root: inner}) for rest in ("", ".fc", "/0.aten.add", ".fc/0.aten.add")]
    assert names == [
        root,
        f"{root}.fc".removeprefix("."),
        f"{root}/0.aten.add",
        f"{root}.fc/0.aten.add".removeprefix("."),
    ]


@slow
def test_assembled_tensors_equal_full_tensor(run):
    """Even, uneven, empty and strided shards, replicas and partial values on meshes of one and two dimensions."""
    assembled, saved = assemble(f"{run}/cases.*.onnx"), torch.load(f"{run}/cases.pt")

    assert len(saved["full"]) == 75
    for name, whole in saved["full"].items():
        value = assembled[name, 0, "V"]
        assert type(value) is torch.Tensor
        if name.startswith(("partial sum", "partial avg", "partial product")):  # the order of the reduction is free
            torch.testing.assert_close(value, whole, atol=1e-6, rtol=0)
        else:
            assert torch.equal(value, whole), name
    for name, whole in saved["original"].items():
        assert torch.equal(assembled[name, 0, "V"], whole), name


@slow
@pytest.mark.parametrize("kind", [kind for kind in parallel.KINDS if kind != "single"])
def test_a_parallel_run_is_compared_with_one_process(run, kind):
    """All values are judged, none differs, and the training step has the bits that it has without capture."""
    result = diff(run / "single.onnx", f"{run}/{kind}.*.onnx")

    assert result.close
    assert all(row.judged for row in result.rows)
    assert {row.key.kind for row in result.rows} == {"P", "I", "O", "GI", "GO", "GF"}
    assert all(json.loads((run / f"{kind}.{rank}.json").read_text()) for rank in range(4))


@slow
@pytest.mark.parametrize("kind", ["tensor", "sequence", "fsdp_tensor"])
def test_small_values_are_recorded_alike_with_and_without_an_active_mode(run, kind):
    """Without a mode, such as the one that records collectives, small tensors and DTensors are not encoded."""
    encoded, direct = restore(run / f"{kind}.1.onnx"), restore(run / f"direct.{kind}.1.onnx")

    assert [key for key in encoded if key.kind != "C"] == list(direct)
    for key in direct:
        for one, other in zip(tree_leaves(encoded[key]), tree_leaves(direct[key]), strict=True):
            assert type(one) is type(other)
            if isinstance(one, torch.Tensor):
                assert torch.equal(one, other)
                assert one.requires_grad == other.requires_grad
                assert getattr(one, "sharding", None) == getattr(other, "sharding", None)


def test_a_plain_tensor_has_the_layout_of_the_conversion(run):
    """The output of a layer in tensor parallelism is plain: only `to_local` knows how it belongs to a global tensor."""
    dump = restore(run / "sequence.1.onnx")

    output = dump["layers.0.norm1", 0, "O"]
    plain = dump["layers.0.attn.o", 0, "O"]

    assert isinstance(output, LocalShard)
    assert str(output.sharding) == "S(1) on tp=4"
    assert output.sharding.shape == (8, 8, 16)
    assert type(output + 1) is torch.Tensor
    assert isinstance(plain, LocalShard)
    assert plain.sharding.source == "to_local"


def test_collectives_are_recorded_with_module_and_ranks(run):
    """A layer that is sharded by rows reduces its output; the backward pass has collectives of its own."""
    dump = restore(run / "tensor.0.onnx")
    collectives = {key: dump[key] for key in dump if key.kind == "C"}

    assert collectives["layers.0.mlp.down", 0, "C"] == {
        "collective": "all_reduce", "ranks": [0, 1, 2, 3], "tensors": "f32[8, 8, 16]", "backward": False,
    }  # fmt: skip
    assert any(value["backward"] for value in collectives.values())


def test_an_assembled_dump_is_equal_to_one_process(run, tmp_path):
    """With the layouts of a compared run, the values of data parallelism are one dump that any runtime reads."""
    learned = diff(run / "single.onnx", f"{run}/ddp.*.onnx").learned
    save_layouts(Layouts(learned=learned), tmp_path / "layouts.toml")
    records = assemble(f"{run}/ddp.*.onnx", layouts=load_layouts(tmp_path / "layouts.toml"))

    write_assembled(records, tmp_path / "whole.onnx")

    result = diff(run / "single.onnx", tmp_path / "whole.onnx")
    assert result.close
    assert {row.key.kind for row in result.rows if not row.judged} == {"GP", "C"}


def test_a_tensor_of_unknown_layout_is_skipped(run):
    """The batch of data parallelism differs between ranks, and nothing records how; equal tensors are replicas."""
    records = assemble(f"{run}/ddp.*.onnx")

    assert isinstance(records["embed", 0, "O"], Skipped)
    assert torch.equal(records["embed.weight", 0, "P"], restore(run / "single.onnx")["embed.weight", 0, "P"])


def test_a_declared_layout_puts_plain_tensors_together(run):
    """Names of dimensions with the mesh dimension over which they are sharded."""
    layouts = Layouts(mesh={"dp": 4}, dims={"**": "b[dp] s d", "**.*.P": ""})

    value = assemble(f"{run}/ddp.*.onnx", layouts=layouts)["embed", 0, "O"]

    assert torch.equal(value, restore(run / "single.onnx")["embed", 0, "O"])


def test_missing_ranks_and_odd_replicas_are_named(run):
    """A rank without a dump, and one whose replica has other bits."""
    three = assemble([f"{run}/sequence.{rank}.onnx" for rank in (0, 1, 3)])
    [item] = three.distributed(("layers.0.norm1", 0, "O")).values()
    assert item.problems == ["rank 2 has no such value"]

    result = diff(run / "single.onnx", three)
    assert not result.close
    assert result.first_divergence.ranks == (2,)


@pytest.mark.parametrize(
    ("layouts", "message"),
    [
        ({"dims": {"a": "b[dp]"}}, "the mesh has no dimension 'dp'"),
        ({"mesh": {"dp": 2}, "dims": {"a": "b[dp:ring]"}}, "'ring' is not 'partial' or 'zigzag'"),
        ({"dims": {"a": "b[dp"}}, "does not name dimensions"),
    ],
)
def test_layouts_that_are_not_valid_are_refused(layouts, message):
    """With what is wrong in one sentence."""
    with pytest.raises(FilchError, match=message.replace("[", r"\[")):
        Layouts(**layouts)


def test_a_layout_file_that_is_not_valid_is_refused(tmp_path):
    """Not TOML, an unknown table, a size that is no number."""
    for text in ("mesh = ", "[sizes]\ntp = 2", "[mesh]\ntp = '2'", "[mesh]\ntp = 0"):
        (tmp_path / "layouts.toml").write_text(text)
        with pytest.raises(FilchError, match=r"layouts\.toml"):
            load_layouts(tmp_path / "layouts.toml")


def test_two_dumps_of_one_rank_are_refused(run):
    """They cannot be of one run."""
    with pytest.raises(DumpError, match="are both of rank 1"):
        assemble([run / "ddp.1.onnx", run / "tensor.1.onnx"])


def test_a_dump_of_one_rank_is_read_without_a_process_group(run):
    """Its values are the parts that the rank had."""
    values = tensors(restore(run / "fsdp.3.onnx")["layers.0.mlp.up.weight", 0, "P"])
    [part] = values.values()
    assert part.shape == (16, 16)


_LINE = Mesh((2,), (0, 1))
_LAYOUT = Sharding(_LINE, (Placement("shard"),), (4, 3)).to_json()


def test_a_layout_is_read_as_it_was_written():
    """Through JSON, which has lists for tuples."""
    layout = Sharding(
        Mesh((2, 2), (3, 1, 2, 0), ("dp", "tp")), tuple(map(Placement.parse, ("S(0, 2)", "P(avg)"))), (8, 3)
    )
    assert Sharding.from_json(layout.to_json()) == layout
    assert str(layout) == "S(0, 2), P(avg) on dp=2, tp=2"


@pytest.mark.parametrize(
    "change",
    [
        {"shape": [2**40, 3]}, {"shape": [-1, 3]}, {"shape": "4"}, {"placements": ["S(2)"]},
        {"placements": ["S(0)", "R"]}, {"placements": ["X(0)"]}, {"placements": ["S(0, 9999999)"]}, {"mesh": [3]},
        {"mesh": [0], "ranks": []}, {"ranks": [0, 0]}, {"names": ["dp", "tp"]}, {"source": 1},
    ],
)  # fmt: skip
def test_a_damaged_layout_is_refused(change):
    """Sizes, placements and ranks that do not fit each other."""
    with pytest.raises(ValueError, match="is not"):
        Sharding.from_json(_LAYOUT | change)


def test_a_global_tensor_that_is_hardly_stored_is_refused():
    """Two shards of 4 bytes are no tensor of 16 GiB."""
    layout = Sharding(_LINE, (Placement("shard"),), (2**16, 2**16))
    with pytest.raises(DumpError, match="asks for a tensor of 17179869184 bytes"):
        join({0: torch.ones(1), 1: torch.ones(1)}, layout)


HOSTILE = {
    "dots": ("a." * 50_000 + "b = 1", "its dotted keys take more than 20,000,000 steps to read"),
    "dots below a header": (f"[{'a.' * 999}a]\n" + "b.c.d = 1\n" * 9000, "its dotted keys take more than"),
    "a long integer": ("[mesh]\ntp = 0x" + "f" * 500_000, "an integer in it has more than 64 bits"),
    "a longer integer": ("[mesh]\ntp = " + "9" * 5000, "is not a TOML file: a number in it has too many digits"),
    "many lists": ("a = [" + "[]," * 3_000_000 + "]", "it would take about .* MB of memory"),
    "many tables": ("".join(f"[a{index}.b]\n" for index in range(700_000)), "it would take about .* MB of memory"),
    "deep lists": ("a = " + "[" * 200_000, "is nested too deeply"),
    "nested": ("a = " + "[" * 50 + "]" * 50, "it is nested more than 2 deep"),
    "many patterns": ("[dims]\n" + "".join(f'{index} = "d"\n' for index in range(10_001)), "has 10,001 patterns"),
    "no string": ("[dims]\n" + '"a" = "' + "x " * 9 + 'b["', "does not name dimensions as"),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_a_hostile_file_of_layouts_is_refused(tmp_path, case):
    """In one short sentence, before it takes much time or memory."""
    text, message = HOSTILE[case]
    (tmp_path / "a.toml").write_text(text)
    with pytest.raises(FilchError, match=message) as caught:
        load_layouts(tmp_path / "a.toml")
    assert len(str(caught.value)) < 500


def test_dots_and_brackets_in_text_are_not_counted(tmp_path):
    """Only keys and values have a meaning: names of layers have dots, comments may have anything."""
    text = "[dims]\n# " + "a." * 9_000 + '\n"' + "a." * 9_000 + 'b" = "d"  # [[[\n'
    (tmp_path / "a.toml").write_text(text)
    assert load_layouts(tmp_path / "a.toml").dims == {"a." * 9_000 + "b": "d"}


def test_patterns_match_what_they_say():
    """As the regular expression does that tries all ways."""
    patterns, texts = (
        ["".join(word) for size in range(6) for word in product(of, repeat=size)] for of in ("a*.", "a.")
    )
    for pattern in patterns:
        tried = re.compile(".*".join(re.escape(part).replace(r"\*", "[^.]*") for part in pattern.split("**")))
        fits = [[bool(expression.fullmatch(text)) for text in texts] for expression in (_expression(pattern), tried)]
        assert fits[0] == fits[1], pattern


@pytest.mark.parametrize("pattern", ["*a" * 14 + "*b", "**a" * 14 + "**b", "**a*" * 14 + "b", "*a**" * 14 + "b"])
def test_no_pattern_takes_long(pattern):
    """With many stars, on a text that nearly matches."""
    assert _expression(pattern).fullmatch("a" * 300) is None


def test_a_dimension_over_which_two_dimensions_of_the_mesh_go_is_whole():
    """Each of them splits what the one before it has left."""
    whole, both = torch.arange(24.0).reshape(8, 3), (Placement("shard", dim=0),) * 2
    sharding = Sharding(Mesh((2, 2), (0, 1, 2, 3)), both, (8, 3), "")
    parts = [sharding.part_of(whole, rank) for rank in range(4)]

    found = layout_of(parts, both, (2, 2))

    assert found.shape == (8, 3)
    assert all(torch.equal(found.part_of(whole, rank), part) for rank, part in enumerate(parts))


def test_a_name_of_the_mesh_may_be_the_end_of_another_one():
    """A value that was put together along `dp` is still to be put together along `p`."""
    parts = [RankPart((rank,), torch.full((2,), float(rank)), ()) for rank in range(2)]
    layouts = Layouts(mesh={"dp": 2, "p": 2}, dims={"**": "n[p]"})

    (whole,) = layouts.join_declared(Key("m", 0, "O"), Distributed(parts, "R (DTensor on dp=2)")).parts

    assert whole.tensor.tolist() == [0, 0, 1, 1]
