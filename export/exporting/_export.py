"""Export a model to ONNX and find the values of its module calls."""

import contextlib
import logging
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import onnx_ir as ir
import torch
from torch import nn
from torch.export import ExportedProgram, ModuleCallSignature
from torch.export.graph_signature import ConstantArgument

from filch.steal import ModuleInfo, phase
from filch.steal.private import _torch
from filch.steal.private._transformers import register_caches
from filch.steal.values._arguments import argument_tensors

from .._errors import ExportError, reason
from ..common._process_state import preserve_process_state
from ..common._quiet import quiet
from ..evaluation._devices import program_on
from ..graph._from_onnx import graph_from_onnx
from ..graph._module_calls import ModuleCall, Port, Sides
from ..graph._nodes import split_call
from ..program._names import Names
from ..program._operators import model_operators
from ..program._original import Original
from ..program._program import Program
from ..program._renaming import renamed_program
from ._by_value import find_by_value
from ._cached import CacheKind, cached_inputs, exportable_experts
from ._infer import infer_types
from ._module_trace import EagerCall, EagerCalls, capture_calls, leaf_paths, plain_modules, record_calls
from ._plain_names import plain_weight_names
from ._untranslated import untranslated

_log = logging.getLogger("filch")
_STRATEGIES = {  # by class name in torch.onnx
    "TorchExportNonStrictStrategy": "strict=False, backed_size_oblivious",
    "TorchExportStrictStrategy": "strict=True",
    "TorchExportDraftExportStrategy": "draft_export",
}
# Of the tensors of a layer of a cache, by attribute and by side of an encoder-decoder: as in Optimum.
_CACHE_NAMES = {"keys": "key", "values": "value", "cumulative_length": "length"}
_CACHE_NAMES |= {"conv_states": "conv", "recurrent_states": "recurrent"}
_LOGITS = re.compile(r"logits\W*$|^\[0\]$")  # in an object, in a dict, first in a tuple
_OF_CACHE = re.compile(r"^\.?[^.]+(\.\w+_cache)?\.layers\[(\d+)\]\.(\w+?)(?:\[0\]|\[(\d+)\])?$")
_SIDES = {"": "", ".self_attention_cache": "decoder.", ".cross_attention_cache": "encoder."}
# The steps, and their durations as multiples of that of torch.export for GPT-2 and Llama.
_STEPS = {"running the model": 0.1, "torch.export": 1.0, "translation to ONNX": 1.8, "types": 0.1, "module calls": 0.1}
Signatures = Mapping[tuple[str, int], ModuleCallSignature]


