"""How often `compare(truth="float64")` calls rounding wrong, and how often it finds three times the rounding level.

Clean runs of the zoo in float32, with products rounded to TF32, and lowered to float16 and bfloat16: no node may be
called anything but rounding. Then the same float32 runs with noise planted in every seventh node: three times what
eager PyTorch itself is off by, and at least half a unit in the last place: on all elements (its root mean square) or on
one (its largest).
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import onnx_ir as ir
import torch

from filch.compare import Report, Row, compare
from filch.export import Program, export, lower, optimize
from filch.export.backends import Compiled, Stage, get_backend
from filch.steal import Capture, ModuleInfo, argument_tensors, steal_forward

# The models live with the tests, which are no package and are not installed.
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from zoo import ZOO

TIMES = 3.0
EVERY = 7
ALARMS, FOUND = 0.005, 0.95
TF32 = 2.0**-11
_PRODUCTS = frozenset({"MatMul", "Gemm", "Conv", "ConvTranspose", "Einsum"})
Noise = Callable[[str, torch.Tensor], torch.Tensor]


@dataclass(frozen=True)
class Noisy:
    """ONNX Runtime node by node, with something added to what some nodes make."""

    added: Noise
    name: str = "noisy"
    stages: tuple[Stage, ...] = ("exported",)
    inner: Any = field(default_factory=lambda: get_backend("onnxruntime-cpu"))

    def compile(self, program: Program, *, optimize: bool) -> Compiled:
        """As ONNX Runtime does."""
        return self.inner.compile(program, optimize=optimize)

    def run(self, compiled: Compiled, inputs: Mapping[str, torch.Tensor], watch: Collection[str] = ()) -> Any:
        """As ONNX Runtime does: what is planted is judged where nodes run by themselves."""
        return self.inner.run(compiled, inputs, watch)

    def isolate(
        self, compiled: Compiled, inputs: Any, given: Any, *, buffer: int
    ) -> Iterator[tuple[str, torch.Tensor]]:
        """As ONNX Runtime does, and then the noise."""
        for name, tensor in self.inner.isolate(compiled, inputs, given, buffer=buffer):
            yield name, self.added(name, tensor)


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
        return replace(made, products=TF32)

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
    split = ir.Value(name="split", const_value=ir.tensor(torch.tensor(8193.0).numpy(), name="split"))
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
    def of(cls, name: str) -> Subject:
        """Export a model and steal its run."""
        model, args, kwargs = ZOO[name]()
        with torch.no_grad(), steal_forward(model, submodules=True) as capture:
            model(*args, **kwargs)
        program = export(model, args, kwargs)
        taken = argument_tensors(ModuleInfo.of(model).parameters, args, kwargs)
        return cls(program, capture, {value: taken[path] for value, path in program.inputs.items()})

    @cached_property
    def rounding(self) -> Mapping[str, float]:
        """The root mean square of what eager PyTorch's own operations are off by, each given what it had, by name."""
        original = self.program.original
        assert original is not None
        had = dict(original.walk(self.inputs))
        exact = ((name, original.raised.node(name, self.inputs, had.get)) for name in had)
        distances = ((name, had[name].double() - value) for name, value in exact if had[name].is_floating_point())
        return {name: float(off[off.isfinite()].square().mean().sqrt()) for name, off in distances if off.numel()}

    def clean(self, precision: str) -> Report:
        """A run that is sound, in some precision."""
        if precision == "float32":
            return compare(self.capture, self.program, truth="float64")
        if precision == "TF32":
            return compare(self.capture, self.program, backend=Tf32(), truth="float64")
        program = lower(optimize(self.program), precision, simulate=True)
        return compare(self.capture, program, truth="float64", lower_precision=True, stages=("exported",))


def judged(report: Report) -> list[Row]:
    """The rows of nodes that float64 was held against."""
    return [row for row in report.rows if row.kind != "output" and (row.truth is not None or row.local is not None)]


