"""Run cells as tasks of Ray."""

import os
from collections.abc import Mapping
from typing import Any

from ..common._errors import CompareError
from ..common._optional import import_optional
from ._supervisor import run_worker

_TEXT = 200  # characters
# Ray would warn that tasks which ask for no GPU will see all of them, as they do here, and report its use.
_SETTINGS = {"RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0", "RAY_USAGE_STATS_ENABLED": "0"}


class RayExecutor:
    """Runs each cell as a task that takes one CPU, and one GPU if the cell needs one and the cluster has one.

    Args:
        address: `ray://host:port`; None is the cluster that `RAY_ADDRESS` names, or else a new one on this machine.

    Raises:
        CompareError: Ray is not installed, or there is no cluster at the address.
    """

    place = ""

    def __init__(self, address: str | None) -> None:
        for name, value in _SETTINGS.items():
            os.environ.setdefault(name, value)
        self._ray = import_optional("ray", "filch[ray]", "this executor")
        try:
            self._ray.init(address=address, log_to_driver=False, logging_level="WARNING")
        except (ConnectionError, RuntimeError, ValueError) as error:
            raise CompareError(f"can't connect to Ray at {address or 'RAY_ADDRESS'}: {_short(error)}") from error
        self._task = self._ray.remote(max_retries=0)(run_worker)

    @property
    def slots(self) -> int:
        """The number of CPUs of the nodes that are alive."""
        return int(self._ray.cluster_resources().get("CPU", 0))

    def submit(self, cell: Mapping[str, Any], *, timeout: float | None, gpu: bool) -> Any:
        """Start a task."""
        gpus = int(gpu and self._ray.cluster_resources().get("GPU", 0) > 0)  # else the task would wait forever
        return self._task.options(num_cpus=1, num_gpus=gpus).remote(dict(cell), timeout)

    def poll(self, handle: Any) -> Mapping[str, Any] | None:
        """Return the outcome of a task, or None while it is waiting or running."""
        if not self._ray.wait([handle], timeout=0)[0]:
            return None
        errors = self._ray.exceptions
        try:
            outcome: Mapping[str, Any] = self._ray.get(handle)
        except errors.RayTaskError as error:
            return {"status": "failed", "detail": f"the node can't run a worker: {_short(error.cause)}"}
        except errors.OutOfMemoryError as error:
            return {"status": "crashed", "detail": f"Ray ended the task: {_short(error)}"}
        except errors.RayError as error:  # the worker, its node or the result is gone
            return {"status": "lost", "detail": _short(error)}
        return outcome

    def cancel(self, handle: Any) -> None:
        """End a task and its worker."""
        self._ray.cancel(handle, force=True)

    def close(self) -> None:
        """Disconnect from the cluster."""
        self._ray.shutdown()


def _short(error: BaseException) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())}"[:_TEXT]
