"""Language models whose cache has another name than in transformers, and says otherwise what it is."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

from filch.export import cache_argument
from filch.export.exporting._model_cache import returned_cache
from support.models.zoo import build

if TYPE_CHECKING:  # so that the annotation can't be evaluated
    from transformers import DynamicCache

SETTINGS = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "vocab_size": 96,
}


class _Llama(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner: Any = build("LlamaForCausalLM", SETTINGS)

    def call(self, tokens: Tensor, mask: Tensor | None, places: Tensor | None, cache: Any) -> tuple[Tensor, Any]:
        name = cache_argument(self.inner) or ""
        output = self.inner(tokens, attention_mask=mask, position_ids=places, use_cache=True, **{name: cache})
        return output.logits, returned_cache(output, name)


class Annotated(_Llama):
    """Its annotation says what the cache is."""

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        state: DynamicCache | None = None,
    ) -> tuple[Tensor, Any]:
        return self.call(input_ids, attention_mask, position_ids, state)


class Returned(_Llama):
    """The name of its result says what the cache is."""

    def forward(self, input_ids, attention_mask=None, position_ids=None, labels=None, layer_past=None):
        logits, cache = self.call(input_ids, attention_mask, position_ids, layer_past)
        return {"logits": logits, "layer_past": cache}


class Identical(_Llama):
    """It returns, without a name, the cache that it is given."""

    def forward(self, input_ids, attention_mask=None, position_ids=None, labels=None, kv=None):
        return self.call(input_ids, attention_mask, position_ids, kv)


NAMES = {Annotated: "state", Returned: "layer_past", Identical: "kv"}
