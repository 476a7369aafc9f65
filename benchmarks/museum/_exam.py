"""Ask Filch about a case: `_exam.py FILE buggy|control COMMAND` prints what it says as JSON."""

from __future__ import annotations

import contextlib
import io
import json
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import numpy as np
import onnx
import torch

from museum._bug import MARK, OnnxBug, ToolBug, TorchBug
from museum._peers import PEERS
from museum._prove import called, copies, install, load, made

Answer = dict[str, Any]
RIGHT, NEAR, WRONG, NOTHING = "right", "near", "wrong", "nothing"


def torch_compile(path: Path, bug: TorchBug, way: str) -> Answer:
    """Call the model with `backend="filch"` as a user does."""
    install(bug, way)
    model, arguments = made(bug, way)
    reports: list[Any] = []
    compiled = torch.compile(model, backend="filch", options={"correctness_report": reports})
    for given in [arguments] + ([bug.again()] if bug.again is not None else []):
        called(compiled, copies(given), backward=bug.backward)
    return said(path, bug, [report for report in reports if report.outcome == "different"], len(reports))


def gradients(path: Path, bug: TorchBug, way: str) -> Answer:
    """Compare gradients, with `compare_gradients`."""
    from filch.compare import compare_gradients

    install(bug, way)
    model, arguments = made(bug, way)
    report = compare_gradients(model, copies(arguments))
    return said(path, bug, [report] if report.outcome == "different" else [], 1)


def check(path: Path, bug: TorchBug, way: str) -> Answer:
    """Run `filch check FILE:make -b inductor`, with `--blame FOLDER` if the bug has a switch."""
    from filch.compare import load_report

    install(bug, way)
    with tempfile.TemporaryDirectory() as folder:
        output, factory = Path(folder, "report.json"), f"{path}:{bug.make.__name__}"
        if way == "control" and bug.harmless is not None:  # it may be a lambda
            text = f"from museum._prove import load\n\n\ndef make():\n    return load({str(path)!r}).harmless()\n"
            Path(folder, "control.py").write_text(text, encoding="utf-8")
            factory = f"{folder}/control.py:make"
        blame = [] if bug.switch is None else ["--blame", str(Path(folder, "why"))]
        code = command(["check", factory, "-b", "inductor", "-o", str(output), *blame])
        if code == 2 or not output.exists():
            return {"error": f"exit code {code}"}
        report, repro = load_report(output), repro_in(Path(folder, "why"), runs=bug.introduce is None)
    found = said(path, bug, [report] if report.outcome == "different" else [], 1)
    if report.outcome == "different" and bug.switch is not None:
        found["blame"] = any(re.search(bug.switch, culprit) for culprit in report.culprits)
    return {**found, "culprits": [*report.culprits], "repro": repro, "program": report.program}


def repro_in(folder: Path, *, runs: bool) -> str:
    """Return `fails` for a repro that does, `written` for another one, `""` for none.

    Args:
        folder: the folder of the repro.
        runs: whether to run it: a bug that a case introduces is in this process alone.
    """
    script = folder / "repro.py"
    if not script.exists():
        return ""
    if not runs:
        return "written"
    done = subprocess.run([sys.executable, script.name], cwd=folder, capture_output=True, check=False)
    return "fails" if done.returncode == 1 else "written"


def command(arguments: Sequence[str]) -> int:
    """Run a command of Filch in this process, which the case has changed, and return its exit code."""
    from filch.compare.cli._app import app

    result = app(list(arguments), standalone_mode=False)
    return int(result or 0)


def said(path: Path, bug: TorchBug, wrong: Sequence[Any], count: int) -> Answer:
    """Return what reports of different outcome name, and how right that is."""
    if not wrong:
        return {"flagged": False, "reports": count}
    first = wrong[0].first_divergence
    if first is None:
        return {"flagged": True, "place": NOTHING, "says": wrong[0].headline}
    names = [first.op, first.value, *getattr(first, "operators", ()), *getattr(first, "origins", ())]
    line = next(number for number, text in enumerate(path.read_text().splitlines(), 1) if text.rstrip().endswith(MARK))
    return {
        "flagged": True,
        "place": place(names, bug.operators, bug.near),
        "line": first.source is not None and first.source.endswith(f"{path.name}:{line}"),
        "says": str(first)[:300],
        "source": first.source,
    }


