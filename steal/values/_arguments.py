"""A call's arguments by the names of the parameters that they fill, however the call was written."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch

from ._structure import tensors


def named_arguments(parameters: Iterable[str], args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """`f(x, mask=m)` and `f(x, m)` of `f(x, mask)` both as `{"x": x, "mask": m}`.

    Args:
        parameters: the names of the parameters, `*name` and `**name` for the variadic ones (see `ModuleInfo`).
        args: the positional arguments; those beyond the named parameters are called `*name[0]`, `*name[1]` …
        kwargs: the keyword arguments.
    """
    names = list(parameters)
    plain = [name for name in names if not name.startswith("*")]
    rest = next((name for name in names if name.startswith("*") and not name.startswith("**")), "*args")
    # What follows *name can be given by keyword alone, so the named parameters before it are all that args can fill.
    filled = plain[: names.index(rest)] if rest in names else plain
    named = dict(zip(filled, args, strict=False))
    named |= {f"{rest}[{index}]": value for index, value in enumerate(args[len(filled) :])}
    return named | dict(kwargs)


def argument_tensors(
    parameters: Iterable[str], args: Sequence[Any], kwargs: Mapping[str, Any]
) -> dict[str, torch.Tensor]:
    """All tensors among a call's arguments, by path: `mask`, `past_key_values.layers[0].keys`.

    Args:
        parameters: see `named_arguments`.
        args: the positional arguments.
        kwargs: the keyword arguments.
    """
    named = named_arguments(parameters, args, kwargs)
    return {name + path: tensor for name, value in named.items() for path, tensor in tensors(value).items()}
