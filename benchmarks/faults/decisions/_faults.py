"""Plant rounding before decisions, and faults in routers, in exported programs and in compiled graphs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import onnx_ir as ir
import torch
from torch import fx

from faults._expressions import Names, load
from filch.compare import Report, compare
from filch.export import Program, export
from filch.export.backends import Stage
from filch.steal import Capture, steal_forward

from ._near_ties import MODELS, ROWS, Scored, near_ties

STEPS = ("Round", "Floor", "Sign")  # they return floating-point numbers
DECIDING = ("TopK", "ArgMax", "ArgMin", "Greater", "Cast", *STEPS)  # operators of the models' decisions
_TIES = 16  # rows with near-ties


@dataclass(frozen=True)
class Subject:
    """A model with near-ties among its scores.

    Attributes:
        name: of the model.
        dtype: of its weights and input.
        model: the model.
        x: the input.
        margins: the margins that its decisions can have, in float64 (see `near_ties`).
        capture: of the model.
        program: its program.
    """

    name: str
    dtype: torch.dtype
    model: torch.nn.Module
    x: torch.Tensor
    margins: torch.Tensor
    capture: Capture
    program: Program

    @property
    def deciding(self) -> ir.Node:
        """The node of the program that decides, of a copy of its model."""
        return deciding_node(self.program.model)


def subject(
    name: str,
    dtype: torch.dtype = torch.float32,
    *,
    seed: int = 0,
    ties: bool = True,
    model: Callable[[], Scored] | None = None,
) -> Subject:
    """Return a model of `MODELS`, or another one, with or without near-ties."""
    torch.manual_seed(seed)
    model = (model or MODELS[name])().eval().to(dtype)
    scale = torch.finfo(dtype).eps * (1 if ties else 2**10)
    gaps = torch.linspace(-1, 1, _TIES) if ties else torch.linspace(1, 2, ROWS)
    x, margins = near_ties(model, dtype, gaps * scale, seed=seed)
    with torch.no_grad(), steal_forward(model, submodules=True) as capture:
        model(x)
    return Subject(name, dtype, model, x, margins, capture, export(model, (x,)))


def deciding_node(model: ir.Model) -> ir.Node:
    """Return the node of a program that decides: it computes integers from numbers that are no constants, or rounds."""
    graph = model.graph
    deciding = [node for node in graph if node.op_type in DECIDING]
    nodes = [node for node in deciding if node.op_type in STEPS or node.outputs[-1].dtype in _INTEGERS]
    (node,) = (node for node in nodes if node.inputs[0].dtype not in _INTEGERS and node.inputs[0].shape)
    return node


def flipped(one: Subject, *, seed: int = 0, stages: Sequence[Stage] | None = None) -> Report:
    """Compare a program whose scores are moved by a unit in the last place, up or down."""
    model = one.program.model.clone()
    scores = deciding_node(model).inputs[0]
    replaced(model, scores, "Mul", units_of(_shape(scores), _TORCH[scores.dtype], seed))
    return compare(one.capture, replace(one.program, model=model), backend="onnxruntime-cpu", stages=stages)


def flipped_in_compiler(one: Subject, *, seed: int = 0) -> Report:
    """Compare a compiler that moves the scores by a unit in the last place, up or down."""

    def compile_wrong(module: fx.GraphModule, _inputs: object) -> Callable[..., object]:
        deciding = next(
            node for node in module.graph.nodes if getattr(node.target, "__name__", node.target) in _DECIDING
        )
        scores = deciding.args[0]

        class Moved(fx.Interpreter):
            def run_node(self, n: fx.Node) -> object:
                value = super().run_node(n)
                return value * units_of(tuple(value.shape), one.dtype, seed) if n is scores else value

        return Moved(module).run

    torch._dynamo.reset()  # noqa: SLF001  torch documents it
    reports: list[Report] = []
    options = {"correctness_report": reports, "inner": compile_wrong}
    with torch.no_grad():
        torch.compile(one.model, backend="filch", options=options)(one.x)
    return reports[0]


def units_of(shape: tuple[int, ...], dtype: torch.dtype, seed: int) -> torch.Tensor:
    """Return factors that make about half of the numbers smaller by a unit in the last place."""
    moved = torch.randint(2, shape, generator=torch.Generator().manual_seed(seed))
    return (1 - moved * torch.finfo(dtype).eps / 2).to(dtype)


def replaced(model: ir.Model, value: ir.Value, op: str, *constant: Any, **attributes: int) -> ir.Value:
    """Let a new node compute a value from what it was, and from a constant; return the new value, of the same name."""
    producer, name = value.producer(), value.name
    assert producer is not None
    value.name = f"{value.name}_{len(model.graph)}"
    users = [*value.uses()]
    weights = (_weight(model, item) for item in constant)
    node = ir.node(op, [value, *weights], attributes, name=f"planted_{op}_{len(model.graph)}")
    (output,) = node.outputs
    output.name, output.type, output.shape = name, value.type, value.shape
    if "to" in attributes:
        output.type = ir.TensorType(ir.DataType(attributes["to"]))
    for user, position in users:
        user.replace_input_with(position, output)
    model.graph.insert_after(producer, node)
    return output


def _weight(model: ir.Model, constant: Any) -> ir.Value:
    name = f"planted_{len(model.graph.initializers)}"
    weight = ir.Value(name=name, const_value=ir.tensor(torch.as_tensor(constant).numpy(), name=name))
    model.graph.register_initializer(weight)
    return weight


_DECIDING = ("topk", "argmax", "max", "argmin", "argsort", "gt", "long", "round", "floor", "sign")  # in torch
_TORCH = {ir.DataType.FLOAT: torch.float32, ir.DataType.FLOAT16: torch.float16}
_INTEGERS = (ir.DataType.INT64, ir.DataType.BOOL)


def _shape(value: ir.Value) -> tuple[int, ...]:
    assert value.shape is not None
    return tuple(int(item) for item in value.shape.numpy())  # type: ignore[arg-type]


@dataclass(frozen=True)
class RouterFault:
    """A fault in a router: in the node that decides, or in the first one of some operators.

    In the expressions, `x` is the value, `far_row` is 1 for a row without near-ties, and `rows` is the number of rows.

    Attributes:
        models: the names of the models that have such a router.
        of: the operators; empty for the node that decides.
        attribute: an attribute and its wrong number.
        operator: the wrong operator by the right one.
        result: what becomes of the node's last result.
        operand: the number of an input; others that read it read the right numbers.
        becomes: what becomes of this input.
    """

    models: tuple[str, ...]
    of: tuple[str, ...] = ()
    attribute: Mapping[str, int] = field(default_factory=dict)
    operator: Mapping[str, str] = field(default_factory=dict)
    result: str = ""
    operand: int = 0
    becomes: str = ""

    def plant(self, model: ir.Model) -> str:
        """Plant the fault in a program, and return the name of the value that becomes wrong."""
        nodes = (node for node in model.graph if node.op_type in self.of)
        node = next(nodes) if self.of else deciding_node(model)
        wrong = str(node.outputs[-1].name)
        node.op_type = self.operator.get(node.op_type, node.op_type)
        for name, number in self.attribute.items():
            node.attributes[name] = ir.AttrInt64(name, number)

        def replace_value(op: str, value: ir.Value, *constants: Any, **attributes: int) -> ir.Value:
            return replaced(model, value, op, *constants, **attributes)

        def insert(op: str, value: ir.Value, *constants: Any) -> ir.Value:
            changed = ir.node(op, [value, *(_weight(model, item) for item in constants)], name=f"planted_{op}")
            model.graph.insert_before(node, changed)
            return changed.outputs[0]

        far_row = (torch.arange(ROWS) == ROWS - 1).long()
        names = {"far_row": far_row, "rows": ROWS, "weight": partial(_weight, model)}
        if self.result:
            Names(add=replace_value, x=node.outputs[-1], **names).evaluate(self.result)
        if self.becomes:
            changed = Names(add=insert, x=node.inputs[self.operand], **names).evaluate(self.becomes)
            node.replace_input_with(self.operand, changed)
        return wrong


def faulty(one: Subject, fault: RouterFault, *, moved: bool = False) -> tuple[Report, str]:
    """Compare a program with a fault; return the report, and the name of the node that is wrong.

    Args:
        one: the model.
        fault: the fault.
        moved: whether scores are moved by a unit in the last place, too (see `flipped`).
    """
    model = one.program.model.clone()
    scores = deciding_node(model).inputs[0]
    value = fault.plant(model)
    node = next(node.name for node in model.graph if any(output.name == value for output in node.outputs))
    if moved:
        replaced(model, scores, "Mul", units_of(_shape(scores), one.dtype, 0))
    return compare(one.capture, replace(one.program, model=model), backend="onnxruntime-cpu"), str(node)


_FILE = load(__file__, "faults.toml")
FAULTS: Mapping[str, RouterFault] = {
    name: RouterFault(
        tuple(model for group in fields.pop("models") for model in _FILE["models"].get(group, [group])), **fields
    )
    for name, fields in _FILE["faults"].items()
}