@preserve_process_state()
def export(
    model: nn.Module,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    dynamic_shapes: Any = None,
    cache: CacheKind | None = None,
    slots: int = 0,
    onnx_only: bool = True,
) -> Program:
    """Export `model` to ONNX without optimization, with the values of each module call.

    The model runs once in eager mode on these inputs, to record its module calls. If torch.export fails with
    `strict=False`, the strategies of `torch.onnx.export(dynamo=True)` are tried in order; `Program.strategy` is the one
    that succeeded.

    Args:
        model: the model, usually in eval mode.
        args: its positional arguments: tensors, or nested structures of tensors.
        kwargs: its keyword arguments.
        dynamic_shapes: see `torch.export.export`; dimensions may also be given by name, as for `torch.onnx.export`.
        cache: `"dynamic"`, `"static"`, `"window"` or `"static-window"` exports a language model of transformers as one
            program for prefill and decode. `args`, or `input_ids` in `kwargs`, are example tokens then, int64 in the
            shape [sequences, length]. The program takes `input_ids`, `position_ids` and an `attention_mask` of past and
            new tokens, as far as the model does, and the cache as `past_key_values.0.key`, `past_key_values.0.value`
            and so on, and returns `logits`, `present.0.key` and so on, with any number of sequences and tokens. A
            dynamic cache has any number of past tokens; 0 is prefill. With recurrent states, which are
            `past_key_values.0.conv` and `past_key_values.0.recurrent`, it takes one token. So it does with `"window"`,
            a dynamic cache whose layers with a sliding window keep the last tokens only; if all layers have a window,
            the mask is that of these and of the new token. With `"static-window"`, these layers have as many slots as
            the window, which move by one when all are used, and each sequence has its own number of tokens in
            `past_key_values.0.length`. Of a model with an encoder, `kwargs` are the inputs of the encoder and
            `decoder_input_ids`; its decoder is exported, with `encoder_hidden_states` and
            `past_key_values.0.encoder.key` as further inputs.
        slots: the number of slots of a static cache, except for those of windows, which is also the length of its mask.
            It is the largest number of tokens, unless all layers have a window that is no larger.
            How many of them are used is in `past_key_values.0.length` and so on.
        onnx_only: False also exports a model that torch can't translate to ONNX. The nodes of its graph are PyTorch's
            operations, `Program.untranslated` has torch's reason, and only backends that run the exported program,
            such as `inductor` and `eager`, can run it.

    Returns:
        the program; pass it to `optimize` for the form that is deployed.

    Raises:
        ExportError: the model fails on these inputs, or torch can't export it; the message starts with torch's reason.
    """
    if not isinstance(model, nn.Module):
        raise ExportError(f"export takes a torch.nn.Module, not {type(model).__name__}")
    if any(tensor.is_meta for tensor in (*model.parameters(), *model.buffers())):
        raise ExportError(f"{type(model).__name__} has weights on the device meta, which have no numbers: load them")
    args, kwargs = tuple(args) if not isinstance(args, torch.Tensor) else (args,), dict(kwargs or {})
    if cache is not None:
        return _export_with_cache(model, args, kwargs, cache, slots)
    with phase("export: step", len(_STEPS), work=sum(_STEPS.values())) as steps:

        def next_step(name: str) -> None:
            steps.next(name, _STEPS[name])

        return _export(_ExportedCall(model, args, kwargs, dynamic_shapes), next_step, onnx_only=onnx_only)


@dataclass(frozen=True)
class _ExportedCall:
    """The call of a model that is exported; see `export` for the attributes."""

    model: nn.Module
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    dynamic_shapes: Any

    @property
    def torch_shapes(self) -> Any:
        """The dynamic shapes as torch.export takes them."""
        return _dimensions(self.dynamic_shapes)


def _export_with_cache(
    model: nn.Module, args: tuple[Any, ...], others: dict[str, Any], cache: CacheKind, slots: int
) -> Program:
    """Export a language model with a cache; `others` are the inputs besides the tokens."""
    name = "decoder_input_ids" if "decoder_input_ids" in others else "input_ids"
    tokens = args[0] if len(args) == 1 else others.pop(name, None)
    with exportable_experts(model):
        kwargs, shapes = cached_inputs(model, tokens, others, cache, slots if cache.startswith("static") else 0)
        return _with_cache_names(export(model, (), kwargs, dynamic_shapes=shapes))


def _with_cache_names(program: Program) -> Program:
    """Return a program whose inputs and outputs have the names that runtimes expect.

    They are `logits`, `past_key_values.0.key` and `present.0.key`, as in files of Optimum and ONNX Runtime GenAI; with
    an encoder, `encoder_hidden_states`, `past_key_values.0.decoder.key` and `past_key_values.0.encoder.key`.
    """
    names = {name: new for name, path in program.inputs.items() if (new := _input_name(path))}
    for port in program.module_calls["", 0].outputs:
        new = "logits" if _LOGITS.search(port.path) else _cache_name(port.path, "present")
        if port.value is not None and port.value not in names and new:
            names[port.value] = new
    return _renamed(program, names)


def _input_name(path: str) -> str:
    """Return the new name of an input by the path of the argument; `""` if it keeps its name."""
    if path.startswith("encoder_outputs"):
        return "encoder_hidden_states"
    return path.removeprefix("decoder_") if path.startswith("decoder_") else _cache_name(path, "past_key_values")


def _cache_name(path: str, prefix: str) -> str:
    """Return the name of a tensor of a cache by its path; `""` for another tensor.

    Args:
        path: such as `past_key_values.layers[0].keys`.
        prefix: of the name: `past_key_values` for an input, `present` for an output.
    """
    found = _OF_CACHE.search(path)
    if found is None or found[3] not in _CACHE_NAMES:
        return ""
    return f"{prefix}.{found[2]}.{_SIDES[found[1] or '']}{_CACHE_NAMES[found[3]]}{found[4] or ''}"


