"""Which modules are stolen, and under which names."""

import re
from collections.abc import Iterable, Sequence
from typing import Any

from torch import nn

from ._errors import FilchError

Modules = nn.Module | tuple[str, nn.Module] | Sequence[Any]


def select(
    modules: Modules, *, submodules: bool, include: str | Iterable[str] | None, exclude: str | Iterable[str] | None
) -> list[tuple[str, nn.Module]]:
    """The modules to hook, each with the name that its keys carry.

    Args:
        modules: a module, a `(name, module)` pair, or a list of either. One module without a name is called `""`, so
            that what lies below it carries its own path; several without names are called by their index.
        submodules: take all modules below the given ones too.
        include: patterns over names; submodules that match one are taken. `*` stands for any part of one step of the
            path, `**` for any number of steps.
        exclude: patterns over names; submodules that match one are left out.

    Raises:
        FilchError: something is no module, a name is used twice, or a pattern matches nothing.
    """
    given = _named(modules)
    wanted, unwanted = _patterns(include), _patterns(exclude)
    matched: set[str] = set()
    chosen: dict[str, nn.Module] = {}
    for name, module in given:
        _add(chosen, name, module)
        if not submodules and not wanted:
            continue
        for path, below in list(module.named_modules())[1:]:
            full = f"{name}.{path}" if name else path
            hits = [pattern for pattern, regex in wanted.items() if regex.fullmatch(full)]
            matched.update(hits)
            dropped = any(regex.fullmatch(full) for regex in unwanted.values())
            if (hits or not wanted) and not dropped and below not in dict(given).values():
                _add(chosen, full, below)
    if missed := sorted(set(wanted) - matched):
        raise FilchError(f"no module is called like {missed[0]!r}; names look like {_example(given)!r}")
    return list(chosen.items())


def _named(modules: Modules) -> list[tuple[str, nn.Module]]:
    single = isinstance(modules, nn.Module) or (
        isinstance(modules, tuple) and len(modules) == 2 and isinstance(modules[0], str)
    )
    items = [modules] if single else modules
    if not isinstance(items, Sequence) or isinstance(items, str):
        raise FilchError(f"steal_forward takes a module, a (name, module) pair or a list of these, not {modules!r}")
    named: list[tuple[str, nn.Module]] = []
    for index, item in enumerate(items):
        name, module = item if isinstance(item, tuple) and len(item) == 2 else ("" if len(items) == 1 else str(index), item)
        if not isinstance(name, str) or not isinstance(module, nn.Module):
            raise FilchError(f"item {index} is {item!r}, not a module or a (name, module) pair")
        named.append((name, module))
    if not named:
        raise FilchError("no module was given to steal_forward")
    return named


def _add(chosen: dict[str, nn.Module], name: str, module: nn.Module) -> None:
    if name in chosen:
        raise FilchError(f"two modules are called {name!r}; give each its own name")
    chosen[name] = module


def _patterns(given: str | Iterable[str] | None) -> dict[str, re.Pattern[str]]:
    patterns = [given] if isinstance(given, str) else list(given or ())
    return {pattern: _regex(pattern) for pattern in patterns}


def _regex(pattern: str) -> re.Pattern[str]:
    steps = {"**": ".*", "*": "[^.]*", "?": "[^.]"}
    parts = re.split(r"(\*\*|\*|\?)", pattern)
    return re.compile("".join(steps.get(part, re.escape(part)) for part in parts))


def _example(given: list[tuple[str, nn.Module]]) -> str:
    name, module = given[0]
    path = next((path for path, _ in list(module.named_modules())[1:]), "")
    return f"{name}.{path}" if name and path else path or name
