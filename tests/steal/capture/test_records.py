"""Captures and dumps as mappings, their modules, and arguments by parameter name."""

import pytest
import torch
from torch import nn

from filch.steal import Key, ModuleInfo, restore, steal_forward
from filch.steal.values._arguments import argument_tensors


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
