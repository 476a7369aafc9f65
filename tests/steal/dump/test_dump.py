"""A dump is a valid ONNX model of one file or two, and replaces a previous one atomically."""

import json
import os
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from onnx.reference import ReferenceEvaluator
from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM

from filch.steal import DumpError, add_properties, describe, environment, restore, steal_forward
from filch.steal.dump._stream import BLOCK, _BlockWriter
from filch.steal.values._dtypes import CARRIERS
from support.processes.forked import run_python
from support.thorough import slow
from support.versions import since

LARGE = 2**23 + 1  # float32s just over the 32 MiB that go into one file


@pytest.fixture(params=[False, True], ids=["inline", "external"])
def external(request, monkeypatch):
    """Return whether the data is beside the model; in that case, whatever its size."""
    if request.param:
        monkeypatch.setattr("filch.steal.dump._format.INLINE_LIMIT", 0)
    return request.param


def _dump(path, *values):
    """Write a dump of these values as outputs of a module named `m`."""
    module = nn.Identity()
    with steal_forward(("m", module), dump_file=path) as capture:
        for value in values:
            module(value)
    return capture


def _names(folder):
    return sorted(path.name for path in folder.iterdir())


def test_a_dump_can_be_run_as_an_onnx_model(tmp_path, external):
    """ONNX Runtime, the reference evaluator and the checker accept it; outputs have readable names."""
    x, ids = torch.randn(2, 3), torch.arange(4)
    module = nn.Sequential(nn.Linear(3, 2))
    with steal_forward(("model", module), submodules=True, dump_file=tmp_path / "dump.onnx") as capture:
        module(x)
        nn.Identity()(ids)

    model = onnx.load(tmp_path / "dump.onnx")
    onnx.checker.check_model(tmp_path / "dump.onnx", full_check=True)
    session = onnxruntime.InferenceSession(tmp_path / "dump.onnx", providers=["CPUExecutionProvider"])
    names = ["model#0.I.args[0]", "model.0#0.O"]  # an output that is the next input is one tensor with its first name
    values = [x, capture["model", 0, "O"].detach()]

    assert [value.name for value in session.get_outputs()] == names
    assert list(model.graph.input) == list(model.graph.initializer) == []
    assert {node.op_type for node in model.graph.node} == {"Constant"}
    assert [[dim.dim_value for dim in value.type.tensor_type.shape.dim] for value in model.graph.output][-1] == [2, 2]
    for outputs in (session.run(None, {}), ReferenceEvaluator(model).run(None, {})):
        assert all(np.array_equal(found, value) for found, value in zip(outputs, values, strict=True))
    assert _names(tmp_path) == (["dump.onnx", "dump.onnx.data"] if external else ["dump.onnx"])


@since("onnxruntime", "1.27", "float8e8m0 is not read")
@pytest.mark.parametrize("optimize", [False, True])
def test_onnx_runtime_loads_every_dtype(tmp_path, external, optimize):
    """It returns those that NumPy has, bit for bit; complex numbers are pairs of reals."""
    given = {
        dtype: torch.arange(64, dtype=torch.uint8).reshape(2, 32).view(dtype)
        for dtype in CARRIERS
        if dtype != torch.bool
    }
    _dump(tmp_path / "dump.onnx", {str(dtype): tensor for dtype, tensor in given.items()}, {"empty": torch.ones(0, 2)})
    options = onnxruntime.SessionOptions()
    levels = onnxruntime.GraphOptimizationLevel
    options.graph_optimization_level = levels.ORT_ENABLE_ALL if optimize else levels.ORT_DISABLE_ALL

    session = onnxruntime.InferenceSession(tmp_path / "dump.onnx", options, providers=["CPUExecutionProvider"])

    unknown = {torch.bfloat16, torch.float8_e4m3fnuz, torch.float8_e5m2, torch.float8_e5m2fnuz, torch.float8_e8m0fnu}
    asked = [dtype for dtype in given if CARRIERS[dtype].view not in unknown]  # bcomplex32 is pairs of bfloat16
    found = session.run([f"m#0.I.args[0]['{dtype}']" for dtype in asked] + ["m#1.I.args[0]['empty']"], {})
    for dtype, array in zip(asked, found[:-1], strict=True):
        assert array.tobytes() == given[dtype].view(torch.uint8).numpy().tobytes(), dtype
    assert found[-1].shape == (0, 2)


