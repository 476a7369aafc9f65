"""Questions that are asked in processes of their own, with a limit of time, and whose answers are kept in a folder."""

from __future__ import annotations

import functools
import hashlib
import json
import multiprocessing
import subprocess
import sys
import traceback
from collections.abc import Callable
from importlib.metadata import version
from importlib.util import find_spec
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

Answer = dict[str, Any]
# Each process is a fork of one that has imported what questions need, and computed nothing.
_SERVER = multiprocessing.get_context("forkserver")


@functools.cache
def state(*packages: str) -> str:
    """Return what tells the code of Filch and the versions of packages that an answer depends on."""
    root = Path(str(find_spec("filch").origin)).parent  # type: ignore[union-attr]
    sources = sorted(path for room in ("steal", "export", "compare") for path in (root / room).rglob("*.py"))
    digest = hashlib.sha256(repr([version(name) for name in packages]).encode())
    for path in sources:
        digest.update(path.read_bytes())
    return digest.hexdigest()


def ask(kept: Path, key: str, function: Callable[..., Answer], *args: Any, limit: int) -> Answer:
    """Return what a function answers in a process of its own; what it raises is an answer, too.

    Args:
        kept: the file of the answer. If it has one with the same key, nothing is run.
        key: what the answer depends on.
        function: a function of a module.
        *args: its arguments.
        limit: seconds after which the process is ended.
    """
    key = hashlib.sha256(key.encode()).hexdigest()
    if kept.exists() and (known := json.loads(kept.read_text()))["key"] == key:
        found: Answer = known["answer"]
        return found
    _SERVER.set_forkserver_preload([function.__module__])
    receiver, sender = _SERVER.Pipe(duplex=False)
    process = _SERVER.Process(target=_answer, args=(sender, function, args))
    process.start()
    sender.close()
    try:
        found = receiver.recv() if receiver.poll(limit) else {"error": f"no answer in {limit} s"}
    except EOFError:
        process.join()
        found = {"error": f"the process ended with {process.exitcode}"}
    process.kill()
    process.join()
    kept.parent.mkdir(parents=True, exist_ok=True)
    kept.write_text(json.dumps({"key": key, "answer": found}, indent=1))
    return found


def _answer(sender: Connection, function: Callable[..., Answer], args: tuple[Any, ...]) -> None:
    try:
        found = function(*args)
    except Exception as error:  # noqa: BLE001  a crash is what questions are asked for
        found = {"error": f"{type(error).__name__}: {error}"[:500], "trace": traceback.format_exc()[-2000:]}
    sender.send(found)


def installed(folder: Path, *requirements: str) -> Path:
    """Return a folder for `sys.path` with packages alone, which are installed when it is first asked for."""
    if not folder.exists():
        part = f"{folder}.part"
        command = [sys.executable, "-m", "pip", "install", "-qq", "--no-deps", "--target", part, *requirements]
        subprocess.run(command, check=True)
        Path(part).rename(folder)
    return folder
