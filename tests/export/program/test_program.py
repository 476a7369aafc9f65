"""Saving and loading programs, changed files, full disks, and files that are refused."""

import json
import os
import re
import resource
import shutil
import subprocess
import warnings

import numpy as np
import onnx
import onnx_ir as ir
import pytest
import torch
from torch import nn

from filch.compare import compare, tiny_llm
from filch.export import ExportError, ProgramError, export, load_program, optimize
from filch.export._errors import reason
from filch.export.backends import backend_names, get_backend
from filch.export.backends._option_text import unknown_option
from filch.steal import FilchError, steal_forward
from support.models.small import capture_of, module_of
from support.processes.commands import run
from support.processes.gpu import ort_cuda
from support.thorough import slow


@pytest.fixture(scope="module")
def captured():
    """The tiny LLM's eager run."""
    model, inputs = tiny_llm()
    return capture_of(model, *inputs, submodules=True)


@pytest.fixture(scope="module")
def program():
    """The tiny LLM, exported."""
    return export(*tiny_llm())


def test_a_saved_program_is_loaded_with_its_calls_inputs_and_operators(program, tmp_path):
    """They are in the file's metadata; the file passes ONNX's checker."""
    program.save(tmp_path / "m.onnx")

    loaded = load_program(tmp_path / "m.onnx")

    assert loaded.module_calls == program.module_calls
    assert (loaded.inputs, loaded.operators, loaded.model_type) == (
        program.inputs,
        program.operators,
        program.model_type,
    )
    assert loaded.graph == program.graph
    onnx.checker.check_model(onnx.load(tmp_path / "m.onnx"))


def test_a_saved_program_has_as_many_reference_values_as_the_one_in_memory(program, captured, tmp_path):
    """The torch program that it was translated from is saved beside it."""
    program.save(tmp_path / "m.onnx")

    report = compare(captured, tmp_path / "m.onnx")

    assert report.close
    assert report.headline == compare(captured, program).headline


def test_without_its_original_a_file_is_compared_at_its_modules(program, captured, tmp_path):
    """Values that are no input or output of a module are then reported as not mapped."""
    program.save(tmp_path / "m.onnx", original=False)

    report = compare(captured, tmp_path / "m.onnx")

    assert os.listdir(tmp_path) == ["m.onnx"]
    assert report.close
    assert {row.evidence for row in report.rows} == {"module", ""}
    assert {row.status for row in report.rows} == {"same", "not mapped"}


def test_a_damaged_original_is_a_note_in_the_report(program, captured, tmp_path):
    """The comparison continues with the reference values of the modules."""
    program.save(tmp_path / "m.onnx")
    (tmp_path / "m.onnx.pt2").write_bytes(b"nothing of use")

    report = compare(captured, tmp_path / "m.onnx")

    assert report.close
    assert "m.onnx.pt2" in report.notes[0]


def test_a_changed_file_is_compared_with_what_was_exported(program, captured, tmp_path):
    """A weight that was edited in the file is reported at the node that reads it."""
    program.save(tmp_path / "m.onnx")
    model = ir.load(tmp_path / "m.onnx")
    weight = model.graph.initializers["decoder.feed_forward.linear_2.bias"]
    changed = weight.const_value.numpy().copy()
    changed[3] += np.float32(0.25)
    weight.const_value = ir.tensor(changed)
    ir.save(model, tmp_path / "m.onnx")

    report = compare(captured, tmp_path / "m.onnx")

    assert not report.close
    assert (report.first_divergence.op, report.first_divergence.module) == ("Add", "decoder.feed_forward.linear_2")
    assert report.first_divergence.difference.mismatched == 60


def test_a_changed_graph_resolves_its_calls_again(program, tmp_path):
    """In an optimized file, each removed value is attributed to the nodes that it went into."""
    optimize(program).save(tmp_path / "m.onnx")

    loaded = load_program(tmp_path / "m.onnx")

    assert loaded.module_calls == optimize(program).module_calls
    assert all(
        port.value is None or port.value in loaded.graph.known
        for call in loaded.module_calls.values()
        for port in call.outputs
    )


def test_large_weights_go_to_a_file_beside_the_model(tmp_path):
    """Weights of more than 64 MB are not stored in the protobuf."""
    model = nn.Linear(4100, 4100).eval()
    x = torch.randn(1, 4100)

    export(model, (x,)).save(tmp_path / "m.onnx", original=False)

    assert sorted(os.listdir(tmp_path)) == ["m.onnx", "m.onnx.data"]
    capture = capture_of(model, x)
    assert compare(capture, tmp_path / "m.onnx").close