@pytest.mark.parametrize("name", ["float32", "bfloat16", "float8_e5m2", "float8_e8m0fnu"])
def test_a_dump_needs_no_newer_onnx_than_its_newest_dtype(tmp_path, name):
    """Runtimes refuse files of a newer opset or IR version than their own."""
    tensor = torch.zeros(1, 2).to(getattr(torch, name))
    _dump(tmp_path / "dump.onnx", tensor, torch.zeros(1, 2))
    model = onnx.load(tmp_path / "dump.onnx")
    (opset,) = (item.version for item in model.opset_import)
    types = {node.attribute[0].t.data_type for node in model.graph.node}
    schemas = (onnx.defs.get_schema("Constant", opset), onnx.defs.get_schema("Constant", opset - 1))
    known = [{text for kind in schema.type_constraints for text in kind.allowed_type_strs} for schema in schemas]
    wanted = {f"tensor({onnx.TensorProto.DataType.Name(kind).lower()})" for kind in types}
    assert wanted <= known[0]
    assert opset == 13 or not wanted <= known[1]
    assert model.ir_version == onnx.helper.find_min_ir_version_for(model.opset_import)


def test_the_index_is_json_in_the_metadata(tmp_path):
    """Programs can read it without Filch."""
    _dump(tmp_path / "dump.onnx", (torch.ones(2, dtype=torch.complex64), None))

    model = onnx.load(tmp_path / "dump.onnx")
    props = {entry.key: json.loads(entry.value) for entry in model.metadata_props}

    keys = {f"filch.{key}" for key in ("dump", "tensors", "grown", "records", "failed", "modules", "environment")}
    assert (model.producer_name, set(props)) == ("filch", keys)
    assert props["filch.dump"] == 2
    assert props["filch.tensors"] == [["m#0.I.args[0][0]", "complex64", [2]]]
    assert props["filch.records"][1] == ["m", 0, "O", {"tuple": [[0, {"tensor": 0}], [1, None]]}, "", 0, 0]
    assert props["filch.failed"] == []
    assert props["filch.modules"] == {"m": {"class": "torch.nn.modules.linear:Identity", "parameters": ["input"]}}


def test_a_dump_without_tensors_is_valid(tmp_path):
    """Nothing was called, or all values were None."""
    capture = _dump(tmp_path / "nothing.onnx")
    _dump(tmp_path / "none.onnx", None)

    onnx.checker.check_model(tmp_path / "nothing.onnx", full_check=True)
    assert dict(restore(tmp_path / "nothing.onnx")) == dict(capture) == {}
    assert dict(restore(tmp_path / "none.onnx")) == {("m", 0, "I"): ((None,), {}), ("m", 0, "O"): None}


def test_the_data_of_a_large_dump_is_in_a_mapped_file(tmp_path, differ):
    """Above 32 MiB; the model stays small, and reading a tensor copies nothing."""
    tensor = torch.arange(LARGE, dtype=torch.float32)
    module = nn.Linear(1, 1)
    with steal_forward(("m", module), dump_file=tmp_path / "dump.onnx"), pytest.raises(RuntimeError):
        module(tensor)

    dump = restore(tmp_path / "dump.onnx")
    found = dump["m", 0, "I"][0][0]
    assert (tmp_path / "dump.onnx").stat().st_size < 10_000
    assert (tmp_path / "dump.onnx.data").stat().st_size == 4 * LARGE
    assert differ(found, tensor) is None
    assert dump["m", 0, "I"][0][0].data_ptr() == found.data_ptr()


def test_a_dump_of_exactly_the_limit_is_one_file(tmp_path):
    """32 MiB of tensors."""
    module = nn.Linear(1, 1)
    with steal_forward(("m", module), dump_file=tmp_path / "dump.onnx"), pytest.raises(RuntimeError):
        module(torch.zeros(LARGE - 1))

    assert _names(tmp_path) == ["dump.onnx"]


def test_writing_to_a_restored_tensor_does_not_change_the_file(tmp_path, monkeypatch):
    """The file is mapped privately."""
    monkeypatch.setattr("filch.steal.dump._format.INLINE_LIMIT", 0)
    _dump(tmp_path / "dump.onnx", torch.ones(4))

    restore(tmp_path / "dump.onnx")["m", 0, "O"].fill_(5)

    assert restore(tmp_path / "dump.onnx")["m", 0, "O"].tolist() == [1] * 4


