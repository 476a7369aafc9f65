"""Plant faults of caches, masks, positions and gathers in language models that decode, and count those that are named.

Faults are planted in exported programs, in what runs them step by step, and in models. Each is first checked without
Filch: at the position where it shows, and not before, the logits are others than without it.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any

import onnx_ir as ir
import torch
from _families import MODELS, PLANTED, arguments
from _measure import describe_environment, table
from _zoo import build
from torch import nn

from faults.decoding import (
    FIRST,
    SETS,
    SLOTS,
    Fault,
    ModelFault,
    ProgramFault,
    Runner,
    RunnerFault,
    logits_of,
    reached,
    same_operation,
)
from filch.compare import DecodeBreak, Decoding, check_invariance, compare_decode
from filch.export import Program, cache_argument, cached_call, export
from filch.export.backends import get_backend

LENGTH, WORDS = 12, 96
TOKENS = torch.randint(3, WORDS, (2, LENGTH), generator=torch.Generator().manual_seed(0))
LOW, HIGH = 1e-5, 2e-5  # differences of logits without and with a fault
RESULTS = ("node", "operation", "module", "position", "elsewhere", "silent")  # how a fault is named
PLACES = {ProgramFault: "program", RunnerFault: "runner", ModelFault: "model"}

Planted = ProgramFault | RunnerFault
Values = Mapping[str, torch.Tensor]


@cache
def model_of(name: str) -> nn.Module:
    """Return a model."""
    return build(name, (MODELS | PLANTED)[name])


@cache
def program_of(name: str, kind: str) -> Program:
    """Return a model's program with a cache."""
    slots = SLOTS if kind.startswith("static") else 0
    return export(model_of(name), kwargs=arguments_of(name, TOKENS), cache=kind, slots=slots)  # type: ignore[arg-type]


def split(given: dict[str, torch.Tensor]) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """Return the tokens of a decoder and its other arguments."""
    name = "decoder_input_ids" if "decoder_input_ids" in given else "input_ids"
    return given[name], {key: item for key, item in given.items() if key != name}


def first_of(program: Program) -> int:
    """Return the number of tokens in the first call of a program, which takes any number or one."""
    shape = program.model.graph.inputs[0].shape
    return 1 if shape is not None and shape[1] == 1 else FIRST


def steps(
    fault: Planted, program: Program, runner: Runner | None = None, *, watched: int | None = None
) -> tuple[torch.Tensor, Values]:
    """Run a program step by step with its own cache.

    Args:
        fault: the fault that is planted.
        program: the program.
        runner: what gives it its inputs; None gives the right ones.
        watched: the first position of the call whose values are returned.

    Returns:
        the logits of all positions, and the values of one call by name.
    """
    backend = get_backend("onnxruntime-cpu")
    compiled = backend.compile(program, optimize=False)
    graph = program.model.graph
    names = [str(item.name) for item in graph.inputs]
    state = {
        str(item.name): first_state(item) for item in graph.inputs if str(item.name).startswith("past_key_values.")
    }
    tokens, others = split(arguments_of(fault.model, TOKENS))
    fixed = encoded(fault.model, tokens, others) if others else {}
    computed = [str(item.name) for node in graph for item in node.outputs]
    logits, seen, first = [], dict[str, torch.Tensor](), first_of(program)
    for start, end in ((0, first), *((position, position + 1) for position in range(first, LENGTH))):
        length = SLOTS if fault.cache.startswith("static") else end
        given = {
            "input_ids": tokens[:, start:end],
            "attention_mask": (torch.arange(length) < end).long().expand(2, -1).contiguous(),
            "position_ids": torch.arange(start, end).expand(2, -1).contiguous(),
            **state,
            **fixed,
        }
        inputs = {name: given[name] for name in names}
        inputs = runner.changed(inputs) if runner else inputs
        outputs = backend.run(compiled, inputs, computed if watched == start else ())
        seen = dict(outputs) if watched == start else seen
        state = {name: outputs.get(f"present.{name.removeprefix('past_key_values.')}", state[name]) for name in state}
        logits.append(outputs["logits"])
    return torch.cat(logits, 1), seen


def first_state(value: ir.Value) -> torch.Tensor:
    """Return an empty part of a cache: the number of tokens, keys or values, or a state."""
    shape = [item if isinstance(item, int) else None for item in value.shape or ()]
    dtype = torch.int64 if value.dtype == ir.DataType.INT64 else torch.float32
    return torch.zeros([2 if axis == 0 else size or 0 for axis, size in enumerate(shape)], dtype=dtype)


