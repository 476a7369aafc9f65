"""Dumps are untrusted: reading a damaged one raises a DumpError, and runs no code that it names."""

import contextlib
import copy
import dataclasses
import enum
import inspect
import itertools
import json
import os
import random
import re
import shutil
import sys
import tracemalloc
from pathlib import Path
from types import ModuleType

import onnx
import pytest
import torch
from torch import nn

from filch.steal import DumpError, Foreign, describe, restore, steal_forward
from filch.steal.dump._format import GRAPH
from filch.steal.dump._protobuf import field_of
from support.models.small import module_of
from support.processes.forked import run_python
from support.thorough import slow


@dataclasses.dataclass
class Watched:
    """Records when code of its class runs."""

    value: object = None
    ran = []  # noqa: RUF012  shared by all instances

    def __post_init__(self):
        self.ran.append("constructor")

    @property
    def secret(self):
        return None

    @secret.setter
    def secret(self, _):
        self.ran.append("property")

    def __setattr__(self, name, value):
        self.ran.append("attribute")
        super().__setattr__(name, value)


VALUE = {
    "tensors": [torch.arange(4.0), torch.ones(2, dtype=torch.complex64), torch.zeros(0, 2)],
    "numbers": (1, 2**70, 1.5, float("nan"), 1j, None, True),
    "others": [torch.Size([2]), torch.float16, torch.device("cpu"), slice(1, None), range(3), b"a", object()],
    "array": torch.ones(2).numpy(),
    "class": Watched(5),
}


def give(value):
    """Takes nothing and returns a value."""
    return module_of(lambda self: self.value, value=value)


def _write(path, value=VALUE):
    module = give(value)
    with steal_forward(("m", module), dump_file=path):
        module()
    return path


@pytest.fixture
def dump(tmp_path):
    """Return the path of a dump that contains all kinds of values."""
    return _write(tmp_path / "dump.onnx")


@pytest.fixture
def data(tmp_path, monkeypatch):
    """Return the path of a dump with a data file."""
    monkeypatch.setattr("filch.steal.dump._format.INLINE_LIMIT", 0)
    return _write(tmp_path / "dump.onnx", [torch.arange(64.0), torch.ones(64)])


def _read_all(path):
    """Read everything in a dump."""
    found = restore(path)
    sizes = [(key, found.nbytes(key), key in found) for key in found]
    return found.describe(), found.calls(), found.modules, found.environment, sizes


def _edit(path, change):
    """Change the model in a file."""
    model = onnx.load(path, load_external_data=False)
    change(model)
    path.write_bytes(model.SerializeToString())


def _set(path, key, value):
    """Replace a metadata entry by the JSON of `value`."""

    def change(model):
        for entry in model.metadata_props:
            if entry.key == key:
                entry.value = value if isinstance(value, str) else json.dumps(value)

    _edit(path, change)


def _error(path):
    """Return the message of the DumpError that reading this dump raises."""
    with pytest.raises(DumpError) as caught:
        _read_all(path)
    text = str(caught.value)
    assert "\n" not in text
    return text


def test_a_path_of_no_file_is_refused(tmp_path):
    """Nothing is there, or a folder, or no file can have such a name; the message has the path and the reason."""
    path = tmp_path / "none.onnx"

    assert _error(path) == f"there is no file '{path}'"
    assert _error(tmp_path) == f"can't read '{tmp_path}': Is a directory"
    assert re.fullmatch(r"can't read 'a\\x00b': (stat: )?embedded null (byte|character in path)", _error("a\0b"))


@pytest.mark.parametrize("contents", [b"", b"\0", b"hello", b"\x08\x0d", b"PK\x03\x04" + bytes(100), bytes(range(256))])
def test_a_file_that_is_not_an_onnx_model_is_refused(tmp_path, contents):
    """Whatever it contains."""
    (tmp_path / "file").write_bytes(contents)

    assert _error(tmp_path / "file") == f"'{tmp_path / 'file'}' is not an ONNX file, or is truncated"


@pytest.mark.parametrize("part", ["file", "graph"])
def test_a_model_of_more_fields_than_a_dump_has_is_not_read_to_its_end(tmp_path, part):
    """There may be a billion in 2 GiB, for which Python takes an hour."""
    with steal_forward(nn.Identity(), dump_file=tmp_path / "file"):
        pass
    whole, many = (tmp_path / "file").read_bytes(), b"\x5a\0" * 10_001  # inputs, in a graph
    if part == "graph":
        model = onnx.ModelProto.FromString(whole)
        graph = many + model.graph.SerializeToString()
        model.ClearField("graph")
        whole, many = model.SerializeToString(), b"".join(field_of(GRAPH, [graph]))
    (tmp_path / "file").write_bytes(whole + many)

    expected = "it has too many fields" if part == "graph" else "is not an ONNX file"
    assert expected in _error(tmp_path / "file")