def test_tensors_in_the_data_file_are_aligned(tmp_path, monkeypatch):
    """To 64 bytes, or to pages from one page on; empty tensors are in the model, as ONNX Runtime requires."""
    monkeypatch.setattr("filch.steal.dump._format.INLINE_LIMIT", 0)
    sizes = (1, 3, 0, 4095, 4096, 5000, 7)
    tensors = [torch.full((size,), index, dtype=torch.uint8) for index, size in enumerate(sizes)]
    _dump(tmp_path / "dump.onnx", tensors)

    protos = [node.attribute[0].t for node in onnx.load((tmp_path / "dump.onnx"), load_external_data=False).graph.node]
    entries = [{entry.key: entry.value for entry in proto.external_data} for proto in protos]
    places = [(int(entry["offset"]), int(entry["length"])) for entry in entries if entry]

    assert [length for _, length in places] == [size for size in sizes if size]
    assert all(offset % 64 == 0 for offset, _ in places)
    assert all(offset % 4096 == 0 for offset, length in places if length >= 4096)
    assert all(end <= start for (_, end), (start, _) in zip([(0, 0)], places[:1], strict=True))
    ends = [offset + length for offset, length in places]
    assert all(end <= start for end, (start, _) in zip(ends[:-1], places[1:], strict=True))
    assert [tensor.tolist() for tensor in restore(tmp_path / "dump.onnx")["m", 0, "O"]] == [t.tolist() for t in tensors]


def test_dumping_again_replaces_the_dump(tmp_path, external):
    """As one file or two, and without growing."""
    sizes = set()
    for index in range(4):
        _dump(tmp_path / "dump.onnx", torch.full((1000,), float(index)))
        sizes.add(sum(path.stat().st_size for path in tmp_path.iterdir()))
        assert restore(tmp_path / "dump.onnx")["m", 0, "O"][0] == index
        assert len(_names(tmp_path)) == 1 + external

    assert max(sizes) - min(sizes) <= 4  # the data file's name


def test_a_small_dump_removes_the_data_file_of_the_large_one_it_replaces(tmp_path, monkeypatch):
    """The file is not used any more."""
    with monkeypatch.context() as patch:
        patch.setattr("filch.steal.dump._format.INLINE_LIMIT", 0)
        _dump(tmp_path / "dump.onnx", torch.ones(4))
    assert _names(tmp_path) == ["dump.onnx", "dump.onnx.data"]

    _dump(tmp_path / "dump.onnx", torch.zeros(4))

    assert _names(tmp_path) == ["dump.onnx"]


def test_an_old_data_file_that_cannot_be_removed_does_not_affect_the_new_dump(tmp_path, monkeypatch):
    """It is merely unused."""
    monkeypatch.setattr("filch.steal.dump._format.INLINE_LIMIT", 0)
    _dump(tmp_path / "dump.onnx", torch.ones(4))
    remove = Path.unlink

    def refuse(path, **options):
        if path.name == "dump.onnx.data":
            raise PermissionError
        remove(path, **options)

    monkeypatch.setattr(Path, "unlink", refuse)
    _dump(tmp_path / "dump.onnx", torch.zeros(4))

    assert restore(tmp_path / "dump.onnx")["m", 0, "O"].tolist() == [0] * 4


def test_the_data_file_of_another_model_is_not_changed(tmp_path, external):
    """An ONNX model that is not a dump, at the path of the dump, refers to a file with the name of our data."""
    neighbor = tmp_path / "dump.onnx.data"
    neighbor.write_text("not ours")
    proto = onnx.TensorProto(name="x", data_location=onnx.TensorProto.EXTERNAL)
    proto.external_data.add(key="location", value=neighbor.name)
    theirs = onnx.GraphProto(name="theirs", node=[onnx.helper.make_node("Constant", [], ["x"], value=proto)])
    (tmp_path / "dump.onnx").write_bytes(onnx.helper.make_model(theirs).SerializeToString())

    for index in range(3):
        _dump(tmp_path / "dump.onnx", torch.full((4,), float(index)))
        assert neighbor.read_text() == "not ours"
        assert restore(tmp_path / "dump.onnx")["m", 0, "O"][0] == index

    assert len(_names(tmp_path)) == 2 + external


@pytest.mark.parametrize("location", ["precious.txt", "../precious.txt", "other.onnx.data"])
def test_replacing_a_damaged_dump_removes_no_other_files(tmp_path, location):
    """Only a file with the name of a data file is removed, and a node without attributes is ignored."""
    folder = tmp_path / "folder"
    folder.mkdir()
    precious = folder / location
    precious.write_text("precious")
    graph = onnx.GraphProto(name="hostile", node=[onnx.NodeProto(op_type="Constant", output=["x"])])
    proto = onnx.TensorProto(name="y", data_location=onnx.TensorProto.EXTERNAL)
    proto.external_data.add(key="location", value=location)
    graph.node.append(onnx.helper.make_node("Constant", [], ["y"], value=proto))
    model = onnx.helper.make_model(graph)
    onnx.helper.set_model_props(model, {"filch.dump": "1"})
    (folder / "dump.onnx").write_bytes(model.SerializeToString())

    _dump(folder / "dump.onnx", torch.ones(1))

    assert precious.read_text() == "precious"
    assert restore(folder / "dump.onnx")["m", 0, "O"] == 1


