"""The relation "a quantized cache = what it was given": its states differ by the rounding of its quantizer alone."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import torch
from torch import nn

from filch.steal.private import _transformers
from filch.steal.text._visible import short_line

from .common._errors import CompareError
from .decoding._decoder import Decoder
from .decoding._plan import Plan, chunks, together
from .decoding._quantized_states import WatchedCache
from .layouts._closeness import RELATIVE
from .layouts._numbers import TensorNumbers
from .results._invariance import InvarianceRow

Caches = Sequence[str] | Mapping[str, Callable[[], Any]]  # quantizers of transformers, or functions that make a cache
_QUANTIZERS = ("fp8", "hqq", "quanto")
_RESIDUAL = 4  # tokens that a layer keeps as they are: few, so that it quantizes within the tokens of a test
_REASON = 120  # characters
_REFUSAL = "only supported for models with only full attention layers"  # what `QuantizedCache` says


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
    """Return an empty cache with a quantizer of transformers; `fp8` rejects options."""
    options = {} if name == "fp8" else {"residual_length": _RESIDUAL}
    return _transformers.QuantizedCache(name, getattr(model, "config", None), **options)


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
    # "" if the model takes a cache.
    if reason := Decoder(model, plan, others, len(tokens)).unsupported:
        return InvarianceRow(name, "not run", note=reason)
    running: list[str] = []
    try:
        cache = make()
        watched = WatchedCache(cache, running)
    except ImportError as error:
        raise CompareError(short_line(str(error), _REASON)) from error
    except Exception as error:  # noqa: BLE001  functions of users raise errors of all types
        is_refused = isinstance(error, ValueError) and _REFUSAL in str(error)
        return InvarianceRow(name, "not run" if is_refused else "fails", note=_reason(error))
    if watched.others:
        return InvarianceRow(name, "not judged", note=f"layers of {', '.join(watched.others)} can't be compared")
    difference, note = None, ""
    try:
        with torch.no_grad(), _recorded(model, running):
            (expected,) = Decoder(model, Plan(together(tokens), "none"), others, len(tokens))()
            actual = torch.cat(Decoder(model, plan, others, len(tokens), cache)(), 1)
        difference = _largest_difference(actual.double(), expected.double())
    except Exception as error:  # noqa: BLE001  models and quantizers raise errors of all types
        note = _reason(error)
    if watched.faults:
        fault, more = watched.faults[0], len(watched.faults) - 1
        return InvarianceRow(name, "breaks", difference, fault, more, watched.compared, note)
    if note:
        return InvarianceRow(name, "fails", note=note)
    if not watched.is_quantized:
        return InvarianceRow(name, "not judged", note="no quantized layer of the cache was updated")
    return InvarianceRow(name, "holds", difference, compared=watched.compared, note=_clipped(watched))


def _largest_difference(actual: torch.Tensor, expected: torch.Tensor) -> float:
    """Return the largest difference of logits; see `InvarianceRow`."""
    sizes = TensorNumbers(expected).closeness(RELATIVE).sizes(expected)
    return float(((actual - expected).abs() / sizes).nan_to_num(nan=torch.inf).max())


def _reason(error: Exception) -> str:
    return short_line(f"{type(error).__name__}: {error}", _REASON)


@contextmanager
def _recorded(model: nn.Module, running: list[str]) -> Iterator[None]:
    """Keep the paths of the modules of a model that run, from outer to inner, in a list."""

    def leave(*_: object) -> None:
        running.pop()

    with ExitStack() as hooks:
        for path, module in model.named_modules():
            hooks.enter_context(module.register_forward_pre_hook(lambda *_, path=path: running.append(path)))
            hooks.enter_context(module.register_forward_hook(leave, always_call=True))
        yield


def _clipped(watched: WatchedCache) -> str:
    """Return a note on numbers that a layer clipped; `""` if there are none."""
    layers = [layer for layer, count in watched.clipped.items() if count]
    if not layers:
        return ""
    count, places = sum(watched.clipped.values()), ", ".join(map(str, layers))
    return f"{count} numbers of layers {places} are beyond the first call's range, up to {watched.excess:.2g} times"
