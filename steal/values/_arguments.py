"""Map a call's arguments to parameter names, whether they were passed by position or by keyword."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch

from ._structure import tensors


def named_arguments(parameters: Iterable[str], args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of a call by parameter name.

    For `f(x, mask)`, the calls `f(x, mask=m)` and `f(x, m)` both give `{"x": x, "mask": m}`.

    Args:
        parameters: the parameter names, with `*name` and `**name` for the variadic ones (see `ModuleInfo`).
        args: the positional arguments; extra ones are called `*name[0]`, `*name[1]` …
        kwargs: the keyword arguments.
    """
    names = list(parameters)
    plain = [name for name in names if not name.startswith("*")]
    variadic = next((name for name in names if name.startswith("*") and not name.startswith("**")), "*args")
    # Parameters after *name are keyword-only, so only those before it can be filled from args.
    filled = plain[: names.index(variadic)] if variadic in names else plain
    named = dict(zip(filled, args, strict=False))
    named |= {f"{variadic}[{index}]": value for index, value in enumerate(args[len(filled) :])}
    return named | dict(kwargs)


def argument_tensors(
    parameters: Iterable[str], args: Sequence[Any], kwargs: Mapping[str, Any]
) -> dict[str, torch.Tensor]:
    """Return all tensors in a call's arguments by path, such as `mask` or `past_key_values.layers[0].keys`.

    Args:
        parameters: see `named_arguments`.
        args: the positional arguments.
        kwargs: the keyword arguments.
    """
    named = named_arguments(parameters, args, kwargs)
    return {name + path: tensor for name, value in named.items() for path, tensor in tensors(value).items()}
