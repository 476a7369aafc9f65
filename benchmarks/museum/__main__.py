"""Ask Filch about bugs that others reported, each inside a model of several layers, and about a control of each.

Each question is answered in a process of its own, with a limit of time; what was answered is kept in a folder, and
asked again only if the case, Filch or a version of a package has changed.
"""

from __future__ import annotations

import argparse
import functools
import hashlib
import json
import os
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

from _measure import describe_environment, table

from museum._exam import COMMANDS
from museum._peers import NEEDS, PEERS
from museum._prove import WAYS, environment_of, installed, load

FOLDERS = ("torch", "onnxruntime", "tools")
PACKAGES = ("torch", "onnx", "onnxruntime-gpu")
MIN_FLAGGED, MIN_PLACED, MIN_BLAMED = 0.95, 0.85, 0.8
Answer = dict[str, Any]


PEER_FILES = [HERE / "_peers.py"]


@functools.cache
def state(*, of_filch: bool) -> str:
    """Return what tells the versions of packages, and the code of Filch or of the peers, that an answer depends on."""
    root = Path(str(find_spec("filch").origin)).parent  # type: ignore[union-attr]
    sources = sorted(path for room in ("steal", "export", "compare") for path in (root / room).rglob("*.py"))
    digest = hashlib.sha256(repr([version(name) for name in PACKAGES]).encode())
    for path in sources if of_filch else PEER_FILES:
        digest.update(path.read_bytes())
    return digest.hexdigest()


def cases(names: Sequence[str]) -> list[Path]:
    """Return the files of the cases, all or those whose names contain one of some texts."""
    paths = sorted(path for folder in FOLDERS for path in (HERE / folder).glob("*.py"))
    return [path for path in paths if not names or any(name in f"{path.parent.name}/{path.stem}" for name in names)]


def answer(path: Path, bug: Any, way: str, command: str, *, limit: int, results: Path) -> Answer:
    """Return what Filch says of a case, from an earlier run if nothing has changed since."""
    is_peer = command in PEERS[type(bug)]
    key = hashlib.sha256(path.read_bytes() + state(of_filch=not is_peer).encode()).hexdigest()
    kept = results / f"{path.parent.name}.{path.stem}.{way}.{command}.json"
    if kept.exists() and (known := json.loads(kept.read_text()))["key"] == key:
        found: Answer = known["answer"]
        return found
    with tempfile.TemporaryDirectory() as folder:
        environment = environment_of(bug, way) | {"TORCHINDUCTOR_CACHE_DIR": folder}
        if is_peer:
            more = map(str, map(installed, NEEDS))
            environment["PYTHONPATH"] = os.pathsep.join(filter(None, (environment.get("PYTHONPATH"), *more)))
        arguments = [sys.executable, str(HERE / "_exam.py"), str(path), way, command]
        try:
            done = subprocess.run(
                arguments, capture_output=True, text=True, check=False, timeout=limit, env=environment, cwd=folder
            )
            lines = done.stdout.splitlines()
            found = json.loads(lines[-1]) if lines else {"error": done.stderr[-500:]}
        except subprocess.TimeoutExpired:
            found = {"error": f"no answer in {limit} s"}
    results.mkdir(parents=True, exist_ok=True)
    kept.write_text(json.dumps({"key": key, "answer": found}, indent=1))
    return found


def word(found: Answer) -> str:
    """Return an answer in a word or two, for the table."""
    if "error" in found:
        return "error"
    if not found["flagged"]:
        return "-"
    line = {True: ", line", False: "", None: ""}[found.get("line")]
    return f"{found.get('place', 'flagged')}{line}"


