"""Count how often a golden dump's failure names the right cause: the code, the environment, or both.

Golden dumps of models of the tests' zoo are stored in this environment. Other processes, in other environments, then
compare with them: with 1 and 2 threads, with less of the processor's instruction set, and with other versions of torch
and transformers, if there are any (`--python`, `--path`).

- A clean run must pass or be labelled `environment`.
- A planted fault in the same environment must be labelled `code`, and in another one `both` if a clean run in that
  environment moves a value that is computed before the fault, else `code`.
- An update of the golden dump must be refused if a fault makes its values less precise.
- A fault that passes has no effect (all values are bitwise equal) or is within rounding: each value is within twice its
  rounding level of the stored one. These are counted apart.

Weights and inputs are read from a file, as those of users are; with `--seeded` clean runs draw them again, which gives
other numbers under another instruction set.
"""

from __future__ import annotations

import argparse
import copy
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import torch
from _zoo import MODELS as ZOO_MODELS
from torch import nn
from torch.nn import functional

from filch.compare.results._dump_diff import DumpDiff
from filch.compare.testing._golden import Golden
from filch.steal import environment

MODELS = (
    *("llama", "gpt2", "mixtral", "mamba", "bert", "deberta_v2", "t5", "whisper", "vit", "swin", "convnext", "resnet"),
    *("clip", "wide"),
)
Case = tuple[nn.Module, tuple[Any, ...], dict[str, Any]]