def test_a_file_larger_than_any_onnx_model_is_not_read(tmp_path):
    """It is refused because of its size."""
    with (tmp_path / "file").open("wb") as file:
        file.truncate(2**31 + 1)

    assert _error(tmp_path / "file") == f"'{tmp_path / 'file'}' is not an ONNX file: it is larger than 2 GiB"


def test_an_onnx_model_that_is_not_a_dump_is_refused(tmp_path):
    """The message names the function that writes dumps."""
    onnx.save(onnx.helper.make_model(onnx.GraphProto(name="g")), tmp_path / "model.onnx")

    expected = f"'{tmp_path / 'model.onnx'}' is an ONNX model but not a dump, which steal_forward(dump_file=…) writes"
    assert _error(tmp_path / "model.onnx") == expected


@pytest.mark.parametrize("version", ["3", "0", "", "1.0", "one", "[]"])
def test_a_dump_of_another_version_is_refused(dump, version):
    """The message contains both versions."""
    _set(dump, "filch.dump", version)

    assert _error(dump) == f"'{dump}' has format {version!r}; this Filch reads format 1 and 2"


def test_a_dump_truncated_at_any_byte_is_refused(tmp_path):
    """No prefix of a dump is accepted."""
    whole = _write(tmp_path / "dump.onnx", torch.ones(2)).read_bytes()
    cut = tmp_path / "cut.onnx"

    for length in range(len(whole)):
        cut.write_bytes(whole[:length])
        assert str(cut) in _error(cut)


@slow
def test_a_dump_with_changed_bytes_is_read_or_refused(dump):
    """1000 dumps with random changes raise no exception other than DumpError."""
    whole, generator = dump.read_bytes(), random.Random(0)  # noqa: S311  not for secrets
    refused = 0

    for _ in range(1000):
        wrong = bytearray(whole)
        for _ in range(generator.choice((1, 1, 4))):
            wrong[generator.randrange(len(wrong))] = generator.randrange(256)
        dump.write_bytes(wrong)
        try:
            _read_all(dump)
        except DumpError:
            refused += 1

    assert 200 < refused < 1000


HOSTILE = [
    None, True, -1, 2**70, 1e400, -0.5, "", "x", "\ud800", [], {}, [[]], [None, None], {"tensor": 0}, {"x": 1},
    {"numpy": {"numpy": None}}, {"torch": "load"}, {"torch": "compile"}, {"device": "nowhere"}, {"size": [-1, 2**70]},
    {"class": "os:system"}, {"tuple": [[0, 1]], "class": "torch:Tensor"}, {"fields": [], "class": "builtins:object"},
    {"state": [["x", 1]], "class": "transformers.cache_utils:DynamicCache"}, {"enum": [], "class": "enum:Enum"},
    {"type": "builtins:print"}, {"range": [0, 1, 0]}, {"slice": [1, 2, 3, 4]}, {"float": "x"}, {"bytes": "0"},
    {"dict": [[{"list": []}, 1]]}, {"dict": [[{"tensor": 0}, 1]]}, {"skipped": []}, {"int": "0x" + "f" * 5000},
]  # fmt: skip


def _places_in(value, path=()):
    """Return the paths of all values inside a JSON value."""
    yield path
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in items:
        yield from _places_in(item, (*path, key))


def _with(value, path, replacement):
    if not path:
        return replacement
    changed = copy.copy(value)
    changed[path[0]] = _with(changed[path[0]], path[1:], replacement)
    return changed


@slow
@pytest.mark.parametrize("key", ["filch.tensors", "filch.records", "filch.modules", "filch.environment"])
def test_a_changed_value_in_the_index_is_read_or_refused(dump, key):
    """Random changes of the JSON raise no exception other than DumpError, and run no code of a class."""
    model = onnx.load(dump)
    entry = next(entry for entry in model.metadata_props if entry.key == key)
    right = json.loads(entry.value)
    Watched.ran.clear()
    ways = list(itertools.product(_places_in(right), HOSTILE))
    refused = 0

    for path, wrong in random.Random(0).sample(ways, min(len(ways), 1000)):  # noqa: S311  not for secrets
        entry.value = json.dumps(_with(right, path, wrong))
        dump.write_bytes(model.SerializeToString())
        try:
            _read_all(dump)
        except DumpError:
            refused += 1

    assert refused > 10
    assert Watched.ran == []


@pytest.mark.parametrize("text", ["", "{", "nul", "[1,", '"', "[" * 100_000, '{"a":' * 100_000, "9" * 5000, "\x00"])
@pytest.mark.parametrize("key", ["filch.tensors", "filch.records", "filch.modules", "filch.environment"])
def test_an_index_that_is_not_json_is_refused(dump, key, text):
    """The message contains the path, however deep the nesting is."""
    _set(dump, key, text)

    assert _error(dump).startswith(f"the index of '{dump}' is damaged: ")


