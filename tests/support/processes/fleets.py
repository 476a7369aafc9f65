"""Run `filch fleet` on models that crash, hang and are killed, and interfere with it while it runs."""

import json
import os
import subprocess
import sys
import time
from contextlib import contextmanager

MODELS = '''
import os, signal, time
import torch
from torch import nn

torch.manual_seed(0)  # a process has one cell, so that its weights are the same wherever it runs

def count():
    """Remember that a cell ran in this process, which has one cell."""
    with open("starts", "a") as file:
        file.write("started\\n")

def layers(*modules, shape=(2, 8)):
    count()
    return nn.Sequential(*modules).eval(), (torch.randn(shape),)

def linear(): return layers(nn.Linear(8, 8))
def mlp(): return layers(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 4))
def norm(): return layers(nn.LayerNorm(8))
def softmax(): return layers(nn.Softmax(-1))
def silu(): return layers(nn.SiLU())
def tanh(): return layers(nn.Tanh(), nn.Linear(8, 2))
def conv(): return layers(nn.Conv1d(3, 4, 3), shape=(1, 3, 8))
def pool(): return layers(nn.MaxPool1d(2), shape=(1, 3, 8))

def sized(batch=2):
    count()
    return nn.Linear(4, 4).eval(), (torch.randn(batch, 4),), {}, ({0: torch.export.Dim("batch", min=1, max=64)},)

def segfault():
    count()
    os.kill(os.getpid(), signal.SIGSEGV)

def exits():
    count()
    os._exit(3)

def killed():
    count()
    os.kill(os.getpid(), signal.SIGKILL)

def raises():
    count()
    raise ValueError("no such weights")

def hang():
    count()
    time.sleep(3600)

def evicted():
    """At its first start, wait for the process above to be killed."""
    if not os.path.exists("evicted"):
        with open("new", "w") as file:
            file.write(str(os.getppid()))
        os.rename("new", "evicted")
        time.sleep(3600)
    return layers(nn.ReLU())
'''


class Fleet:
    """A folder with `models.py` and `fleet.toml`, and runs of it on executors.

    Args:
        folder: an empty folder.
        spec: the text of `fleet.toml`.
    """

    def __init__(self, folder, spec):
        self.folder = folder
        (folder / "models.py").write_text(MODELS)
        (folder / "fleet.toml").write_text(spec)

    @contextmanager
    def running(self, executor, *, timeout, **variables):
        """Start the fleet on an executor, and wait for its end after the block."""
        command = [sys.executable, "-m", "filch", "fleet", "fleet.toml", "--executor", executor]
        environment = {**os.environ, "OMP_NUM_THREADS": "1", **variables}
        with (self.folder / "output").open("w") as output:
            process = subprocess.Popen(
                [*command, "--timeout", str(timeout), "--json"], cwd=self.folder, env=environment, stdout=output,
                stderr=subprocess.STDOUT, start_new_session=True,
            )  # fmt: skip
        try:
            yield process
            process.wait()
        finally:
            process.kill()
            process.wait()

    def rows(self):
        """Return the rows of cells that ran, without one that is being written."""
        ledger = self.folder / "fleet.jsonl"
        lines = ledger.read_text().split("\n")[:-1] if ledger.exists() else []
        return [row for row in map(json.loads, lines) if row["reused"] is None]

    def starts(self):
        """Return how many workers called a factory."""
        return len((self.folder / "starts").read_text().splitlines())

    def wait_for(self, condition, process):
        """Wait until a condition holds, while the fleet runs."""
        while not condition():
            assert process.poll() is None, (self.folder / "output").read_text()
            time.sleep(0.05)

    def wait_for_rows(self, number, process):
        """Wait until the ledger has some rows."""
        self.wait_for(lambda: len(self.rows()) >= number, process)

    def evict(self, process):
        """Kill the process above the worker of the model `evicted`, which is Ray's or submitit's."""
        file = self.folder / "evicted"
        self.wait_for(file.exists, process)
        above = int(file.read_text())
        assert above != process.pid
        os.kill(above, 9)


def outcomes(rows):
    """Return what has to be equal on each executor: status, error and detail of each cell."""
    return {
        json.dumps(row["labels"], sort_keys=True): (row["status"], row["error"], row["detail"], row["blame"])
        for row in rows
    }


@contextmanager
def ray_cluster(nodes):
    """Start a Ray cluster on this machine, with nodes of one CPU each; yield its address and a function to kill one."""
    os.environ.update(RAY_AUTH_MODE="disabled", RAY_USAGE_STATS_ENABLED="0", RAY_DEDUP_LOGS="0")
    from ray.cluster_utils import Cluster

    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    try:
        others = [cluster.add_node(num_cpus=1) for _ in range(nodes - 1)]
        cluster.wait_for_nodes()
        yield cluster.address, lambda: cluster.remove_node(others.pop(), allow_graceful=False)
    finally:
        cluster.shutdown()
