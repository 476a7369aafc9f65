"""Follow the commands that reports suggest, from planted faults to repros, and count the commands."""

from __future__ import annotations

import contextlib
import statistics
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from random import Random

import onnx
import torch
from _planting import parser_of, seeded
from _zoo import ZOO
from planted_faults import MODELS, Subject, load_subject

from faults.nodes.plants import KINDS, Plant
from filch.steal import steal_forward
from support.processes.following import Followed, follow

MAX_MEDIAN = 3  # commands: compare, find the cause, run the repro


def save_dump(name: str) -> str:
    """Record a call of a model of the zoo in a file of the current folder, and return the file's name."""
    model, args, kwargs = ZOO[name]()
    with torch.no_grad(), steal_forward(model, submodules=True, dump_file=f"{name}.ref.onnx"):
        model(*args, **kwargs)
    return f"{name}.ref.onnx"


def plants(subject: Subject, number: int, random: Random) -> Iterator[Plant]:
    """Yield faults of all kinds in turn that are larger than a tolerance allows."""
    kinds, found = list(KINDS), 0
    for attempt in range(20 * number):
        fault = subject.planter.plant(kinds[attempt % len(kinds)], random)
        if fault is not None and not fault.tolerated:
            yield fault
            found += 1
        if found == number:
            return


def shows_fault(followed: Followed, fault: Plant) -> bool:
    """Return whether a repro was reached whose graph has the node with the fault, or its value.

    A node without inputs, or one that only passes its input on, may be folded into the part that shows its value.
    """
    if followed.repro is None:
        return False
    graph = onnx.load(followed.repro / "model.onnx").graph
    values = {tensor.name for tensor in (*graph.input, *graph.initializer)}
    values |= {name for node in graph.node for name in node.output}
    return fault.node in {node.name for node in graph.node} or fault.value in values


def follow_fault(subject: Subject, dump: str, fault: Plant) -> Followed:
    """Write the wrong program into the current folder, and follow the suggestions of its comparison."""
    changed = onnx.ModelProto()
    changed.CopyFrom(fault.model)
    changed.metadata_props.MergeFrom(subject.saved.metadata_props)
    onnx.save(changed, subject.file)
    return follow(f"filch compare {dump} {subject.file.name}")


def main() -> int:
    """Plant faults and follow; return 1 if one does not lead to its node, or the median is too large."""
    parser = parser_of(__doc__, MODELS)
    parser.add_argument("--plants", type=int, default=50, help="number of faults, of all models together")
    options = parser.parse_args()
    counts, reached, total = list[int](), 0, 0
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        for name in options.models:
            subject, dump = load_subject(name, Path(folder)), save_dump(name)
            random = seeded(options.seed, name)
            for fault in plants(subject, -(-options.plants // len(options.models)), random):
                followed = follow_fault(subject, dump, fault)
                total += 1
                if shows_fault(followed, fault):
                    reached += 1
                    counts.append(len(followed.commands))
                    continue
                print(f"NOT REACHED {name}, {fault.kind}: {fault.node}: {fault.text}", *followed.commands, sep="\n    ")
                print(f"    {followed.output[-1500:]}", flush=True)
            print(f"{name}: {reached} of {total} so far", flush=True)
    median = statistics.median(counts) if counts else None
    print(f"\n{reached} of {total} faults lead to a repro with the node; commands: median {median}, {sorted(counts)}")
    return int(reached < total or not counts or statistics.median(counts) > MAX_MEDIAN)


if __name__ == "__main__":
    sys.exit(main())
