"""Ledgers of many runs, clean or with planted regressions."""

import datetime as dt
import json
from pathlib import Path
from typing import Any

MODELS = ("models.py:bert", "models.py:gpt2", "models.py:llama")
BACKENDS = ("inductor", "onnxruntime-cpu")
DTYPES = ("float16", "float32")
RUNS = 30
_ENVIRONMENT = {"torch": "2.12.0", "onnx": "1.19.0", "onnxruntime": "1.23.0", "processor": "a CPU"}


def run_name(number: int) -> str:
    """Return the start of a run; there is one a night."""
    night = dt.datetime(2026, 10, 1, 3, tzinfo=dt.UTC) + dt.timedelta(days=number)
    return night.strftime("%Y-%m-%dT%H:%M:%SZ")


def blame(module: str, operator: str) -> dict[str, Any]:
    return {"value": "v", "module": module, "operator": operator, "times_rounding": 1234.5}


class MadeLedger:
    """The rows of 30 runs of 12 cells (3 models, 2 backends, 2 dtypes), all close until a test changes some."""

    def __init__(self, runs: int = RUNS) -> None:
        self.rows = [
            {
                "filch_ledger": 1,
                "key": f"{model} {backend} {dtype} 0",
                "run": run_name(run),
                "time": run_name(run),
                "seconds": 1.5,
                "labels": {"model": model, "dtype": dtype, "backend": backend},
                "status": "close",
                "error": (1 + run % 3) * (1e-4 if dtype == "float16" else 1e-7),
                "detail": "",
                "blame": None,
                "attempt": 1,
                "environment": {**_ENVIRONMENT, "time": run_name(run)},
            }
            for run in range(runs)
            for model in MODELS
            for backend in BACKENDS
            for dtype in DTYPES
        ]

    def of(self, *labels: str, first: int = 0, last: int = 10**6) -> list[dict[str, Any]]:
        """Return the rows of runs `first` to `last` of the cells that have all these labels."""
        runs = {run_name(run) for run in range(first, min(last, 1000) + 1)}
        return [row for row in self.rows if row["run"] in runs and {*labels} <= {*row["labels"].values()}]

    def upgrade(self, run: int, **versions: str) -> None:
        """Change the environment from a run on, and the keys with it."""
        for row in self.of(first=run):
            row["environment"] |= versions
            row["key"] += f" {versions}"

    def spoil(self, rows: list[dict[str, Any]], module: str, operator: str, *, error: float = 0.03) -> None:
        """Make rows differ, with a blame."""
        for row in rows:
            detail = f"{operator} in {module} differs"
            row.update(status="different", error=error, detail=detail, blame=blame(module, operator))

    def write(self, path: Path) -> Path:
        path.write_text("".join(f"{json.dumps(row)}\n" for row in self.rows))
        return path