def _renamed(program: Program, names: Mapping[str, str]) -> Program:
    """Return a program, and its exported program, with other names for some values; their models are changed in place.

    Args:
        program: the program.
        names: the new names by the old ones; other values keep theirs.
    """
    original = program.original
    if original is None:
        raise ExportError("only a new export has its exported program")
    for model in (program.model, original.model):
        values = [*model.graph.inputs, *(value for node in model.graph for value in node.outputs)]
        for value in values:
            value.name = names.get(value.name or "", value.name)

    def renamed_ports(ports: Iterable[Port]) -> tuple[Port, ...]:
        return tuple(replace(port, value=names.get(port.value or "", port.value)) for port in ports)

    calls = {
        key: ModuleCall(*key, renamed_ports(call.inputs), renamed_ports(call.outputs))
        for key, call in program.module_calls.items()
    }
    return replace(
        program,
        inputs={names.get(name, name): path for name, path in program.inputs.items()},
        outputs=tuple(names.get(name, name) for name in program.outputs),
        module_calls=calls,
        operators=tuple(replace(item, value=names.get(item.value or "", item.value)) for item in program.operators),
        original=Original.of(renamed_program(original.program, names), original.model),
    )


def _export(call: _ExportedCall, next_step: Callable[[str], None], *, onnx_only: bool) -> Program:
    """Export a model; see `export`. `next_step` is called with the name of each step."""
    model = call.model
    register_caches(model)
    next_step("running the model")
    eager_calls = record_calls(model, call.args, call.kwargs)
    with _frozen(model):
        next_step("torch.export")
        exported, strategy = _torch_export(call, eager_calls)
        signatures = _pop_signatures(exported, eager_calls)
        _drop_tracepoints(exported)
        _keep_lines(exported)
        _copy_buffers(exported)
        _drop_numbers(exported)
        next_step("translation to ONNX")
        refusal = ""  # why torch can't translate it
        with plain_weight_names(exported) as restore_names:
            try:
                decomposed, onnx_model = _translated(exported, call.dynamic_shapes)
            except ExportError as error:
                if onnx_only:
                    raise
                refusal = str(error)
                decomposed, onnx_model = _untranslated(exported)
            restore_names(decomposed, onnx_model)
    next_step("types")
    infer_types(onnx_model)
    next_step("module calls")
    graph = graph_from_onnx(onnx_model)
    names = Names(exported, decomposed, graph)
    followed = _followed_calls(exported, eager_calls, signatures, names)
    calls = {key: found for key, sides in followed.items() if (found := _module_call(key, sides)) is not None}
    # Captures and inputs of programs are on the CPU, so references are computed there.
    original = Original.of(program_on(decomposed, torch.device("cpu")), onnx_model)
    paths = {name: path for name, path in _input_paths(call, exported).items() if name in graph.inputs}
    missing = [key for key in eager_calls if key not in calls]
    if missing:
        records = capture_calls(model, call.args, call.kwargs, missing)
        calls |= find_by_value(missing, records, original, paths, followed)
    ordered = {key: calls[key] for key in eager_calls}
    operators = model_operators(model, exported, names)
    kind = ModuleInfo.of(model).type_name
    program = Program(onnx_model, paths, ordered, kind, operators, original, outputs=graph.outputs, strategy=strategy)
    return replace(program, untranslated=refusal)


def _followed_calls(
    exported: ExportedProgram, eager_calls: EagerCalls, signatures: Signatures, names: Names
) -> dict[tuple[str, int], Sides]:
    """Return the ports of the calls that torch.export has followed, by module path and iteration."""
    interface = exported.graph_signature
    inputs, outputs = map(_user_arguments, (interface.input_specs, interface.output_specs))
    # The model's own call has no signature: its inputs and outputs are the program's.
    followed = {("", 0): _sides(eager_calls["", 0], inputs, outputs, names)}
    for key, signature in signatures.items():
        if key in eager_calls and _is_filled(signature, eager_calls[key]):
            followed[key] = _sides(eager_calls[key], signature.inputs, signature.outputs, names)
    return followed