@pytest.mark.parametrize("key", ["filch.tensors", "filch.records", "filch.modules", "filch.environment"])
def test_an_index_with_a_missing_entry_is_refused(dump, key):
    """The message contains the key of the entry."""

    def remove(model):
        model.metadata_props.remove(next(entry for entry in model.metadata_props if entry.key == key))

    _edit(dump, remove)

    assert _error(dump) == f"the index of '{dump}' is damaged: '{key}'"


def _nested(tag, depth):
    """Return the JSON text of a description with this many levels, which `json` itself can't write."""
    before, after = {"numpy": ('{"numpy":', "}"), "list": ('{"list":[[0,', "]]}"), "slice": ('{"slice":[', "]}")}[tag]
    return before * depth + "null" + after * depth


@pytest.mark.parametrize("depth", [210, 900])
@pytest.mark.parametrize("tag", ["numpy", "list", "slice"])
def test_a_description_nested_too_deeply_is_refused(dump, tag, depth):
    """Below and above Python's recursion limit."""
    _set(dump, "filch.records", f'[["m", 0, "O", {_nested(tag, depth)}, "", 0, 0]]')

    assert re.match("the (description of a value in|index of) '.*' is damaged: ", _error(dump))


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ({"tensor": 99}, "refers to a tensor that is not in it: 99"),
        ({"tensor": -1}, "tensor -1 doesn't exist"),
        ({"tensor": "a"}, "refers to a tensor that is not in it: 'a'"),
        ({"unheard": 1}, "the description of a value in '{}' is damaged: {'unheard': 1} ('unheard')"),
        ([1], "the description of a value in '{}' is damaged: [1] (a list without a tag)"),
        ({"device": "cuda:-3"}, "the description of a value in '{}' is damaged: {'device': 'cuda:-3'}"),
        ({"device": None}, "the description of a value in '{}' is damaged: {'device': None} (device() received"),
        (
            {"device": "x" * 9999},
            "the description of a value in '{}' is damaged: {'device': 'xxxxxxxxxxxx...xxxxxxxxxxxxx'}",
        ),
        ({"x" * 9999: 1}, "the description of a value in '{}' is damaged: {'xxxxxxxxxxxx...xxxxxxxxxxxxx': 1} ('xxx"),
    ],
)
def test_an_invalid_description_is_refused_when_its_record_is_read(dump, spec, message):
    """Other records can still be read."""
    rows = json.loads(next(entry.value for entry in onnx.load(dump).metadata_props if entry.key == "filch.records"))
    _set(dump, "filch.records", [rows[0], [*rows[1][:3], spec, *rows[1][4:]]])

    found = restore(dump)

    with pytest.raises(DumpError) as caught:
        found["m", 0, "O"]
    text = str(caught.value)
    assert message.replace("{}", str(dump)) in text
    assert text.isprintable() and len(text) < len(str(dump)) + 500
    assert found["m", 0, "I"] == ((), {})


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (["gone", "float32", [4]], "its node 0 is not the tensor 'gone' that its index lists"),
        (["m#0.O['tensors'][0]", "float31", [4]], "has an unknown dtype: 'float31'"),
        (["m#0.O['tensors'][0]", "float32", [5]], "its node 0 is not the tensor \"m#0.O['tensors'][0]\""),
        (["m#0.O['tensors'][0]", "float64", [4]], "its node 0 is not the tensor"),
        (["m#0.O['tensors'][0]", "float32", [2**40, 2**40]], "its node 0 is not the tensor"),
        (["m#0.O['tensors'][0]", "float32", [-2, -2]], "the shape [-2, -2] is not valid"),
        (["m#0.O['tensors'][0]", "float32", "4"], "the row of its tensor 0: "),
        (["m#0.O['tensors'][0]", "float32", [4.0]], "the row of its tensor 0: "),
        (["m#0.O['tensors'][0]", "float32", [2**63, 0]], "the row of its tensor 0: "),
        (["m#0.O['tensors'][0]", "float32", [9] * 300_000], "the shape [9, 9, 9, 9, 9, 9, ...] is not valid"),
        (["m#0.O['tensors'][0]", "float32", [4], "lzma"], "'float32', [4], 'lzma'] is not valid"),
        (["m#0.O['tensors'][0]", ["float32"], [4]], "['float32'], [4], None] is not valid"),
        (["m#0.O['tensors'][0]", "float32"], "the row of its tensor 0"),
    ],
)
def test_a_tensor_that_differs_from_the_index_is_refused(dump, row, message):
    """Sizes are compared before memory is allocated."""
    rows = json.loads(next(entry.value for entry in onnx.load(dump).metadata_props if entry.key == "filch.tensors"))
    _set(dump, "filch.tensors", [row, *rows[1:]])

    assert message in _error(dump)


def test_a_missing_data_file_is_refused(data):
    """The message contains the name of the file."""
    (data.parent / "dump.onnx.data").unlink()

    assert "can't read 'dump.onnx.data', the data of" in _error(data)


