"""Executors by name, and cells in processes of their own: how jobs, tasks and processes end becomes a row."""

import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from filch.compare import CompareError
from filch.compare.fleet._cell import CellSpec
from filch.compare.fleet._executors import check_executor, open_executor
from filch.compare.fleet._processes import ProcessExecutor
from filch.compare.fleet._ray import RayExecutor
from filch.compare.fleet._submitit import SubmititExecutor
from filch.compare.fleet._supervisor import WorkerProcess, run_worker
from support.processes.commands import run
from support.processes.forked import run_python
from support.thorough import slow


@pytest.mark.parametrize(
    ("text", "slots"),
    [("processes", 1), ("processes:8", 8), ("submitit:local:3", 3), ("slurm:gpu", 64), ("slurm:a-b:5", 5)],
)
def test_a_name_says_the_number_of_cells_at_a_time(text, slots, fake_submitit, tmp_path):
    """By default one, or on Slurm 64 jobs in the queue."""
    with open_executor(text) as executor:
        assert executor.slots == slots
    assert [*tmp_path.iterdir()] == []


@pytest.mark.parametrize("text", ["", "process:2", "processes:0", "slurm", "slurm:", "submitit:slurm", "rays", "ray:1"])
def test_unknown_executors_are_refused(text):
    """The message lists the forms."""
    with pytest.raises(CompareError, match=r"there is no executor .*: it is processes:N, slurm:PARTITION"):
        check_executor(text)


@pytest.mark.parametrize(("text", "library"), [("ray", "ray"), ("submitit:local", "submitit"), ("slurm:p", "submitit")])
def test_a_missing_library_is_named(text, library, monkeypatch, tmp_path):
    """With the command that installs it."""
    monkeypatch.setitem(sys.modules, library, None)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(CompareError, match=f"this executor needs {library}: pip install 'filch"), open_executor(text):
        pass
    assert [*tmp_path.iterdir()] == []


class FailedJobError(Exception):
    pass


class UncompletedJobError(Exception):
    pass


class FakeJob:
    """A job of submitit whose function never runs."""

    def __init__(self, ended, state="COMPLETED"):
        self.ended, self.state = ended, state

    def done(self):
        return self.ended is not None

    def result(self):
        if isinstance(self.ended, Exception):
            raise self.ended
        return self.ended


@pytest.fixture
def fake_submitit(monkeypatch, tmp_path):
    """A module that records the parameters of its jobs; its cluster has no Slurm."""
    monkeypatch.chdir(tmp_path)
    recorded = {}

    class AutoExecutor:
        def __init__(self, folder, cluster):
            recorded["cluster"] = cluster

        def update_parameters(self, **parameters):
            recorded.update(parameters)

        def submit(self, function, *args):
            recorded["submitted"] = (function.__name__, *args)

    utils = SimpleNamespace(FailedJobError=FailedJobError, UncompletedJobError=UncompletedJobError)
    module = SimpleNamespace(AutoExecutor=AutoExecutor, core=SimpleNamespace(utils=utils))
    monkeypatch.setitem(sys.modules, "submitit", module)
    return recorded


def test_a_slurm_job_has_the_partition_a_gpu_and_more_time_than_its_cell(fake_submitit):
    """So that the worker's own supervisor ends it, and says so."""
    executor = SubmititExecutor("slurm", "a100", 4)
    executor.submit({"factory": "f"}, timeout=600.0, gpu=True)

    assert executor.place == "slurm:a100"
    assert fake_submitit["submitted"] == ("run_worker", {"factory": "f"}, 600.0)
    assert (fake_submitit["slurm_partition"], fake_submitit["gpus_per_node"]) == ("a100", 1)
    assert fake_submitit["timeout_min"] == 30
    executor.close()