def rows(
    paths: Sequence[Path], commands: Sequence[str], *, limit: int, results: Path, jobs: int
) -> Iterator[tuple[Path, Any, str, Answer, Answer]]:
    """Yield each case with a command, and the answers about the bug and its control."""
    questions = []
    for path in paths:
        bug = load(path)
        # `check` judges the forward pass.
        others = {"check"} if getattr(bug, "backward", False) else {"compare_gradients"}
        kinds = (*COMMANDS[type(bug)], *PEERS[type(bug)])
        known = [command for command in kinds if command in commands and command not in others]
        questions += [(path, bug, command) for command in known]

    def answers(question: tuple[Path, Any, str]) -> list[Answer]:
        path, bug, command = question
        return [answer(path, bug, way, command, limit=limit, results=results) for way in WAYS]

    with ThreadPoolExecutor(jobs) as pool:
        for (path, bug, command), (buggy, control) in zip(questions, pool.map(answers, questions), strict=True):
            print(f"{path.parent.name}/{path.stem}, {command}: {word(buggy)}; control {word(control)}", flush=True)
            for label, found in (("bug", buggy), ("control", control)):
                if text := found.get("error") or (label == "control" and found.get("says")):
                    print(f"    {label}: {text}", flush=True)
            if buggy.get("place") != "right" and "says" in buggy:
                print(f"    says: {buggy['says']}", flush=True)
            yield path, bug, command, buggy, control


def totals(found: Sequence[tuple[Path, Any, str, Answer, Answer]]) -> Iterator[tuple[str, ...]]:
    """Yield a row for each kind of bug and command, and one for all of a command."""
    groups: dict[tuple[str, str], list[tuple[Any, Answer, Answer]]] = {}
    for path, bug, command, buggy, control in found:
        for kind in (f"{path.parent.name}: {bug.kind}", f"{path.parent.name}: all"):
            groups.setdefault((command, kind), []).append((bug, buggy, control))
    for (command, kind), items in sorted(
        groups.items(), key=lambda item: (item[0][0], "all" in item[0][1], item[0][1])
    ):
        places = Counter(buggy.get("place", "") for _, buggy, _ in items)
        flagged = sum(bool(buggy.get("flagged")) for _, buggy, _ in items)
        blamed = [buggy["blame"] for _, buggy, _ in items if buggy.get("blame") is not None]
        yield (
            command,
            kind,
            str(len(items)),
            str(flagged),
            str(places["right"]),
            str(places["near"]),
            str(sum(bool(buggy.get("line")) for _, buggy, _ in items)),
            f"{sum(blamed)} of {len(blamed)}" if blamed else "",
            str(Counter(buggy.get("repro", "") for _, buggy, _ in items)["fails"]),
            str(round(max(buggy.get("seconds", 0) for _, buggy, _ in items))),
            str(sum(bool(control.get("flagged")) for _, _, control in items)),
            str(sum("error" in one for _, *both in items for one in both)),
        )


def main() -> int:
    """Ask about all cases; return 1 if too few bugs are flagged or named, or a control is flagged."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("cases", nargs="*", help="only those whose folder and name contain one of these texts")
    parser.add_argument("--limit", type=int, default=300, help="seconds for each question (default: 300)")
    own, peers = ({name for known in kinds.values() for name in known} for kinds in (COMMANDS, PEERS))
    names = sorted(own | peers)
    parser.add_argument("--commands", nargs="+", choices=names, default=sorted(own), help="default: those of Filch")
    parser.add_argument("--jobs", type=int, default=2, help="questions at a time (default: 2)")
    parser.add_argument("--results", type=Path, default=Path("build/museum/results"), help="where answers are kept")
    options = parser.parse_args()
    found = [
        *rows(cases(options.cases), options.commands, limit=options.limit, results=options.results, jobs=options.jobs)
    ]
    found_of = ("flagged", "right", "near", "line", "blamed", "failing repro")
    head = ("command", "bugs", "count", *found_of, "most seconds", "controls flagged", "errors")
    print(f"\n{table(head, [list(row) for row in totals(found)])}\n\n{describe_environment(*PACKAGES)}")
    # A bug counts as flagged if one of the commands flags it.
    best: dict[Path, list[tuple[Answer, Answer]]] = {}
    for path, _, command, buggy, control in found:
        if command in peers:
            continue
        best.setdefault(path, []).append((buggy, control))
    flagged = sum(any(buggy.get("flagged") for buggy, _ in answers) for answers in best.values())
    placed = sum(any(buggy.get("place") in ("right", "near") for buggy, _ in answers) for answers in best.values())
    alarms = sum(any(control.get("flagged") for _, control in answers) for answers in best.values())
    print(f"{len(best)} bugs: {flagged} flagged, {placed} at the operation or its neighbor; {alarms} controls flagged")
    return int(flagged < MIN_FLAGGED * len(best) or placed < MIN_PLACED * len(best) or alarms > 0)


if __name__ == "__main__":
    sys.exit(main())
