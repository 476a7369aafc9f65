"""Cells in processes of their own: whatever happens to a process is a row, and nothing of it stays."""

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from filch.compare.fleet._cell import CellSpec
from filch.compare.fleet._processes import ProcessExecutor
from filch.compare.fleet._supervisor import WorkerProcess, run_worker
from support.processes.commands import run
from support.processes.forked import run_python

MODELS = """
import os, signal, subprocess, sys, time
import torch

def close():
    print("not a part of what is exchanged with the worker")
    return torch.nn.GELU(), (torch.ones(2),)

def segfault():
    os.kill(os.getpid(), signal.SIGSEGV)

def exits():
    sys.stdin.read()  # there is no input
    os._exit(3)

def killed():
    os.kill(os.getpid(), signal.SIGKILL)

def hang():
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    with open("child", "w") as file:
        file.write(str(child.pid))
    time.sleep(600)

def raises():
    raise ValueError("no such weights")
"""
TIMEOUT = 10  # seconds; the model that is compared takes one


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with models."""
    folder = tmp_path_factory.mktemp("fleet")
    (folder / "models.py").write_text(MODELS)
    return folder


def _is_alive(pid):
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


def _spec(folder, name, **options):
    return CellSpec(f"models.py:{name}", str(folder), "eager", **options).to_dict()


@pytest.fixture(scope="module")
def outcomes(folder):
    """The exit code of a matrix, the cells as printed, and the rows of the ledger."""
    names = [f"models.py:{name}" for name in ("hang", "close", "segfault", "exits", "killed", "raises")]
    options = ("-b", "eager", "--executor", "processes:2", "--timeout", str(TIMEOUT), "--ledger", "l.jsonl", "--json")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        done = run_python("-m", "filch", "matrix", *names, *options, forks=True)
    cells = {cell["labels"]["model"].partition(":")[2]: cell for cell in json.loads(done.stdout)["cells"]}
    rows = [json.loads(line) for line in (folder / "l.jsonl").read_text().splitlines()]
    return done.returncode, cells, rows


def test_each_end_of_a_process_has_a_status(outcomes):
    """The detail names the signal or the exit code, and the line where it crashed or hangs."""
    code, cells, _ = outcomes

    assert code == 2
    assert {name: cell["status"] for name, cell in cells.items()} == {
        "hang": "timeout",
        "close": "close",
        "segfault": "crashed",
        "exits": "crashed",
        "killed": "crashed",
        "raises": "failed",
    }
    assert cells["segfault"]["detail"] == "the process was killed by SIGSEGV, in models.py:10 (segfault)"
    assert cells["exits"]["detail"] == "the process ended with exit code 3"
    assert cells["killed"]["detail"] == "the process was killed by SIGKILL"
    assert cells["hang"]["detail"] == f"it took more than {TIMEOUT} s, in models.py:23 (hang)"
    assert "raised ValueError: no such weights (models.py:26, in raises" in cells["raises"]["detail"]


def test_each_cell_has_one_row_with_the_environment_of_its_worker(outcomes):
    """Also a cell that crashed; the time is counted from the end of the imports."""
    _, cells, rows = outcomes

    assert sorted(row["labels"]["model"] for row in rows) == sorted(f"models.py:{name}" for name in cells)
    assert len({row["key"] for row in rows}) == len(rows)
    assert {row["run"] for row in rows} == {rows[0]["run"]}
    assert all(row["environment"]["torch"] for row in rows)
    seconds = {row["labels"]["model"].partition(":")[2]: row["seconds"] for row in rows}
    assert TIMEOUT <= seconds["hang"] < TIMEOUT + 10
    assert 0 < seconds["close"] < TIMEOUT


def test_a_timeout_ends_the_children_of_a_cell(outcomes, folder):
    """They are in the group of the process."""
    assert outcomes[1]["hang"]["status"] == "timeout"
    assert not _is_alive(int((folder / "child").read_text()))


def test_a_matrix_is_the_same_in_processes_and_in_this_one(outcomes, folder, monkeypatch, capsys):
    """The cell has the same error, status and detail."""
    monkeypatch.chdir(folder)
    assert run("matrix", "models.py:close", "-b", "eager", "--json") == 0

    assert json.loads(capsys.readouterr().out)["cells"] == [outcomes[1]["close"]]


def test_a_worker_ends_with_its_supervisor(folder):
    """A supervisor that is killed can't end the worker; the worker notices that its standard input is closed."""
    supervise = (
        "import sys, json; from filch.compare.fleet._supervisor import WorkerProcess; import time\n"
        "worker = WorkerProcess(json.loads(sys.argv[1]), None)\n"
        "print(worker._process.pid, worker._path, flush=True); time.sleep(600)"
    )
    (folder / "child").unlink(missing_ok=True)
    command = [sys.executable, "-c", supervise, json.dumps(_spec(folder, "hang"))]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as supervisor:
        worker, files = supervisor.stdout.readline().split()
        deadline = time.monotonic() + 60
        while not (folder / "child").exists() and time.monotonic() < deadline:
            time.sleep(0.05)
        supervisor.kill()
    deadline = time.monotonic() + 10
    while _is_alive(worker) and time.monotonic() < deadline:
        time.sleep(0.05)

    assert not _is_alive(worker)
    assert not Path(files).exists()


