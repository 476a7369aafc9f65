"""`Decoder`: a language model that runs the calls of a plan one after the other."""

import inspect
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from filch.export import cache_argument
from filch.export.exporting._cached import has_only_states
from filch.export.exporting._model_cache import logits_of, returned_cache
from filch.steal.private import _transformers

from ..common._errors import CompareError
from ._plan import Plan, PlannedCall


class _ReturnedLogits(nn.Module):
    """Returns logits as the result of an operation, so that they are a value in the order in which they are returned.

    A result of a movement, such as a permutation, stands for the value that was moved (see `Execution.roots`).
    """

    def forward(self, logits: torch.Tensor) -> torch.Tensor:
        return logits + 0


class Decoder(nn.Module):
    """A model of the interface of transformers, as a module whose call runs a plan.

    Args:
        model: takes tokens, a mask and positions by the names that transformers gives them, and a cache.
        plan: the calls.
        others: further arguments, such as the inputs of an encoder; a tensor with a row for each sequence is given the
            rows of a call.
        count: the number of sequences.
        cache: an empty cache of the decoder for plans with a dynamic one; None for the model's own.
    """

    def __init__(
        self, model: nn.Module, plan: Plan, others: Mapping[str, Any], count: int, cache: object = None
    ) -> None:
        super().__init__()
        self.model, self.result = model, _ReturnedLogits()
        self._plan, self._others, self._count, self._cache = plan, others, count, cache
        self._accepted = inspect.signature(model.forward).parameters
        config = getattr(model, "config", None)
        self._prefix = "decoder_" if getattr(config, "is_encoder_decoder", False) else ""
        self._has_only_states = has_only_states(model)
        self._cache_name = cache_argument(model, self._arguments(plan.calls[0]))

    def forward(self) -> list[torch.Tensor]:
        """Run the calls; return the logits of each: [rows, queries, words]."""
        cache, results = None, []
        for call in self._plan.calls:
            if call.is_first:
                cache = self._empty_cache(call, cache)
            elif cache is None and self._plan.cache != "none":
                raise CompareError(f"{type(self.model).__name__} returned no cache for the next call")
            given = {} if cache is None or self._cache_name is None else {self._cache_name: cache}
            output = self.model(**self._arguments(call), **given)
            results.append(self.result(logits_of(output)))
            if self._plan.cache != "none":
                cache = returned_cache(output, self._cache_name)
        return results

    @property
    def unsupported(self) -> str:
        """Why the model can't run the plan; `""` if it can."""
        if self._plan.cache != "none" and self._cache_name is None:
            return "the model takes no cache"
        if self._plan.cache == "static" and not getattr(self.model, "_can_compile_fullgraph", False):
            return "the model takes no static cache"
        if not self._plan.with_positions and "position_ids" not in self._accepted:
            return "the model takes no positions"
        return ""

    def _arguments(self, call: PlannedCall) -> dict[str, Any]:
        """Return the keyword arguments of a call, without its cache."""
        device = next((parameter.device for parameter in self.model.parameters()), call.tokens.device)
        rows, counts = torch.tensor(call.sequences), (self._count,)
        given: dict[str, Any] = {
            name: item[rows.to(item.device)] if isinstance(item, torch.Tensor) and item.shape[:1] == counts else item
            for name, item in self._others.items()
        }
        given[f"{self._prefix}input_ids"] = call.tokens.to(device)
        mask = f"{self._prefix}attention_mask"
        if mask in self._accepted and self._has_only_states:  # a recurrent layer masks the tokens of a call
            given[mask] = None if bool((call.positions >= 0).all()) else (call.positions >= 0).long().to(device)
        elif mask in self._accepted:
            columns = (call.keys >= 0).long().to(device)
            if not self._prefix and "position_ids" not in self._accepted:  # BLOOM's biases need a column for each slot
                columns = nn.functional.pad(columns, (0, max(call.slots - columns.shape[1], 0)))
            given[mask] = columns
        for name in ("position_ids", "decoder_position_ids"):
            if self._plan.with_positions and name in self._accepted:
                given[name] = call.positions.clamp(min=0).to(device)
        if "use_cache" in self._accepted:
            given["use_cache"] = self._plan.cache != "none"
        return given

    def _empty_cache(self, call: PlannedCall, used: Any) -> Any:
        """Return the cache of a first call; None if the model makes it. `used` is that of earlier calls, or None."""
        if used is not None and self._plan.reuses_cache:
            used.reset()
            return used
        if self._plan.cache != "static" and self._cache is None:
            return None
        cache = self._cache
        if cache is None:
            cache = _transformers.StaticCache(config=self.model.config, max_cache_len=call.slots)
        return _transformers.EncoderDecoderCache(cache, _transformers.DynamicCache()) if self._prefix else cache
