"""Exports a model to ONNX without losing track of its modules."""

import contextlib
import logging
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import nn
from torch.export import ExportedProgram, ModuleCallSignature
from torch.export.graph_signature import ConstantArgument, OutputSpec

from filch.steal import ModuleInfo, argument_tensors

from .._errors import ExportError, reason
from ..common._process_state import preserve_process_state
from ..common._quiet import quiet
from ..graph._from_onnx import graph_from_onnx
from ..graph._module_calls import ModuleCall, Port, Sides
from ..program._names import Names
from ..program._operators import model_operators
from ..program._original import Original
from ..program._program import Program
from ._by_value import find_by_value
from ._infer import infer_types
from ._module_trace import Seen, SeenCall, leaf_paths, observe, remember

_log = logging.getLogger("filch")
_STRATEGIES = {  # by the name of torch.onnx's class
    "TorchExportNonStrictStrategy": "strict=False, backed_size_oblivious",
    "TorchExportStrictStrategy": "strict=True",
    "TorchExportDraftExportStrategy": "draft_export",
}
Signatures = Mapping[tuple[str, int], ModuleCallSignature]


@preserve_process_state()
def export(
    model: nn.Module,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    dynamic_shapes: Any = None,
) -> Program:
    """Export `model` to ONNX, unoptimised, and say for each call of each module which values it took and gave.

    The model is run once as it is, with these inputs, to see which modules run. Where torch.export can't export it with
    `strict=False`, the strategies of `torch.onnx.export(dynamo=True)` are tried in their order; `Program.strategy` says
    which one did it.

    Args:
        model: in eval mode, usually.
        args: its positional arguments: tensors, or anything that nests them.
        kwargs: its keyword arguments.
        dynamic_shapes: as `torch.export.export` takes them.

    Returns:
        the program; `optimize` makes the one that people ship of it.

    Raises:
        ExportError: the model fails on these inputs, or torch can't export it; torch's reason comes first.
    """
    if not isinstance(model, nn.Module):
        raise ExportError(f"export takes a torch.nn.Module, not {type(model).__name__}")
    args, kwargs = tuple(args) if not isinstance(args, torch.Tensor) else (args,), dict(kwargs or {})
    _register_caches(model)
    seen = observe(model, args, kwargs)
    with _frozen(model):
        exported, strategy = _torch_export(model, args, kwargs, dynamic_shapes, seen)
        signatures = _set_aside(exported)
        _drop_tracepoints(exported)
        _own_buffers(exported)
        translated = _torch_onnx_export(exported, dynamic_shapes)
    decomposed = translated.exported_program
    onnx_model = translated.model
    infer_types(onnx_model)
    graph = graph_from_onnx(onnx_model)
    names = Names(exported, decomposed, graph)
    followed = {("", 0): _root_sides(seen, exported, names)}
    followed |= {
        key: _sides(seen.calls[key], signature, names)
        for key, signature in signatures.items()
        if key in seen.calls and _is_filled(signature, seen.calls[key])
    }
    calls = {key: call for key, sides in followed.items() if (call := _call(key, sides)) is not None}
    original = Original.of(decomposed, onnx_model)
    inputs = {name: path for name, path in _inputs(model, exported, args, kwargs).items() if name in graph.inputs}
    lost = [key for key in seen.calls if key not in calls]
    if lost:
        values = remember(model, args, kwargs, lost)
        calls |= find_by_value(lost, values, original, inputs, followed)
    ordered = {key: calls[key] for key in seen.calls}
    operators = model_operators(model, exported, names)
    kind = ModuleInfo.of(model).type_name
    return Program(onnx_model, inputs, ordered, kind, operators, original, outputs=graph.outputs, strategy=strategy)


