"""A program that does not fit on its disk is an error in one sentence, and leaves what was there."""

import os
import re
import resource
import subprocess
import warnings

import pytest
import torch

from filch.export import ProgramError, export, load_program
from filch.export._errors import reason
from support.processes.commands import run


@pytest.fixture(scope="module")
def program():
    """Return a program with 256 KiB of weights."""
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


def test_a_program_that_does_not_fit_leaves_nothing(program, full_disk, tmp_path):
    """Torch's writer, which ends the process if a write fails, is not told of it."""
    with pytest.raises(ProgramError, match=r"can't write '.*p\.onnx': File too large"):
        program.save(tmp_path / "p.onnx")

    assert not list(tmp_path.iterdir())


def test_a_program_that_does_not_fit_keeps_the_former_one(program, tmp_path):
    """With its original, which is complete."""
    program.save(tmp_path / "p.onnx")
    files = {file.name: file.read_bytes() for file in tmp_path.iterdir()}
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, before[1]))
    try:
        with pytest.raises(ProgramError, match="File too large"):
            program.save(tmp_path / "p.onnx")
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
