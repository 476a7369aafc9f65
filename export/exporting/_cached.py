"""Inputs and names of programs that continue a cache: of a causal language model of transformers."""

import contextlib
import importlib
import re
import sys
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, Literal

import torch
from torch import nn
from torch.export import Dim
from torch.utils import _pytree as pytree

from .._errors import ExportError, reason
from ..graph._module_calls import ModuleCall
from ..program._original import Original
from ..program._program import Program
from ..program._renaming import renamed_program

CacheKind = Literal["dynamic", "static"]
_PAST, _QUERIES = 5, 3  # tokens of the example: torch treats sizes of 0 and 1, and equal ones, as fixed
_ROWS = 2
_NAMES = {"keys": "key", "values": "value", "cumulative_length": "length"}  # of tensors of a layer, as in Optimum


def register_caches(model: nn.Module) -> None:
    """Register the cache classes of transformers as pytrees, if that library is imported."""
    if "transformers" not in sys.modules:
        return
    with contextlib.suppress(ImportError):
        from transformers.exporters.exporter_dynamo import register_cache_pytrees_for_model  # noqa: PLC0415  optional

        register_cache_pytrees_for_model(model)  # pyright: ignore[reportArgumentType]  any model will do
        return
    with contextlib.suppress(ImportError):
        from transformers.integrations.executorch import register_dynamic_cache_export_support  # noqa: PLC0415  optional

        register_dynamic_cache_export_support()