def encoded(name: str, tokens: torch.Tensor, others: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Return what the decoder of a model reads of its encoder."""
    call = cached_call(model_of(name), tokens, others)
    layers = call[cache_argument(model_of(name)) or ""].cross_attention_cache.layers
    parts = {"key": [layer.keys for layer in layers], "value": [layer.values for layer in layers]}
    states = {
        f"past_key_values.{index}.encoder.{kind}": item
        for kind, items in parts.items()
        for index, item in enumerate(items)
    }
    return {"encoder_hidden_states": call["encoder_outputs"][0], **states}


def planted(fault: Planted) -> tuple[Program, Runner | None, set[str]]:
    """Return a program with a fault, what runs it, and the names of the values that are wrong."""
    program = program_of(fault.model, fault.cache)
    if isinstance(fault, ProgramFault):
        changed, names = fault.plant(program)
        return changed, None, names
    graph = program.model.graph
    inputs = [value for value in graph.inputs if value.name in fault.inputs]
    readers = {
        str(item.name)
        for value in inputs
        for node, _ in value.uses()
        if node.op_type != "Shape"
        for item in node.outputs
    }
    return program, Runner(fault), readers


def differences(one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    """Return the largest difference of the logits of each sequence and position, relative to all."""
    return (one - other).abs().amax(-1) / other.pow(2).mean().sqrt()


def check_shows(found: torch.Tensor, position: int, sequence: int) -> str:
    """Return what is not as it is said of a fault, from the differences of logits; empty if nothing is."""
    before = found[:, :position].amax() if position else torch.zeros(())
    earlier = found[:sequence, position].amax() if sequence else torch.zeros(())
    if max(before, earlier) > LOW:
        first = (found > LOW).nonzero()
        return f"logits differ before position {position} of sequence {sequence}: {first[:3].tolist()}"
    if found[sequence, position] < HIGH:
        return f"logits differ by {float(found[sequence, position]):.0e} at position {position}"
    return ""


def check_planted(fault: Planted) -> str:
    """Return what is not as it is said of a fault in a program; empty if nothing is."""
    program, runner, names = planted(fault)
    start = 0 if fault.position < first_of(program) else fault.position
    logits, seen = steps(fault, program, runner, watched=start)
    right, expected = steps(fault, program_of(fault.model, fault.cache), watched=start)
    shows = fault.position if fault.shows is None else fault.shows
    if wrong := check_shows(differences(logits, right), shows, fault.sequence):
        return wrong
    accepted = reached(program, names)
    for node in program.model.graph:
        for name in (str(value.name) for value in node.outputs):
            if name in seen and name in expected and differ(seen[name], expected[name]):
                return "" if name in accepted else f"{name} is wrong first, not {sorted(names)}"
            if name in names and name not in expected:
                return ""  # a new value
    return "no value of the first wrong call is wrong"


def differ(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Return whether two values differ by more than rounding."""
    if one.shape != other.shape or one.dtype != other.dtype:
        return True
    if not one.is_floating_point():
        return not torch.equal(one, other)
    return not torch.allclose(one, other, rtol=1e-5, atol=1e-6)


def judge_planted(fault: Planted) -> tuple[str, str]:
    """Return how a fault in a program is named, and what is named."""
    program, runner, names = planted(fault)
    result = compared(fault.model, fault.cache, program, runner or "onnxruntime-cpu")
    first = result.first_break
    if first is None:
        return "silent" if result.close else "elsewhere", result.headline
    return named(fault, program, reached(program, names), first), f"{first}, {first.value}; wrong: {sorted(names)}"


def compared(name: str, kind: str, program: Program, backend: str | Runner) -> Decoding:
    """Compare a program with a kind of cache with its model."""
    return compare_decode(
        model_of(name),
        kwargs=arguments_of(name, TOKENS),
        program=program,
        backend=backend,
        tokens=LENGTH,
        prefill=None if first_of(program) == 1 else FIRST,
        cache=kind,  # type: ignore[arg-type]
        stages=["exported"],
    )


def named(fault: Planted, program: Program, names: set[str], first: DecodeBreak) -> str:
    """Return how a fault in a program is named.

    Args:
        fault: the fault.
        program: the program with it.
        names: the values that are wrong.
        first: what is named.
    """
    if first.position != fault.position or first.sequence not in (None, fault.sequence):
        return "elsewhere"
    if first.value in names:
        return "node"
    if first.value in same_operation(program, names):
        return "operation"
    modules = {node.module for node in program.graph.nodes if names & set(node.outputs)}
    return "module" if first.module in modules else "position"


def arguments_of(name: str, tokens: torch.Tensor | None = None) -> dict[str, torch.Tensor]:
    """Return the arguments of a model, with some tokens or its own."""
    given = arguments(name)
    key = "decoder_input_ids" if "decoder_input_ids" in given else "input_ids"
    tokens = given[key][:, : LENGTH - 1] if tokens is None else tokens
    return {**{other: item[: len(tokens)] for other, item in given.items()}, key: tokens}


def check_patched(fault: ModelFault) -> str:
    """Return what is not as it is said of a fault in a model; empty if nothing is."""
    model, given = model_of(fault.model), arguments_of(fault.model)
    with attention(model, "eager"):
        expected = logits_of(model, "one call", given)
        with fault.patch(model):
            if differ(logits_of(model, "one call", given), expected):
                return "one call is wrong, too"
    with attention(model, "sdpa" if "sdpa" in fault.relation else "eager"):
        if differences(logits_of(model, fault.relation, given), expected).nan_to_num().amax() > LOW:
            return "the model is wrong without the fault"
        with fault.patch(model):
            found = differences(logits_of(model, fault.relation, given), expected).nan_to_num()
    return check_shows(found, fault.position, fault.sequence)


@contextmanager
def attention(model: Any, implementation: str) -> Iterator[None]:
    """Set the attention implementation of a model."""
    before = model.config._attn_implementation  # noqa: SLF001  no public property reads it
    model.set_attn_implementation(implementation)
    try:
        yield
    finally:
        model.set_attn_implementation(before)


def judge_patched(fault: ModelFault) -> tuple[str, str]:
    """Return how a fault in a model is named, and what is named."""
    model = model_of(fault.model)
    with fault.patch(model):
        result = check_invariance(model, kwargs=arguments_of(fault.model), only=[fault.relation])
    (row,) = result.rows
    first = row.first
    if row.verdict != "breaks" or first is None:
        return ("silent" if row.verdict == "holds" else "elsewhere"), f"{row.verdict} {row.note}"
    if (first.position, first.sequence) != (fault.position, fault.sequence):
        return "elsewhere", str(first)
    if first.module in fault.modules and first.operator in fault.operators.split():
        return "node", str(first)
    return "module" if {first.module, *first.before} & {*fault.modules} else "position", str(first)


def clean_runs(faults: Sequence[Fault]) -> Iterator[tuple[str, bool]]:
    """Yield the names of runs without a fault, and whether they are silent."""
    models = [fault for fault in faults if isinstance(fault, ModelFault)]
    programs = [fault for fault in faults if not isinstance(fault, ModelFault)]
    for name, kind in sorted({(fault.model, fault.cache) for fault in programs}):
        for backend in ("onnxruntime-cpu", Runner()):
            result = compared(name, kind, program_of(name, kind), backend)
            yield f"{name}, {kind}: {result.headline}", result.close and not result.breaks
    for name in sorted({fault.model for fault in models}):
        relations = sorted({fault.relation for fault in models if fault.model == name})
        yield name, check_invariance(model_of(name), kwargs=arguments_of(name), only=relations).close


def judge(fault: Fault) -> tuple[str, str]:
    """Check what is said of a fault, and return how it is named."""
    check, run = (check_patched, judge_patched) if isinstance(fault, ModelFault) else (check_planted, judge_planted)
    if wrong := check(fault):  # type: ignore[operator]
        raise ValueError(f"{fault}: {wrong}")
    return run(fault)  # type: ignore[operator]


def main() -> int:
    """Judge all faults; return 1 if fewer than 95 % are named at their node, or if a clean run is not silent."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", metavar="TEXT", help="faults that contain a text; no clean runs")
    parser.add_argument("--set", choices=SETS, default="first", help="which faults")
    options = parser.parse_args()
    only, faults = options.only, SETS[options.set]
    start = time.perf_counter()
    counts: dict[str, Counter[str]] = {}
    for fault in faults:
        if only not in str(fault):
            continue
        result, text = judge(fault)
        for row in (PLACES[type(fault)], "all"):
            counts.setdefault(row, Counter())[result] += 1
        print(f"{result:9} {fault}: at position {fault.position} of sequence {fault.sequence}: {text}", flush=True)
    runs = [] if only else [*clean_runs(faults)]
    noisy = [name for name, silent in runs if not silent]
    print()
    rows = [[place, *(str(count[result]) for result in RESULTS)] for place, count in counts.items()]
    print(table(("planted in", *RESULTS), rows), end="\n\n")
    print(f"{len(runs) - len(noisy)} of {len(runs)} clean runs are silent {noisy or ''}")
    print(f"{time.perf_counter() - start:.0f} s", end="\n\n")
    print(describe_environment("torch", "transformers", "onnxruntime-gpu"))
    named_exactly = counts["all"]["node"] + counts["all"]["operation"]
    return int(named_exactly < 0.95 * counts["all"].total() or bool(noisy))


if __name__ == "__main__":
    sys.exit(main())