@pytest.mark.parametrize("length", [0, 1, 255, 256, 511])
def test_a_truncated_data_file_is_refused(data, length):
    """At any length."""
    with (data.parent / "dump.onnx.data").open("r+b") as file:
        file.truncate(length)

    expected = f"'dump.onnx.data' beside '{data}' is truncated: it has {length} bytes, and the tensors end at 512"
    assert _error(data) == expected


def _point(path, *, nodes=1, **place):
    """Change the positions of the first tensors' bytes."""

    def change(model):
        for node in model.graph.node[:nodes]:
            for entry in node.attribute[0].t.external_data:
                entry.value = str(place.get(entry.key, entry.value))

    _edit(path, change)


@pytest.mark.parametrize(
    "location", ["../secret", "/etc/passwd", "", ".", "..", "folder/secret", "./secret", "../folder/dump.onnx.data"]
)
def test_a_data_file_outside_of_the_folder_is_not_read(tmp_path, monkeypatch, location):
    """Neither by an absolute path nor by a path through other folders."""
    monkeypatch.setattr("filch.steal.dump._format.INLINE_LIMIT", 0)
    folder = tmp_path / "folder"
    (folder / "folder").mkdir(parents=True)
    for place in (tmp_path, folder, folder / "folder"):
        (place / "secret").write_bytes(bytes(1000))
    path = _write(folder / "dump.onnx", [torch.arange(64.0), torch.ones(64)])
    _point(path, location=location, nodes=2)

    assert _error(path) == f"'{path}' is damaged: its data file is outside of its folder: {location!r}"


@pytest.mark.parametrize("location", ["none", "folder", "a\0b", "x" * 300])
def test_a_data_file_that_cannot_be_read_is_refused(data, location):
    """It is missing, not a file, or has an invalid name."""
    (data.parent / "folder").mkdir()
    _point(data, location=location, nodes=2)

    assert f"can't read {location!r:.200}, the data of '{data}'" in _error(data)


@pytest.mark.parametrize(
    "place",
    [
        {"offset": -64}, {"offset": 2**63}, {"offset": 10**30}, {"offset": 1000}, {"length": 2**62}, {"length": 1000},
        {"length": -256}, {"offset": -256, "length": 512}, {"offset": 0, "length": 0}, {"length": 255}, {"length": 257},
        {"offset": "x"}, {"offset": ""}, {"length": "1e3"}, {"length": "9" * 5000},
    ],
)  # fmt: skip
def test_invalid_offsets_and_lengths_are_refused(data, place):
    """They are checked against the data file and the shape."""
    _point(data, **place)

    assert str(data) in _error(data)


def test_a_tensor_without_a_position_is_refused(data):
    """The message contains its index."""

    def change(model):
        del model.graph.node[0].attribute[0].t.external_data[1:]

    _edit(data, change)

    assert _error(data) == f"'{data}' is damaged: the position of the bytes of its tensor 0 is missing or not valid"


@pytest.mark.parametrize("field", ["attribute", "output"])
def test_a_node_without_an_attribute_or_output_is_refused(dump, field):
    """The attribute contains the tensor, and the output its name."""
    _edit(dump, lambda model: model.graph.node[0].ClearField(field))

    assert _error(dump).startswith(f"'{dump}' is damaged: its node 0 is ")


@pytest.mark.parametrize("fields", [[["secret", 1]], [["value", 1], ["secret", 2]], [["__class__", 1]], [["value", 1]]])
def test_no_code_of_a_class_runs_when_a_dump_names_it(dump, fields):
    """Neither constructors, properties nor `__setattr__`; fields that the class doesn't have make it `Foreign`."""
    Watched.ran.clear()
    spec = {"fields": fields, "class": f"{__name__}:Watched"}
    _set(dump, "filch.records", [["m", 0, "O", spec, "", 0, 0]])

    found = restore(dump)["m", 0, "O"]

    assert isinstance(found, Watched if fields == [["value", 1]] else Foreign)
    assert dict(fields) == (found.fields if isinstance(found, Foreign) else vars(found))
    assert Watched.ran == []


@pytest.mark.parametrize("name", ["lazy_one:Anything", "not_there:Anything", "lazy_one:a.b.c"])
@pytest.mark.parametrize("tag", ["fields", "state", "dict", "tuple"])
def test_nothing_is_imported_because_a_dump_names_it(dump, monkeypatch, tag, name):
    """Neither a module, nor what a module's `__getattr__` imports."""
    module, asked = ModuleType("lazy_one"), []
    module.__getattr__ = asked.append
    monkeypatch.setitem(sys.modules, "lazy_one", module)
    before = set(sys.modules)
    _set(dump, "filch.records", [["m", 0, "O", {tag: [["a", 1]], "class": name}, "", 0, 0]])

    restore(dump)["m", 0, "O"]

    assert asked == []
    assert set(sys.modules) == before


