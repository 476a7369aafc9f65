"""Every call of a captured module is recorded, and captures and dumps are mappings of these records."""

import functools
import threading

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from filch.steal import Capture, Key, ModuleInfo, Origin, is_stealing, restore, steal_forward
from filch.steal.values._arguments import argument_tensors
from support.models.small import module_of


def test_two_unnamed_modules_are_recorded_separately(steal):
    """Two modules in a list give four records with their own values."""
    first, second, x = nn.Linear(2, 3), nn.Linear(3, 4), torch.ones(1, 2)

    records = steal([first, second], lambda: second(first(x)))

    assert list(records) == [("0", 0, "I"), ("0", 0, "O"), ("1", 0, "I"), ("1", 0, "O")]
    assert torch.equal(records["0", 0, "O"], first(x))
    assert torch.equal(records["1", 0, "O"], second(first(x)))


# Calls itself `left` times; doubles its input before and adds one after each call.
recursive = module_of(lambda self, x, left: self(x * 2, left - 1) + 1 if left else x)


def test_recursive_calls_are_separate_iterations(steal):
    """Each of four recursive calls has its own input and output; the outermost begins first and ends last."""
    records = steal(("r", recursive), lambda: recursive(torch.ones(1), 3))

    assert list(records) == [*(("r", index, "I") for index in range(4)), *(("r", 3 - index, "O") for index in range(4))]
    assert [records["r", index, "I"][0][0].item() for index in range(4)] == [1, 2, 4, 8]
    assert [records["r", index, "O"].item() for index in range(4)] == [11, 10, 9, 8]
    origins = [records.records[Key("r", index, "O")].origin for index in range(4)]
    assert origins == [Origin("", 0, index) for index in range(4)]


def test_one_module_under_two_names_has_two_records_per_call(steal):
    """Both have the same values and origin, at each depth of a recursion."""
    records = steal([("a", recursive), ("b", recursive)], lambda: recursive(torch.ones(1), 1))

    assert [tuple(key) for key in records if key.kind == "I"] == [
        (name, index, "I") for index in (0, 1) for name in "ab"
    ]
    assert len(records) == 8
    for index, answer in ((0, 3.0), (1, 2.0)):
        assert records["a", index, "O"] == records["b", index, "O"] == answer
        assert [records.records[Key(name, index, "O")].origin for name in "ab"] == [Origin("", 0, index)] * 2


@pytest.mark.parametrize("use_reentrant", [True, False])
def test_recomputed_calls_of_a_checkpointed_model_are_not_recorded(steal, use_reentrant):
    """Checkpointing runs modules again in the backward pass; each training step adds one iteration per module."""
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4))

    def run():
        for _ in range(2):
            x = torch.randn(2, 4, requires_grad=True)
            checkpoint(model, x, use_reentrant=use_reentrant).sum().backward()

    records = steal(("m", model), run, submodules=True)

    names = ["m", "m.0", "m.0", "m.1", "m.1", "m.2", "m.2", "m"]
    assert [(key.name, key.iteration) for key in records] == [(name, step) for step in range(2) for name in names]
    assert torch.equal(records["m.0", 1, "O"], records["m.1", 1, "I"][0][0])
    assert not records.failed
    assert {record.origin.call for record in records.records.values()} == {0, 1}
    assert not isinstance(records, Capture) or records.totals.recomputed >= 4


@pytest.mark.parametrize("use_reentrant", [True, False])
def test_recomputed_calls_of_checkpointed_blocks_are_not_recorded(steal, use_reentrant):
    """Each block has one iteration, and the gradient is the same as without a capture."""

    class Blocks(nn.Module):
        def __init__(self):
            super().__init__()
            self.blocks = nn.ModuleList([nn.Linear(4, 4), nn.Linear(4, 4)])

        def forward(self, x):
            return functools.reduce(lambda x, block: checkpoint(block, x, use_reentrant=use_reentrant), self.blocks, x)

    model, x = Blocks(), torch.randn(2, 4, requires_grad=True)

    def run():
        x.grad = None
        model(x).sum().backward()

    run()
    expected = x.grad
    records = steal(("m", model), run, submodules=True)

    assert list(records) == [
        ("m", 0, "I"), ("m.blocks.0", 0, "I"), ("m.blocks.0", 0, "O"), ("m.blocks.1", 0, "I"), ("m.blocks.1", 0, "O"),
        ("m", 0, "O"),
    ]  # fmt: skip
    assert torch.equal(x.grad, expected)