def _torch_export(call: _ExportedCall, eager_calls: EagerCalls) -> tuple[ExportedProgram, str]:
    """Return the exported program and the strategy that succeeded (see `Program.strategy`)."""

    def attempt(preserve: Sequence[str]) -> ExportedProgram:
        options: dict[str, Any] = {"dynamic_shapes": call.torch_shapes, "strict": False}
        with quiet():
            return torch.export.export(
                call.model, call.args, call.kwargs, preserve_module_call_signature=tuple(preserve), **options
            )

    try:
        return attempt(plain_modules(eager_calls)), "strict=False"
    except Exception as error:  # noqa: BLE001  torch.export raises exceptions of any type
        first = error
    try:
        # A module called with arguments of different structures has no single signature. Without signatures, calls are
        # found by comparing their inputs and outputs.
        exported, strategy = attempt(()), "strict=False"
    except Exception as error:
        result = _fall_back(call)
        if result is None:
            raise ExportError(f"torch can't export {type(call.model).__name__}: {reason(error)}") from error
        exported, strategy = result
        first = error
    _log.info("exported by %s without module signatures: %s", strategy, reason(first))
    return exported, strategy


def _fall_back(call: _ExportedCall) -> tuple[ExportedProgram, str] | None:
    """Export with the first of torch.onnx's strategies that succeeds; return the program and the strategy's name.

    None if none succeeds.
    """
    for strategy in _torch.CAPTURE_STRATEGIES:
        with quiet():
            result = strategy()(call.model, call.args, call.kwargs, call.torch_shapes)
        if result.exported_program is not None:
            return result.exported_program, _STRATEGIES.get(result.strategy, str(result.strategy))
    return None


def _dimensions(shapes: Any) -> Any:
    """Convert the `dynamic_shapes` of torch.onnx.export to those of torch.export: a name becomes `Dim.DYNAMIC`.

    Args:
        shapes: any nesting of lists, tuples and dictionaries.
    """
    if isinstance(shapes, str):
        return torch.export.Dim.DYNAMIC
    if isinstance(shapes, dict):
        return {key: _dimensions(value) for key, value in shapes.items()}
    return type(shapes)(map(_dimensions, shapes)) if type(shapes) in (list, tuple) else shapes


def _is_filled(signature: ModuleCallSignature, call: EagerCall) -> bool:
    """Whether torch.export filled in a signature; in a region (autocast) it leaves signatures empty."""
    return (len(signature.inputs), len(signature.outputs)) == (len(call.inputs), len(call.outputs))


def _drop_tracepoints(exported: ExportedProgram) -> None:
    """Remove the tracepoints that torch.export leaves in regions (autocast); they have no translation to ONNX."""
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


def _keep_lines(exported: ExportedProgram) -> None:
    """Keep the modules and source lines of operations in regions (autocast), which the ONNX export inlines.

    It would run the code that torch generates for a region, whose lines are recorded in their place.
    """
    for module in exported.graph_module.modules():
        if isinstance(module, torch.fx.GraphModule) and module is not exported.graph_module:
            module.forward = partial(_interpreted, module)


def _interpreted(module: torch.fx.GraphModule, *args: Any) -> Any:
    """Run a graph module node by node."""
    return torch.fx.Interpreter(module).run(*args)


def _copy_buffers(exported: ExportedProgram) -> None:
    """Copy the program's buffers, because the model's next call may change its own."""
    for spec in exported.graph_signature.input_specs:
        if spec.kind.name == "BUFFER" and spec.target is not None:
            state = exported.state_dict if spec.target in exported.state_dict else exported.constants
            state[spec.target] = state[spec.target].clone()  # pyright: ignore[reportAttributeAccessIssue]  a buffer is a tensor


def _drop_numbers(exported: ExportedProgram) -> None:
    """Return None in place of numbers and strings, which torch.onnx can't translate; it leaves None out."""
    output = exported.graph.output_node()
    returned: Any = output.args[0]
    results = [*returned]
    for index, spec in enumerate(exported.graph_signature.output_specs):
        if isinstance(spec.arg, ConstantArgument):
            spec.arg = ConstantArgument(spec.arg.name, None)
            results[index] = None
    output.args = (tuple(results),)