def cached_inputs(model: nn.Module, tokens: object, cache: CacheKind, slots: int) -> tuple[dict[str, Any], Any]:
    """Return the keyword arguments of a call that continues a cache, and their dynamic shapes.

    Args:
        model: a causal language model of transformers.
        tokens: example tokens, int64 in the shape [sequences, length].
        cache: the kind of the cache.
        slots: the number of slots of a static cache.

    Raises:
        ExportError: these are no tokens, or the model fails.
    """
    if not isinstance(tokens, torch.Tensor) or tokens.dim() != 2 or tokens.is_floating_point() or not tokens.numel():
        raise ExportError("with a cache, export takes the tokens of the model, integers in the shape [rows, length]")
    if cache == "static" and slots < _PAST + _QUERIES:
        raise ExportError(f"give the number of slots of the static cache, at least {_PAST + _QUERIES}")
    register_caches(model)
    count = _ROWS * (_PAST + _QUERIES)
    given = tokens.flatten().repeat(-(-count // tokens.numel()))[:count].reshape(_ROWS, -1)
    arguments = step_arguments(given[:, :_PAST], empty_cache(model, slots, given), 0, slots)
    with torch.no_grad():
        filled = model(**arguments).past_key_values
    kwargs = step_arguments(given[:, _PAST:], filled, _PAST, slots)
    rows, queries = Dim.DYNAMIC, Dim.DYNAMIC
    shapes = {"input_ids": {0: rows, 1: queries}, "position_ids": {0: rows, 1: queries}}
    shapes["attention_mask"] = {0: rows} if slots else {0: rows, 1: Dim.DYNAMIC}
    leaves = pytree.tree_leaves(filled)
    past = {0: rows} if slots else {0: rows, 2: Dim.DYNAMIC}
    order = {name: shapes[name] for name in kwargs if name in shapes}
    return kwargs, {**order, "past_key_values": [past if leaf.dim() == 4 else {} for leaf in leaves]}


def step_arguments(tokens: torch.Tensor, cache: Any, past: int, slots: int) -> dict[str, Any]:
    """Return the keyword arguments of a call.

    Args:
        tokens: those after the ones in the cache, int64 in the shape [rows, queries].
        cache: the cache.
        past: how many tokens are in it.
        slots: the number of slots of a static cache; 0 for a dynamic one.
    """
    rows, queries = tokens.shape
    places = torch.arange(past, past + queries, device=tokens.device)
    mask = torch.zeros(rows, slots or past + queries, dtype=torch.long, device=tokens.device)
    mask[:, : past + queries] = 1
    return {
        "input_ids": tokens.clone(),  # a view would have the size of its base as a further dimension
        "attention_mask": mask,
        "position_ids": places.expand(rows, -1).clone(),
        "past_key_values": cache,
    }


def cached_call(model: nn.Module, tokens: torch.Tensor, *, slots: int = 0) -> dict[str, Any]:
    """Return the keyword arguments with which a causal language model of transformers fills an empty cache.

    They are what a program takes that was exported with `export(..., cache=...)`.

    Args:
        model: the model.
        tokens: int64 in the shape [sequences, length].
        slots: the number of slots of a static cache; 0 for a dynamic one.

    Raises:
        ExportError: the model fails, or keeps something else than keys and values in its cache.
    """
    return step_arguments(tokens, empty_cache(model, slots, tokens), 0, slots)


def empty_cache(model: nn.Module, slots: int, tokens: torch.Tensor) -> Any:
    """Return a cache of transformers without tokens, which has all its tensors.

    All its layers keep all tokens: those that attend to a window have a mask for that.

    Args:
        model: the model.
        slots: the number of slots of a static cache; 0 for a dynamic one.
        tokens: of as many sequences as the cache will have, int64 in the shape [rows, any length].

    Raises:
        ExportError: the model fails, or keeps something else than keys and values in its cache.
    """
    # The model is one of transformers, which takes seconds to import.
    module = importlib.import_module("transformers.cache_utils")
    try:
        with torch.no_grad():
            used = model(**step_arguments(tokens[:, :1], module.DynamicCache(), 0, 0)).past_key_values
        layers = [(layer.keys, layer.values) for layer in used.layers]
    except Exception as error:
        name = type(model).__name__
        raise ExportError(f"{name} does not take the cache of a causal language model: {reason(error)}") from error
    if not slots:
        return module.DynamicCache([tuple(item[:, :, :0].clone() for item in layer) for layer in layers])
    static = module.StaticCache(config=model.config, max_cache_len=slots)
    static.layers = [module.StaticLayer(max_cache_len=slots) for _ in layers]
    for layer, states in zip(static.layers, layers, strict=True):
        layer.lazy_initialization(*states)
    return static


@contextlib.contextmanager
def exportable_experts(model: nn.Module) -> Iterator[None]:
    """Let a mixture of experts use the implementation that has a translation to ONNX."""
    if not getattr(model, "_can_set_experts_implementation", lambda: False)():
        yield
        return
    module: Any = model
    before = module.get_experts_implementation()
    module.set_experts_implementation("batched_mm")
    try:
        yield
    finally:
        module.set_experts_implementation(before)


def with_cache_names(program: Program) -> Program:
    """Return a program whose inputs and outputs have the names that runtimes expect.

    They are `logits`, `past_key_values.0.key` and `present.0.key`, as in files of Optimum and ONNX Runtime GenAI.
    """
    names = {name: new for name, path in program.inputs.items() if (new := _cache_name(path, "past_key_values"))}
    for port in program.module_calls["", 0].outputs:
        new = "logits" if port.path.endswith("logits") else _cache_name(port.path, "present")
        if port.value is not None and port.value not in names and new:
            names[port.value] = new
    return _renamed(program, names)


def _cache_name(path: str, prefix: str) -> str:
    found = re.search(r"past_key_values\.layers\[(\d+)\]\.(\w+)$", path)
    return f"{prefix}.{found[1]}.{_NAMES[found[2]]}" if found and found[2] in _NAMES else ""


def _renamed(program: Program, names: Mapping[str, str]) -> Program:
    """Return a program with other names for some values."""
    original = program.original
    if original is None:
        raise ExportError("only a new export has its exported program")
    for model in (program.model, original.model):
        values = [*model.graph.inputs, *(value for node in model.graph for value in node.outputs)]
        for value in values:
            value.name = names.get(value.name or "", value.name)
    calls = {
        key: ModuleCall(*key, *(tuple(_new_port(port, names) for port in side) for side in (call.inputs, call.outputs)))
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


def _new_port(port: Any, names: Mapping[str, str]) -> Any:
    return replace(port, value=names.get(port.value, port.value))