def test_a_type_is_restored_only_if_it_is_a_cache_layer(dump):
    """A restored cache calls the type, so no other type is allowed."""
    _set(dump, "filch.records", [["m", 0, "O", {"type": "builtins:print"}, "", 0, 0]])
    assert describe(restore(dump)["m", 0, "O"]) == "skipped builtins:type (builtins:print is not imported)"

    _set(dump, "filch.records", [["m", 0, "O", {"type": "subprocess:Popen"}, "", 0, 0]])
    assert "skipped" in describe(restore(dump)["m", 0, "O"])


def test_reading_a_damaged_dump_does_not_change_it(dump):
    """Reading writes nothing."""
    _set(dump, "filch.records", "[")
    before = dump.read_bytes()

    with contextlib.suppress(DumpError):
        restore(dump)

    assert dump.read_bytes() == before
    assert [path.name for path in dump.parent.iterdir()] == ["dump.onnx"]


def test_a_data_file_that_is_a_link_is_refused(data):
    """Even if it links to a file in the same folder."""
    real = data.parent / "dump.onnx.data"
    real.rename(data.parent / "elsewhere")
    real.symlink_to("elsewhere")

    assert _error(data) == f"can't read 'dump.onnx.data', the data of '{data}': it is a link"


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir, lambda path: Path(path).symlink_to("/dev/zero")])
def test_fifos_and_devices_are_refused_at_once(data, make):
    """Reading doesn't wait for a FIFO's writer, for the data as well as for the model."""
    for name, message in (
        ("dump.onnx.data", "can't read 'dump.onnx.data', the data of"),
        ("dump.onnx", "can't read '"),
    ):
        (data.parent / name).unlink()
        make(data.parent / name)
        assert re.search(
            f"^{message}.*: (it is a (FIFO|device), not a regular file|it is a link|Is a directory)$", _error(data)
        )
        if name == "dump.onnx.data":
            (data.parent / name).rename(data.parent / "gone")


def test_a_link_to_a_dump_is_followed_and_its_data_is_beside_the_link(data):
    """The user has chosen the link; ONNX looks for the data in the same place."""
    other = data.parent / "other"
    other.mkdir()
    (other / "link.onnx").symlink_to(data)

    assert "can't read 'dump.onnx.data'" in _error(other / "link.onnx")

    shutil.copy(data.parent / "dump.onnx.data", other)
    assert restore(other / "link.onnx")["m", 0, "O"][1].tolist() == [1] * 64


@pytest.mark.parametrize(
    ("places", "allowed"),
    [
        ([(0, 256), (256, 256)], True), ([(256, 256), (0, 256)], True), ([(0, 256), (0, 256)], False),
        ([(0, 256), (128, 256)], False), ([(128, 256), (0, 256)], False), ([(0, 256), (252, 256)], False),
    ],
)  # fmt: skip
def test_tensors_that_overlap_are_refused(data, places, allowed):
    """A shared tensor is one tensor to which several records refer."""

    def change(model):
        for node, (offset, length) in zip(model.graph.node, places, strict=True):
            for entry in node.attribute[0].t.external_data:
                entry.value = str({"offset": offset, "length": length}.get(entry.key, entry.value))

    _edit(data, change)

    if allowed:
        assert describe(restore(data)["m", 0, "O"]) == "[f32[64], f32[64]]"
    else:
        assert "two of its tensors overlap in 'dump.onnx.data'" in _error(data)


def test_bytes_that_are_not_aligned_or_in_two_files_are_refused(data):
    """Some processors can't read unaligned ones, and a dump has one data file."""
    _point(data, offset=514)
    with (data.parent / "dump.onnx.data").open("ab") as file:
        file.write(bytes(1024))
    assert "the bytes of 'm#0.O[0]' begin at 514, which is not aligned for float32" in _error(data)

    _point(data, location="other")
    assert _error(data) == f"'{data}' is damaged: its bytes are in more than one file: 'other', 'dump.onnx.data'"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda model: model.graph.node.append(model.graph.node[0]), "it lists 4 tensors, and the graph has more"),
        (lambda model: model.graph.node.pop(), "it lists 4 tensors, and the graph has 3"),
        (lambda model: model.graph.node[0].output.append("x"), "its node 0 is not the tensor"),
        (
            lambda model: model.graph.node[0].attribute.append(model.graph.node[0].attribute[0]),
            "its node 0 is not a tensor",
        ),
        (lambda model: model.metadata_props.append(model.metadata_props[0]), "it has 'filch.dump' twice"),
    ],
)
def test_surplus_nodes_parts_and_keys_are_refused(dump, change, message):
    """The number of each is fixed."""
    _edit(dump, change)

    assert message in _error(dump)


@pytest.mark.parametrize("key", ["filch.tensors", "filch.records", "filch.failed"])
def test_repeated_names_are_refused(dump, key):
    """Tensors, records and failures have unique names."""
    text = next(entry.value for entry in onnx.load(dump).metadata_props if entry.key == key)
    rows = json.loads(text) or [["m", 7, "ValueError: x"]]
    _set(dump, key, [*rows, rows[0]])

    assert re.fullmatch("the index of '.*' is damaged: it has .* twice", _error(dump))