class Tied(nn.Module):
    """Has one module under two names."""

    def __init__(self):
        super().__init__()
        self.a = self.b = nn.Linear(2, 2)

    def forward(self, x):
        return self.b(self.a(x))


def test_a_shared_submodule_can_be_included_by_its_second_name(steal):
    """A pattern may match any path of a module."""
    model, x = Tied(), torch.ones(1, 2)

    records = steal(model, lambda: model(x), include="b")

    assert [key.name for key in records if key.kind == "O"] == ["b", "b", ""]
    assert torch.equal(records["b", 1, "O"], model(x))


def test_a_forward_that_is_a_partial_is_recorded(steal):
    """`forward` may be any callable, also in a submodule."""

    class Partial(nn.Module):
        def __init__(self):
            super().__init__()
            self.forward = functools.partial(self.scaled, scale=2)

        def scaled(self, x, scale):
            return x * scale

    model = nn.Sequential(Partial())

    records = steal(("m", model), lambda: model(torch.ones(1)), submodules=True)

    assert records["m.0", 0, "O"].item() == 2
    assert not is_stealing()


def test_captures_in_two_threads_are_independent(tmp_path):
    """Two blocks with different models are open at the same time."""
    barrier, errors = threading.Barrier(2), []

    def run(index):
        module, path = nn.Identity(), tmp_path / f"{index}.onnx"
        try:
            with steal_forward(("m", module), dump_file=path):
                barrier.wait(timeout=20)
                module(torch.full((1,), float(index)))
                barrier.wait(timeout=20)
        except Exception as error:  # noqa: BLE001  asserted below
            errors.append(error)

    threads = [threading.Thread(target=run, args=(index,)) for index in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert not errors
    for index in range(2):
        dump = restore(tmp_path / f"{index}.onnx")
        assert len(dump) == 2
        assert dump["m", 0, "O"].item() == index


class Signature(nn.Module):
    def forward(self, x, mask=None, *rest, scale=1.0, **options):
        return x


@pytest.fixture(params=["memory", "dump"])
def records(request, tmp_path):
    """Return the records of two calls of a named module, in memory or restored."""
    module, path = nn.Identity(), tmp_path / "dump.onnx"
    with steal_forward(("m", module), dump_file=path if request.param == "dump" else None) as capture:
        module(torch.zeros(2))
        module(torch.ones(2))
    return restore(path) if request.param == "dump" else capture


def test_records_are_a_mapping_in_the_order_of_the_run(records):
    """Keys are equal to plain tuples and print like them."""
    assert list(records) == [("m", 0, "I"), ("m", 0, "O"), ("m", 1, "I"), ("m", 1, "O")]
    assert len(records) == 4
    assert isinstance(next(iter(records)), Key)
    assert [key.label for key in records][:2] == ["m#0.I", "m#0.O"]
    assert Key("", 3, "O").label == "(root)#3.O"
    assert str(Key("a", 3, "O")) == "('a', 3, 'O')"
    assert torch.equal(records[Key("m", 1, "O")], records["m", 1, "O"])
    assert [value.tolist() for key, value in records.items() if key.kind == "O"] == [[0, 0], [1, 1]]


def test_a_missing_key_raises_a_key_error(records):
    """As with any mapping."""
    assert ("m", 2, "O") not in records
    assert "m" not in records
    assert records.get(("m", 2, "O"), "nothing") == "nothing"
    with pytest.raises(KeyError, match=r"\('m', 2, 'O'\)"):
        records["m", 2, "O"]


def test_testing_for_a_key_reads_no_value(records, monkeypatch):
    """The index is sufficient."""
    monkeypatch.setattr(records, "tensor_source", None)

    assert ("m", 0, "O") in records


def test_a_description_has_a_line_for_each_record(records):
    """The key as a tuple, and the description of its value."""
    assert records.describe().splitlines() == [
        "('m', 0, 'I') -- ((f32[2],), {})",
        "('m', 0, 'O') -- f32[2]",
        "('m', 1, 'I') -- ((f32[2],), {})",
        "('m', 1, 'O') -- f32[2]",
    ]


def test_the_repr_of_records_names_their_source(tmp_path):
    """Memory, or the path of a file."""
    with steal_forward(nn.Identity(), dump_file=tmp_path / "dump.onnx"), steal_forward(nn.Identity()) as capture:
        pass

    assert repr(capture) == "<Capture of 0 values in memory>"
    assert repr(restore(tmp_path / "dump.onnx")) == f"<Dump of 0 values in {tmp_path / 'dump.onnx'}>"


def test_records_have_class_and_parameters_of_each_module(tmp_path):
    """Variadic parameters are marked, and modules that never ran are included."""
    modules = [("s", Signature()), ("linear", nn.Linear(2, 2))]

    with steal_forward(modules, dump_file=tmp_path / "dump.onnx") as capture:
        pass

    expected = {
        "s": ModuleInfo(f"{__name__}:Signature", ("x", "mask", "*rest", "scale", "**options")),
        "linear": ModuleInfo("torch.nn.modules.linear:Linear", ("input",)),
    }
    assert capture.modules == restore(tmp_path / "dump.onnx").modules == expected


def test_a_forward_without_a_signature_has_no_parameters():
    """As with functions written in C; the class is known."""

    class Opaque:
        __signature__ = 5  # `inspect` raises, as for some C functions

        def __call__(self, x):
            return x

    module = nn.Identity()
    module.forward = Opaque()

    with steal_forward(("m", module)) as capture:
        module(torch.ones(1))

    assert capture.modules["m"] == ModuleInfo("torch.nn.modules.linear:Identity", ())
    assert capture["m", 0, "O"] == 1


def test_the_size_of_a_record_is_known_without_reading_it(tmp_path, echo, monkeypatch):
    """The bytes of all its tensors, in any nesting."""
    module = echo()
    with steal_forward(("m", module), dump_file=tmp_path / "dump.onnx"):
        module(
            torch.zeros(3), {"c": torch.zeros(2, dtype=torch.complex64)}, torch.zeros(0), torch.zeros(2).numpy(), "text"
        )
    dump = restore(tmp_path / "dump.onnx")
    monkeypatch.setattr(dump.tensor_source, "get", None)

    assert dump.nbytes(("m", 0, "I")) == 12 + 16 + 0 + 8
    assert dump.nbytes(("m", 0, "O")) == 0


def test_a_dump_contains_the_environment_of_its_run(tmp_path):
    """Versions, processor, settings and time, for comparing two runs; of transformers, if it is loaded."""
    with steal_forward(nn.Identity(), dump_file=tmp_path / "dump.onnx"):
        pass

    found = restore(tmp_path / "dump.onnx").environment
    versions = ["torch", "numpy", "onnx", "python"]
    expected = [*versions, "blas", "cpu_capability", "processor", "threads", "settings", "platform", "device", "time"]
    assert [name for name in found if name != "transformers"] == expected
    assert found["torch"] == torch.__version__
    assert len(found["time"]) == len("2025-01-01T00:00:00Z")


@pytest.mark.parametrize(
    ("args", "kwargs", "names"),
    [
        ((1,), {}, ["x"]),
        ((1, 2), {}, ["x", "mask"]),
        ((1,), {"mask": 2}, ["x", "mask"]),
        ((), {"mask": 2, "x": 1}, ["mask", "x"]),
        ((1, 2, 3, 4), {"scale": 5, "other": 6}, ["x", "mask", "*rest[0]", "*rest[1]", "scale", "other"]),
    ],
)
def test_arguments_are_named_by_parameter(args, kwargs, names):
    """Whether they were passed by position or by keyword."""
    parameters = ModuleInfo.of(Signature()).parameters

    found = argument_tensors(
        parameters,
        [torch.tensor(value) for value in args],
        {name: torch.tensor(value) for name, value in kwargs.items()},
    )

    assert list(found) == names
    assert [tensor.item() for tensor in found.values()] == [*args, *kwargs.values()]


def test_arguments_without_a_signature_are_named_by_position():
    """So their tensors are still distinguishable."""
    found = argument_tensors((), [torch.tensor(0), [torch.tensor(1), None]], {"a": {"b": torch.tensor(2)}})

    assert {name: tensor.item() for name, tensor in found.items()} == {"*args[0]": 0, "*args[1][0]": 1, "a['b']": 2}
