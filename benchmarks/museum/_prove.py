"""Show without Filch that a case is wrong and its control is right: `python benchmarks/museum/_prove.py FILE`."""

from __future__ import annotations

import importlib.util
import json
import math
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils import _pytree as pytree

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from museum._bug import OnnxBug, ToolBug, TorchBug

WAYS = ("buggy", "control")
FOLDER = Path("build/museum").resolve()  # of installed runtimes
FAR, NEAR = 1e-3, 1e-5  # relative to the largest number: what a bug changes at least, and rounding at most


def load(path: str | Path) -> Any:
    """Return the bug that a case declares."""
    spec = importlib.util.spec_from_file_location(Path(path).stem, path)
    if spec is None or spec.loader is None:
        raise ImportError(f"{path} is no Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module.BUG


def install(bug: TorchBug, way: str) -> None:
    """Bring torch into the state that a way of running needs."""
    bug.prepare()
    change = bug.introduce if way == "buggy" else bug.repair
    if change is not None:
        change()


def made(bug: TorchBug, way: str) -> tuple[Any, tuple[Any, ...]]:
    """Return the model and its arguments."""
    return bug.harmless() if way == "control" and bug.harmless is not None else bug.make()


def distance(actual: Any, expected: Any) -> float:
    """Return the largest difference relative to the largest number; inf for another shape, dtype or kind of number."""
    pairs = zip(pytree.tree_leaves(actual), pytree.tree_leaves(expected), strict=True)
    return max((_distance(_array(a), _array(e)) for a, e in pairs if a is not None and e is not None), default=0.0)


def _array(item: Any) -> np.ndarray[Any, Any]:
    if isinstance(item, torch.Tensor):
        item = item.detach().to(torch.float64 if item.dtype == torch.bfloat16 else item.dtype).numpy()
    return np.asarray(item)


def _distance(actual: np.ndarray[Any, Any], expected: np.ndarray[Any, Any]) -> float:
    if actual.shape != expected.shape or actual.dtype.kind != expected.dtype.kind:
        return math.inf
    if not actual.size:
        return 0.0
    wide = complex if actual.dtype.kind == "c" else float
    a, e = actual.astype(wide), expected.astype(wide)
    same = (a == e) | (np.isnan(a) & np.isnan(e))
    with np.errstate(invalid="ignore"):
        gap = np.where(same, 0.0, np.abs(a - e))
        finite = np.abs(e[np.isfinite(e)])
    worst = float(np.where(np.isnan(gap), math.inf, gap).max())
    return worst / (float(finite.max()) or 1.0) if finite.size else worst


def copies(items: Sequence[Any]) -> list[Any]:
    """Return arguments with storages of their own, and the same offsets, strides and overlaps."""
    memo: dict[int, torch.UntypedStorage] = {}

    def copied(item: Any) -> Any:
        if not isinstance(item, torch.Tensor):
            return item
        storage = item.untyped_storage()
        own = memo.setdefault(storage.data_ptr(), storage.clone())
        made = torch.empty(0, dtype=item.dtype).set_(own, item.storage_offset(), item.shape, item.stride())  # type: ignore[call-overload]
        return made.requires_grad_(item.requires_grad) if item.is_leaf else made

    return [pytree.tree_map(copied, item) for item in items]


def called(function: Any, arguments: Sequence[Any], *, backward: bool) -> list[Any]:
    """Return the results, the arguments after the call, and the gradients, all detached."""
    torch.manual_seed(0)
    with torch.set_grad_enabled(backward):
        result = function(*arguments)
    found = [pytree.tree_map_only(torch.Tensor, lambda tensor: tensor.detach().clone(), result)]
    if backward:
        outputs = [item for item in _tensors(result) if item.requires_grad]
        weights = [torch.cos(torch.arange(item.numel()).view(item.shape)).to(item) for item in outputs]
        torch.autograd.backward(outputs, weights)
        parameters = function.parameters() if isinstance(function, torch.nn.Module) else ()
        leaves = [*(item for item in _tensors(arguments) if item.requires_grad), *parameters]
        found.append([item.grad for item in leaves])
        for item in leaves:
            item.grad = None
    return [*found, [item.detach().clone() for item in _tensors(arguments)]]


def _tensors(values: Any) -> list[torch.Tensor]:
    return [item for item in pytree.tree_leaves(values) if isinstance(item, torch.Tensor)]


def torch_distances(bug: TorchBug, way: str) -> dict[str, float]:
    """Return how far compiled code is from eager PyTorch: the model, and for the bug the smallest trigger."""
    install(bug, way)
    found = {}
    makes = {"model": lambda: made(bug, way)} | ({"smallest": bug.smallest} if way == "buggy" else {})
    for name, make in makes.items():
        function, arguments = make()
        torch._dynamo.reset()
        compiled = torch.compile(function)
        calls = [arguments] + ([bug.again()] if bug.again is not None and name == "model" else [])
        worst = 0.0
        for given in calls:
            expected = called(function, copies(given), backward=bug.backward)
            actual = called(compiled, copies(given), backward=bug.backward)
            worst = max(worst, distance(actual, expected))
        found[name] = worst
    return found


def installed(requirement: str) -> Path:
    """Return a folder for PYTHONPATH with a version of a package, which is installed when it is first asked for."""
    name, _, version = requirement.partition("==")
    folder = FOLDER / f"{name}-{version}"
    if not (folder / name.replace("-", "_")).exists():
        command = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", str(folder), requirement]
        subprocess.run(command, check=True)
    return folder


def onnx_distances(bug: OnnxBug, way: str) -> dict[str, float]:
    """Return how far ONNX Runtime, without optimizations and with all, is from what the case expects."""
    import onnxruntime

    harmless = bug.control if way == "control" else None
    model, feed = (bug.make(), bug.inputs()) if harmless is None else harmless()
    expected, found = bug.expected(feed), {}
    for level in ("ORT_DISABLE_ALL", "ORT_ENABLE_ALL"):
        options = onnxruntime.SessionOptions()
        options.log_severity_level, options.intra_op_num_threads = 4, 1
        options.graph_optimization_level = getattr(onnxruntime.GraphOptimizationLevel, level)
        session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
        found[level] = distance(session.run(None, dict(feed)), expected)
    return found


def tool_distances(bug: ToolBug, way: str) -> dict[str, float]:
    """Return how far what a tool makes, or computes, is from the model that it is given."""
    function, arguments = bug.make() if way == "buggy" else bug.harmless()
    return {"tool": bug.distance(function, arguments)}


def environment_of(bug: Any, way: str) -> dict[str, str]:
    """Return the environment variables of a way of running."""
    found = {**os.environ, "TORCHINDUCTOR_FORCE_DISABLE_CACHES": "1", "TORCHINDUCTOR_COMPILE_THREADS": "1"}
    if isinstance(bug, OnnxBug):
        wheel = bug.wrong if way == "buggy" or bug.right is None else bug.right
        found["PYTHONPATH"] = str(installed(f"onnxruntime=={wheel}"))
    elif isinstance(bug, ToolBug):
        others = (item for item in bug.needs if not _is_installed(item))
        found["PYTHONPATH"] = os.pathsep.join(str(installed(item)) for item in others)
    return found


def _is_installed(requirement: str) -> bool:
    """Return whether this environment has the version of a package that a case needs."""
    name, _, wanted = requirement.partition("==")
    try:
        return version(name) == wanted
    except PackageNotFoundError:
        return False


def shows(bug: Any, found: Mapping[str, Mapping[str, float]]) -> str:
    """Return why a case does not count; `""` if the bug shows and its control is right."""
    buggy, control = found["buggy"], found["control"]
    if isinstance(bug, OnnxBug):  # a kernel is wrong at each level, an optimizer at the highest one
        buggy = {"all": buggy["ORT_ENABLE_ALL"]} if bug.optimizers else buggy
    if min(buggy.values()) < FAR:
        return f"the bug does not show: {buggy}"
    return f"the control is wrong: {control}" if max(control.values()) > NEAR else ""


def main() -> int:
    """Print the distances of each way as JSON; return 1 if the bug does not show, or the control is wrong."""
    path = Path(sys.argv[1])
    bug = load(path)
    if len(sys.argv) > 2:
        ways: dict[type, Any] = {TorchBug: torch_distances, OnnxBug: onnx_distances, ToolBug: tool_distances}
        print(json.dumps(ways[type(bug)](bug, sys.argv[2])))
        return 0
    found = {}
    for way in WAYS:
        command = [sys.executable, __file__, str(path), way]
        done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment_of(bug, way))
        if done.returncode:
            print(way, done.stdout[-1500:], done.stderr[-3000:])
            return 1
        found[way] = json.loads(done.stdout.splitlines()[-1])
    problem = shows(bug, found)
    print(json.dumps(found), problem or "OK")
    return int(bool(problem))


if __name__ == "__main__":
    sys.exit(main())