def test_weights_beside_the_model_are_read_by_each_backend(tmp_path, monkeypatch):
    """The ONNX reference evaluator, which does not read external data, gets the weights in memory."""
    monkeypatch.setattr("filch.export.program._program._LARGE", 0)
    model, x = nn.Linear(64, 64).eval(), torch.randn(1, 64)
    export(model, (x,)).save(tmp_path / "m.onnx")
    assert (tmp_path / "m.onnx.data").exists()
    capture = capture_of(model, x)

    for backend, every_node in (("reference", False), ("reference", True), ("onnxruntime-cpu", False)):
        assert compare(capture, tmp_path / "m.onnx", backend=backend, every_node=every_node).close


def damaged(path):
    """Damage the module calls in a file's metadata."""
    model = onnx.load(path)
    for entry in model.metadata_props:
        if entry.key == "filch.module_calls":
            entry.value = json.dumps([["x"]])
    onnx.save(model, path)


def test_unusable_files_are_refused_in_a_sentence(program, tmp_path):
    """No such file, no ONNX, cut short, a dump, damaged notes."""
    text = tmp_path / "text.onnx"
    text.write_text("no protobuf")
    short = tmp_path / "short.onnx"
    program.save(short, original=False)
    short.write_bytes(short.read_bytes()[:1000])
    notes = tmp_path / "notes.onnx"
    program.save(notes, original=False)
    damaged(notes)
    dump = tmp_path / "dump.onnx"
    with steal_forward(nn.Identity(), dump_file=dump):
        pass

    for path, message in [
        (tmp_path / "none.onnx", "there is no file"),
        (text, "is not an ONNX file"),
        (short, "is not an ONNX file, or is truncated"),
        (notes, "Filch's metadata in .* are damaged"),
        (dump, "is a dump, not a program"),
    ]:
        with pytest.raises(ProgramError, match=message):
            load_program(path)


def test_what_cannot_be_exported_gives_torchs_reason_first():
    """Not its banner, and no traceback from five levels down."""

    class Branches(nn.Module):
        def forward(self, x):
            return x + 1 if x.sum() > 0 else x - 1

    with pytest.raises(ExportError, match=r"^torch can't export Branches: .*(data-dependent|guard)") as caught:
        export(Branches(), (torch.ones(2),))
    assert "\n" not in str(caught.value)


def test_a_model_that_fails_itself_is_told_from_one_that_cannot_be_exported():
    """The reason is the model's own exception."""
    with pytest.raises(ExportError, match="Linear itself fails on these inputs: RuntimeError: mat1 and mat2"):
        export(nn.Linear(3, 3), (torch.ones(2, 4),))


def test_export_takes_a_module():
    """And says what it was given instead."""
    with pytest.raises(ExportError, match="not function"):
        export(lambda x: x, (torch.ones(1),))


def test_backends_go_by_name():
    """An unknown one is refused with the nearest name, a missing device with what is missing."""
    assert {"eager", "onnxruntime-cpu", "onnxruntime-cuda", "reference"} <= set(backend_names())
    with pytest.raises(FilchError, match="there is no backend 'onnxruntime-cup'; did you mean 'onnxruntime-cpu'"):
        get_backend("onnxruntime-cup")
    with pytest.raises(FilchError, match="has no option 'color'; there are dtype, device"):
        get_backend("eager", color="red")
    if not torch.cuda.is_available():
        reasons = "needs a CUDA device, and torch sees none", "needs onnxruntime-gpu; the onnxruntime"
        with pytest.raises(FilchError, match="|".join(reasons)):
            get_backend("onnxruntime-cuda")


@pytest.mark.gpu
def test_the_cuda_backend_runs_the_tiny_llm(program, captured):
    """The session reports that it runs on the device."""
    report = compare(captured, program, backend=ort_cuda(tf32=False), tolerance=1e-4)

    assert report.close


@slow
def test_the_original_of_another_export_is_not_used(program, captured, tmp_path):
    """Neither the recorded name nor the file's own name is enough: the identity must match."""
    program.save(tmp_path / "m.onnx")
    shutil.copy(tmp_path / "m.onnx", tmp_path / "copy.onnx")
    export(*tiny_llm(seed=1)).save(tmp_path / "m.onnx")

    report = compare(captured, tmp_path / "copy.onnx")

    assert report.close
    assert "is of another export" in report.notes[0]
    assert {row.evidence for row in report.rows} == {"module", ""}


