"""Faults in the code of models that decode: a function that is called or that returns otherwise."""

from __future__ import annotations

import inspect
import pkgutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any
from unittest import mock

import torch
from torch import nn
from transformers import cache_utils
from transformers.modeling_utils import AttentionInterface
from transformers.models.stablelm import modeling_stablelm

from faults._expressions import Names
from filch.export import cache_argument
from filch.export.exporting._model_cache import returned_cache

START, CHUNK = 2, 3  # tokens in the first call of those that decode, and in each chunk

Function = Callable[..., Any]


@dataclass(frozen=True)
class ModelFault:
    """A fault in a model, and where it shows. The expressions have the names of the function's arguments.

    Attributes:
        model: the name of the model.
        kind: what is wrong.
        relation: the way of calling the model that it breaks.
        function: the function that is replaced: `forward` of a module of the model, a function of transformers, an
            attention implementation, or a function of this file that changes the model.
        modules: the modules in which the first wrong number may be computed.
        operators: the operators that may compute it.
        position: the first position with a wrong number.
        sequence: the first wrong sequence there.
        when: which calls are wrong.
        arguments: what some arguments become.
        before: what happens before the call.
        after: what happens after it, given the `result`.
        result: what becomes of the result.
        instead: what is returned without a call.
        names: expressions by name.
    """

    model: str
    kind: str
    relation: str
    function: str
    modules: tuple[str, ...]
    operators: str
    position: int
    sequence: int = 0
    when: str = "True"
    arguments: Mapping[str, str] = field(default_factory=dict)
    before: str = "None"
    after: str = "None"
    result: str = "result"
    instead: str = ""
    names: Mapping[str, str] = field(default_factory=dict, repr=False)

    def __str__(self) -> str:
        return f"{self.model}, {self.relation}: {self.kind}"

    def patch(self, model: nn.Module) -> AbstractContextManager[object]:
        """Return a context in which a model is wrong."""
        where, _, name = self.function.rpartition(".")
        if not where:
            return early_keys(model)
        if where == "attention":
            mapping = AttentionInterface._global_mapping  # noqa: SLF001  the class has no method for it
            return mock.patch.dict(mapping, {name: self._wrong(mapping[name], model)})
        owner = pkgutil.resolve_name(where) if where.startswith("transformers.") else model.get_submodule(where)
        return mock.patch.object(owner, name, self._wrong(getattr(owner, name), model))

    def _wrong(self, call: Function, model: nn.Module) -> Function:
        signature = inspect.signature(call)
        (*_, last) = signature.parameters.values()
        further = last.name if last.kind is inspect.Parameter.VAR_KEYWORD else ""
        helpers = {"model": model, "self": getattr(call, "__self__", None)} | HELPERS

        def changed(*args: Any, **options: Any) -> Any:
            bound = signature.bind(*args, **options)
            bound.apply_defaults()
            rest = bound.arguments.get(further, {})
            names = Names(self.names, **helpers | bound.arguments | rest)
            if not names.evaluate(self.when):
                return call(*args, **options)
            if self.instead:
                return names.evaluate(self.instead)
            for name, text in self.arguments.items():
                (bound.arguments if name in bound.arguments else rest)[name] = names.evaluate(text)
            names.evaluate(self.before)
            names["result"] = call(*bound.args, **bound.kwargs) if self.arguments else call(*args, **options)
            names.evaluate(self.after)
            return names.evaluate(self.result)

        return changed


def put(tensor: torch.Tensor, index: Any, value: Any) -> torch.Tensor:
    """Change numbers of a tensor in place, and return it."""
    tensor[index] = value
    return tensor


def emptied(x: torch.Tensor, end: int) -> torch.Tensor:
    """Return keys or values with empty slots before an end."""
    return torch.cat([torch.zeros_like(x[:, :, :end]), x[:, :, end:]], 2)


def with_padding(mask: torch.Tensor, attention_mask: torch.Tensor | None) -> torch.Tensor:
    """Show the first slot of padded sequences, in calls with one token, from position 6 on."""
    if attention_mask is None or mask.shape[2] != 1:
        return mask
    padded = (attention_mask[:, 0] == 0) & (attention_mask.sum(-1) >= 7)
    return put(mask.clone(), (padded, slice(None), slice(None), 0), 0)


