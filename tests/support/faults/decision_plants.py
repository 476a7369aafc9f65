"""Plant rounding before decisions, and faults in routers, in exported programs and in compiled graphs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import onnx_ir as ir
import torch
from torch import fx

from filch.compare import Report, compare
from filch.export import Program, export
from filch.export.backends import Stage
from filch.steal import Capture, steal_forward
from support.models.near_ties import CHOICES, MODELS, ROWS, Scored, near_ties

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


def replaced(model: ir.Model, value: ir.Value, op: str, *constant: torch.Tensor, **attributes: int) -> ir.Value:
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


def _weight(model: ir.Model, constant: torch.Tensor) -> ir.Value:
    name = f"planted_{len(model.graph.initializers)}"
    weight = ir.Value(name=name, const_value=ir.tensor(constant.numpy(), name=name))
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
    """A fault in a router.

    Attributes:
        models: the names of the models that have such a router.
        plant: plants it in a program, and returns the name of the value that becomes wrong.
    """

    models: tuple[str, ...]
    plant: Callable[[ir.Model], str]


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


def _attribute(name: str, number: int, op: str = "") -> Callable[[ir.Model], str]:
    """Return a fault that changes an attribute of the node that decides, or of the first one of an operator."""

    def plant(model: ir.Model) -> str:
        node = next((node for node in model.graph if node.op_type == op), None) if op else deciding_node(model)
        assert node is not None
        node.attributes[name] = ir.AttrInt64(name, number)
        return str(node.outputs[-1].name)

    return plant


def _operator(model: ir.Model) -> str:
    """Choose the least in place of the largest, or the reverse; round otherwise."""
    node = deciding_node(model)
    others = {"ArgMax": "ArgMin", "Greater": "Less", "Round": "Floor", "Sign": "Softsign"}
    node.op_type = (others | {other: op for op, other in others.items()})[node.op_type]
    return str(node.outputs[-1].name)


def _of_indices(*steps: tuple[str, torch.Tensor, dict[str, int]]) -> Callable[[ir.Model], str]:
    """Return a fault that computes something of the right indices."""

    def plant(model: ir.Model) -> str:
        value = deciding_node(model).outputs[-1]
        name = str(value.name)
        for op, constant, attributes in steps:
            value = replaced(model, value, op, constant, **attributes)
        return name

    return plant


def _in_half_precision(model: ir.Model) -> str:
    """Compute the scores in float16."""
    value = next(node.outputs[0] for node in model.graph if node.op_type in ("Gemm", "MatMul"))
    name = str(value.name)
    for dtype in (ir.DataType.FLOAT16, ir.DataType.FLOAT):
        value = replaced(model, value, "Cast", to=dtype.value)
    return name


def _of_scores(op: str, constant: torch.Tensor) -> Callable[[ir.Model], str]:
    """Return a fault that computes something of the right scores."""

    def plant(model: ir.Model) -> str:
        scores = next(node.outputs[0] for node in model.graph if node.op_type in ("Gemm", "MatMul"))
        name = str(scores.name)
        replaced(model, scores, op, constant)
        return name

    return plant


def _of_operand(op: str, position: int, *constant: torch.Tensor) -> Callable[[ir.Model], str]:
    """Return a fault that computes something of what the node that decides reads; others read the right numbers."""

    def plant(model: ir.Model) -> str:
        node = deciding_node(model)
        weights = (_weight(model, item) for item in constant)
        changed = ir.node(op, [node.inputs[position], *weights], name=f"planted_{op}")
        model.graph.insert_before(node, changed)
        node.replace_input_with(position, changed.outputs[0])
        return str(node.outputs[-1].name)

    return plant


def _without_normalization(model: ir.Model) -> str:
    """Divide by 1."""
    node = next(node for node in model.graph if node.op_type == "Div")
    node.replace_input_with(1, _weight(model, torch.ones(1)))
    return str(node.outputs[0].name)


def _far_row() -> torch.Tensor:
    """Return 1 for a row without near-ties."""
    return (torch.arange(ROWS) == ROWS - 1).long()


_MIXTURES, _SINGLE = ("top-k", "top-k of a softmax"), ("argmax", "max", "nearest code")
_STEPS = ("rounded", "floor", "sign")
_EIGHT = torch.tensor(CHOICES)
FAULTS: Mapping[str, RouterFault] = {
    "the smallest scores": RouterFault((*_MIXTURES, "argsort"), _attribute("largest", 0)),
    "the other extreme": RouterFault((*_SINGLE, "threshold"), _operator),
    "another way of rounding": RouterFault(_STEPS, _operator),
    "the next integer": RouterFault(_STEPS, _of_indices(("Add", torch.tensor(1.0), {}))),
    "another integer in one row": RouterFault(_STEPS, _of_indices(("Sub", _far_row().float()[:, None], {}))),
    "a shift before rounding": RouterFault(_STEPS, _of_operand("Add", 0, torch.tensor(0.1))),
    "softmax over the rows": RouterFault(_MIXTURES, _attribute("axis", 0, "Softmax")),
    "weights that are not normalized": RouterFault(_MIXTURES[1:], _without_normalization),
    "the next expert": RouterFault(
        (*_MIXTURES, *_SINGLE), _of_indices(("Add", torch.tensor(1), {}), ("Mod", _EIGHT, {}))
    ),
    "experts in reverse order": RouterFault(
        (*_MIXTURES, *_SINGLE), _of_indices(("Mul", torch.tensor(-1), {}), ("Add", _EIGHT - 1, {}))
    ),
    "weights of the other expert": RouterFault(_MIXTURES, _of_indices(("Gather", torch.tensor([1, 0]), {"axis": -1}))),
    "one expert twice": RouterFault(_MIXTURES, _of_indices(("Gather", torch.tensor([0, 0]), {"axis": -1}))),
    "the experts of the row before": RouterFault(
        (*_MIXTURES, *_SINGLE, "argsort", "bucket"),
        _of_indices(("Gather", torch.arange(ROWS).roll(1), {"axis": 0})),
    ),
    "another expert in one row": RouterFault(_SINGLE, _of_indices(("Add", _far_row(), {}), ("Mod", _EIGHT, {}))),
    "scores with a temperature": RouterFault(
        (*_MIXTURES, "threshold", *_STEPS[:2]), _of_scores("Mul", torch.tensor(1.01))
    ),
    "scores with a bias": RouterFault((*_MIXTURES, "argmax", "max"), _of_scores("Add", torch.arange(CHOICES) * 0.01)),
    "scores in half precision": RouterFault(
        (*_MIXTURES, "argmax", "max", "argsort", "threshold", "bucket", *_STEPS), _in_half_precision
    ),
    "absolute scores": RouterFault((*_MIXTURES[:1], "argmax", "max", "argsort"), _of_operand("Abs", 0)),
    "another threshold": RouterFault(("threshold",), _of_operand("Sub", 1, torch.tensor(0.05))),
    "rounded to the nearest bucket": RouterFault(("bucket",), _of_operand("Round", 0)),
}
