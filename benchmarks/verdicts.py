"""How often `compare(truth="float64")` calls rounding wrong, and how often it finds three times the rounding level.

Clean runs of the zoo: in float32; with products rounded to TF32; lowered to float16; models that are in float16 or
bfloat16 themselves. No node may be called anything but rounding. Then float32 runs with noise planted in every seventh
node, on all elements or on one: three times the level that verdicts rest on; and, for comparison, three times what
eager PyTorch's own operation is off by (the root mean square, the largest), and at least half a unit in the last place.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import onnx_ir as ir
import torch
from torch.utils._pytree import tree_map_only

from filch.compare import Report, Row, compare
from filch.compare.float64 import Float64Evaluator, Float64Value, reduction_length, rounding_level, running_length
from filch.export import Program, export, lower
from filch.export.backends import Compiled, Stage, get_backend
from filch.steal import Capture, FilchError, ModuleInfo, argument_tensors, steal_forward

# The models live with the tests, which are no package and are not installed.
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from support.models.zoo import ZOO

TIMES = 3.0
EVERY = 7
ALARMS, FOUND = 0.005, 0.95
TF32, UNIT = 2.0**-11, 2.0**-24
_PRODUCTS = frozenset({"MatMul", "Gemm", "Conv", "ConvTranspose", "Einsum"})
Values = Mapping[str, torch.Tensor]
Given = Callable[[str], torch.Tensor | None]


@dataclass(frozen=True)
class Noisy:
    """ONNX Runtime node by node, with noise on what some nodes make of what they should be given.

    Attributes:
        noise: by name, what is added to a value; it is asked for with the value and with what gives the reference.
    """

    noise: Callable[[str, torch.Tensor, Given], torch.Tensor]
    name: str = "noisy"
    stages: tuple[Stage, ...] = ("exported",)
    inner: Any = field(default_factory=lambda: get_backend("onnxruntime-cpu"))

    def compile(self, program: Program, *, optimize: bool) -> Compiled:
        """As ONNX Runtime does."""
        return self.inner.compile(program, optimize=optimize)

    def run(self, compiled: Compiled, inputs: Values, watch: Collection[str] = ()) -> Any:
        """As ONNX Runtime does: what is planted is judged where nodes run by themselves."""
        return self.inner.run(compiled, inputs, watch)

    def isolate(
        self, compiled: Compiled, inputs: Values, given: Given, *, buffer: int
    ) -> Iterator[tuple[str, torch.Tensor]]:
        """As ONNX Runtime does, and then the noise."""
        held: dict[str, torch.Tensor] = {}  # what is judged may be asked for once

        def kept(name: str) -> torch.Tensor | None:
            found = held.get(name, given(name))
            return found if found is None else held.setdefault(name, found)

        for name, tensor in self.inner.isolate(compiled, inputs, kept, buffer=buffer):
            yield name, self.noise(name, tensor, kept)


@dataclass(frozen=True)
class Tf32:
    """ONNX Runtime node by node; what goes into products is rounded to TF32, as GPUs do it."""

    name: str = "tf32"
    stages: tuple[Stage, ...] = ("exported",)
    inner: Any = field(default_factory=lambda: get_backend("onnxruntime-cpu"))
    kept: list[Compiled] = field(default_factory=list)

    def compile(self, program: Program, *, optimize: bool) -> Compiled:
        """The program with its factors rounded."""
        made = self.inner.compile(replace(program, model=with_rounded_factors(program.model)), optimize=optimize)
        self.kept.append(made)  # its files live as long as it does
        return replace(made, matmul_input_eps=TF32)

    def run(self, compiled: Compiled, inputs: Mapping[str, torch.Tensor], watch: Collection[str] = ()) -> Any:
        """As ONNX Runtime does."""
        return self.inner.run(compiled, inputs, watch)

    def isolate(self, compiled: Compiled, inputs: Any, given: Any, *, buffer: int) -> Any:
        """As ONNX Runtime does."""
        return self.inner.isolate(compiled, inputs, given, buffer=buffer)


def with_rounded_factors(model: ir.Model) -> ir.Model:
    """A copy in which the factors of products have 11 significant bits: x·8193 - (x·8193 - x), in float32."""
    made = model.clone()
    graph = made.graph
    split = ir.Value(name="tf32_splitter", const_value=ir.tensor(torch.tensor(8193.0).numpy(), name="tf32_splitter"))
    graph.register_initializer(split)
    for node in [node for node in graph if node.op_type in _PRODUCTS]:
        for place, value in enumerate(node.inputs[:2]):
            if value is None or value.dtype not in (ir.DataType.FLOAT, None):
                continue
            steps = [ir.node("Mul", [value, split])]
            steps.append(ir.node("Sub", [steps[0].outputs[0], value]))
            steps.append(ir.node("Sub", [steps[0].outputs[0], steps[1].outputs[0]]))
            for number, step in enumerate(steps):
                step.outputs[0].name = f"{value.name}_at_{node.name}_{place}_{number}"
                step.outputs[0].type, step.outputs[0].shape = value.type, value.shape
                step.name = step.outputs[0].name
            graph.insert_before(node, steps)
            node.replace_input_with(place, steps[-1].outputs[0])
    return made


@dataclass(frozen=True)
class Subject:
    """A model of the zoo with its program, and what was stolen from it."""

    program: Program
    capture: Capture
    inputs: Mapping[str, torch.Tensor]

    @classmethod
    def of(cls, name: str, dtype: torch.dtype = torch.float32) -> Subject:
        """Export a model and steal its run."""
        model, *given = ZOO[name]()
        model = model.to(dtype)
        args, kwargs = tree_map_only(
            torch.Tensor, lambda item: item.to(dtype) if item.is_floating_point() else item, given
        )
        with torch.no_grad(), steal_forward(model, submodules=True) as capture:
            model(*args, **kwargs)
        program = export(model, args, kwargs)
        taken = argument_tensors(ModuleInfo.of(model).parameters, args, kwargs)
        return cls(program, capture, {value: taken[path] for value, path in program.inputs.items()})

    def compare(self, **how: Any) -> Report:
        """Compare the program with what was stolen."""
        return compare(self.capture, how.pop("program", self.program), truth="float64", **how)


def clean(name: str, subject: Subject, precision: str) -> Report:
    """A run that is sound, in some precision."""
    if precision == "float32":
        return subject.compare()
    if precision == "TF32":
        return subject.compare(backend=Tf32())
    if precision == "lowered to float16":
        return subject.compare(program=lower(subject.program, "float16"), lower_precision=True)
    if precision == "float16":
        return Subject.of(name, torch.float16).compare()
    return Subject.of(name, torch.bfloat16).compare(backend="reference")  # ONNX Runtime's CPU has no bfloat16


PRECISIONS = ("float32", "TF32", "lowered to float16", "float16", "bfloat16")


def judged(report: Report) -> list[Row]:
    """Return the rows of nodes that were judged by float64."""
    return [
        row for row in report.rows if row.kind != "output" and (row.float64 is not None or row.isolated is not None)
    ]


def alarms(rows: list[Row]) -> list[Row]:
    """Those that are not called rounding."""
    return [row for row in rows if not all(item is None or item.sound for item in (row.float64, row.isolated))]


KINDS = {
    f"{level}, {where}": (level, where == "all elements")
    for level in ("the level", "eager's error")
    for where in ("all elements", "one element")
}


class Planter:
    """Plants noise in every seventh node of a program.

    Args:
        subject: the model.
        report: of its clean run.
        seed: which nodes, and which elements.
    """

    def __init__(self, subject: Subject, report: Report, seed: int) -> None:
        """See the class."""
        self._subject = subject
        self._graph = subject.program.graph
        self._truths = Float64Evaluator(subject.program)
        rows = [row.value for row in report.rows if row.stage == "exported" and row.kind == "node" and _may(row)]
        self._chosen = {name for place, name in enumerate(rows) if place % EVERY == seed % EVERY}
        self._seed = seed

    def planted(self, kind: str) -> tuple[int, list[Row]]:
        """How many were planted, and the rows of those that were not found."""
        random = torch.Generator().manual_seed(self._seed)
        made: set[str] = set()

        def noise(name: str, tensor: torch.Tensor, given: Given) -> torch.Tensor:
            reference = given(name) if name in self._chosen else None
            truth = None if reference is None else self._truths.alone(self._subject.inputs, given).get(name)
            if reference is None or truth is None:
                return tensor
            wrong = self._noisy(kind, name, reference, truth, random)
            if not torch.equal(wrong, reference):  # three times nothing is nothing: in what is 0 and can't be else
                made.add(name)
            return wrong

        found = compare(self._subject.capture, self._subject.program, backend=Noisy(noise), truth="float64")
        rows = [row for row in found.rows if row.value in made and row.kind != "output"]
        return len(rows), [row for row in rows if row.isolated is None or row.isolated.sound]

    def _noisy(
        self, kind: str, name: str, reference: torch.Tensor, truth: Float64Value, random: torch.Generator
    ) -> torch.Tensor:
        """The truth and three times the level; the noise is the whole error."""
        of, everywhere = KINDS[kind]
        value = truth.value
        if of == "the level":
            length, sums = (
                count(self._graph.producer[name], self._graph) for count in (reduction_length, running_length)
            )
            level = rounding_level(reference, truth, unit=UNIT, length=length, sums=sums)
            size = level.scale * (level.typical if everywhere else level.largest)
        else:
            off = (reference.double() - value)[value.isfinite()]
            size = torch.clamp(
                UNIT * value.abs(), min=float(off.square().mean().sqrt() if everywhere else off.abs().max())
            )
        noise = TIMES * size * (torch.randint(0, 2, value.shape, generator=random) * 2 - 1)
        off = (value + noise).to(reference.dtype)
        if everywhere:
            return off
        # Beside a mask's -3.4e38 or a 0 that is exact, three times the level may round to nothing.
        places = (off != reference).logical_and(value.isfinite()).reshape(-1).nonzero().reshape(-1)
        wrong = reference.clone(memory_format=torch.contiguous_format)
        if places.numel():
            place = places[int(torch.randint(0, places.numel(), (), generator=random))]
            wrong.view(-1)[place] = off.reshape(-1)[place]
        return wrong


def _may(row: Row) -> bool:
    """Whether noise can be planted in a value: it has floating-point numbers, and float64 knows it."""
    return bool(row.isolated and row.float64 and row.dtype == "float32" and row.shape and 0 not in row.shape)


def main() -> int:
    """Run it; 1 if there are more false alarms, or fewer finds, than there may be."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", choices=list(ZOO), default=list(ZOO), metavar="MODEL")
    parser.add_argument("--precisions", nargs="+", choices=PRECISIONS, default=PRECISIONS)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    nodes, false, made, found = Counter[str](), Counter[str](), Counter[str](), Counter[str]()
    for name in options.models:
        subject = Subject.of(name)
        for precision in options.precisions:
            try:
                report = clean(name, subject, precision)
            except FilchError as error:
                print(f"{name} in {precision}: {error}", flush=True)
                continue
            rows = judged(report)
            wrong = alarms(rows)
            nodes[precision] += len(rows)
            false[precision] += len(wrong)
            print(f"{name} in {precision}: {len(wrong)} of {len(rows)} flagged", flush=True)
            for row in wrong:
                print(f"  {row.stage} {row.node} ({row.op}): {row.float64}; by itself {row.isolated}", flush=True)
            if precision == "float32":
                planter = Planter(subject, report, options.seed)
                for kind in KINDS:
                    count, missed = planter.planted(kind)
                    made[kind] += count
                    found[kind] += count - len(missed)
                    for row in missed:
                        print(f"  MISSED, {kind}: {row.node} ({row.op}): {row.isolated}", flush=True)
    print(f"\n{'clean run':20}{'nodes':>8}{'flagged':>9}{'share':>9}")
    for precision, count in nodes.items():
        print(f"{precision:20}{count:8}{false[precision]:9}{false[precision] / count:9.2%}")
    print(f"\n{'three times':30}{'planted':>8}{'found':>9}{'share':>9}")
    for kind, count in made.items():
        print(f"{kind:30}{count:8}{found[kind]:9}{found[kind] / count:9.2%}")
    calm = all(false[precision] < ALARMS * count for precision, count in nodes.items())
    return int(not calm or any(found[kind] < FOUND * made[kind] for kind in made if KINDS[kind][0] == "the level"))


if __name__ == "__main__":
    sys.exit(main())