def narrow(mask: torch.Tensor) -> torch.Tensor:
    """Hide the first of five keys, in calls with a chunk."""
    if mask.shape[2] != CHUNK:
        return mask
    visible = mask == 0
    is_first = visible & (visible.cumsum(-1) == 1) & (visible.sum(-1, keepdim=True) == 5)
    return mask.masked_fill(is_first, torch.finfo(mask.dtype).min)


HELPERS = {function.__name__: function for function in (put, emptied, with_padding, narrow, SimpleNamespace)}


@contextmanager
def early_keys(model: nn.Module) -> Iterator[None]:
    """Rotate keys by the position before, in calls with one token."""
    rotary: Any = model.get_submodule("model.rotary_emb")
    forward, apply, angles = rotary.forward, modeling_stablelm.apply_rotary_pos_emb, list[Any]()

    def rotate(x: torch.Tensor, position_ids: torch.Tensor) -> Any:
        if x.shape[1] == 1:
            angles[:] = forward(x, position_ids - 1)
        return forward(x, position_ids)

    def changed(q: torch.Tensor, k: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, **options: Any) -> Any:
        query, key = apply(q, k, cos, sin, **options)
        return query, apply(q, k, *angles, **options)[1] if k.shape[2] == 1 else key

    with (
        mock.patch.object(rotary, "forward", rotate),
        mock.patch.object(modeling_stablelm, "apply_rotary_pos_emb", changed),
    ):
        yield


def logits_of(model: Any, relation: str, arguments: Mapping[str, torch.Tensor]) -> torch.Tensor:
    """Call a model in some way, and return the logits of its tokens, in the shape [sequences, positions, words].

    With padding, each sequence has one token less than the one before; the logits of the others are NaN.
    """
    name = "decoder_input_ids" if "decoder_input_ids" in arguments else "input_ids"
    tokens = arguments[name]
    rows, length = tokens.shape
    encoder = {key: value for key, value in arguments.items() if key != name}
    with torch.no_grad():
        if encoder:
            encoder = {"encoder_outputs": model.get_encoder()(**encoder)}
        if relation == "one call":
            return torch.cat([_call(model, name, tokens[row : row + 1], _row(encoder, row))[0] for row in range(rows)])
        mask = torch.ones_like(tokens)
        if "padding on the left" in relation:
            mask = (torch.arange(length) >= torch.arange(rows)[:, None]).long()
            tokens = torch.stack(
                [torch.cat([tokens.new_zeros(row), tokens[row, : length - row]]) for row in range(rows)]
            )
        in_one_call = relation in ("batch", "padding on the left")
        cache = False if in_one_call else None
        if "static" in relation:
            cache = cache_utils.StaticCache(config=model.config, max_cache_len=length + 4)
        if "reused" in relation:
            _call(model, name, tokens.flip(1), encoder, cache=cache, mask=mask)
            cache.reset()
        size = length if in_one_call else CHUNK if "chunked" in relation else 1
        first = size if size > 1 else START
        logits, start = [], 0
        while start < length:
            end = min(start + (size if start else first), length)
            part, cache = _call(model, name, tokens[:, start:end], encoder, cache=cache, mask=mask[:, :end])
            logits.append(part)
            start = end
    found = torch.cat(logits, 1)
    moved = [torch.cat([found[row, row:], torch.full_like(found[row, :row], torch.nan)]) for row in range(rows)]
    return torch.stack(moved) if "padding" in relation else found


def _row(encoder: Mapping[str, Any], row: int) -> dict[str, Any]:
    return {key: type(value)(last_hidden_state=value[0][row : row + 1]) for key, value in encoder.items()}


def _call(
    model: Any, name: str, tokens: torch.Tensor, encoder: Mapping[str, Any], *, cache: Any = False, mask: Any = None
) -> tuple[torch.Tensor, Any]:
    """Return the logits and the cache; False is none, None a new one."""
    parameters = inspect.signature(model.forward).parameters
    options: dict[str, Any] = {name: tokens, **encoder, "use_cache": cache is not False}
    if cache:
        options[cache_argument(model) or ""] = cache
    if mask is not None and not encoder:
        options["attention_mask"] = mask
    if mask is not None and "position_ids" in parameters:
        options["position_ids"] = (mask.cumsum(1) - 1).clamp(min=0)[:, -tokens.shape[1] :]
    result = model(**options)
    return result.logits, returned_cache(result, cache_argument(model))