@pytest.mark.parametrize("row", [["m", -1], ["m", 2**53], ["m", True], ["m", 0.0], ["m", "0"], [5, 0], [None, 0]])
def test_invalid_keys_are_refused(dump, row):
    """Also large integers, which can be chosen to have equal hashes."""
    _set(dump, "filch.records", [[*row, "O", None, None, None, 0]])

    assert _error(dump).startswith(f"the index of '{dump}' is damaged: the record ")


@pytest.mark.parametrize("text", ["NaN", "Infinity", "-Infinity"])
def test_nan_and_infinity_in_json_are_refused(dump, text):
    """Python's own JSON parser would accept them."""
    _set(dump, "filch.records", f'[["m", 0, "O", {text}, null, null, 0]]')

    assert _error(dump) == f"the index of '{dump}' is damaged: {text} is not JSON"


def _field(number, contents):
    """Return an encoded field of a protobuf message."""
    length, head = len(contents), [number << 3 & 127 | 2 | 128 * (number > 15)] + [number >> 4] * (number > 15)
    while length > 127:
        head.append(length & 127 | 128)
        length >>= 7
    return bytes([*head, length]) + contents


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="only Linux tells what memory a process has")
@pytest.mark.parametrize(
    "graph",
    [
        b"\x0a\x00" * 450_000, _field(1, b"\x2a\x00" * 450_000),
        _field(1, _field(5, _field(5, b"\x6a\x00" * 450_000))), b"\x2a\x00" * 450_000, b"\x0b" * 900_000,
        b"\x62\x00" * 450_000,
    ],
    ids=["nodes", "attributes", "places", "initializers", "groups", "outputs"],
)  # fmt: skip
def test_a_protobuf_bomb_is_refused_in_little_memory(dump, graph):
    """The parser, which creates an object of 140 bytes for every two bytes, is not called."""
    model = onnx.load(dump)
    model.ClearField("graph")
    dump.write_bytes(model.SerializeToString() + _field(7, graph))
    tracemalloc.start()
    before = _resident()

    text = _error(dump)

    assert "damaged" in text or "not an ONNX file" in text
    assert tracemalloc.get_traced_memory()[1] < 2**25
    assert _resident() - before < 2**25
    tracemalloc.stop()


def _resident():
    """Return the resident memory in bytes; protobuf's memory is freed only with its model."""
    return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1]) * os.sysconf("SC_PAGE_SIZE")


def test_a_tensor_that_occurs_often_in_a_record_is_read_once(tmp_path):
    """Otherwise a file of 1 MB could require 10 GB."""
    path = _write(tmp_path / "dump.onnx", torch.zeros(100_000))
    _set(path, "filch.records", [["m", 0, "O", {"list": [[0, {"tensor": 0}]] * 20_000}, "", 0, 0]])

    found = restore(path)

    assert len({tensor.data_ptr() for tensor in found["m", 0, "O"]}) == 1
    assert found.nbytes(("m", 0, "O")) == 400_000


def _many(spec, count=10_000):
    return {"list": [[index, spec] for index in range(count)]}


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="only Linux tells what memory a process has")
@pytest.mark.parametrize(
    ("spec", "refused"),
    [
        (_many({"tensor": 0, "order": [1, 0]}), False),
        (_many({"tensor": 0, "part": [1, "int16", [40_000]]}), False),
        (_many({"quantized": {"values": {"tensor": 1}, "scale": 1.0, "zero_point": 0}}), False),
        (_many({"numpy": {"tensor": 0}}), False),
        ({"list": [[0, {"tensor": 0, "part": [index, "int16", [40_000]]}] for index in range(1, 10_000, 2)]}, True),
        (_many({"numpy": {"tensor": 0}, "order": "F"}), True),
        (_many({"numpy": {"tensor": 0}, "dtype": ">f4"}), True),
        (_many({"numpy": {"tensor": 2}, "dtype": "|S100000", "scalar": True}), True),
        ({"nested": {"layout": "strided", "rows": [{"tensor": 0}] * 5000}}, True),
        (_many({"nested": {"layout": "strided", "rows": [{"tensor": 0}]}}), False),
    ],
)
def test_copies_requested_by_a_small_file_are_limited(tmp_path, spec, refused):
    """Otherwise a file of 1 MB could require 4 GB."""
    value = [torch.zeros(200, 500), torch.zeros(100_000, dtype=torch.uint8), torch.zeros(1, 100_000, dtype=torch.uint8)]
    path = _write(tmp_path / "dump.onnx", value)
    _set(path, "filch.records", [["m", 0, "O", spec, "", 0, 0]])
    dump, before = restore(path), _resident()

    try:
        value = dump["m", 0, "O"]
    except DumpError as error:
        assert refused and "more copies of its tensors than it has bytes" in str(error)  # noqa: PT017  one of two valid outcomes
    else:
        assert not refused
        assert len(value) == 10_000
    assert _resident() - before < 2**25