def test_an_open_dump_does_not_change_when_it_is_replaced(tmp_path, external):
    """Values that were not read yet are still those of its own run."""
    first = _dump(tmp_path / "dump.onnx", torch.zeros(8))
    opened = restore(tmp_path / "dump.onnx")

    for index in range(1, 4):
        _dump(tmp_path / "dump.onnx", torch.full((8,), float(index)))

    assert opened["m", 0, "O"].tolist() == first["m", 0, "O"].tolist() == [0] * 8
    assert external == (len(_names(tmp_path)) == 2)


def test_the_previous_dump_exists_until_the_block_ends(tmp_path, external):
    """With its data; all other files are hidden."""
    _dump(tmp_path / "dump.onnx", torch.zeros(8))
    module = nn.Identity()

    with steal_forward(("m", module), dump_file=tmp_path / "dump.onnx"):
        module(torch.ones(8))
        during = restore(tmp_path / "dump.onnx")["m", 0, "O"].tolist()
        visible = [name for name in _names(tmp_path) if not name.startswith(".")]

    assert during == [0] * 8
    assert len(visible) == 1 + external
    assert restore(tmp_path / "dump.onnx")["m", 0, "O"].tolist() == [1] * 8


KILLED = """
import os, sys, torch
from pathlib import Path
from filch.steal import steal_forward
import filch.steal.dump._format as form
form.INLINE_LIMIT = int(sys.argv[2])
real, left = Path.replace, [int(sys.argv[3])]
def replace(self, target):
    left[0] -= 1
    if left[0] < 0:
        os._exit(9)
    return real(self, target)
Path.replace = replace
module = torch.nn.Identity()
with steal_forward(("m", module), dump_file=sys.argv[1]):
    module(torch.ones(8))
"""


@slow
def test_a_kill_while_publishing_a_dump_leaves_the_previous_one(tmp_path, monkeypatch):
    """Between the two files of the new dump, the previous one can still be read."""
    monkeypatch.setattr("filch.steal.dump._format.INLINE_LIMIT", 0)
    _dump(tmp_path / "dump.onnx", torch.zeros(8))

    assert run_python("-c", KILLED, tmp_path / "dump.onnx", 0, 0).returncode == 9
    assert restore(tmp_path / "dump.onnx")["m", 0, "O"].tolist() == [0] * 8


def test_files_have_the_permissions_of_the_umask(tmp_path, external):
    """The model and its data file."""
    before = os.umask(0o027)
    try:
        _dump(tmp_path / "dump.onnx", torch.ones(8))
    finally:
        os.umask(before)

    assert {path.stat().st_mode & 0o777 for path in tmp_path.iterdir()} == {0o640}
    assert len(_names(tmp_path)) == 1 + external


def test_a_dump_can_be_moved_with_its_data_file(tmp_path, external):
    """The path of the data file is relative."""
    (tmp_path / "here").mkdir()
    _dump(tmp_path / "here" / "dump.onnx", torch.ones(2))

    (tmp_path / "here").rename(tmp_path / "there")

    assert describe(restore(tmp_path / "there" / "dump.onnx")["m", 0, "O"]) == "f32[2]"
    assert len(_names(tmp_path / "there")) == 1 + external


@pytest.fixture(scope="module")
def llama_dump(tmp_path_factory):
    """Return a dump with data file of all modules of a small Llama, in float32 and bfloat16."""
    path = tmp_path_factory.mktemp("llama") / "dump.onnx"
    sizes = {"hidden_size": 64, "num_hidden_layers": 2, "intermediate_size": 128, "vocab_size": 100}
    torch.manual_seed(0)
    model = LlamaForCausalLM(LlamaConfig(**sizes, num_attention_heads=4, num_key_value_heads=2)).eval()
    ids = torch.randint(0, 100, (2, 12))
    with pytest.MonkeyPatch.context() as patch, torch.no_grad():
        patch.setattr("filch.steal.dump._format.INLINE_LIMIT", 0)
        with steal_forward(model, submodules=True, dump_file=path):
            model(ids)
            model(ids, use_cache=False, output_hidden_states=True)
    return path


def _with_onnx_runtime(path):
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    return dict(zip([item.name for item in session.get_outputs()], session.run(None, {}), strict=True))


def _with_the_reference(path):
    model = onnx.load(path)
    return dict(zip([item.name for item in model.graph.output], ReferenceEvaluator(model).run(None, {}), strict=True))


