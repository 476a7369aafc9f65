"""Plant faults in exported models, in one node each, and count how often `compare` names that node first."""

from __future__ import annotations

import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random

import onnx
from _measure import table_with_totals
from _planting import MISSED, OUTCOMES, detection, parser_of, seeded
from _zoo import CapturedModel, load_model
from onnx_ir import serde

from faults.nodes.plants import KINDS, Planter
from filch.compare import Report, compare
from filch.steal import FilchError

MODELS = ("llama", "bert", "resnet", "t5", "vit")
PROGRAM_SOURCES = ("memory", "file")
MIN_DETECTION_RATE = 0.98


@dataclass(frozen=True)
class Subject:
    """A model of the zoo, its correct program in a file, and the planter of faults."""

    name: str
    model: CapturedModel
    planter: Planter
    file: Path
    saved: onnx.ModelProto

    def compare(self, proto: onnx.ModelProto, source: str) -> Report:
        """Compare the capture with a changed program, passed in memory or as a file."""
        if source == "memory":
            return compare(self.model.capture, replace(self.model.program, model=serde.deserialize_model(proto)))
        changed = onnx.ModelProto()
        changed.CopyFrom(proto)
        changed.metadata_props.MergeFrom(self.saved.metadata_props)
        onnx.save(changed, self.file)
        return compare(self.model.capture, self.file)


def load_subject(name: str, folder: Path) -> Subject:
    """Load a model of the zoo, and save its program in a folder."""
    model = load_model(name)
    file = folder / f"{name}.onnx"
    model.program.save(file)
    inputs = {value: tensor.numpy() for value, tensor in model.inputs.items()}
    planter = Planter(serde.serialize_model(model.program.model), inputs)
    return Subject(name, model, planter, file, onnx.load(file))


def count_false_alarms(subject: Subject) -> dict[str, int]:
    """Count the rows that a clean run flags, for each source; a run that is not close counts at least one."""
    proto = serde.serialize_model(subject.model.program.model)
    reports = {source: subject.compare(proto, source) for source in PROGRAM_SOURCES}
    return {source: len(report.diverged) or int(not report.close) for source, report in reports.items()}


def table(found: Counter[tuple[str, str]], planted: Counter[str]) -> str:
    """Format a row for each kind of fault, and a row of totals."""
    counts = {kind: [found[kind, outcome] for outcome in OUTCOMES] for kind in KINDS}
    rows = [(kind, planted[kind], sum(of_kind), *of_kind) for kind, of_kind in counts.items()]
    return table_with_totals(("kind", "planted", "counted", *OUTCOMES), rows)


def plant_faults(subject: Subject, kinds: list[str], attempts: int, random: Random) -> Iterator[tuple[str, str]]:
    """Yield the kind and the detection of each fault that counts; print those that are missed."""
    for index in range(attempts):
        fault = subject.planter.plant(kinds[index % len(kinds)], random)
        if fault is None:
            continue
        source = PROGRAM_SOURCES[index // len(kinds) % 2]
        try:
            report = subject.compare(fault.model, source)
            result, first = detection(report, fault), report.first_divergence
        except FilchError as error:
            result, first = MISSED, error
        if result == MISSED:
            description = f"{source}, {fault.kind}{', tolerated' if fault.tolerated else ''}"
            print(f"MISSED {subject.name}, {description}: {fault.node}: {fault.text}\n    first: {first}", flush=True)
        yield fault.kind, result


def main() -> int:
    """Plant and compare; return 1 if too few faults are found or a clean run flags anything."""
    parser = parser_of(__doc__, MODELS)
    parser.add_argument("--plants", type=int, default=100, help="attempts to plant a fault, of all kinds together")
    parser.add_argument("--kinds", nargs="+", choices=list(KINDS), default=list(KINDS), metavar="KIND")
    options = parser.parse_args()
    found: Counter[tuple[str, str]] = Counter()
    planted: Counter[str] = Counter()
    flagged = 0
    with tempfile.TemporaryDirectory() as folder:
        for name in options.models:
            subject = load_subject(name, Path(folder))
            false_alarms = count_false_alarms(subject)
            random = seeded(options.seed, name)
            attempts = -(-options.plants // len(options.models))
            results = Counter(plant_faults(subject, options.kinds, attempts, random))
            found, planted = found + results, planted + subject.planter.drawn
            flagged += sum(false_alarms.values())
            detections = Counter(result for _, result in results.elements())
            print(f"{name}: clean runs flag {false_alarms}; {dict(detections)}", flush=True)
    counted, missed = found.total(), sum(found[kind, MISSED] for kind in KINDS)
    print(f"\n{table(found, planted)}\n")
    print(f"{counted - missed} of {counted} found; clean runs flag {flagged} rows")
    return int(flagged > 0 or counted - missed < MIN_DETECTION_RATE * counted or not counted)


if __name__ == "__main__":
    sys.exit(main())
