"""Judge ONNX files of other tools by the PyTorch model: count the judged nodes, the false alarms and the faults named.

Each model of the zoo is exported by torch alone, and changed in a few ways that leave it right. `map_to_export` finds
the model's values in each of these files. Then faults are planted in them, in one node each.
"""

from __future__ import annotations

import io
import sys
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from random import Random

import onnx
import torch
from _measure import table_with_totals
from _planting import MISSED, OUTCOMES, detection, parser_of, seeded
from _zoo import ZOO, CapturedModel, load_model

from faults.nodes.kinds import LEAST, roundings
from faults.nodes.plants import KINDS, Plant, Planter, run
from filch.compare import Report, compare, map_to_export
from filch.steal import FilchError
from support.models.plain_onnx import plain, renamed, saved_by_onnxruntime, unoptimized

MODELS = ("llama", "bert", "resnet", "t5", "whisper")
TRACEABLE = ("resnet", "t5")  # the older exporter fails for bert and whisper, and adds an input to llama
MIN_JUDGED, MIN_DETECTION_RATE = 0.9, 0.95
ATTEMPTS = 40  # to plant a fault of the next kind in a file


def torchscript(name: str) -> onnx.ModelProto:
    """Return the model as torch's older exporter traces it."""
    model, args, kwargs = ZOO[name]()
    file = io.BytesIO()
    with warnings.catch_warnings(action="ignore"):
        torch.onnx.export(model, args, file, kwargs=kwargs, dynamo=False)
    return onnx.ModelProto.FromString(file.getvalue())


VARIANTS: Mapping[str, Callable[[str], onnx.ModelProto]] = {
    "optimized": plain,
    "unoptimized": unoptimized,
    "renamed": lambda name: renamed(plain(name)),
    "saved by ONNX Runtime": lambda name: saved_by_onnxruntime(plain(name)),
    "TorchScript": torchscript,
}


def judge(model: CapturedModel, proto: onnx.ModelProto) -> Report:
    """Compare a file with the recorded model, node by node as it stands."""
    program = map_to_export(proto, model.program, model.capture)
    return compare(model.capture, program, stages=("exported",))


def plant_faults(
    label: str, model: CapturedModel, proto: onnx.ModelProto, kinds: Iterator[str], random: Random
) -> Iterator[tuple[str, str]]:
    """Yield the kind and the detection of faults in a file; print those that are missed."""
    given = {value: tensor.numpy() for value, tensor in model.inputs.items()}
    names = [value.name for value in proto.graph.input]
    by_position = dict(zip(names, given.values(), strict=False))
    planter = Planter(proto, {name: given.get(name, by_position[name]) for name in names})
    for kind in islice(kinds, ATTEMPTS):
        fault = planter.plant(kind, random)
        if fault is None or not changes_output(planter, fault):
            continue
        try:
            report = judge(model, fault.model)
            result, first = detection(report, fault), report.first_divergence
        except FilchError as error:
            result, first = MISSED, error
        if result == MISSED:
            print(f"MISSED {label}, {fault.kind}: {fault.node}: {fault.text}\n    first: {first}", flush=True)
        yield fault.kind, result


def changes_output(planter: Planter, fault: Plant) -> bool:
    """Return whether an output differs by more than rounding: the bias of attention's keys has no effect."""
    outputs = run(fault.model, planter.inputs, [])
    return not all(roundings(planter.values[name], array) < LEAST for name, array in outputs.items())


def cycle_of_kinds(random: Random) -> Iterator[str]:
    """Yield all kinds in random order, again and again."""
    while True:
        yield from random.sample([*KINDS], len(KINDS))


def main() -> int:
    """Judge, plant and judge again; return 1 if too few nodes or faults are found or a sound file is flagged."""
    parser = parser_of(__doc__, MODELS)
    parser.add_argument("--plants", type=int, default=3, help="faults in each file")
    parser.add_argument("--variants", nargs="+", choices=VARIANTS, default=[*VARIANTS], metavar="VARIANT")
    options = parser.parse_args()
    found, flagged, least = Counter[tuple[str, str]](), 0, 1.0
    print("model    variant                 nodes  judged  inferred  suspect  flagged  faults")
    for name in options.models:
        model = load_model(name)
        kinds = cycle_of_kinds(seeded(options.seed, name))
        for variant in options.variants:
            label = f"{name:8} {variant:22}"
            if variant == "TorchScript" and name not in TRACEABLE:
                continue
            proto = VARIANTS[variant](name)
            report = judge(model, proto)
            rows = [row for row in report.rows if row.kind in ("node", "fused")]
            judged = sum(row.judged for row in rows)
            inferred = sum(row.evidence == "inferred" for row in rows)
            suspicious = sum(row.float64 is not None and row.float64.verdict == "suspicious" for row in rows)
            alarms = max(len(report.diverged) + len(report.interface), int(not report.close))
            random = seeded(options.seed, name, variant)
            faults = [*islice(plant_faults(label.strip(), model, proto, kinds, random), options.plants)]
            named = sum(result != MISSED for _, result in faults)
            counts = f"{len(rows):6} {judged:7} {inferred:9} {suspicious:8} {alarms:8}"
            print(f"{label} {counts}  {named} of {len(faults)} named", flush=True)
            found, flagged, least = found + Counter(faults), flagged + alarms, min(least, judged / len(rows))
    rows = [(kind, *(found[kind, outcome] for outcome in OUTCOMES)) for kind in KINDS]
    print(f"\n{table_with_totals(('kind', *OUTCOMES), rows)}")
    total, missed = found.total(), sum(found[kind, MISSED] for kind in KINDS)
    print(f"\n{total - missed} of {total} faults named; sound files flag {flagged} rows; at least {least:.0%} judged")
    return int(flagged > 0 or least < MIN_JUDGED or total - missed < MIN_DETECTION_RATE * total or not total)


if __name__ == "__main__":
    sys.exit(main())