def alarms(rows: list[Row]) -> list[Row]:
    """Those that are not called rounding."""
    return [row for row in rows if not all(item is None or item.sound for item in (row.truth, row.local))]


def planted(subject: Subject, report: Report, seed: int, *, everywhere: bool) -> tuple[int, list[Row]]:
    """Plant noise in every seventh node; how many were planted, and the rows of those that were not found."""
    exact = {row.value: row for row in report.rows if row.stage == "exported" and row.kind == "node" and _may(row)}
    chosen = {name: exact[name] for place, name in enumerate(exact) if place % EVERY == seed % EVERY}
    random = torch.Generator().manual_seed(seed)

    def added(name: str, tensor: torch.Tensor) -> torch.Tensor:
        row = chosen.get(name)
        if row is None or row.local is None:
            return tensor
        unit = torch.finfo(tensor.dtype).eps / 2
        usual = subject.rounding.get(name, 0.0) if everywhere else row.local.eager
        level = torch.clamp(unit * tensor.double().abs(), min=usual)
        noise = TIMES * level * (torch.randint(0, 2, tensor.shape, generator=random) * 2 - 1)
        if not everywhere:
            kept = torch.zeros(tensor.numel(), dtype=torch.bool)
            kept[int(torch.randint(0, tensor.numel(), (), generator=random))] = True
            noise = noise * kept.reshape(tensor.shape)
        return (tensor.double() + noise).to(tensor.dtype)

    found = compare(subject.capture, subject.program, backend=Noisy(added), truth="float64")
    rows = [row for row in found.rows if row.value in chosen and row.kind != "output" and row.local is not None]
    return len(rows), [row for row in rows if row.local is not None and row.local.sound]


def _may(row: Row) -> bool:
    """Whether noise can be planted in a value: it has floating-point numbers, and float64 knows it."""
    return bool(row.local and row.truth and row.dtype == "float32" and row.shape and "tolerance" not in row.local.note)


def main() -> int:
    """Run it; 1 if there are more false alarms, or fewer finds, than there may be."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", choices=list(ZOO), default=list(ZOO), metavar="MODEL")
    parser.add_argument("--precisions", nargs="+", default=["float32", "TF32", "float16", "bfloat16"])
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    nodes, false, made, found = Counter[str](), Counter[str](), Counter[str](), Counter[str]()
    for name in options.models:
        subject = Subject.of(name)
        for precision in options.precisions:
            report = subject.clean(precision)
            rows = judged(report)
            wrong = alarms(rows)
            nodes[precision] += len(rows)
            false[precision] += len(wrong)
            print(f"{name} in {precision}: {len(wrong)} of {len(rows)} flagged", flush=True)
            for row in wrong:
                print(f"  {row.stage} {row.node} ({row.op}): {row.truth}; by itself {row.local}", flush=True)
            if precision == "float32":
                for kind, everywhere in (("all elements", True), ("one element", False)):
                    count, missed = planted(subject, report, options.seed, everywhere=everywhere)
                    made[kind] += count
                    found[kind] += count - len(missed)
                    for row in missed:
                        print(f"  MISSED in {kind}: {row.node} ({row.op}): {row.local}", flush=True)
    print(f"\n{'clean run':14}{'nodes':>8}{'flagged':>9}{'share':>9}")
    for precision, count in nodes.items():
        print(f"{precision:14}{count:8}{false[precision]:9}{false[precision] / count:9.2%}")
    print(f"\n{'three times':14}{'planted':>8}{'found':>9}{'share':>9}")
    for kind, count in made.items():
        print(f"{kind:14}{count:8}{found[kind]:9}{found[kind] / count:9.2%}")
    calm = all(false[precision] < ALARMS * count for precision, count in nodes.items())
    return int(not calm or any(found[kind] < FOUND * count for kind, count in made.items()))


if __name__ == "__main__":
    sys.exit(main())