def _torch_export(
    model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], dynamic_shapes: Any, seen: Seen
) -> tuple[ExportedProgram, str]:
    """The exported program, and the strategy that made it (see `Program.strategy`)."""

    def attempt(preserve: Sequence[str]) -> ExportedProgram:
        with quiet():
            return torch.export.export(
                model,
                args,
                kwargs,
                dynamic_shapes=_dimensions(dynamic_shapes),
                strict=False,
                preserve_module_call_signature=tuple(preserve),
            )

    try:
        return attempt(seen.plain_modules()), "strict=False"
    except Exception as error:  # noqa: BLE001  torch.export raises whatever it meets
        first = error
    try:
        # A module that is called with arguments of different structure has no one signature; without signatures, the
        # calls are found again by what they took and gave.
        exported, strategy = attempt(()), "strict=False"
    except Exception as error:
        found = _fall_back(model, args, kwargs, dynamic_shapes)
        if found is None:
            raise ExportError(f"torch can't export {type(model).__name__}: {reason(error)}") from error
        exported, strategy = found
        first = error
    _log.info("exported by %s without module signatures: %s", strategy, reason(first))
    return exported, strategy


def _fall_back(
    model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], dynamic_shapes: Any
) -> tuple[ExportedProgram, str] | None:
    """What the first of torch.onnx's own strategies makes that can export the model, and its name."""
    try:
        from torch.onnx._internal.exporter._capture_strategies import CAPTURE_STRATEGIES  # noqa: PLC0415  may move
    except ImportError:
        return None
    for strategy in CAPTURE_STRATEGIES:
        with quiet():
            made = strategy()(model, args, kwargs, _dimensions(dynamic_shapes))
        if made.exported_program is not None:
            return made.exported_program, _STRATEGIES.get(made.strategy, made.strategy)
    return None


def _dimensions(shapes: Any) -> Any:
    """What torch.onnx.export takes for `dynamic_shapes` as torch.export does: a name is a dimension that it finds."""
    if isinstance(shapes, str):
        return torch.export.Dim.DYNAMIC
    if isinstance(shapes, dict):
        return {key: _dimensions(value) for key, value in shapes.items()}
    return type(shapes)(map(_dimensions, shapes)) if type(shapes) in (list, tuple) else shapes


def _is_filled(signature: ModuleCallSignature, seen: SeenCall) -> bool:
    """Whether torch.export has filled a signature; inside of a region (autocast) it stays empty."""
    return (len(signature.inputs), len(signature.outputs)) == (len(seen.inputs), len(seen.outputs))


def _drop_tracepoints(exported: ExportedProgram) -> None:
    """Remove what torch.export leaves of signatures inside of regions (autocast): nothing translates it to ONNX."""
    for module in exported.graph_module.modules():
        if not isinstance(module, torch.fx.GraphModule):
            continue
        for node in list(module.graph.nodes):
            if str(node.target) == "_export_tracepoint":
                for item in list(node.users):
                    item.replace_all_uses_with(node.args[item.args[1]])
                    module.graph.erase_node(item)
                module.graph.erase_node(node)
        module.recompile()


def _own_buffers(exported: ExportedProgram) -> None:
    """Let the program have buffers of its own: the model's next call may change the model's."""
    for spec in exported.graph_signature.input_specs:
        if spec.kind.name == "BUFFER" and spec.target is not None:
            held = exported.state_dict if spec.target in exported.state_dict else exported.constants
            held[spec.target] = held[spec.target].clone()  # pyright: ignore[reportAttributeAccessIssue]  a buffer is a tensor


def _set_aside(exported: ExportedProgram) -> Signatures:
    """Take the module call signatures off the program.

    Left in, they dangle once dead code is removed, and the ONNX export fails on that.
    """
    found = {}
    for entry in exported.module_call_graph:
        if entry.fqn and entry.signature is not None:
            path, _, count = entry.fqn.partition("@")
            found[path, int(count or 0)] = entry.signature
            entry.signature = None
    return found