@pytest.mark.parametrize(
    ("job", "status", "detail"),
    [
        (FakeJob({"status": "close"}), "close", ""),
        (FakeJob(UncompletedJobError("no output"), "NODE_FAIL"), "lost", "no output"),
        (FakeJob(UncompletedJobError("no output"), "OUT_OF_MEMORY"), "crashed", "out of memory"),
        (FakeJob(FailedJobError("---\nModuleNotFoundError: filch\n---\nYou can")), "failed", "ModuleNotFoundError"),
    ],
)
def test_the_end_of_a_job_becomes_an_outcome(fake_submitit, job, status, detail):
    """Only a job that vanished is lost, and is retried."""
    executor = SubmititExecutor("slurm", "p", 1)
    outcome = executor.poll(job)

    assert executor.poll(FakeJob(None)) is None
    assert outcome["status"] == status and detail in outcome.get("detail", "")
    executor.close()


class RayError(Exception):
    pass


class RayTaskError(RayError):
    cause = ModuleNotFoundError("No module named 'filch'")


class OutOfMemoryError(RayError):
    pass


@pytest.fixture
def fake_ray(monkeypatch):
    """A module whose tasks are what ends them, in a cluster with the resources that it returns."""
    resources = {"CPU": 6.0}
    module = SimpleNamespace(resources=resources, options=[])

    class Task:
        def options(self, **options):
            module.options.append(options)
            return self

        def remote(self, *args):
            return args

    def get(handle):
        if isinstance(handle, Exception):
            raise handle
        return handle

    def init(address, **_):
        if address == "ray://gone:1":
            raise ConnectionError("no answer")

    module.init, module.shutdown = init, lambda: None
    module.remote = lambda **_: lambda function: Task()
    module.cluster_resources = lambda: resources
    module.wait = lambda handles, timeout: ([], handles) if handles == [None] else (handles, [])
    module.get = get
    module.exceptions = SimpleNamespace(RayError=RayError, RayTaskError=RayTaskError, OutOfMemoryError=OutOfMemoryError)
    monkeypatch.setitem(sys.modules, "ray", module)
    return module


@pytest.mark.parametrize(
    ("ended", "status"),
    [
        ({"status": "close"}, "close"),
        (RayError("the node died"), "lost"),
        (OutOfMemoryError("killed"), "crashed"),
        (RayTaskError(), "failed"),
    ],
)
def test_the_end_of_a_task_becomes_an_outcome(fake_ray, ended, status):
    """Only a task whose worker or node died is lost, and is retried."""
    executor = RayExecutor(None)

    assert executor.poll(None) is None
    assert executor.poll(ended)["status"] == status


def test_a_task_takes_a_gpu_only_where_there_is_one(fake_ray):
    """Else it would wait for one forever; without a GPU the status of the cell is `missing`."""
    executor = RayExecutor(None)
    executor.submit({}, timeout=None, gpu=True)
    fake_ray.resources["GPU"] = 2.0
    executor.submit({}, timeout=None, gpu=True)
    executor.submit({}, timeout=None, gpu=False)

    assert [options["num_gpus"] for options in fake_ray.options] == [0, 1, 0]
    assert executor.slots == 6


def test_a_cluster_that_does_not_answer_is_an_error(fake_ray):
    """The message has the address."""
    with pytest.raises(CompareError, match="can't connect to Ray at ray://gone:1: ConnectionError: no answer"):
        RayExecutor("ray://gone:1")


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


@slow
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


@slow
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


@slow
def test_a_timeout_ends_the_children_of_a_cell(outcomes, folder):
    """They are in the group of the process."""
    assert outcomes[1]["hang"]["status"] == "timeout"
    assert not _is_alive(int((folder / "child").read_text()))


@slow
def test_a_matrix_is_the_same_in_processes_and_in_this_one(outcomes, folder, monkeypatch, capsys):
    """The cell has the same error, status and detail."""
    monkeypatch.chdir(folder)
    assert run("matrix", "models.py:close", "-b", "eager", "--json") == 0

    assert json.loads(capsys.readouterr().out)["cells"] == [outcomes[1]["close"]]


@slow
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