@pytest.mark.parametrize(
    "spec",
    [
        {"dict": [[index * (2**61 - 1), 0] for index in range(20_000)]},
        {"dict": [[{"int": hex(index * (2**61 - 1))}, 0] for index in range(20_000)]},
        {"set": [[index, index * (2**61 - 1)] for index in range(20_000)]},
        {"list": [[index * (2**61 - 1), 0] for index in range(20_000)], "class": "gone:List"},
        {"list": [[0, {"dict": [[key * (2**61 - 1), 0] for key in range(200)]}]] * 100},
        {"dict": [[{"fields": [["a", {"list": [[0, item]]}]], "class": "gone:Key"}, 0] for item in range(10_000)]},
    ],
)
def test_keys_with_equal_hashes_are_refused(dump, spec):
    """A dictionary of them would take minutes."""
    _set(dump, "filch.records", [["m", 0, "O", spec, "", 0, 0]])

    assert "(too many keys have the same hash)" in _error(dump)


@pytest.mark.parametrize("number", [-1, 2**53, 2**61 - 1, True, 0.0, "0", None, []])
def test_invalid_numbers_of_shared_objects_are_refused(dump, number):
    """Larger ones could all have the same hash."""
    _set(dump, "filch.records", [["m", 0, "O", {"list": [], "shared": number}, "", 0, 0]])

    assert f'("shared" is {number!r}, not a number)' in _error(dump)


@dataclasses.dataclass(frozen=True)
class Chosen:
    """Records when it is hashed."""

    value: int = 0
    ran = []  # noqa: RUF012  shared by all instances

    def __hash__(self):
        self.ran.append("hash")
        return 1


@dataclasses.dataclass(frozen=True)
class Looking:
    """Records when a missing attribute is looked up."""

    value: int

    def __getattr__(self, name):
        Chosen.ran.append(name)
        return 1


class Member(enum.Enum):
    """Records when one of its members is hashed."""

    ONE = 1

    def __hash__(self):
        Chosen.ran.append("hash")
        return 1


def test_no_code_of_an_enum_runs_when_a_key_is_a_member(dump):
    """Enums with Python's own hash are restored."""
    keys = [{"enum": "ONE", "class": f"{__name__}:Member"}, {"enum": "KEYWORD_ONLY", "class": "inspect:_ParameterKind"}]
    _set(dump, "filch.records", [["m", 0, "O", {"dict": [[key, 1] for key in keys]}, "", 0, 0]])
    Chosen.ran.clear()

    found = restore(dump)["m", 0, "O"]

    assert list(found) == [Foreign(f"{__name__}:Member", {"name": "ONE"}), inspect.Parameter.KEYWORD_ONLY]
    assert Chosen.ran == []


@pytest.mark.parametrize("name", ["Chosen", "Looking"])
def test_no_code_of_a_class_runs_when_a_key_is_an_instance(dump, name):
    """Nor when it is part of a key; the placeholder has the same contents."""
    key = {"fields": [["value", 5]], "class": f"{__name__}:{name}"}
    records = [["m", 0, "O", {"dict": [[key, 1], [{"tuple": [[0, key]]}, 2]]}, "", 0, 0]]
    _set(dump, "filch.records", [*records, ["m", 1, "O", {"set": [[0, key]]}, "", 0, 0]])
    Chosen.ran.clear()

    found = restore(dump)

    stand_in = Foreign(f"{__name__}:{name}", {"value": 5})
    assert list(found["m", 0, "O"].items()) == [(stand_in, 1), ((stand_in,), 2)]
    assert found["m", 1, "O"] == {stand_in}
    assert Chosen.ran == []


def _billion_laughs(inner):
    """Return twelve levels of lists that contain the next level ten times."""
    for level in range(12):
        again = [[index, {"same": level}] for index in range(1, 10)]
        inner = {"list": [[0, inner], *again], "shared": level + 1}
    return inner


@pytest.mark.parametrize(
    "leaf",
    [
        {"list": [], "shared": 0}, {"list": [[0, "x" * 100_000]], "shared": 0},
        {"fields": [["f" * 100_000, 1]], "class": "gone:" + "c" * 100_000, "shared": 0},
        {"list": [[0, {"bytes": "00" * 100_000}]], "shared": 0}, {"skipped": "s" * 100_000, "reason": "", "shared": 0},
    ],
)  # fmt: skip
def test_the_description_of_an_exponentially_large_value_is_short(dump, leaf):
    """Long strings and names count as several parts."""
    _set(dump, "filch.records", [["m", 0, "O", _billion_laughs(leaf), "", 0, 0]])

    assert len(restore(dump).describe()) < 3_000_000


STATISTICS = {
    "what": "f32[2]", "dtype": "float32", "shape": [2], "minimum": 0.0, "maximum": "inf", "mean": None, "std": 1.0,
    "nan": 0, "inf": 1, "content": "00" * 16,
}  # fmt: skip