def _torch_onnx_export(exported: ExportedProgram, dynamic_shapes: Any) -> Any:
    try:
        with quiet():  # the shapes are in the program already; here they name the graph's dimensions
            return torch.onnx.export(
                exported, dynamo=True, optimize=False, verbose=False, dynamic_shapes=dynamic_shapes
            )
    except Exception as error:
        returned = (spec.arg for spec in exported.graph_signature.output_specs)  # None has no output in torch.onnx
        plain = [arg.value for arg in returned if isinstance(arg, ConstantArgument) and arg.value is not None]
        why = f"it returns {plain[0]!r}, and ONNX graphs return tensors alone" if plain else reason(error)
        raise ExportError(f"torch.onnx can't translate the exported program: {why}") from error


def _is_plain(spec: OutputSpec) -> bool:
    """Whether what is returned is a number or a text; for None torch.onnx has no output."""
    return isinstance(spec.arg, ConstantArgument) and spec.arg.value is not None


def _call(key: tuple[str, int], sides: Sides) -> ModuleCall | None:
    """The call that took and gave these ports; None if one of them is."""
    inputs, outputs = (tuple(port for port in side if port is not None) for side in sides)
    whole = (len(inputs), len(outputs)) == (len(sides[0]), len(sides[1]))
    return ModuleCall(*key, inputs, outputs) if whole else None


def _sides(seen: SeenCall, signature: ModuleCallSignature, names: Names) -> Sides:
    return _ports(seen.inputs, signature.inputs, names), _ports(seen.outputs, signature.outputs, names)


def _ports(paths: Sequence[str | None], arguments: Sequence[Any], names: Names) -> tuple[Port | None, ...]:
    pairs = zip(paths, arguments, strict=True)
    return tuple(names.port(path, argument.name) for path, argument in pairs if path is not None and argument.name)


def _root_sides(seen: Seen, exported: ExportedProgram, names: Names) -> Sides:
    """The model's own call, which has no signature entry: its inputs and outputs are the program's."""
    signature, call = exported.graph_signature, seen.calls["", 0]
    inputs = [spec.arg for spec in signature.input_specs if spec.kind.name == "USER_INPUT"]
    outputs = [spec.arg for spec in signature.output_specs if spec.kind.name == "USER_OUTPUT"]
    return _ports(call.inputs, inputs, names), _ports(call.outputs, outputs, names)


def _inputs(
    model: nn.Module, exported: ExportedProgram, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> dict[str, str]:
    """The graph's inputs, and for each the path of the argument that it is fed."""
    order = exported.call_spec.in_spec.children()[1].context if exported.call_spec.in_spec is not None else kwargs
    found = argument_tensors(ModuleInfo.of(model).parameters, args, kwargs)
    paths = leaf_paths((args, {key: kwargs[key] for key in order}), found)
    specs = [spec for spec in exported.graph_signature.input_specs if spec.kind.name == "USER_INPUT"]
    return {spec.arg.name: path for spec, path in zip(specs, paths, strict=True) if path is not None}


def _register_caches(model: nn.Module) -> None:
    """Tell torch how to take apart the caches of transformers, where that library is in use."""
    if "transformers" not in sys.modules:
        return
    with contextlib.suppress(ImportError):
        from transformers.exporters.exporter_dynamo import register_cache_pytrees_for_model  # noqa: PLC0415  optional

        register_cache_pytrees_for_model(model)  # pyright: ignore[reportArgumentType]  any model will do
        return
    with contextlib.suppress(ImportError):
        from transformers.integrations.executorch import register_dynamic_cache_export_support  # noqa: PLC0415  optional

        register_dynamic_cache_export_support()


@contextlib.contextmanager
def _frozen(model: nn.Module) -> Iterator[None]:
    """Parameters without gradients.

    With them, torch 2.13 decomposes attention with a learned bias (T5, Swin) to strides unlike those it traced, and
    fails.
    """
    trainable = [parameter for parameter in model.parameters() if parameter.requires_grad]
    for parameter in trainable:
        parameter.requires_grad = False
    try:
        yield
    finally:
        for parameter in trainable:
            parameter.requires_grad = True