def _with_onnx(path):
    nodes = onnx.load(path).graph.node
    return {node.output[0]: onnx.numpy_helper.to_array(node.attribute[0].t) for node in nodes}


@pytest.mark.parametrize("read", [_with_onnx_runtime, _with_the_reference, _with_onnx])
def test_a_dump_of_a_llama_is_read_without_filch(llama_dump, read):
    """ONNX Runtime, the reference evaluator and onnx read all tensors bit for bit."""
    dump = restore(llama_dump)
    onnx.checker.check_model(llama_dump, full_check=True)

    found = read(llama_dump)

    assert list(found) == [name for name, _, _ in dump.tensors]
    assert len(found) > 60
    for index, array in enumerate(found.values()):
        assert np.array_equal(array, dump.tensor_source.get(index).numpy())


SIZES = pytest.mark.parametrize("size", [2**10, 9 * 2**20], ids=["small", "36 MiB"])


@SIZES
@pytest.mark.parametrize("place", ["x.onnx.data", "sub/x.onnx.data"])
def test_files_of_others_are_not_changed(tmp_path, monkeypatch, size, place):
    """A file with the name of the data file, in the working directory or beside the dump."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "sub").mkdir()
    (tmp_path / place).write_text("precious")
    module = nn.Identity()

    for value in range(2):
        with steal_forward(("m", module), dump_file="sub/x.onnx"):
            module(torch.full((size,), float(value)))
        assert restore("sub/x.onnx")["m", 0, "O"][-1] == value

    assert (tmp_path / place).read_text() == "precious"


@pytest.fixture
def dump(tmp_path):
    model = torch.nn.Linear(3, 2)
    with steal_forward(model, dump_file=tmp_path / "dump.onnx"):
        model(torch.ones(1, 3))
    return tmp_path / "dump.onnx"


def test_an_added_property_is_read_and_changes_nothing_else(dump):
    """The file is still an ONNX model with the same tensors."""
    before = {key: restore(dump)[key] for key in restore(dump)}

    add_properties(dump, {"filch.note": "é", "filch.other": ""})

    found = restore(dump)
    assert found.properties == {"filch.note": "é", "filch.other": ""}
    assert found.keys() == before.keys()
    assert torch.equal(found["", 0, "O"], before["", 0, "O"])
    onnx.checker.check_model(onnx.load(dump), full_check=True)


@pytest.mark.parametrize("key", ["filch.records", "filch.note", "note"])
def test_a_property_must_be_new_and_named_for_filch(dump, key):
    """A dump with a key twice could not be read."""
    add_properties(dump, {"filch.note": "one"})
    before = dump.read_bytes()

    with pytest.raises(DumpError, match=r"must begin with 'filch\.' and be new"):
        add_properties(dump, {key: "two"})
    assert dump.read_bytes() == before


def test_the_environment_has_what_rounding_depends_on(dump, monkeypatch):
    """Versions, libraries, instruction set, threads and settings; and the packages that define the modules."""
    found = restore(dump).environment

    assert found["numpy"] == np.__version__
    assert found["threads"] == str(torch.get_num_threads())
    assert found["cpu_capability"] == torch.backends.cpu.get_cpu_capability()
    assert found["blas"] and found["processor"]
    monkeypatch.setenv("MKL_CBWR", "COMPATIBLE")
    changed = environment(["onnx.helper:Thing", "nowhere:Thing"])
    assert "MKL_CBWR=COMPATIBLE" in changed["settings"] and "MKL_CBWR" not in found["settings"]
    assert changed["onnx"] == onnx.__version__ and "nowhere" not in changed


@pytest.mark.parametrize(("max_slowdown", "is_direct"), [(5, True), (1, False)])
def test_direct_writes_may_be_slower_by_a_factor(tmp_path, monkeypatch, max_slowdown, is_direct):
    """A model on the CPU needs the processor that they spare; one on a GPU waits for the disk alone."""
    with (tmp_path / "cached").open("wb") as cached, (tmp_path / "direct").open("wb") as direct:
        writer = _BlockWriter(cached.fileno(), direct.fileno())
        writer.max_slowdown = max_slowdown
        clock, written = [0.0], []

        def write(handle, view, start):
            written.append(handle == direct.fileno())
            clock[0] += 2.0 if written[-1] else 1.0
            return len(view)

        monkeypatch.setattr(os, "pwrite", write)
        monkeypatch.setattr("time.perf_counter", lambda: clock[0])
        for index in range(20):
            writer.write(memoryview(bytes(16)), index * BLOCK)
    assert {*written[:2]} == {False, True}
    assert {*written[2:]} == {is_direct}
