"""The process that runs one cell: `python -m filch.compare.fleet._worker FOLDER`."""

import faulthandler
import json
import os
import shutil
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

from filch.steal import FilchError, environment

from ..common._source import user_frame
from ..rendering._json import plain
from ..results._cells import Cell, failure_text
from ._cell import CellSpec
from ._here import run_here
from ._sources import backend_versions, installed_versions
from ._supervisor import OUTCOME, READY, WORK


def main(folder: Path) -> None:
    """Run the cell that a folder describes, and write its outcome there."""
    _end_with_supervisor(folder)
    faulthandler.enable(all_threads=False)  # where it crashes
    if hasattr(signal, "SIGUSR1"):
        faulthandler.register(signal.SIGUSR1, all_threads=False)  # where it hangs
    spec = CellSpec.from_dict(json.loads((folder / WORK).read_text("utf-8")))
    _write(folder / READY, environment())
    started = time.monotonic()
    cell = run_spec(spec)
    seconds = round(time.monotonic() - started, 3)
    outcome = {
        "status": cell.status,
        "error": cell.worst,
        "detail": cell.detail,
        "blame": cell.blame,
        "gaps": cell.gaps,
    }
    versions = installed_versions() | backend_versions(spec.backend)
    _write(folder / OUTCOME, {**outcome, "environment": versions | environment(), "seconds": seconds})
    sys.stdout.flush()
    os._exit(0)  # threads and libraries that do not end have nothing to add


def run_spec(spec: CellSpec) -> Cell:
    """Run a cell in its folder, and return its outcome; every exception is one, without the labels of its cell."""
    try:
        os.chdir(spec.folder)
        (cell,) = run_here([spec])
    except FilchError as error:
        return Cell({}, "failed", detail=failure_text(error))
    except BaseException as error:  # noqa: BLE001  whatever it is, it is how this cell ended
        frame = user_frame(error)
        text = f"{type(error).__name__}: {error}"
        return Cell({}, "failed", detail=f"{text} ({frame})" if frame else text)
    return cell


def _end_with_supervisor(folder: Path) -> None:
    """End this process and its children, and remove its files, when the supervisor is killed: standard input ends."""
    supervisor = os.dup(0)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)  # the user's code has no input

    def wait() -> None:
        os.read(supervisor, 1)
        shutil.rmtree(folder, ignore_errors=True)
        if hasattr(os, "killpg") and os.getpgrp() == os.getpid():  # the group has no other processes than its children
            os.killpg(0, signal.SIGKILL)
        os._exit(1)

    threading.Thread(target=wait, daemon=True).start()


def _write(path: Path, contents: Any) -> None:
    """Write a JSON file at once: whoever finds it finds all of it."""
    new = path.with_suffix(".new")
    new.write_text(json.dumps(plain(contents)), encoding="utf-8")
    new.rename(path)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