def test_a_missing_original_is_noted(program, captured, tmp_path):
    """The note explains why few values have references."""
    program.save(tmp_path / "m.onnx")
    (tmp_path / "m.onnx.pt2").unlink()

    report = compare(captured, tmp_path / "m.onnx")

    assert "'m.onnx.pt2' is not beside the ONNX file" in report.notes[0]
    assert "all that could be judged is close" in str(report).replace("\n", " ")


def test_a_result_that_the_graph_does_not_have_is_no_pass(tmp_path):
    """Removing an output from the file makes the comparison fail."""
    two, x = module_of(lambda self, x: (x + 1, x * 2)), torch.randn(3)
    capture = capture_of(two, x)
    export(two, (x,)).save(tmp_path / "m.onnx")
    model = onnx.load(tmp_path / "m.onnx")
    del model.graph.output[1]
    onnx.save(model, tmp_path / "m.onnx")

    report = compare(capture, tmp_path / "m.onnx")

    assert not report.close
    assert "the program does not have the model's outputs: 'mul' ([1]) is missing" in report.headline


def test_an_option_may_be_called_as_what_each_backend_has():
    """The factory accepts it, but messages do not suggest it, because most backends do not."""

    def factory(name="own", stages=(), speed=1):
        return name, stages, speed

    assert unknown_option(factory, {"stages": ("compiled",), "name": "x"}) == ""
    assert unknown_option(factory, {"sped": 1}) == "has no option 'sped'; did you mean 'speed'?"
    assert unknown_option(lambda: None, {"sped": 1}) == "has no option 'sped'; it takes none"
    assert unknown_option(lambda **options: options, {"sped": 1}) == ""


@pytest.fixture(scope="module")
def large():
    """Return a large with 256 KiB of weights."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return export(torch.nn.Linear(256, 256).eval(), (torch.ones(1, 256),))


@pytest.fixture(params=[4096, 2**17])
def full_disk(request):
    """Limit each file that this process writes: before the weights, and in the middle of them."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (request.param, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_program_that_does_not_fit_leaves_nothing(large, full_disk, tmp_path):
    """Torch's writer, which ends the process if a write fails, is not told of it."""
    with pytest.raises(ProgramError, match=r"can't write '.*p\.onnx': File too large"):
        large.save(tmp_path / "p.onnx")

    assert not list(tmp_path.iterdir())


def test_a_program_that_does_not_fit_keeps_the_former_one(large, tmp_path):
    """With its original, which is complete."""
    large.save(tmp_path / "p.onnx")
    files = {file.name: file.read_bytes() for file in tmp_path.iterdir()}
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, before[1]))
    try:
        with pytest.raises(ProgramError, match="File too large"):
            large.save(tmp_path / "p.onnx")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)

    assert {file.name: file.read_bytes() for file in tmp_path.iterdir()} == files
    assert set(files) == {"p.onnx", "p.onnx.pt2"}
    assert load_program(tmp_path / "p.onnx").original is not None


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount a small disk")
def test_a_full_disk_ends_an_export_with_one_sentence(tmp_path, capfd):
    """It names the disk; nothing is left on it."""
    disk = tmp_path / "disk"
    disk.mkdir()
    (tmp_path / "m.py").write_text(
        "import torch\ndef make(): return torch.nn.Linear(256, 256).eval(), (torch.randn(2, 256),)\n"
    )
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", disk],  # noqa: S607  found as the shell does
        capture_output=True,
        check=False,
    )
    if mounted.returncode:
        pytest.skip(f"can't mount a small disk: {mounted.stderr.decode().strip()}")
    try:
        code = run("export", f"{tmp_path}/m.py:make", "-o", f"{disk}/p.onnx")
        left = list(disk.iterdir())
    finally:
        subprocess.run(["umount", disk], check=True)  # noqa: S607  as above

    sentence = (
        rf"filch: can't write '{disk}/p.onnx': No space left on device: [\d,]+ bytes are free on the disk of '{disk}'"
    )
    assert re.search(rf"^{sentence}$", capfd.readouterr().err, re.MULTILINE)
    assert (code, left) == (2, [])


def test_a_compiler_that_finds_no_room_is_an_error_that_names_the_disk():
    """What it printed says so, among pages of a command line."""
    failure = subprocess.CalledProcessError(1, ["g++", "-O3"], output=b"main.cpp: fatal error: No space left on device")
    error = RuntimeError("the lowering failed")
    error.__cause__ = failure

    assert re.fullmatch(r"No space left on device: [\d,]+ bytes are free on the disk of '.*'", reason(error))
    assert reason(RuntimeError("no such header")) == "RuntimeError: no such header"