def _wide() -> Case:
    """Return a model with sums that are long enough for threads to share them."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        blocks = [
            nn.Linear(1024, 1024), nn.GELU(), nn.LayerNorm(1024), nn.Linear(1024, 256), nn.Tanh(),
            nn.Linear(256, 64),
        ]  # fmt: skip
        return nn.Sequential(*blocks).eval(), (torch.randn(128, 1024),), {}


def make(name: str, weights: Path | None = None) -> Case:
    """Return a model with its arguments; if `weights` is given, with the weights and arguments of that file."""
    model, args, kwargs = _wide() if name == "wide" else ZOO_MODELS[name]()
    if weights is not None:
        if not weights.is_file():
            torch.save((model.state_dict(), args, kwargs), weights)
        state, args, kwargs = torch.load(weights, weights_only=False)
        model.load_state_dict(state)
    return model, args, kwargs


# Each fault changes a model in place for a block, and returns the name of the module at fault; None if the model has no
# place for it.
Fault = Callable[[nn.Module], "str | None"]


def _named(model: nn.Module, *kinds: type[nn.Module], at: int = 1) -> tuple[str, Any] | None:
    """Return the module number `at` of these classes in the order of the model, with its name; the last if fewer."""
    found = [(name, module) for name, module in model.named_modules() if isinstance(module, kinds)]
    return found[min(at, len(found) - 1)] if found else None


def _weight(model: nn.Module, change: Callable[[torch.Tensor], torch.Tensor], *, square: bool = False) -> str | None:
    """Change the weight of a linear or convolutional layer."""
    kinds = nn.Linear, nn.Conv2d, nn.Conv1d
    for name, module in model.named_modules():
        is_layer = isinstance(module, kinds) or type(module).__name__ == "Conv1D"
        weight = getattr(module, "weight", None)
        if is_layer and weight is not None and (not square or weight.shape[:1] == weight.shape[1:]):
            with torch.no_grad():
                weight.copy_(change(weight.detach().clone()))
            return name
    return None


def _row(weight: torch.Tensor) -> torch.Tensor:
    weight[0] *= 1.01
    return weight


def _swapped(model: nn.Module) -> str | None:
    """Swap the weights of two layers of the same shape."""
    seen: dict[Any, tuple[str, nn.Module]] = {}
    for name, module in model.named_modules():
        if isinstance(module, nn.Linear | nn.Conv2d) or type(module).__name__ == "Conv1D":
            shape = tuple(module.weight.shape)
            if shape in seen:
                first, other = seen[shape]
                other.weight, module.weight = module.weight, other.weight
                return first
            seen[shape] = name, module
    return None


def _no_bias(model: nn.Module) -> str | None:
    for name, module in model.named_modules():
        if isinstance(module, nn.Linear | nn.Conv2d) and module.bias is not None and bool(module.bias.any()):
            with torch.no_grad():
                module.bias.zero_()
            return name
    return None


def _epsilon(model: nn.Module, factor: float) -> str | None:
    for name, module in model.named_modules():
        for attribute in ("eps", "variance_epsilon"):
            if isinstance(getattr(module, attribute, None), float):
                setattr(module, attribute, factor * getattr(module, attribute))
                return name
    return None


def _activation(model: nn.Module) -> str | None:
    """Replace an activation by a similar one."""
    similar = {"GELU": nn.GELU("tanh"), "SiLU": nn.GELU(), "ReLU": nn.LeakyReLU(0.01), "Tanh": nn.Hardtanh()}
    similar |= {"NewGELUActivation": nn.GELU(), "GELUActivation": nn.GELU("tanh"), "SiLUActivation": nn.GELU()}
    for name, module in model.named_modules():
        if type(module).__name__ in similar:
            parent, _, last = name.rpartition(".")
            setattr(model.get_submodule(parent), last, similar[type(module).__name__])
            return name
    return None


def _output(model: nn.Module, change: Callable[[torch.Tensor], torch.Tensor], at: int = 1) -> str | None:
    """Change what a layer returns."""
    found = _named(model, nn.Linear, nn.Conv2d, at=at)
    if found is None:
        return None
    name, module = found
    forward = module.forward
    module.forward = lambda *args, **kwargs: change(forward(*args, **kwargs))
    return name


def _input(model: nn.Module, change: Callable[[torch.Tensor], torch.Tensor]) -> str | None:
    """Change what a layer computes with, inside of it."""
    found = _named(model, nn.Linear, nn.Conv2d, at=2)
    if found is None:
        return None
    name, module = found
    forward = module.forward
    module.forward = lambda x: forward(change(x))
    return name


def _no_residual(model: nn.Module) -> str | None:
    """Subtract from the output of a block's part what the block adds to it."""
    for name, module in model.named_modules():
        if type(module).__name__.endswith("SelfOutput"):  # BERT's modules add it themselves
            forward = module.forward
            module.forward = lambda hidden, added: forward(hidden, torch.zeros_like(added))  # noqa: B023  returns at once
            return name
    names = ("mlp", "self_attn", "attn", "mixer", "ffn", "feed_forward", "layer_1", "layer_2")
    for name, module in model.named_modules():
        if name.rpartition(".")[2] in names and name:
            forward = module.forward

            def without(x: torch.Tensor, *args: Any, forward: Any = forward, **kwargs: Any) -> Any:
                result = forward(x, *args, **kwargs)
                return result - x if isinstance(result, torch.Tensor) else (result[0] - x, *result[1:])

            module.forward = lambda *args, **kwargs: (
                without(*args, **kwargs) if args else without(kwargs.pop("hidden_states"), **kwargs)
            )
            return name
    return None


def _positions(model: nn.Module) -> str | None:
    """Look up each position, or token where there are no embeddings of positions, one further."""
    found = [(name, module) for name, module in model.named_modules() if isinstance(module, nn.Embedding)]
    if not found:
        return None
    name, module = next((item for item in found if "pos" in item[0] or "wpe" in item[0]), found[0])
    forward = module.forward
    module.forward = lambda ids: forward((ids + 1).clamp(max=module.num_embeddings - 1))
    return name


def _layers(model: nn.Module) -> str | None:
    """Swap the first two layers of a stack."""
    for name, module in model.named_modules():
        if isinstance(module, nn.ModuleList) and len(module) > 1 and type(module[0]) is type(module[1]):
            module[0], module[1] = module[1], module[0]
            return f"{name}.0"
    return None