def _pop_signatures(exported: ExportedProgram, calls: EagerCalls) -> Signatures:
    """Remove the module call signatures from the program and return them.

    With them, the ONNX export fails, because they refer to nodes that it removes as dead code.
    """
    signatures = {}
    for entry in exported.module_call_graph:
        if entry.fqn and entry.signature is not None:
            first = (entry.fqn, 0)  # `a@1` may be the name of a module
            signatures[first if first in calls else split_call(entry.fqn)] = entry.signature
            entry.signature = None
    return signatures


def _untranslated(exported: ExportedProgram) -> tuple[ExportedProgram, ir.Model]:
    """Return the program in functional form, and its graph; see `untranslated`.

    Raises:
        ExportError: torch can't bring it into that form.
    """
    try:
        with quiet():
            functional = exported.run_decompositions({})
    except Exception as error:
        raise ExportError(f"torch can't bring the exported program into functional form: {reason(error)}") from error
    return functional, untranslated(functional)


def _translated(exported: ExportedProgram, dynamic_shapes: Any) -> tuple[ExportedProgram, ir.Model]:
    """Translate an exported program to ONNX without optimization; return the decomposed program and the translation.

    Raises:
        ExportError: torch can't translate it.
    """
    try:
        with quiet():  # the program already has the dynamic shapes; here they name the graph's dimensions
            translation: Any = torch.onnx.export(
                exported, dynamo=True, optimize=False, verbose=False, dynamic_shapes=dynamic_shapes
            )
            return translation.exported_program, translation.model
    except Exception as error:
        raise ExportError(f"torch.onnx can't translate the exported program: {reason(error)}") from error


def _module_call(key: tuple[str, int], sides: Sides) -> ModuleCall | None:
    """Return the module call with these ports; None if one of them was not found."""
    inputs, outputs = (tuple(port for port in side if port is not None) for side in sides)
    is_complete = (len(inputs), len(outputs)) == (len(sides[0]), len(sides[1]))
    return ModuleCall(*key, inputs, outputs) if is_complete else None


def _sides(call: EagerCall, inputs: Sequence[Any], outputs: Sequence[Any], names: Names) -> Sides:
    """Return the ports of a call, whose inputs and outputs are these arguments of the exported program."""
    return _ports(call.inputs, inputs, names), _ports(call.outputs, outputs, names)


def _ports(paths: Sequence[str | None], arguments: Sequence[Any], names: Names) -> tuple[Port | None, ...]:
    """Return the ports of the tensors among some arguments; None for one whose value can't be found.

    Args:
        paths: see `EagerCall.inputs`.
        arguments: the arguments of the exported program, in the same order.
        names: the names of their values in the graph.
    """
    pairs = zip(paths, arguments, strict=True)
    return tuple(names.port(path, argument.name) for path, argument in pairs if path is not None and argument.name)


def _user_arguments(specs: Iterable[Any]) -> list[Any]:
    """Return the arguments of input or output specifications that are the model's own, not weights or buffers."""
    return [spec.arg for spec in specs if spec.kind.name in ("USER_INPUT", "USER_OUTPUT")]


def _input_paths(call: _ExportedCall, exported: ExportedProgram) -> dict[str, str]:
    """Return the path of the argument for each input of the graph, by the name of the input."""
    in_spec = exported.call_spec.in_spec
    order = call.kwargs if in_spec is None else in_spec.children()[1].context
    arguments = argument_tensors(ModuleInfo.of(call.model).parameters, call.args, call.kwargs)
    paths = leaf_paths((call.args, {key: call.kwargs[key] for key in order}), arguments)
    inputs = _user_arguments(exported.graph_signature.input_specs)
    return {arg.name: path for arg, path in zip(inputs, paths, strict=True) if path is not None}


@contextlib.contextmanager
def _frozen(model: nn.Module) -> Iterator[None]:
    """Switch off the gradients of the model's parameters in the block.

    With gradients, torch 2.13 decomposes attention with a learned bias (T5, Swin) to other strides than it traced, and
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
