"""Recurrent operators: LSTM, GRU and RNN."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn import functional

from filch.steal._tf32 import Product

from ._operator import NodeCall, Operator, Tensor, UnsupportedError, of_torch

_Step = Callable[[Tensor, Sequence[Tensor]], Sequence[Tensor]]  # takes x @ W and the states; returns the next ones
_Function = Callable[[Tensor], Tensor]
# The functions, which take the parameters alpha and beta, and the defaults of these.
_FUNCTIONS: Mapping[str, tuple[Callable[..., Tensor], tuple[float, ...]]] = {
    "affine": (lambda x, alpha, beta: alpha * x + beta, (1.0, 0.0)),
    "elu": (lambda x, alpha: torch.where(x > 0, x, alpha * torch.expm1(x)), (1.0,)),
    "hardsigmoid": (lambda x, alpha, beta: (alpha * x + beta).clamp(0, 1), (0.2, 0.5)),
    "leakyrelu": (lambda x, alpha: torch.where(x < 0, alpha * x, x), (0.01,)),
    "relu": (torch.relu, ()),
    "scaledtanh": (lambda x, alpha, beta: alpha * torch.tanh(beta * x), (1.0, 1.0)),
    "sigmoid": (torch.sigmoid, ()),
    "softplus": (lambda x: torch.logaddexp(x, torch.zeros_like(x)), ()),
    "softsign": (functional.softsign, ()),
    "tanh": (torch.tanh, ()),
    "thresholdedrelu": (lambda x, alpha: torch.where(x > alpha, x, torch.zeros_like(x)), (1.0,)),
}


@dataclass(frozen=True)
class _Direction:
    """The weights of one direction, in the order of the gates.

    Attributes:
        weight: of the inputs.
        recurrence: of the states.
        bias: of the inputs, and of the states.
        functions: the activation functions.
    """

    weight: Tensor
    recurrence: Tensor
    bias: tuple[Tensor, Tensor]
    functions: Sequence[_Function]


def _directions(
    call: NodeCall, weight: Tensor, recurrence: Tensor, bias: Tensor | None, names: str
) -> list[_Direction]:
    """Return the weights of each direction; `names` are the default functions of one, separated by spaces."""
    functions = _functions(call, len(weight), names.split())
    count = len(names.split())
    parts = torch.zeros(len(weight), 2 * weight.shape[1], dtype=weight.dtype) if bias is None else bias
    return [
        _Direction(w, r, (b[: len(w)], b[len(w) :]), functions[at * count : (at + 1) * count])
        for at, (w, r, b) in enumerate(zip(weight, recurrence, parts, strict=True))
    ]


def _functions(call: NodeCall, directions: int, defaults: list[str]) -> list[_Function]:
    """Return the activation functions of all directions; each takes as many parameters as it has."""
    names = call.get("activations") or defaults * directions
    alphas, betas = (iter(call.get(f"activation_{name}") or ()) for name in ("alpha", "beta"))
    limit = call.get("clip")
    return [_function(str(name).lower(), alphas, betas, limit) for name in names]


def _function(name: str, alphas: Iterator[float], betas: Iterator[float], limit: float | None) -> _Function:
    """Return a function, with parameters from what is left of `alphas` and `betas`; `limit` clips its input."""
    if name not in _FUNCTIONS:
        raise UnsupportedError(f"the activation {name}")
    function, defaults = _FUNCTIONS[name]
    parameters = [next(given, default) for given, default in zip((alphas, betas), defaults, strict=False)]
    return lambda x: function(x if limit is None else x.clamp(-limit, limit), *parameters)


def _run(
    call: NodeCall,
    x: Tensor,
    directions: Sequence[_Direction],
    lengths: Tensor | None,
    starts: Sequence[Tensor | None],
    steps: Sequence[_Step],
) -> tuple[Tensor, ...]:
    """Return the first state at each step, and all states after the last step; `starts` of None are zeros."""
    by_batch = bool(call.get("layout"))
    x = x.transpose(0, 1) if by_batch else x
    size = directions[0].recurrence.shape[-1]
    zeros = x.new_zeros(len(directions), x.shape[1], size)
    states = [zeros if item is None else item.transpose(0, 1) if by_batch else item for item in starts]
    reverse = {"forward": [False], "reverse": [True], "bidirectional": [False, True]}[call["direction"]]
    results = [
        _one_way(x @ part.weight.mT, lengths, [state[at] for state in states], step, backward=backward)
        for at, (part, step, backward) in enumerate(zip(directions, steps, reverse, strict=True))
    ]
    every = torch.stack([result for result, _ in results], 1)
    final = [torch.stack(items) for items in zip(*(last for _, last in results), strict=True)]
    if by_batch:
        return every.permute(2, 0, 1, 3), *(item.transpose(0, 1) for item in final)
    return every, *final


def _one_way(
    projected: Tensor, lengths: Tensor | None, states: Sequence[Tensor], step: _Step, *, backward: bool
) -> tuple[Tensor, Sequence[Tensor]]:
    """Return the first state at each step, and the last states; `projected` is [steps, batch, gates * size]."""
    count, batch = projected.shape[:2]
    results = projected.new_zeros(count, batch, states[0].shape[-1])
    for at in reversed(range(count)) if backward else range(count):
        new = step(projected[at], states)
        if lengths is not None:  # sequences that end before keep their states, and have zeros
            active = (at < lengths)[:, None]
            states = [torch.where(active, fresh, old) for fresh, old in zip(new, states, strict=True)]
            results[at] = torch.where(active, new[0], 0.0)
        else:
            states, results[at] = new, new[0]
    return results, states


def _lstm(
    call: NodeCall,
    x: Tensor,
    weight: Tensor,
    recurrence: Tensor,
    bias: Tensor | None = None,
    lengths: Tensor | None = None,
    hidden: Tensor | None = None,
    cell: Tensor | None = None,
    peepholes: Tensor | None = None,
) -> tuple[Tensor, ...]:
    directions = _directions(call, weight, recurrence, bias, "Sigmoid Tanh Tanh")
    looks = torch.zeros(len(weight), 3 * recurrence.shape[-1], dtype=x.dtype) if peepholes is None else peepholes
    coupled = bool(call.get("input_forget"))
    steps = [_lstm_step(part, look, coupled=coupled) for part, look in zip(directions, looks, strict=True)]
    return _run(call, x, directions, lengths, (hidden, cell), steps)


def _lstm_step(part: _Direction, looks: Tensor, *, coupled: bool) -> _Step:
    """Return the step of an LSTM; `looks` are the weights of the cell in the gates (peepholes)."""
    gate, inner, outer = part.functions
    to_in, to_out, to_forget = looks.chunk(3)
    bias = part.bias[0] + part.bias[1]

    def step(projected: Tensor, states: Sequence[Tensor]) -> Sequence[Tensor]:
        hidden, cell = states
        i, o, f, c = (projected + hidden @ part.recurrence.mT + bias).chunk(4, -1)
        kept_in = gate(i + to_in * cell)
        forget = 1 - kept_in if coupled else gate(f + to_forget * cell)
        cell = forget * cell + kept_in * inner(c)
        return gate(o + to_out * cell) * outer(cell), cell

    return step


def _gru(
    call: NodeCall,
    x: Tensor,
    weight: Tensor,
    recurrence: Tensor,
    bias: Tensor | None = None,
    lengths: Tensor | None = None,
    hidden: Tensor | None = None,
) -> tuple[Tensor, ...]:
    directions = _directions(call, weight, recurrence, bias, "Sigmoid Tanh")
    steps = [_gru_step(part, after=bool(call["linear_before_reset"])) for part in directions]
    return _run(call, x, directions, lengths, (hidden,), steps)


def _gru_step(part: _Direction, *, after: bool) -> _Step:
    """Return the step of a GRU; the reset gate is applied before or after the product with the states."""
    gate, inner = part.functions
    (rz, rr, rh), (wz, wr, wh), (bz, br, bh) = (item.chunk(3) for item in (part.recurrence, *part.bias))

    def step(projected: Tensor, states: Sequence[Tensor]) -> Sequence[Tensor]:
        (hidden,) = states
        z, r, h = (projected + torch.cat([wz, wr, wh])).chunk(3, -1)
        update, reset = gate(z + hidden @ rz.mT + bz), gate(r + hidden @ rr.mT + br)
        moved = reset * (hidden @ rh.mT + bh) if after else (reset * hidden) @ rh.mT + bh
        return [(1 - update) * inner(h + moved) + update * hidden]

    return step


def _rnn(
    call: NodeCall,
    x: Tensor,
    weight: Tensor,
    recurrence: Tensor,
    bias: Tensor | None = None,
    lengths: Tensor | None = None,
    hidden: Tensor | None = None,
) -> tuple[Tensor, ...]:
    directions = _directions(call, weight, recurrence, bias, "Tanh")
    return _run(call, x, directions, lengths, (hidden,), [_rnn_step(part) for part in directions])


def _rnn_step(part: _Direction) -> _Step:
    (function,) = part.functions
    bias = part.bias[0] + part.bias[1]
    return lambda projected, states: [function(projected + states[0] @ part.recurrence.mT + bias)]


_TRAITS: dict[str, Any] = {
    "terms": lambda _, shapes: shapes[0][0] * (shapes[1][-1] + shapes[2][-1]),  # over steps, inputs and states
    "product": Product.CONVOLUTION,
}

OPERATORS = (
    Operator("GRU", _gru, torch="gru", **_TRAITS),
    Operator("LSTM", _lstm, torch="lstm", **_TRAITS),
    Operator("RNN", _rnn, **_TRAITS),
    of_torch("rnn_tanh rnn_relu", **_TRAITS),
)
