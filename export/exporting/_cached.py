"""Inputs of programs that continue a cache: of a causal language model of transformers."""

import contextlib
import importlib
import inspect
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import nn
from torch.export import Dim

from filch.steal.private import _transformers
from filch.steal.private._torch import pytree
from filch.steal.private._transformers import register_caches

from .._errors import ExportError, reason
from ._model_cache import cache_argument, logits_of, returned_cache

CacheKind = Literal["dynamic", "static", "window", "static-window"]
_PAST, _QUERIES = 5, 3  # tokens of the example: torch treats sizes of 0 and 1, and equal ones, as fixed
_ROWS = 2
_LEAST_WINDOW = 4  # a cache of it has at least two tokens in the example, with two others after them


@dataclass(frozen=True)
class CachedModel:
    """A language model of transformers, and the kind of its cache.

    Attributes:
        model: the model.
        slots: the number of slots of a static cache; 0 for a dynamic one.
        encoded: what its encoder computes (see `encoder_states`); the keys and values of these stay in the cache.
        has_windows: whether layers with a sliding window keep the last keys and values only.
    """

    model: nn.Module
    slots: int = 0
    encoded: torch.Tensor | None = None
    has_windows: bool = False

    def arguments(
        self, tokens: torch.Tensor, cache: Any, past: int, mask: torch.Tensor | None = None
    ) -> dict[str, Any]:
        """Return the keyword arguments of a call.

        Args:
            tokens: those after the ones in the cache, int64 in the shape [rows, queries].
            cache: the cache.
            past: how many tokens are in it.
            mask: which tokens are attended to, of those in the cache and of `tokens`, int64 in the shape [rows, keys];
                None for all.
        """
        rows, queries = tokens.shape
        mask = torch.ones(rows, past + queries, dtype=torch.long, device=tokens.device) if mask is None else mask
        positions = torch.where(mask.bool(), mask.cumsum(-1) - 1, 0)[:, -queries:]
        if self.slots:
            used_mask = nn.functional.pad(mask, (0, self.slots - mask.shape[1]))
        else:
            kept = getattr(cache, "kept", past)  # a cache with windows has a column for each token that it has kept
            used_mask = mask[:, -(kept + queries) :].clone()
        accepted = inspect.signature(self.model.forward).parameters
        prefix = "" if self.encoded is None else "decoder_"
        given: dict[str, Any] = {
            f"{prefix}input_ids": tokens.clone(),  # views would have the size of their base as a further dimension
            f"{prefix}attention_mask": used_mask,
            f"{prefix}position_ids": positions.clone(),
        }
        if f"{prefix}input_ids" in accepted:  # otherwise it takes them by `**kwargs`
            given = {name: item for name, item in given.items() if name in accepted}
        if has_only_states(self.model):  # they need neither a mask nor positions
            given = {"input_ids": given["input_ids"]}
        given |= {} if self.encoded is None else {"encoder_outputs": (self.encoded,)}
        if (name := cache_argument(self.model, given)) is None:
            raise ExportError("its forward has no argument for a cache")
        return {**given, name: cache}

    def call(self, tokens: torch.Tensor, cache: Any, past: int) -> Any:
        """Return what the model returns, without gradients; see `arguments`."""
        with torch.no_grad():
            return self.model(**self.arguments(tokens, cache, past))

    def empty_cache(self, tokens: torch.Tensor) -> Any:
        """Return a cache of transformers without tokens, which has all its tensors.

        All its layers keep all tokens, unless it has windows: those that attend to a window have a mask for that.
        Recurrent states are 0.

        Args:
            tokens: of as many sequences as the cache will have, int64 in the shape [rows, any length].

        Raises:
            ExportError: the model fails, or keeps something else than keys and values in its cache.
        """
        is_recurrent = has_recurrent_states(self.model)
        self._check_kind(is_recurrent=is_recurrent)
        dynamic = _transformers.DynamicCache
        cache = dynamic(config=self.model.config) if is_recurrent else dynamic()
        cache = cache if self.encoded is None else _transformers.EncoderDecoderCache(cache, dynamic())
        try:
            used = step_cache(self.model, replace(self, slots=0).call(tokens[:, :1], cache, 0))
            own = used if self.encoded is None else used.self_attention_cache
            states = [(layer.keys, layer.values) for layer in own.layers if not hasattr(layer, "recurrent_states")]
        except Exception as error:
            why = error if isinstance(error, ExportError) else reason(error)
            name = type(self.model).__name__
            raise ExportError(f"{name} does not take the cache of a causal language model: {why}") from error
        if is_recurrent:
            return self._without_tokens(used)
        if self.has_windows:
            return self._with_windows(states)
        if self.slots:
            static = _transformers.StaticCache(config=self.model.config, max_cache_len=self.slots)
            static.layers = [_transformers.StaticLayer(max_cache_len=self.slots) for _ in states]
            for layer, shapes in zip(static.layers, states, strict=True):
                layer.lazy_initialization(*shapes)
            return static
        empty = dynamic([tuple(item[:, :, :0].clone() for item in layer) for layer in states])
        return empty if self.encoded is None else _transformers.EncoderDecoderCache(empty, used.cross_attention_cache)

    def _check_kind(self, *, is_recurrent: bool) -> None:
        """Refuse a kind of cache that the model can't have; `is_recurrent` is whether it has recurrent states."""
        name = type(self.model).__name__
        if self.has_windows and (is_recurrent or self.encoded is not None):
            what = "recurrent states" if is_recurrent else "an encoder"
            raise ExportError(f"{name} has {what}: it is exported with a dynamic cache, not with a window")
        if self.slots and is_recurrent:
            raise ExportError(f"{name} has recurrent states, which have no static cache: use a dynamic one")
        if self.slots and self.encoded is not None:
            raise ExportError(f"{name} has an encoder: it is exported with a dynamic cache, not with a static one")

    def _without_tokens(self, used: Any) -> Any:
        """Remove the tokens from a cache with recurrent states, and return it."""
        if any(hasattr(layer, "recurrent_states") and getattr(layer, "is_sliding", False) for layer in used.layers):
            name = type(self.model).__name__
            raise ExportError(f"{name} has layers with recurrent states and a window of keys, which are not exported")
        used.layers = [_emptied(layer) for layer in used.layers]
        return used

    def _with_windows(self, states: list[tuple[torch.Tensor, torch.Tensor]]) -> Any:
        """Return a cache without tokens, whose layers with a window keep the last ones.

        Args:
            states: keys and values of each layer, for their shapes.
        """
        module = importlib.import_module("._window_cache", __package__)
        windows, slots = window_sizes(self.model), self.slots
        if not any(windows):
            kind, name = "static" if slots else "dynamic", type(self.model).__name__
            raise ExportError(f"{name} has no layer with a sliding window: export it with a {kind} cache")
        if not slots and any(0 < window < _LEAST_WINDOW for window in windows):
            raise ExportError(f"a window of less than {_LEAST_WINDOW} tokens is not exported: torch would fix its size")
        if slots:
            cache = module.SlotCache()
            sizes = [min(window or slots, slots) for window in windows]
            cache.layers = [
                module.SlotLayer(size, is_sliding=bool(window)) for size, window in zip(sizes, windows, strict=True)
            ]
        else:
            cache = module.WindowCache()
            unlimited = _transformers.DynamicLayer
            cache.layers = [module.WindowLayer(window) if window else unlimited() for window in windows]
        for layer, (keys, values) in zip(cache.layers, states, strict=True):
            layer.lazy_initialization(keys, values)
            if not slots:
                layer.keys, layer.values = keys[:, :, :0].clone(), values[:, :, :0].clone()
        register_caches(self.model)
        return cache


