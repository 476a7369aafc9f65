"""Fleets on Ray and submitit, whose nodes and jobs are killed: each cell has one row. `make test-fleet` runs them."""

import pytest

from support.processes.fleets import Fleet, ray_cluster

pytestmark = pytest.mark.fleet

SPEC = """
[defaults]
backends = ["eager"]

[[matrix]]
models = ["models.py:segfault", "models.py:exits", "models.py:linear", "models.py:hang", "models.py:evicted",
          "models.py:killed", "models.py:raises", "models.py:softmax", "models.py:norm"]

[[sweep]]
model = "models.py:sized"
dims = {batch = [1, 3]}
"""
STATUSES = {
    "close": ["evicted", "linear", "norm", "sized", "sized", "softmax"],
    "crashed": ["exits", "killed", "segfault"],
    "failed": ["raises"],
    "timeout": ["hang"],
}
TIMEOUT = 60.0


def _statuses(rows):
    names = [(row["status"], row["labels"]["model"].partition(":")[2]) for row in rows]
    return {status: sorted(name for other, name in names if other == status) for status in {one for one, _ in names}}


def _attempts(rows, name):
    return [row["attempt"] for row in rows if row["labels"]["model"] == f"models.py:{name}"]


def test_each_cell_has_one_row_though_a_job_of_submitit_is_killed(tmp_path):
    """The cell of the job runs again."""
    pytest.importorskip("submitit")
    fleet = Fleet(tmp_path, SPEC)
    with fleet.running("submitit:local:2", timeout=TIMEOUT) as process:
        fleet.evict(process)
    rows = fleet.rows()

    assert process.returncode == 2, (tmp_path / "output").read_text()
    assert _statuses(rows) == STATUSES
    assert _attempts(rows, "evicted") == [2]
    assert [path for path in tmp_path.iterdir() if path.is_dir() and path.name.startswith("filch-jobs")] == []


def test_each_cell_has_one_row_though_a_node_and_a_worker_of_ray_are_killed(tmp_path):
    """The cells that ran on them run again, on the nodes that are left."""
    pytest.importorskip("ray")
    fleet = Fleet(tmp_path, SPEC)
    with ray_cluster(3) as (address, kill_node), fleet.running("ray", timeout=TIMEOUT, RAY_ADDRESS=address) as process:
        fleet.evict(process)
        fleet.wait_for_rows(3, process)
        kill_node()
        process.wait()
    rows = fleet.rows()

    assert process.returncode == 2, (tmp_path / "output").read_text()
    assert _statuses(rows) == STATUSES
    assert _attempts(rows, "evicted")[0] > 1