def test_statistics_are_read(dump):
    """As a capture writes them."""
    _set(dump, "filch.records", [["m", 0, "O", {"statistics": STATISTICS}, "", 0, 0]])

    assert restore(dump)["m", 0, "O"].maximum == float("inf")


@pytest.mark.parametrize(
    "changes",
    [
        {"what": 5}, {"dtype": None}, {"content": "zz"}, {"content": "00"}, {"shape": "123"}, {"shape": [-1]},
        {"shape": [2.0]}, {"nan": -1}, {"nan": True}, {"inf": "1"}, {"inf": 1e400}, {"minimum": True}, {"mean": "1"},
        {"std": [1]}, {"maximum": "1" * 10_000}, {"maximum": 10**400},
    ],
)  # fmt: skip
def test_invalid_statistics_are_refused(dump, changes):
    """No later check would notice."""
    _set(dump, "filch.records", [["m", 0, "O", {"statistics": STATISTICS | changes}, "", 0, 0]])

    assert _error(dump).startswith(("the description of a value in ", "the index of "))


@pytest.fixture
def packed(tmp_path):
    """Return the path of a dump with compressed tensors."""
    module = give(torch.arange(100.0))
    with steal_forward(("m", module), dump_file=tmp_path / "dump.onnx", compress=True):
        module()
    return tmp_path / "dump.onnx"


@pytest.mark.parametrize("shape", [[99], [101], [2**60], [3, 3], [1]])
def test_compressed_bytes_of_another_size_are_refused(packed, shape):
    """Before more memory is used than the shape requires."""
    _set(packed, "filch.tensors", [["m#0.O", "float32", shape, "zlib"]])

    assert re.search(
        "the bytes of 'm#0.O': .* compressed bytes can't contain|the number of decompressed bytes is not",
        _error(packed),
    )


def test_damaged_compressed_bytes_are_refused(packed):
    """A change of any byte is detected."""
    raw = onnx.load(packed).graph.node[0].attribute[0].t.raw_data

    for index in range(len(raw)):
        wrong = bytes([*raw[:index], raw[index] ^ 0x55, *raw[index + 1 :]])
        _edit(packed, lambda model, wrong=wrong: setattr(model.graph.node[0].attribute[0].t, "raw_data", wrong))
        assert "the bytes of 'm#0.O': " in _error(packed)


@slow
def test_a_dump_larger_than_memory_is_opened(tmp_path, monkeypatch):
    """In a separate process, whose address space is that large."""
    monkeypatch.setattr("filch.steal.dump._format.INLINE_LIMIT", 0)
    path = _write(tmp_path / "dump.onnx", [torch.arange(64.0), torch.ones(64)])
    with (tmp_path / "dump.onnx.data").open("r+b") as file:
        try:
            file.truncate(2**42)
        except OSError:
            pytest.skip("this file system has no files of 4 TiB")

    code = "import sys; from filch.steal import restore; print(restore(sys.argv[1])['m', 0, 'O'][1].sum().item())"
    found = run_python("-c", code, path)

    assert found.stdout == "64.0\n", found.stderr


@pytest.mark.parametrize(
    ("grown", "message"),
    [
        (5, "it is not a list of rows: '5'"),
        ([5], "it is not a list of rows: '[5]'"),
        ({"0": [0, 1, 0]}, """it is not a list of rows: '{"0": [0, 1, 0]}'"""),
        ([[0, 1]], "the list of its grown tensors is not valid: [[0, 1]]"),
        ([[0, 1, "0"]], "the list of its grown tensors is not valid: [[0, 1, '0']]"),
        ([[0, 1, True]], "the list of its grown tensors is not valid: [[0, 1, True]]"),
        ([[0, 1, 0], [-1, 1, 0]], "two of its grown tensors end with the same part"),
        ([[-1, 1, 0]], "the parts of tensor -1, -1 and 1, are not earlier tensors"),
        ([[-2, 1, 0]], "the parts of tensor -1, -2 and 1, are not earlier tensors"),
        ([[0, 1, 7]], "the parts of tensor -1 can't be concatenated"),
        ([[0, -5, 0]], "the parts of tensor -1, 0 and -5, are not earlier tensors"),
        ([[0, 99, 0]], "it refers to a tensor that is not in it: 99"),
        ([], "tensor -1 doesn't exist"),
    ],
)
def test_an_invalid_grown_tensor_is_refused(data, grown, message):
    """The message describes the invalid part."""
    _set(data, "filch.grown", grown)
    _set(data, "filch.records", [["m", 0, "O", {"tensor": -1}, "", 0, 0]])

    assert message in _error(data)


def test_a_grown_tensor_is_read(data):
    """It is the concatenation of its parts."""
    _set(data, "filch.grown", [[0, 1, 0]])
    _set(data, "filch.records", [["m", 0, "O", {"tensor": -1}, "", 0, 0]])

    assert restore(data)["m", 0, "O"].tolist() == [*range(64), *[1] * 64]
