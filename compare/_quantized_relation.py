"""The relation "a quantized cache = what it was given": its states differ by the rounding of its quantizer alone."""

import importlib
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import nn

from filch.steal.text import short_line

from .common._errors import CompareError
from .decoding._decoder import Decoder, unsupported
from .decoding._plan import Plan, chunks, together
from .decoding._quantized_states import StateFault, WatchedCache
from .layouts._closeness import RELATIVE
from .layouts._numbers import Numbers
from .results._invariance import InvarianceBreak, InvarianceRow

Caches = Sequence[str] | Mapping[str, Callable[[], Any]]  # quantizers of transformers, or functions that make a cache
_QUANTIZERS = ("fp8", "hqq", "quanto")
_RESIDUAL = 4  # tokens that a layer keeps as they are: few, so that it quantizes within the tokens of a test
_REASON = 120  # characters


def quantized_caches(model: nn.Module, caches: Caches) -> dict[str, Callable[[], Any]]:
    """Return functions that make an empty cache, by the names of the relations.

    Raises:
        CompareError: there is no such quantizer.
    """
    if isinstance(caches, Mapping):
        return {f"quantized cache {name}": make for name, make in caches.items()}
    if unknown := {*caches} - {*_QUANTIZERS}:
        raise CompareError(f"there is no quantizer {min(unknown)!r}; there are {', '.join(_QUANTIZERS)}")

    return {f"quantized cache {name}": partial(_empty_cache, model, name) for name in caches}


def _empty_cache(model: nn.Module, name: str) -> Any:
    # The model is one of transformers, which takes seconds to import.
    module = importlib.import_module("transformers.cache_utils")
    options = {} if name == "fp8" else {"residual_length": _RESIDUAL}
    return module.QuantizedCache(name, getattr(model, "config", None), **options)


def check_quantized(  # noqa: PLR0917  called in one place
    name: str,
    make: Callable[[], Any],
    model: nn.Module,
    tokens: torch.Tensor,
    others: Mapping[str, Any],
    first: int,
) -> InvarianceRow:
    """Return whether a quantized cache holds what it is given while a model decodes with it.

    Args:
        name: the name of the relation.
        make: returns an empty cache.
        model: see `Decoder`.
        tokens: int64 in the shape [sequences, length].
        others: see `Decoder`.
        first: the number of tokens of the first call; the others have one each.
    """
    plan = Plan(chunks(tokens, 1, first=first))
    if reason := unsupported(model, plan):
        return InvarianceRow(name, "not run", note=reason)
    try:
        cache = make()
    except ImportError as error:
        raise CompareError(short_line(str(error), _REASON)) from error
    except Exception as error:  # noqa: BLE001  such as a layer with a window
        return InvarianceRow(name, "not run", note=short_line(str(error), _REASON))
    watched, difference, note = WatchedCache(cache), None, ""
    try:
        with torch.no_grad():
            (expected,) = Decoder(model, Plan(together(tokens), "none"), others, len(tokens))()
            actual = torch.cat(Decoder(model, plan, others, len(tokens), cache)(), 1)
        difference = _largest_difference(actual.double(), expected.double())
    except Exception as error:  # noqa: BLE001  models and quantizers raise errors of all types
        note = short_line(f"{type(error).__name__}: {error}", _REASON)
    if watched.faults:
        place, more = _break_of(watched.faults[0], model), len(watched.faults) - 1
        return InvarianceRow(name, "breaks", difference, place, more, watched.compared, note)
    if note or not watched.compared:
        return InvarianceRow(name, "fails", note=note or "no quantized layer of the cache was updated")
    return InvarianceRow(name, "holds", difference, compared=watched.compared, note=_clipped(watched))


def _largest_difference(actual: torch.Tensor, expected: torch.Tensor) -> float:
    """Return the largest difference of logits; see `InvarianceRow`."""
    sizes = Numbers(expected).closeness(RELATIVE).sizes(expected)
    return float(((actual - expected).abs() / sizes).nan_to_num(nan=torch.inf).max())


def _break_of(fault: StateFault, model: nn.Module) -> InvarianceBreak:
    modules = (path for path, item in model.named_modules() if getattr(item, "layer_idx", None) == fault.layer)
    module = max(modules, key=len, default=f"layer {fault.layer} of the cache")
    source = fault.source.replace("\\", "/").rpartition("/")[2]
    return InvarianceBreak(module, fault.what, source, fault.sequence, fault.position, fault.difference)


def _clipped(watched: WatchedCache) -> str:
    layers = [layer for layer, count in watched.clipped.items() if count]
    if not layers:
        return ""
    count, places = sum(watched.clipped.values()), ", ".join(map(str, layers))
    return f"{count} numbers of layers {places} are beyond the first call's range, up to {watched.excess:.2g} times"