def place(names: Sequence[str], operators: str, near: str) -> str:
    """Return how right names are, by the regular expressions of a case."""
    patterns = {RIGHT: operators, NEAR: near}
    return next(
        (kind for kind, text in patterns.items() if any(re.search(text, name, re.IGNORECASE) for name in names)), WRONG
    )


def compare_with_itself(path: Path, bug: OnnxBug, way: str) -> Answer:  # noqa: ARG001  as the other commands
    """Run `filch compare m.onnx m.onnx --inputs inputs.npz --blame FOLDER`."""
    from filch.compare import load_report

    model, feed = bug.control() if way == "control" and bug.control is not None else (bug.make(), bug.inputs())
    with tempfile.TemporaryDirectory() as folder:
        file, inputs, output = (str(Path(folder, name)) for name in ("model.onnx", "inputs.npz", "report.json"))
        onnx.save(model, file)
        np.savez(inputs, **feed)
        code = command(["compare", file, file, "--inputs", inputs, "--blame", str(Path(folder, "why")), "-o", output])
        if code == 2 or not Path(output).exists():
            return {"error": f"exit code {code}"}
        report, repro = load_report(output), repro_in(Path(folder, "why"), runs=True)
    if report.outcome != "different":
        return {"flagged": False, "outcome": report.outcome}
    first = report.first_divergence
    names = {*([] if first is None else [first.node, *first.origins])}
    found = RIGHT if names & bug.nodes else NEAR if names & bug.near else WRONG if names else NOTHING
    blamed = bool(bug.optimizers.intersection(report.culprits)) if bug.optimizers else None
    return {
        "flagged": True,
        "place": found,
        "blame": blamed,
        "culprits": [*report.culprits],
        "repro": repro,
        "says": str(first)[:300],
    }


def compare_tool(path: Path, bug: ToolBug, way: str) -> Answer:  # noqa: ARG001  as the other commands
    """Compare what a tool makes, or computes, as `filch check --program` and `filch compare` do."""
    from filch.compare import compare, compare_files, map_to_export
    from filch.export import export
    from filch.steal import steal_forward

    given, values = bug.make() if way == "buggy" else bug.harmless()
    with tempfile.TemporaryDirectory() as folder:
        first, second, inputs = (str(Path(folder, name)) for name in ("first.onnx", "second.onnx", "inputs.npz"))
        if bug.apply is not None:
            onnx.save(bug.apply(given, values), second)
        if isinstance(given, torch.nn.Module):
            with torch.no_grad(), steal_forward(given, submodules=True) as capture:
                given(*values)
            report: Any = compare(capture, map_to_export(second, export(given, values), capture))
        else:
            onnx.save(given, first)
            np.savez(inputs, **values)
            backend = {"onnx.reference": "reference", "OpenVINO": "openvino"}.get(bug.kind, "onnxruntime-cpu")
            report = compare_files(first, second if bug.apply is not None else first, inputs=inputs, backend=backend)
    if report.outcome != "different":
        return {"flagged": False, "outcome": report.outcome}
    found = report.first_divergence
    if found is None:
        return {"flagged": True, "place": NOTHING, "says": report.headline}
    names = [found.node, found.op, found.value, *found.operators, *found.origins]
    return {"flagged": True, "place": place(names, bug.operators, bug.near), "says": str(found)[:300]}


COMMANDS: dict[type, dict[str, Callable[..., Answer]]] = {
    TorchBug: {"torch.compile": torch_compile, "check": check, "compare_gradients": gradients},
    OnnxBug: {"compare": compare_with_itself},
    ToolBug: {"compare": compare_tool},
}


@contextlib.contextmanager
def _silent() -> Iterator[io.StringIO]:
    """Keep what is printed from the answer."""
    text = io.StringIO()
    with contextlib.redirect_stdout(text), contextlib.redirect_stderr(text):
        yield text


def main() -> int:
    """Print the answer of one command, with the seconds it took; an exception is an answer, too."""
    path, way, command = Path(sys.argv[1]).resolve(), sys.argv[2], sys.argv[3]
    start, text = time.perf_counter(), io.StringIO()
    try:
        bug = load(path)
        with _silent() as text:
            own = COMMANDS[type(bug)].get(command)
            answer = PEERS[type(bug)][command](bug, way) if own is None else own(path, bug, way)
    except Exception as error:  # noqa: BLE001  a crash is what the exam looks for
        answer = {"error": f"{type(error).__name__}: {error}"[:500]}
    if "error" in answer:
        answer["output"] = text.getvalue()[-800:]
    print(json.dumps({**answer, "seconds": round(time.perf_counter() - start, 1)}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