def test_a_worker_that_does_not_start_is_lost(folder, monkeypatch):
    """Imports from a file system that hangs must not stop a fleet."""
    monkeypatch.setattr("filch.compare.fleet._supervisor._START_LIMIT", 0.0)

    assert run_worker(_spec(folder, "close"), None)["status"] == "lost"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_worker_that_a_node_ends_is_lost(folder, number):
    """A node that goes down sends these signals; the cell has not crashed, and is retried."""
    before = signal.signal(number, signal.SIG_DFL)  # under `nohup`, SIGHUP is ignored, also by child processes
    try:
        process = WorkerProcess(_spec(folder, "hang"), None)
    finally:
        signal.signal(number, before)
    process._process.send_signal(number)  # noqa: SLF001  as Ray does
    while (outcome := process.poll()) is None:
        time.sleep(0.05)

    assert outcome["status"] == "lost"
    assert f"was killed by {number.name}" in outcome["detail"]


def test_a_kill_is_reported_late_enough_for_a_node_to_go_down(tmp_path, monkeypatch):
    """On a cluster, the supervisor of a killed worker may be killed next; then the cell is lost."""
    kill = tmp_path / "python"
    kill.write_text("#!/bin/sh\nkill -9 $$\n")
    kill.chmod(0o700)
    monkeypatch.setattr(sys, "executable", str(kill))
    monkeypatch.setattr("filch.compare.fleet._supervisor._TEARDOWN", 0.5)
    started = time.monotonic()

    assert run_worker({}, None)["status"] == "crashed"
    assert time.monotonic() - started >= 0.5


def test_a_worker_that_cant_import_filch_crashes_with_the_reason(folder, monkeypatch):
    """The last line that it printed says what is missing."""
    monkeypatch.setattr(sys, "executable", "/bin/false")
    monkeypatch.setattr("filch.compare.fleet._supervisor._TEARDOWN", 0.0)
    assert run_worker({}, None)["detail"] == "the worker ended with exit code 1 before it was ready: it printed nothing"


def test_a_process_that_cant_be_started_is_lost(monkeypatch):
    """It is retried, as there may be memory for it later."""
    monkeypatch.setattr(sys, "executable", "/no/such/python")
    executor = ProcessExecutor(1)
    handle = executor.submit({}, timeout=1, gpu=False)

    assert executor.poll(handle) == {"status": "lost", "detail": "no process could be started"}
    executor.cancel(handle)


def test_cancelling_ends_the_process_and_removes_its_files(folder):
    """Ctrl-C leaves neither."""
    process = WorkerProcess(_spec(folder, "hang"), None)
    files = process._path  # noqa: SLF001  to see that it is removed
    assert files.exists()
    process.kill()

    assert not files.exists()
    assert not _is_alive(process._process.pid)  # noqa: SLF001