def _extra(model: nn.Module) -> str | None:
    """Add a module that does nothing."""
    found = _named(model, nn.Linear, nn.Conv2d, at=1)
    if found is None:
        return None
    name, module = found
    forward, module.added = module.forward, nn.Identity()
    module.forward = lambda x: module.added(forward(x))
    return name


def _variance(model: nn.Module) -> str | None:
    """Compute the variance of a LayerNorm as the mean of squares minus the square of the mean, which loses digits."""
    found = _named(model, nn.LayerNorm, at=0)
    if found is None:
        return None
    name, module = found

    def forward(x: torch.Tensor) -> torch.Tensor:
        mean = x.mean(-1, keepdim=True)
        variance = (x * x).mean(-1, keepdim=True) - mean * mean
        return (x - mean) * (variance + module.eps).rsqrt() * module.weight + module.bias

    module.forward = forward
    return name


class _Attention:
    """Replaces `scaled_dot_product_attention` of torch for a block.

    Args:
        change: changes its keyword arguments `attn_mask`, `scale` and `is_causal`.
        dim: the dimension of its softmax.

    Attributes:
        used: whether the model calls it.
    """

    def __init__(self, change: Callable[[dict[str, Any]], None] = lambda _: None, dim: int = -1) -> None:
        self._change, self._dim, self.used = change, dim, False

    def __call__(self, _: nn.Module) -> str | None:
        self.used, self._attention = False, functional.scaled_dot_product_attention
        functional.scaled_dot_product_attention = self._attend
        return ""

    def undo(self) -> None:
        """Restore the function."""
        functional.scaled_dot_product_attention = self._attention

    def _attend(
        self, query: Any, key: Any, value: Any, attn_mask: Any = None, dropout_p: float = 0.0, **kwargs: Any
    ) -> Any:
        self.used = True
        given = {"attn_mask": attn_mask, "scale": kwargs.get("scale"), "is_causal": kwargs.get("is_causal", False)}
        given["scale"] = given["scale"] or query.shape[-1] ** -0.5
        self._change(given)
        if self._dim == -1:
            return self._attention(query, key, value, dropout_p=dropout_p, **(kwargs | given))
        key, value = (item.repeat_interleave(query.shape[1] // item.shape[1], 1) for item in (key, value))
        scores = query @ key.transpose(-1, -2) * given["scale"]
        if attn_mask is not None:
            scores = scores.masked_fill(~attn_mask, -1e9) if attn_mask.dtype == torch.bool else scores + attn_mask
        return scores.softmax(self._dim) @ value


def _scale(factor: float) -> Callable[[dict[str, Any]], None]:
    return lambda given: given.update(scale=factor * given["scale"])


def _mask(given: dict[str, Any]) -> None:
    """Shift the mask by one key; without a mask, attend to earlier positions alone, or to all."""
    if given["attn_mask"] is not None:
        given["attn_mask"] = given["attn_mask"].roll(1, -1)
    else:
        given["is_causal"] = not given["is_causal"]


FAULTS: dict[str, Fault] = {
    "weight scaled by 1 + 1e-3": partial(_weight, change=lambda w: w * 1.001),
    "weight scaled by 1 + 1e-5": partial(_weight, change=lambda w: w * 1.00001),
    "weight scaled by 1 + 1e-6": partial(_weight, change=lambda w: w * 1.000001),
    "one row of a weight scaled by 1.01": partial(_weight, change=_row),
    "weight transposed": partial(_weight, change=lambda w: w.T, square=True),
    "weight rounded to bfloat16": partial(_weight, change=lambda w: w.bfloat16().float()),
    "weight rounded to float16": partial(_weight, change=lambda w: w.half().float()),
    "weights of two layers swapped": _swapped,
    "bias dropped": _no_bias,
    "epsilon times 10": partial(_epsilon, factor=10.0),
    "epsilon times 1.1": partial(_epsilon, factor=1.1),
    "another activation": _activation,
    "output times 1.001": partial(_output, change=lambda x: x * 1.001),
    "output plus 1e-4": partial(_output, change=lambda x: x + 1e-4),
    "output in bfloat16": partial(_output, change=lambda x: x.bfloat16().float()),
    "output in float16": partial(_output, change=lambda x: x.half().float()),
    "input in bfloat16": partial(_input, change=lambda x: x.bfloat16().float()),
    "input in float16": partial(_input, change=lambda x: x.half().float()),
    "residual dropped": _no_residual,
    "position off by one": _positions,
    "layers swapped": _layers,
    "module added": _extra,
    "variance as a difference": _variance,
    "attention scaled by 1.001": _Attention(_scale(1.001)),
    "mask off by one": _Attention(_mask),
    "softmax over another dimension": _Attention(dim=-2),
}


@contextmanager
def planted(fault: str, model: nn.Module) -> Iterator[str | None]:
    """Plant a fault for a block; yield the name of the module at fault, None if the model has no place for it."""
    plant = FAULTS[fault]
    try:
        yield plant(model)
    finally:
        if isinstance(plant, _Attention):
            plant.undo()


def compare_with(golden: Path, case: Case) -> DumpDiff:
    """Compare a call of a model with a golden dump."""
    results: list[DumpDiff] = []
    model, args, kwargs = case
    Golden(golden, False, None, results.append, print).check(model, args, kwargs)  # noqa: FBT003
    return results[0]


def is_refused(golden: Path, case: Case) -> bool:
    """Return whether an update of a copy of a golden dump is refused, as its values would be less precise."""
    model, args, kwargs = case
    with tempfile.TemporaryDirectory() as folder:
        copied = Path(shutil.copy(golden, folder))
        try:
            Golden(copied, True, None, print, lambda _: None).check(model, args, kwargs)  # noqa: FBT003
        except AssertionError:
            return True
    return False


def moved(result: DumpDiff) -> list[str]:
    """Return the names of the modules whose values are not bitwise those of the golden dump, in order."""
    return [row.key.name for row in result.rows if row.difference is not None and row.difference.absolute > 0]


def work(folder: Path, jobs: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Run jobs in this environment."""
    for job in jobs:
        name, fault = job["model"], job["fault"]
        golden, weights = folder / f"{name}.onnx", folder / f"{name}.pt"
        case = make(name, None if job["seeded"] else weights)
        if not golden.is_file():
            Golden(golden, True, None, print, print).check(*case)  # noqa: FBT003
            continue
        clean = compare_with(golden, copy.deepcopy(case)) if fault else None
        with planted(fault, case[0]) if fault else _nothing() as place:
            if place is None:
                yield job | {"skipped": True}
                continue
            try:
                result = compare_with(golden, case)
                refused = is_refused(golden, case)
            except Exception as error:  # noqa: BLE001  a swap may make a model fail
                yield job | {"skipped": True, "error": str(error).splitlines()[0]}
                continue
        plant = FAULTS.get(fault)
        if isinstance(plant, _Attention) and not plant.used:
            yield job | {"skipped": True}
            continue
        answer = "pass" if result.close else result.cause
        unexplained = (row for row in result.diverged if result.causes.get(row.place) != "environment")
        first = next(unexplained, None)
        before = [] if clean is None else moved(clean)
        rows = [] if clean is None else clean.rows
        inside = fault == "layers swapped"  # the fault is in all modules below
        at_fault = (row.key.kind == "O" and _is_at(row.key.name, place, inside=inside) for row in rows)
        start = next((index for index, found in enumerate(at_fault) if place and found), None)
        earlier = start is not None and any(row.difference and row.difference.absolute > 0 for row in rows[:start])
        yield job | {
            "answer": answer,
            "place": place,
            "named": first.key.name if first is not None else "",
            "expects_both": None if start is None else earlier,
            "moved": len(before) if clean is not None else len(moved(result)),
            "worst": max((row.ratio for row in result.rows if row.ratio is not None), default=0.0),
            "refused": refused,
            "reasons": result.reasons,
        }


def _is_at(name: str, place: str, *, inside: bool) -> bool:
    return name == place or (inside and name.startswith(f"{place}."))


@contextmanager
def _nothing() -> Iterator[str]:
    yield ""


def run_jobs(
    folder: Path, label: str, command: list[str], variables: dict[str, str], jobs: list[Any]
) -> list[dict[str, Any]]:
    """Run jobs in an environment, in a process of its own."""
    slug = "".join(item if item.isalnum() else "-" for item in label)
    given, results = folder / f"{slug}.jobs.json", folder / f"{slug}.results.jsonl"
    given.write_text(json.dumps(jobs))
    done = subprocess.run(
        [*command, __file__, "--work", str(folder), str(given), str(results)], env=os.environ | variables, check=False
    )
    if done.returncode:
        sys.exit(f"{label}: exited with {done.returncode}")
    return [json.loads(line) | {"environment": label} for line in results.read_text().splitlines()]


def main() -> int:
    """Store golden dumps, compare with them in all environments, and print tables; return 1 if a label is wrong."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", nargs=3, type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--python", action="append", default=[], help="another Python, with another torch")
    parser.add_argument("--path", action="append", default=[], help="a folder with another transformers")
    parser.add_argument("--models", nargs="+", choices=["wide", *ZOO_MODELS], default=[*MODELS])
    parser.add_argument("--folder", type=Path, help="keep the golden dumps and results here")
    options = parser.parse_args()
    if options.work:
        folder, jobs, results = options.work
        print(environment(["transformers:"]), flush=True)
        with results.open("w") as file:
            for result in work(folder, json.loads(jobs.read_text())):
                file.write(json.dumps(result) + "\n")
                file.flush()
        return 0
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.folder or Path(temporary)
        folder.mkdir(exist_ok=True, parents=True)
        return measure(folder.absolute(), options)


def measure(folder: Path, options: argparse.Namespace) -> int:
    """Run everything; see `main`."""
    own = [sys.executable]
    path = os.environ.get("PYTHONPATH", "")
    same = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    others: dict[str, tuple[list[str], dict[str, str]]] = {
        "2 threads": (own, {"OMP_NUM_THREADS": "2", "MKL_NUM_THREADS": "2"}),
        "AVX2": (own, same | {"ATEN_CPU_CAPABILITY": "avx2"}),
        "no vector instructions": (own, same | {"ATEN_CPU_CAPABILITY": "default", "ONEDNN_MAX_CPU_ISA": "SSE41"}),
    }
    others["compatible kernels of MKL"] = own, same | {"MKL_CBWR": "COMPATIBLE"}
    for extra in options.path:
        others[f"transformers in {Path(extra).name}"] = own, same | {"PYTHONPATH": f"{extra}:{path}"}
    for python in options.python:
        others[f"torch of {Path(python).parents[1].name}"] = [python], same
        others[f"torch of {Path(python).parents[1].name}, no vector instructions"] = (
            [python], same | {"ATEN_CPU_CAPABILITY": "default", "ONEDNN_MAX_CPU_ISA": "SSE41"})  # fmt: skip
    clean = [{"model": name, "fault": "", "seeded": False} for name in options.models]
    run_jobs(folder, "store", own, same, clean)
    plan = [(name, fault) for fault in FAULTS for name in options.models]
    order = random.Random(0).sample(plan, len(plan))  # noqa: S311  the same one in each run
    in_same = [{"model": name, "fault": fault, "seeded": False} for name, fault in order[: len(order) * 6 // 10]]
    in_other = [{"model": name, "fault": fault, "seeded": False} for name, fault in order[len(order) * 6 // 10 :]]
    results = run_jobs(folder, "same", own, same, in_same)
    for index, (label, (command, variables)) in enumerate(others.items()):
        jobs = [*clean, *in_other[index :: len(others)]]
        if "vector" in label:
            jobs += [job | {"seeded": True} for job in clean]
        results += run_jobs(folder, label, command, variables, jobs)
    (folder / "results.json").write_text(json.dumps(results, indent=1))
    return print_tables(results)


def judge(result: dict[str, Any]) -> str:
    """Return whether a label is right, wrong, or of a fault within rounding."""
    answer = result["answer"]
    if not result["fault"]:
        return "right" if answer in ("pass", "environment") else "wrong"
    if answer == "pass":
        return "within rounding" if result["worst"] else "no effect"
    if result["environment"] == "same":
        return "right" if answer == "code" else "wrong"
    if result["expects_both"] is None:
        return "right" if answer in ("code", "both") else "wrong"
    return "right" if answer == ("both" if result["expects_both"] else "code") else "wrong"


def print_tables(results: list[dict[str, Any]]) -> int:
    """Print the confusion tables; return 1 if a label is wrong."""
    done = [result for result in results if not result.get("skipped")]
    groups = {
        "clean, same weights and inputs": [r for r in done if not r["fault"] and not r["seeded"]],
        "clean, weights and inputs drawn again": [r for r in done if r["seeded"]],
        "fault, same environment": [r for r in done if r["fault"] and r["environment"] == "same"],
        "fault, other environment": [r for r in done if r["fault"] and r["environment"] != "same"],
    }
    labels = ("pass", "environment", "code", "both", "inputs", "not reproducible", "unknown")
    print("\n| runs | " + " | ".join((*labels, "labelled wrongly")) + " |\n| --- |" + " ---: |" * (len(labels) + 1))
    for title, group in groups.items():
        counts = Counter(result["answer"] for result in group)
        wrong = sum(judge(result) == "wrong" for result in group)
        print(f"| {title} ({len(group)}) | " + " | ".join(str(counts[label]) for label in labels) + f" | {wrong} |")
    print(
        "\n| fault | planted | no effect | within rounding | right | wrong | module named |"
        "\n| --- | ---: | ---: | ---: | ---: | ---: | ---: |"
    )
    for fault in FAULTS:
        group = [result for result in done if result["fault"] == fault]
        counts = Counter(map(judge, group))
        named = [r for r in group if r["place"] and judge(r) in ("right", "wrong")]
        right = sum(r["named"] == r["place"] or r["named"].startswith(f"{r['place']}.") for r in named)
        cells = (
            len(group), counts["no effect"], counts["within rounding"], counts["right"], counts["wrong"],
            f"{right} of {len(named)}",
        )  # fmt: skip
        print(f"| {fault} | " + " | ".join(map(str, cells)) + " |")
    print(
        "\n| environment | clean runs | values moved, median run | pass | environment |"
        "\n| --- | ---: | ---: | ---: | ---: |"
    )
    for label in dict.fromkeys(result["environment"] for result in done):
        group = [r for r in done if r["environment"] == label and not r["fault"] and not r["seeded"]]
        if group:
            sizes = sorted(r["moved"] for r in group)
            counts = Counter(r["answer"] for r in group)
            print(f"| {label} | {len(group)} | {sizes[len(sizes) // 2]} | {counts['pass']} | {counts['environment']} |")
    print("\n| update with | runs | refused |\n| --- | ---: | ---: |")
    kinds = {
        "a clean run in another environment": [r for r in done if not r["fault"]],
        "a cast to bfloat16 or float16": [r for r in done if r["fault"].startswith(("output in", "input in"))],
        "another fault": [r for r in done if r["fault"] and not r["fault"].startswith(("output in", "input in"))],
    }
    for title, group in kinds.items():
        print(f"| {title} | {len(group)} | {sum(r['refused'] for r in group)} |")
    wrong = [result for result in done if judge(result) == "wrong"]
    for result in wrong:
        print(
            {
                name: result[name]
                for name in ("environment", "model", "fault", "seeded", "answer", "place", "named", "worst")
            }
        )
        print("   ", *result["reasons"])
    return int(bool(wrong))


if __name__ == "__main__":
    raise SystemExit(main())
