"""Run cells as jobs of Slurm, or as jobs of submitit's local executor."""

import math
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from ..common._optional import import_optional
from ._supervisor import run_worker

_DAY = 86400.0  # seconds
_MARGIN = 1200.0  # seconds for the imports of a worker and for its end
_LOG = 200  # characters


class SubmititExecutor:
    """Runs each cell as a job.

    Jobs exchange files with this process in a new folder of the current one, which other nodes have to see, too.

    Args:
        cluster: `slurm` or `local`.
        partition: the Slurm partition; `""` is Slurm's default.
        slots: the number of jobs that are queued or run at a time.

    Raises:
        CompareError: submitit is not installed, or there is no Slurm.
    """

    def __init__(self, cluster: Literal["slurm", "local"], partition: str, slots: int) -> None:
        self._submitit = import_optional("submitit", "filch[slurm]", "this executor")
        self.place = f"slurm:{partition}" if cluster == "slurm" else ""
        self._slots, self._partition = slots, partition
        self._folder = Path(tempfile.mkdtemp(prefix="filch-jobs-", dir=Path.cwd()))
        try:
            self._executor = self._submitit.AutoExecutor(folder=self._folder, cluster=cluster)
        except BaseException:
            self.close()
            raise

    @property
    def slots(self) -> int:
        """The number of jobs that are queued or run at a time."""
        return self._slots

    def submit(self, cell: Mapping[str, Any], *, timeout: float | None, gpu: bool) -> Any:
        """Queue a job. Its own time limit leaves time to notice that the cell exceeds its limit."""
        parameters: dict[str, Any] = {
            "name": "filch",
            "timeout_min": math.ceil(((_DAY if timeout is None else timeout) + _MARGIN) / 60),
            "gpus_per_node": int(gpu),
        }
        if self._partition:
            parameters["slurm_partition"] = self._partition
        self._executor.update_parameters(**parameters)
        return self._executor.submit(run_worker, dict(cell), timeout)

    def poll(self, handle: Any) -> Mapping[str, Any] | None:
        """Return the outcome of a job, or None while it is queued or running."""
        if not handle.done():
            return None
        utils = self._submitit.core.utils
        try:
            outcome: Mapping[str, Any] = handle.result()
        except utils.FailedJobError as error:
            return {"status": "failed", "detail": f"the job can't run a worker: {_cause(error)}"}
        except utils.UncompletedJobError as error:
            if handle.state == "OUT_OF_MEMORY":
                return {"status": "crashed", "detail": "Slurm ended the job, which was out of memory"}
            return {"status": "lost", "detail": f"the job ended without an outcome: {_short(str(error))}"}
        return outcome

    def cancel(self, handle: Any) -> None:
        """Cancel a job."""
        handle.cancel(check=False)

    def close(self) -> None:
        """Remove the files of the jobs."""
        shutil.rmtree(self._folder, ignore_errors=True)


def _cause(error: Exception) -> str:
    """Return the last line of the traceback that submitit reports between two lines of dashes."""
    lines = [line for line in str(error).splitlines() if line and not line.startswith(("-", "You can", "or at", "  -"))]
    return _short(lines[-1] if lines else type(error).__name__)


def _short(text: str) -> str:
    return " ".join(text.split())[:_LOG]
