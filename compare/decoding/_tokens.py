"""The tokens and other arguments that a language model is called with."""

from typing import Any

import torch

from filch.export import cache_argument
from filch.export.exporting._model_cache import is_cache

from ..common._errors import CompareError
from ..models._subject import Subject

_GIVEN_BY_PLANS = frozenset(
    ("attention_mask", "decoder_attention_mask", "position_ids", "decoder_position_ids", "use_cache", "labels")
)


def given_tokens(subject: Subject, count: int) -> tuple[torch.Tensor, dict[str, Any]]:
    """Return several sequences of tokens, int64 in the shape [sequences, length], and the other arguments.

    Args:
        subject: the model and the arguments of a call.
        count: how many sequences are made of a single one, by rotating it.

    Raises:
        CompareError: there are no tokens among the arguments.
    """
    kwargs = dict(subject.kwargs)
    is_encoder_decoder = bool(getattr(getattr(subject.model, "config", None), "is_encoder_decoder", False))
    name = "decoder_input_ids" if is_encoder_decoder else "input_ids"
    tokens = kwargs.pop(name, None)
    if tokens is None and len(subject.args) == 1 and not is_encoder_decoder:  # the encoder's would be the first one
        tokens = subject.args[0]
    if not isinstance(tokens, torch.Tensor) or tokens.dim() != 2 or tokens.is_floating_point() or not tokens.numel():
        raise CompareError(f"give the tokens of the model, {name}, as integers in the shape [sequences, length]")
    # With an encoder, `attention_mask` is the mask of its input, which no plan gives.
    ignored = _GIVEN_BY_PLANS - ({"attention_mask"} if is_encoder_decoder else set()) | {cache_argument(subject.model)}
    others = {key: item for key, item in kwargs.items() if key not in ignored and not is_cache(item)}
    if len(tokens) == 1:
        tokens = torch.cat([tokens.roll(index, 1) for index in range(count)])
        others = {
            key: item.repeat_interleave(count, 0) if isinstance(item, torch.Tensor) and item.shape[:1] == (1,) else item
            for key, item in others.items()
        }
    return tokens.cpu(), others
