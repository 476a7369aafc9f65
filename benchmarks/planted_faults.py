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

from support.faults.plants import KINDS, Plant, Planter
from support.models.zoo import ZOO

MODELS = ("llama", "bert", "resnet", "t5", "vit")
NODE, INSIDE, MISSED = "the node", "inside", "missed"
PROTOCOLS = ("memory", "file")
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


def flagged_when_clean(one: Subject) -> dict[str, int]:
    """How many rows a clean run flags, by protocol; a run that is not close flags at least one."""
    model = serde.serialize_model(one.program.model)
    reports = {protocol: one.compare(model, protocol) for protocol in PROTOCOLS}
    return {protocol: len(report.diverged) or int(not report.close) for protocol, report in reports.items()}


def verdict(report: Report, plant: Plant) -> str:
    """Where the report finds the plant: as the node, or inside of what it names.

    Inside are the exported nodes that a compiled node computes, and those before a node that could not be judged: a
    node that somebody inserted makes a value that the model never had.
    """
    first = report.first_divergence
    if first is None or report.close:
        return MISSED
    if first.stage == "exported" and first.node == plant.node:
        return NODE
    return INSIDE if plant.node in first.origins else MISSED


def table(found: Counter[tuple[str, str]], drawn: Counter[str]) -> str:
    """A row per kind of plant, and their sum."""
    places = (NODE, INSIDE, MISSED)
    head = ("kind", "planted", "counted", *places)
    rows = [
        (kind, drawn[kind], sum(found[kind, at] for at in places), *(found[kind, at] for at in places))
        for kind in KINDS
    ]
    total = ("all", *(sum(column) for column in list(zip(*rows, strict=True))[1:]))  # type: ignore[arg-type]
    return "\n".join(f"{row[0]!s:20}" + "".join(f"{cell!s:>10}" for cell in row[1:]) for row in (head, *rows, total))


def plant_all(one: Subject, kinds: list[str], plants: int, random: Random) -> Iterator[tuple[str, str]]:
    """The kind and the verdict of each plant that counts; a miss is printed."""
    for index in range(plants):
        plant = one.planter.plant(kinds[index % len(kinds)], random)
        if plant is None:
            continue
        protocol = PROTOCOLS[index // len(kinds) % 2]
        try:
            report = one.compare(plant.model, protocol)
            at, said = verdict(report, plant), report.first_divergence
        except FilchError as error:
            at, said = MISSED, error
        if at == MISSED:
            how = f"{protocol}, {plant.kind}{', tolerated' if plant.tolerated else ''}"
            print(f"MISSED {one.name}, {how}: {plant.node}: {plant.text}\n    first: {said}", flush=True)
        yield plant.kind, at


def main() -> int:
    """Run it; 1 if too few are found or a clean run flags anything."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--plants", type=int, default=100, help="of all kinds together")
    parser.add_argument("--models", nargs="+", choices=sorted(ZOO), default=MODELS, metavar="MODEL")
    parser.add_argument("--kinds", nargs="+", choices=list(KINDS), default=list(KINDS), metavar="KIND")
    options = parser.parse_args()
    found: Counter[tuple[str, str]] = Counter()
    drawn: Counter[str] = Counter()
    flagged = 0
    with tempfile.TemporaryDirectory() as folder:
        for name in options.models:
            one = subject(name, Path(folder))
            clean = flagged_when_clean(one)
            random = Random(f"{options.seed} {name}")  # noqa: S311  no secret
            share = -(-options.plants // len(options.models))
            here = Counter(plant_all(one, options.kinds, share, random))
            found, drawn, flagged = found + here, drawn + one.planter.drawn, flagged + sum(clean.values())
            places = Counter(at for _, at in here.elements())
            print(f"{name}: clean runs flag {clean}; {dict(places)}", flush=True)
    counted, missed = found.total(), sum(found[kind, MISSED] for kind in KINDS)
    print(f"\n{table(found, drawn)}\n")
    print(f"{counted - missed} of {counted} found; clean runs flag {flagged} rows")
    return int(flagged > 0 or counted - missed < ENOUGH * counted or not counted)


if __name__ == "__main__":
    sys.exit(main())
