"""The relation "eager = a backend": a model's program decodes what the model computes in one call."""

from collections.abc import Mapping
from typing import Any

from torch import nn

from filch.export.backends import Backend
from filch.steal import FilchError
from filch.steal.text._visible import short_line

from ._decode import compare_decode
from .common._source import short_source
from .decoding._decoder import Decoder
from .decoding._plan import Plan, together
from .decoding._tokens import given_tokens
from .models._subject import Subject
from .results._decoding import DecodeBreak, Decoding
from .results._invariance import InvarianceBreak, InvarianceRow, InvarianceVerdict

LEAST_TOKENS = 6  # of `compare_decode`
_REASON = 120  # characters


def decode_on(
    model: nn.Module, args: Any, kwargs: Mapping[str, Any] | None, backend: Backend, *, tokens: int, bitwise: bool
) -> InvarianceRow:
    """Return whether a backend decodes step by step what the model computes in one call in eager PyTorch.

    Args:
        model: see `compare_decode`.
        args: see `compare_decode`.
        kwargs: see `compare_decode`.
        backend: runs the program that the model is exported as.
        tokens: the number of tokens of each sequence.
        bitwise: whether also the bits have to be those of eager PyTorch.
    """
    name = relation_on(backend)
    given, others = given_tokens(Subject.of(model, () if args is None else args, kwargs), 1)
    # "" if the model takes a cache.
    if reason := Decoder(model, Plan(together(given)), others, len(given)).unsupported:
        return InvarianceRow(name, "not run", note=reason)
    try:
        result = compare_decode(model, args, kwargs, backend=backend, tokens=max(tokens, LEAST_TOKENS))
    except FilchError as error:
        return InvarianceRow(name, "not judged", note=short_line(str(error), _REASON))
    difference = max(item.logits for item in result.positions)
    if result.breaks:
        more = sum(item.introduced for item in result.breaks[1:])  # without those that inherit their error
        return InvarianceRow(name, "breaks", difference, _at(result, result.breaks[0]), more, result.judged)
    if result.outcome != "close":
        verdict: InvarianceVerdict = "breaks" if result.outcome == "different" else "not judged"
        return InvarianceRow(name, verdict, difference, note=short_line(result.headline, _REASON))
    if bitwise and (first := _first_other_bits(result)) is not None:
        return InvarianceRow(name, "rounding", difference, first, 0, result.judged)
    return InvarianceRow(name, "holds", difference, compared=result.judged)


def relation_on(backend: Backend) -> str:
    """Return the name of the relation."""
    return f"decode on {backend.name}"


def _at(result: Decoding, item: DecodeBreak) -> InvarianceBreak:
    """Return a value that is wrong as a break of the relation, with its largest difference at the position."""
    findings = result.graph.findings.get(item.value, ())
    errors = [finding.positions.errors[item.position] for finding in findings if finding.positions is not None]
    place = item.module or "", item.op, item.source and short_source(item.source)
    return InvarianceBreak(*place, item.sequence, item.position, max(errors, default=0.0), node=item.node)


def _first_other_bits(result: Decoding) -> InvarianceBreak | None:
    """Return the first value of the first step that has other numbers than in eager PyTorch; None if there is none."""
    graph = result.graph
    by_step: dict[int, InvarianceBreak] = {}  # the first one of each step, in the order of execution
    for node in graph.nodes:
        for finding in (item for name in node.outputs for item in graph.findings.get(name, ())):
            errors = () if finding.positions is None else finding.positions.errors
            position = next((index for index, error in enumerate(errors) if error), None)
            if position is not None:
                step = result.positions[position].step
                place = node.module or "", node.op, node.source and short_source(node.source)
                by_step.setdefault(step, InvarianceBreak(*place, None, position, errors[position], node=node.name))
    return by_step[min(by_step)] if by_step else None
