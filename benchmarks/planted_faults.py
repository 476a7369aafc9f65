"""Plant faults in exported models, one node each, and count how often `compare` names that node first."""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random

import onnx
import torch
from onnx_ir import serde

from filch.compare import Report, compare
from filch.export import Program, export
from filch.steal import Capture, FilchError, ModuleInfo, argument_tensors, steal_forward

# The models and the plants live with the tests, which are no package and are not installed.
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from plants import KINDS, Plant, Planter
from zoo import ZOO

MODELS = ("llama", "bert", "resnet", "t5", "vit")
EXPORTED, COMPILED, READER, MISSED = "exported", "compiled", "reader", "missed"
ENOUGH = 0.98


@dataclass(frozen=True)
class Subject:
    """A model with its clean program, on disk too, and what was stolen from it."""

    name: str
    program: Program
    capture: Capture
    planter: Planter
    file: Path
    saved: onnx.ModelProto

    def compare(self, model: onnx.ModelProto, protocol: str) -> Report:
        """Compare the capture with `model`, put in the place of the clean one in memory or on disk."""
        if protocol == "memory":
            return compare(self.capture, replace(self.program, model=serde.deserialize_model(model)))
        changed = onnx.ModelProto()
        changed.CopyFrom(model)
        changed.metadata_props.MergeFrom(self.saved.metadata_props)
        onnx.save(changed, self.file)
        return compare(self.capture, self.file)


def subject(name: str, folder: Path) -> Subject:
    """Export a model of the zoo and steal its run."""
    model, args, kwargs = ZOO[name]()
    program = export(model, args, kwargs)
    with torch.no_grad(), steal_forward(model, submodules=True) as capture:
        model(*args, **kwargs)
    file = folder / f"{name}.onnx"
    program.save(file)
    taken = argument_tensors(ModuleInfo.of(model).parameters, args, kwargs)
    inputs = {value: taken[path].numpy() for value, path in program.inputs.items()}
    clean = serde.serialize_model(program.model)
    return Subject(name, program, capture, Planter(clean, inputs), file, onnx.load(file))


def clean_flags(one: Subject) -> Iterator[tuple[str, int]]:
    """How many rows a clean run flags, by protocol; a run that is not close flags at least one."""
    model = serde.serialize_model(one.program.model)
    for protocol in ("memory", "file"):
        report = one.compare(model, protocol)
        yield protocol, len(report.diverged) or int(not report.close)


def verdict(report: Report, plant: Plant) -> str:
    """Where the report finds the plant."""
    first = report.first_divergence
    if first is None or report.close:
        return MISSED
    if first.stage == "exported" and first.node == plant.node:
        return EXPORTED
    if plant.node in first.origins:
        return COMPILED
    # Nothing says what a value should be that the model never had: the first that can be judged is its reader's.
    unjudged = not any(row.judged for row in report.rows if row.value == plant.value)
    readers = {node.name for node in plant.model.graph.node if plant.value in node.input}
    return READER if unjudged and first.node in readers else MISSED


def try_plant(one: Subject, plant: Plant, protocol: str) -> tuple[str, str]:
    """The verdict on a plant, and what the report says first."""
    try:
        report = one.compare(plant.model, protocol)
    except FilchError as error:
        return MISSED, f"{type(error).__name__}: {error}"
    return verdict(report, plant), f"{'close' if report.close else 'not close'}; first: {report.first_divergence}"


def table(found: Counter[tuple[str, str]], drawn: Counter[str]) -> str:
    """A row per kind of plant, and their sum."""
    places = (EXPORTED, COMPILED, READER, MISSED)
    head = ("kind", "planted", "counted", *places)
    rows = [
        (kind, drawn[kind], sum(found[kind, at] for at in places), *(found[kind, at] for at in places))
        for kind in KINDS
    ]
    total = ("all", *(sum(column) for column in list(zip(*rows, strict=True))[1:]))  # type: ignore[arg-type]
    return "\n".join(f"{row[0]!s:20}" + "".join(f"{cell!s:>10}" for cell in row[1:]) for row in (head, *rows, total))


def main() -> int:
    """Run it; 1 if too few are found or a clean run flags anything."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--plants", type=int, default=100, help="for each model")
    parser.add_argument("--models", nargs="+", choices=sorted(ZOO), default=MODELS, metavar="MODEL")
    parser.add_argument("--kinds", nargs="+", choices=list(KINDS), default=list(KINDS), metavar="KIND")
    options = parser.parse_args()
    found: Counter[tuple[str, str]] = Counter()
    drawn: Counter[str] = Counter()
    flagged = 0
    with tempfile.TemporaryDirectory() as folder:
        for name in options.models:
            one, random, here = subject(name, Path(folder)), Random(f"{options.seed} {name}"), Counter[str]()  # noqa: S311  no secret
            clean = dict(clean_flags(one))
            flagged += sum(clean.values())
            for index in range(options.plants):
                kind = options.kinds[index % len(options.kinds)]
                before = one.planter.drawn
                plant = one.planter.plant(kind, random)
                drawn[kind] += one.planter.drawn - before
                if plant is None:
                    continue
                protocol = ("memory", "file")[index // len(options.kinds) % 2]
                at, said = try_plant(one, plant, protocol)
                found[kind, at] += 1
                here[at] += 1
                if at == MISSED:
                    tolerated = ", tolerated" if plant.tolerated else ""
                    print(
                        f"MISSED {name}, {protocol}, {kind}{tolerated}: {plant.text} -> {plant.value}\n    {said}",
                        flush=True,
                    )
            print(f"{name}: clean runs flag {clean}; {dict(here)}", flush=True)
    print(f"\n{table(found, drawn)}")
    counted = sum(found.values())
    named = counted - sum(count for (_, at), count in found.items() if at == MISSED)
    print(f"\n{named} of {counted} found ({named / max(counted, 1):.1%}); clean runs flag {flagged} rows")
    return int(flagged > 0 or named < ENOUGH * counted or not counted)


if __name__ == "__main__":
    sys.exit(main())
