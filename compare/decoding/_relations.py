"""The ways of calling a language model that should give the same numbers."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from ._plan import Plan, alone, chunks, padded, together

_CHUNK = 3  # tokens of each call of a chunked prefill
_EXTRA_SLOTS = 5  # of a static cache, which stay empty


@dataclass(frozen=True, eq=False)
class Relation:
    """Two ways of calling a model that should give the same numbers.

    Attributes:
        name: what it is called.
        reference: the calls that are right: each sequence in one call.
        plan: the calls to judge.
        attention: the attention implementation to judge; `""` for the one of the reference.
    """

    name: str
    reference: Plan
    plan: Plan
    attention: str = ""


def relations(tokens: torch.Tensor, *, first: int, filler: int, attentions: Sequence[str]) -> list[Relation]:
    """Return pairs of ways to call a model with sequences of tokens that should give the same numbers.

    Args:
        tokens: int64 in the shape [sequences, length].
        first: the number of tokens of the prefill in plans that decode, which take one token in each later call.
        filler: the token in the place of padding.
        attentions: the names of the attention implementations of transformers to judge, such as `"eager"`.
    """
    count, length = tokens.shape
    whole = Plan(together(tokens), "none")
    decode = chunks(tokens, 1, first=first)
    static = tuple(replace(call, slots=length + _EXTRA_SLOTS) for call in decode)
    earlier = chunks(tokens.flip(1), 1, first=first)  # other tokens, which the cache still has when it is reused
    unjudged = (replace(call, slots=length + _EXTRA_SLOTS, is_judged=False) for call in earlier)
    result = [
        Relation("prefill with a cache", whole, Plan(together(tokens))),
        Relation("decode", whole, Plan(decode)),
        Relation("decode without positions", whole, Plan(decode, with_positions=False)),
        Relation("chunked prefill", whole, Plan(chunks(tokens, _CHUNK))),
        Relation("static cache", whole, Plan(static, "static")),
        Relation("reused static cache", whole, Plan((*unjudged, *static), "static", reuses_cache=True)),
    ]
    if count > 1:
        single = Plan(alone(list(tokens)), "none")
        ragged = [sequence[: max(length - index, 1)] for index, sequence in enumerate(tokens)]
        shorter = Plan(alone(ragged), "none")
        result += [
            Relation("batch", single, whole),
            Relation("order of rows", whole, Plan(together(tokens, range(count)[::-1]), "none")),
            Relation("padding on the right", shorter, Plan(padded(ragged, "right", length, filler), "none")),
            Relation("padding on the left", shorter, Plan(padded(ragged, "left", length, filler), "none")),
            Relation("decode with padding on the left", shorter, Plan(padded(ragged, "left", first + count, filler))),
        ]
    for name in attentions:
        result.append(Relation(f"attention {name}", whole, whole, name))
        result.append(Relation(f"decode with attention {name}", whole, Plan(decode), name))
    return result
