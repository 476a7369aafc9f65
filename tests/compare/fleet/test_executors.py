"""Executors by name, and how the ends of jobs and tasks become outcomes; `test_clusters.py` runs real ones."""

import sys
from types import SimpleNamespace

import pytest

from filch.compare import CompareError
from filch.compare.fleet._executors import check_executor, open_executor
from filch.compare.fleet._ray import RayExecutor
from filch.compare.fleet._submitit import SubmititExecutor


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
