"""Measure the false alarms of `compare(every_node=True)` in clean runs, and how often it detects planted noise.

Clean runs of the tests' zoo: in float32, with matrix products in TF32, lowered to float16, and models that are in
float16 or bfloat16 themselves. Every verdict other than rounding is a false alarm. Then noise is planted in every
seventh node of the float32 run, in all elements or in one: three times the rounding level, which verdicts are based on;
and, for comparison, three times the error of eager PyTorch (root mean square, or largest), at least half a unit in the
last place.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import onnx_ir as ir
import torch
from _zoo import ZOO, CapturedModel, load_model

from filch.compare import Report, Row, compare
from filch.compare.float64._reductions import reduction_length, running_length
from filch.compare.float64._verdict import Float64Value, rounding_level
from filch.compare.runs._evaluation import Float64Evaluator
from filch.export import Program, lower
from filch.export.backends import Compiled, Stage, get_backend
from filch.steal import FilchError
from filch.steal._tf32 import Product

NOISE_FACTOR = 3.0
NODE_STEP = 7
MAX_FALSE_ALARM_RATE, MIN_DETECTION_RATE = 0.005, 0.95
FLOAT32_EPS = 2.0**-24
_PRODUCTS = frozenset({"MatMul", "Gemm", "Conv", "ConvTranspose", "Einsum"})
Values = Mapping[str, torch.Tensor]
ReferenceOf = Callable[[str], torch.Tensor | None]


@dataclass(frozen=True)
class ChangedOnnxRuntime:
    """ONNX Runtime node by node; subclasses change what it makes."""

    name: str = "changed"
    stages: tuple[Stage, ...] = ("exported",)
    inner: Any = field(default_factory=lambda: get_backend("onnxruntime-cpu"))

    def compile(self, program: Program, *, optimize: bool) -> Compiled:
        """Compile with ONNX Runtime."""
        return self.inner.compile(program, optimize=optimize)

    def run(self, compiled: Compiled, inputs: Values, watch: Collection[str] = ()) -> Any:
        """Run with ONNX Runtime."""
        return self.inner.run(compiled, inputs, watch)

    def isolate(self, compiled: Compiled, inputs: Values, reference_of: ReferenceOf, **options: Any) -> Any:
        """Run nodes in isolation with ONNX Runtime."""
        return self.inner.isolate(compiled, inputs, reference_of, **options)


@dataclass(frozen=True)
class NoisyOnnxRuntime(ChangedOnnxRuntime):
    """ONNX Runtime with noise added to the results of isolated nodes.

    Attributes:
        noise: returns a node's result with noise; its arguments are the name of the value, the result, and a function
            that returns the reference of a value.
    """

    noise: Callable[[str, torch.Tensor, ReferenceOf], torch.Tensor] = field(kw_only=True)
    name: str = "noisy"

    def isolate(self, compiled: Compiled, inputs: Values, reference_of: ReferenceOf, **options: Any) -> Any:
        """Run nodes in isolation, and add noise to their results."""
        references: dict[str, torch.Tensor] = {}  # `reference_of` may return a reference only once

        def cached_reference(name: str) -> torch.Tensor | None:
            reference = references.get(name, reference_of(name))
            return reference if reference is None else references.setdefault(name, reference)

        for name, tensor in self.inner.isolate(compiled, inputs, cached_reference, **options):
            yield name, self.noise(name, tensor, cached_reference)


@dataclass(frozen=True)
class Tf32OnnxRuntime(ChangedOnnxRuntime):
    """ONNX Runtime with the inputs of matrix products rounded to TF32, as GPUs do."""

    name: str = "tf32"
    compiled_programs: list[Compiled] = field(default_factory=list)

    def compile(self, program: Program, *, optimize: bool) -> Compiled:
        """Compile the program with rounded inputs of products."""
        compiled = super().compile(replace(program, model=round_factors(program.model)), optimize=optimize)
        self.compiled_programs.append(compiled)  # its files exist as long as this object
        return replace(compiled, tf32=frozenset(Product))


def round_factors(model: ir.Model) -> ir.Model:
    """Return a copy in which the inputs of products have 11 significant bits: x·8193 - (x·8193 - x), in float32."""
    rounded = model.clone()
    graph = rounded.graph
    factor = ir.Value(name="tf32_splitter", const_value=ir.tensor(torch.tensor(8193.0).numpy(), name="tf32_splitter"))
    graph.register_initializer(factor)
    for node in [node for node in graph if node.op_type in _PRODUCTS]:
        for position, value in enumerate(node.inputs[:2]):
            if value is None or value.dtype not in (ir.DataType.FLOAT, None):
                continue
            inserted = [ir.node("Mul", [value, factor])]
            inserted.append(ir.node("Sub", [inserted[0].outputs[0], value]))
            inserted.append(ir.node("Sub", [inserted[0].outputs[0], inserted[1].outputs[0]]))
            for number, new in enumerate(inserted):
                new.outputs[0].name = f"{value.name}_at_{node.name}_{position}_{number}"
                new.outputs[0].type, new.outputs[0].shape = value.type, value.shape
                new.name = new.outputs[0].name
            graph.insert_before(node, inserted)
            node.replace_input_with(position, inserted[-1].outputs[0])
    return rounded


def compare_float64(model: CapturedModel, program: Program | None = None, **options: Any) -> Report:
    """Compare a program, by default the exported one, with the capture, by float64."""
    return compare(model.capture, program or model.program, every_node=True, **options)


def compare_clean(name: str, model: CapturedModel, precision: str) -> Report:
    """Compare a correct run in one of `PRECISIONS`."""
    if precision == "float32":
        return compare_float64(model)
    if precision == "TF32":
        return compare_float64(model, backend=Tf32OnnxRuntime())
    if precision == "lowered to float16":
        return compare_float64(model, lower(model.program, "float16"), lower_precision=True)
    if precision == "float16":
        return compare_float64(load_model(name, torch.float16))
    # ONNX Runtime's CPU provider does not support bfloat16.
    return compare_float64(load_model(name, torch.bfloat16), backend="reference")


PRECISIONS = ("float32", "TF32", "lowered to float16", "float16", "bfloat16")


def judged_rows(report: Report) -> list[Row]:
    """Return the rows of nodes that were judged by float64."""
    return [
        row for row in report.rows if row.kind != "output" and (row.float64 is not None or row.isolated is not None)
    ]


def false_alarms(rows: list[Row]) -> list[Row]:
    """Return the rows whose verdict is not rounding."""
    return [row for row in rows if not all(item is None or item.sound for item in (row.float64, row.isolated))]


NOISE_KINDS = {
    f"{size}, {elements}": (size, elements == "all elements")
    for size in ("the level", "eager's error")
    for elements in ("all elements", "one element")
}


class NoisePlanter:
    """Plants noise in every seventh node of a program.

    Args:
        model: the model.
        report: the comparison of its clean run.
        seed: selects the nodes and the elements.
    """

    def __init__(self, model: CapturedModel, report: Report, seed: int) -> None:
        """See the class."""
        self._model = model
        self._graph = model.program.graph
        self._float64 = Float64Evaluator(model.program)
        names = [row.value for row in report.rows if row.stage == "exported" and row.kind == "node" and _can_plant(row)]
        self._selected = {name for index, name in enumerate(names) if index % NODE_STEP == seed % NODE_STEP}
        self._seed = seed

    def run(self, kind: str) -> tuple[int, list[Row]]:
        """Compare a run with noise of a kind: the number of nodes with noise, and the rows that were missed."""
        random = torch.Generator().manual_seed(self._seed)
        planted: set[str] = set()

        def noise(name: str, tensor: torch.Tensor, reference_of: ReferenceOf) -> torch.Tensor:
            reference = reference_of(name) if name in self._selected else None
            exact = None if reference is None else self._float64.isolated(self._model.inputs, reference_of).get(name)
            if reference is None or exact is None:
                return tensor
            noisy = self._add_noise(kind, name, reference, exact, random)
            if not torch.equal(noisy, reference):  # the rounding level of a value that can only be 0 is 0
                planted.add(name)
            return noisy

        report = compare_float64(self._model, backend=NoisyOnnxRuntime(noise=noise))
        rows = [row for row in report.rows if row.value in planted and row.kind != "output"]
        return len(rows), [row for row in rows if row.isolated is None or row.isolated.sound]

    def _add_noise(
        self, kind: str, name: str, reference: torch.Tensor, exact: Float64Value, random: torch.Generator
    ) -> torch.Tensor:
        """Return the float64 value with noise, which is the whole error of the result."""
        unit, all_elements = NOISE_KINDS[kind]
        value = exact.value
        if unit == "the level":
            length, sequential = (
                count(self._graph.producer[name], self._graph) for count in (reduction_length, running_length)
            )
            level = rounding_level(reference, exact, unit=FLOAT32_EPS, length=length, sequential=sequential)
            size = level.scale * (level.typical if all_elements else level.largest)
        else:
            error = (reference.double() - value)[value.isfinite()]
            size = torch.clamp(
                FLOAT32_EPS * value.abs(),
                min=float(error.square().mean().sqrt() if all_elements else error.abs().max()),
            )
        noise = NOISE_FACTOR * size * (torch.randint(0, 2, value.shape, generator=random) * 2 - 1)
        noisy = (value + noise).to(reference.dtype)
        if all_elements:
            return noisy
        # Noise that is small compared with a mask's -3.4e38 or an exact 0 may be rounded away.
        changed = (noisy != reference).logical_and(value.isfinite()).reshape(-1).nonzero().reshape(-1)
        result = reference.clone(memory_format=torch.contiguous_format)
        if changed.numel():
            index = changed[int(torch.randint(0, changed.numel(), (), generator=random))]
            result.view(-1)[index] = noisy.reshape(-1)[index]
        return result


def _can_plant(row: Row) -> bool:
    """Return whether noise can be planted in a value: it is a non-empty float32 tensor that float64 can judge."""
    return bool(row.isolated and row.float64 and row.dtype == "float32" and row.shape and 0 not in row.shape)


def main() -> int:
    """Measure all models; return 1 if there are too many false alarms or too few detections."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", choices=list(ZOO), default=list(ZOO), metavar="MODEL")
    parser.add_argument("--precisions", nargs="+", choices=PRECISIONS, default=PRECISIONS)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    nodes, flagged, planted, detected = Counter[str](), Counter[str](), Counter[str](), Counter[str]()
    for name in options.models:
        model = load_model(name)
        for precision in options.precisions:
            try:
                report = compare_clean(name, model, precision)
            except FilchError as error:
                print(f"{name} in {precision}: {error}", flush=True)
                continue
            rows = judged_rows(report)
            alarms = false_alarms(rows)
            nodes[precision] += len(rows)
            flagged[precision] += len(alarms)
            print(f"{name} in {precision}: {len(alarms)} of {len(rows)} flagged", flush=True)
            for row in alarms:
                print(f"  {row.stage} {row.node} ({row.op}): {row.float64}; isolated {row.isolated}", flush=True)
            if precision == "float32":
                planter = NoisePlanter(model, report, options.seed)
                for kind in NOISE_KINDS:
                    count, missed = planter.run(kind)
                    planted[kind] += count
                    detected[kind] += count - len(missed)
                    for row in missed:
                        print(f"  MISSED, {kind}: {row.node} ({row.op}): {row.isolated}", flush=True)
    print(f"\n{'clean run':20}{'nodes':>8}{'flagged':>9}{'share':>9}")
    for precision, count in nodes.items():
        print(f"{precision:20}{count:8}{flagged[precision]:9}{flagged[precision] / count:9.2%}")
    print(f"\n{'noise of three times':30}{'planted':>8}{'detected':>9}{'share':>9}")
    for kind, count in planted.items():
        print(f"{kind:30}{count:8}{detected[kind]:9}{detected[kind] / count:9.2%}")
    few_false_alarms = all(flagged[precision] < MAX_FALSE_ALARM_RATE * count for precision, count in nodes.items())
    # Noise relative to eager's error may be below the rounding level, so it need not be detected.
    judged = [kind for kind in planted if NOISE_KINDS[kind][0] == "the level"]
    return int(not few_false_alarms or any(detected[kind] < MIN_DETECTION_RATE * planted[kind] for kind in judged))


if __name__ == "__main__":
    sys.exit(main())