def _emptied(layer: Any) -> Any:
    """Return a layer of a cache without tokens, or with states that are 0.

    One without states becomes a `DynamicLayer`, which keeps all tokens.
    """
    keys = [item for name in ("keys", "values") if (item := getattr(layer, name, None)) is not None]
    if not hasattr(layer, "recurrent_states"):
        layer = _transformers.DynamicLayer()
        layer.lazy_initialization(*keys)
    if keys:
        layer.keys, layer.values = (item[:, :, :0].clone() for item in keys)
    for states in (getattr(layer, "conv_states", {}), getattr(layer, "recurrent_states", {})):
        for state in states.values():
            if state is not None:
                state.zero_()
    return layer


def cached_inputs(
    model: nn.Module, tokens: object, others: Mapping[str, Any], cache: CacheKind, slots: int
) -> tuple[dict[str, Any], Any]:
    """Return the keyword arguments of a call that continues a cache, and their dynamic shapes.

    Args:
        model: a language model of transformers.
        tokens: example tokens, int64 in the shape [sequences, length].
        others: the inputs of its encoder, if it has one.
        cache: the kind of the cache.
        slots: the number of slots of a static cache.

    Raises:
        ExportError: these are no tokens, or the model fails.
    """
    if not isinstance(tokens, torch.Tensor) or tokens.dim() != 2 or tokens.is_floating_point() or not tokens.numel():
        raise ExportError("with a cache, export takes the tokens of the model, integers in the shape [rows, length]")
    if cache.startswith("static") and slots < _PAST + _QUERIES:
        raise ExportError(f"give the number of slots of the static cache, at least {_PAST + _QUERIES}")
    register_caches(model)
    has_windows = cache.endswith("window")
    one_by_one = has_recurrent_states(model) or has_windows  # the program takes one token in each call
    count = _ROWS * (_PAST + _QUERIES)
    example = tokens.flatten().repeat(-(-count // tokens.numel()))[:count].reshape(_ROWS, -1)  # repeated if too few
    encoded = encoder_states(model, others)
    encoded = None if encoded is None else encoded[:1].repeat(_ROWS, 1, 1)
    cached = CachedModel(model, slots, encoded, has_windows)
    filled = cached.empty_cache(example)
    for start, end in [(index, index + 1) for index in range(_PAST)] if one_by_one else [(0, _PAST)]:
        filled = step_cache(model, cached.call(example[:, start:end], filled, start))
    kwargs = cached.arguments(example[:, _PAST : _PAST + (1 if one_by_one else _QUERIES)], filled, _PAST)
    return kwargs, _dynamic_shapes(kwargs, filled, has_slots=bool(slots), one_by_one=one_by_one)


def _dynamic_shapes(kwargs: Mapping[str, Any], cache: Any, *, has_slots: bool, one_by_one: bool) -> dict[str, Any]:
    """Return the `dynamic_shapes` of `torch.export.export` for a call that continues a cache.

    Args:
        kwargs: the arguments.
        cache: the cache among them.
        has_slots: whether it is static: then its size, and that of the mask, is fixed.
        one_by_one: whether the number of new tokens is fixed.
    """
    rows, dynamic = {0: Dim.DYNAMIC}, {0: Dim.DYNAMIC, 1: Dim.DYNAMIC}
    shapes: dict[str, Any] = dict.fromkeys(("input_ids", "position_ids"), rows if one_by_one else dynamic)
    shapes["attention_mask"] = rows if has_slots else dynamic
    shapes |= {f"decoder_{name}": shape for name, shape in shapes.items()} | {"encoder_outputs": (dynamic,)}
    caches = [getattr(cache, name, None) for name in ("self_attention_cache", "cross_attention_cache")]
    layers = [layer for item in caches if item is not None for layer in item.layers] or cache.layers
    growing = {id(getattr(layer, name, None)) for layer in layers for name in ("keys", "values")}
    past = rows if has_slots else {0: Dim.DYNAMIC, 2: Dim.DYNAMIC}
    leaves = pytree.tree_leaves(cache)
    of_cache = [past if id(leaf) in growing else rows if leaf.dim() else {} for leaf in leaves]  # {}: a scalar
    return {name: shapes.get(name, of_cache) for name in kwargs}


def encoder_states(model: nn.Module, inputs: Mapping[str, Any]) -> torch.Tensor | None:
    """Return what the encoder of an encoder-decoder model computes, float in the shape [rows, length, width].

    Returns:
        the states; None if the model has no encoder.

    Raises:
        ExportError: the inputs have padding, or the encoder fails.
    """
    if not getattr(getattr(model, "config", None), "is_encoder_decoder", False):
        return None
    mask = inputs.get("attention_mask")
    if mask is not None and not bool(mask.all()):
        raise ExportError("the inputs of the encoder must not have padding: a program with a cache has no mask for it")
    encoder: Any = getattr(model, "get_encoder", lambda: None)()
    try:
        accepted = inspect.signature(encoder.forward).parameters
        with torch.no_grad():
            states: torch.Tensor = encoder(**{name: item for name, item in inputs.items() if name in accepted})[0]
    except Exception as error:
        raise ExportError(f"the encoder of {type(model).__name__} fails on these inputs: {reason(error)}") from error
    return states


def has_recurrent_states(model: nn.Module) -> bool:
    """Return whether the cache of a model of transformers has states of convolutions or recurrent layers.

    Such a model computes one token by other operations than several, so that its program takes one in each call.
    """
    return any(hasattr(layer, "recurrent_states") for layer in _own_layers(model))


def has_only_states(model: nn.Module) -> bool:
    """Return whether the cache of a model of transformers has states alone, and no keys and values.

    Such a model takes no positions, and a mask for the tokens of a call, not for those before it.
    """
    layers = _own_layers(model)
    return bool(layers) and not any(hasattr(layer, "keys") for layer in layers)


def _own_layers(model: nn.Module) -> list[Any]:
    """Return the layers of the cache that transformers makes for the configuration of a model; none if it has none."""
    if "transformers" not in sys.modules or (config := getattr(model, "config", None)) is None:
        return []
    try:
        layers: list[Any] = _transformers.DynamicCache(config=config).layers
    except (AttributeError, TypeError):  # a configuration of something else
        return []
    return layers


def step_cache(model: nn.Module, output: Any) -> Any:
    """Return the cache among the results of a language model.

    Raises:
        ExportError: there is none.
    """
    cache = returned_cache(output, cache_argument(model))
    if cache is None:
        raise ExportError("it returns no cache")
    return cache


def window_sizes(model: nn.Module) -> list[int]:
    """Return the number of tokens that each layer of a model of transformers attends to; 0 for all."""
    layers = _transformers.DynamicCache(config=model.config).layers
    return [getattr(layer, "sliding_window", 0) if layer.is_sliding else 0 for layer in layers]


def cached_call(
    model: nn.Module,
    tokens: torch.Tensor,
    others: Mapping[str, Any] | None = None,
    *,
    slots: int = 0,
    mask: torch.Tensor | None = None,
) -> dict[str, Any]:
    """Return the keyword arguments with which a language model of transformers fills an empty cache.

    They are what a program takes that was exported with `export(..., cache=...)`.

    Args:
        model: the model.
        tokens: int64 in the shape [sequences, length].
        others: the inputs of its encoder, if it has one, by name; its cache then has the keys and values of these.
        slots: the number of slots of a static cache; 0 for a dynamic one.
        mask: 1 for tokens that are attended to, int64 in the shape of `tokens`; None for all. Tokens with 0 are like
            padding: they have position 0 and are not counted.

    Raises:
        ExportError: the model fails, or keeps something else than keys and values in its cache.
    """
    cached = CachedModel(model, slots, encoder_states(model, others or {}))
    return cached.arguments(tokens, cached.empty_cache(tokens), 0, mask)


def stepwise_call(
    model: nn.Module, tokens: torch.Tensor, *, has_windows: bool = False, slots: int = 0
) -> tuple[dict[str, Any], torch.Tensor]:
    """Return the keyword arguments of a call that computes each token of some sequences from the model's own cache.

    Each step of each sequence has a row of its own, the steps of a sequence one after the other. Of keys and values,
    which have a row for each earlier token, the last ones are used.

    Args:
        model: a causal language model of transformers.
        tokens: int64 in the shape [sequences, length].
        has_windows: whether layers with a sliding window keep the last keys and values only.
        slots: the number of slots of the other layers, if those with a window have slots, too; 0 for a dynamic cache.

    Returns:
        the arguments, and the model's logits of the steps: float in the shape [sequences, length, words].

    Raises:
        ExportError: the model fails.
    """
    (rows, length), cached = tokens.shape, CachedModel(model, slots, has_windows=has_windows)
    cache = cached.empty_cache(tokens)
    register_caches(model)
    structure = pytree.tree_structure(cache)
    states: list[list[torch.Tensor]] = []  # the tensors of the cache before each step
    logits = []
    for step in range(length):
        states.append([leaf.clone() for leaf in pytree.tree_leaves(cache)])
        output = cached.call(tokens[:, step : step + 1], cache, step)
        cache = step_cache(model, output)
        logits.append(logits_of(output))
    stacked = [
        torch.stack([_on_the_right(item, items[-1].shape) for item in items], 1).flatten(0, 1)
        for items in zip(*states, strict=True)
    ]
    whole = pytree.tree_unflatten(stacked, structure)
    arguments = cached.arguments(tokens.reshape(-1, 1), whole, length - 1)  # with mask and positions of the last step
    steps = torch.arange(length, device=tokens.device)
    if slots:  # step i has written the slots 0 to i
        mask = torch.arange(slots, device=tokens.device) <= steps[:, None]
    else:  # the keys of step i are on the right, in the last i + 1 columns
        mask = (steps >= length - 1 - steps[:, None])[:, -getattr(whole, "kept", length) - 1 :]
    of_steps = {"attention_mask": mask.long().repeat(rows, 1), "position_ids": steps.repeat(rows)[:, None]}
    return arguments | {name: item for name, item in of_steps.items() if name in arguments}, torch.cat(logits, 1)


def _on_the_right(item: torch.Tensor, shape: torch.Size) -> torch.Tensor:
    """Return keys or values with further rows before them, up to a shape; states as they are."""
    missing = 0 if item.shape == shape else shape[2] - item.shape[2]
    return nn.functional.pad(item, (0, 0, missing, 0)) if missing else item


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
