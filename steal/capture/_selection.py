"""Select the modules to capture, and their names."""

import logging
import re
from collections.abc import Iterable, Sequence
from typing import Any

from torch import nn

from .._errors import FilchError
from ._unhookable import is_scripted, scripted_warning

_log = logging.getLogger("filch")

Modules = nn.Module | tuple[str, nn.Module] | Sequence[Any]


def select(
    modules: Modules,
    *,
    submodules: bool,
    include: str | Iterable[str] | None,
    exclude: str | Iterable[str] | None,
    check: bool = True,
) -> list[tuple[str, nn.Module]]:
    """Return the modules to hook, each with the name that its keys contain.

    Args:
        modules: a module, a `(name, module)` pair, or a list of either. The name of a single unnamed module is `""`,
            so that its submodules are named by their paths; several unnamed modules are named by their index.
        submodules: also select all modules below the given ones.
        include: patterns of names; matching submodules are selected. `*` matches any part of one step of the path, `?`
            one character of it, `[02]`, `[0-3]` and `[!0]` one of some characters (as in `fnmatch`), and `**` any
            number of steps.
        exclude: patterns of names; matching submodules are not selected.
        check: refuse names that are used twice and patterns that match nothing, and leave out scripted modules.

    Raises:
        FilchError: an item is not a module or can't have hooks, a name is used twice, or a pattern matches nothing.
    """
    named = _named_modules(modules)
    wanted, unwanted = compile_patterns(include), compile_patterns(exclude)
    matched: set[str] = set()
    chosen: dict[str, nn.Module] = {}
    unhookable: list[str] = []
    add = _add if check else dict.setdefault
    for name, module in named:
        add(chosen, name, module)
        if not submodules and not wanted:
            continue
        # A module with several paths is selected if any path matches, and named by the first that does.
        by_name = {f"{name}.{path}" if name else path: below for path, below in _submodules(module)}
        excluded = {full_name: matching(unwanted, full_name) for full_name in by_name}
        matched |= set().union(*excluded.values())
        # The ids of modules that are not to be added: those given or excluded, and below, those added before.
        decided = {id(given) for _, given in named} | {id(by_name[full]) for full, hits in excluded.items() if hits}
        for full_name, submodule in by_name.items():
            hits = matching(wanted, full_name)
            matched |= hits
            if (hits or not wanted) and id(submodule) not in decided:
                decided.add(id(submodule))
                if check and is_scripted(submodule):
                    unhookable.append(full_name)
                else:
                    add(chosen, full_name, submodule)
    if unhookable:
        _log.warning("%s", scripted_warning(unhookable))
    if check and (missed := sorted((wanted.keys() | unwanted.keys()) - matched)):
        raise FilchError(f"no module name matches {missed[0]!r}; names look like {_example(named)!r}")
    return list(chosen.items())


def _submodules(module: nn.Module) -> list[tuple[str, nn.Module]]:
    return list(module.named_modules(remove_duplicate=False))[1:]  # without the module itself


def _named_modules(modules: Modules) -> list[tuple[str, nn.Module]]:
    """Return the given modules as (name, module) pairs."""
    single = isinstance(modules, nn.Module) or (
        isinstance(modules, tuple) and len(modules) == 2 and isinstance(modules[0], str)
    )
    items = [modules] if single else modules
    if not isinstance(items, Sequence) or isinstance(items, str):
        raise FilchError(f"steal_forward takes a module, a (name, module) pair or a list of these, not {modules!r}")
    named: list[tuple[str, nn.Module]] = []
    for index, item in enumerate(items):
        unnamed = "" if len(items) == 1 else str(index)
        name, module = item if isinstance(item, tuple) and len(item) == 2 else (unnamed, item)
        if not isinstance(name, str) or not isinstance(module, nn.Module):
            raise FilchError(f"item {index} is {item!r}, not a module or a (name, module) pair")
        named.append((name, module))
    if not named:
        raise FilchError("steal_forward got an empty list of modules")
    return named


def _add(chosen: dict[str, nn.Module], name: str, module: nn.Module) -> None:
    if is_scripted(module):
        raise FilchError(f"{name!r} is a scripted module, on which torch supports no hooks")
    if chosen.setdefault(name, module) is not module:
        raise FilchError(f"two modules are named {name!r}; give each its own name")


def compile_patterns(patterns: str | Iterable[str] | None) -> dict[str, re.Pattern[str]]:
    """Compile patterns of dotted names: `*`, `?` and `[02]` match within one step, `**` any number of steps."""
    if patterns is None:
        return {}
    listed = list(patterns) if isinstance(patterns, Iterable) and not isinstance(patterns, str) else [patterns]
    if wrong := [pattern for pattern in listed if not isinstance(pattern, str)]:
        raise FilchError(f"a pattern must be a string like 'decoder.layers.*.mlp', not {wrong[0]!r}")
    return {pattern: _translate(pattern) for pattern in listed}


def matching(patterns: dict[str, re.Pattern[str]], name: str) -> set[str]:
    """Return the patterns that match a name."""
    return {pattern for pattern, regex in patterns.items() if regex.fullmatch(name)}


_WILDCARDS = {"**.": r"(?:.*\.)?", "**": ".*", "*": "[^.]*", "?": "[^.]"}
_CHARACTER_CLASS = r"\[!?\]?[^]]*\]"  # as in `fnmatch`: a leading `]` is one of the characters
_SPECIAL_IN_CLASS = re.compile(r"([\\\[\]^&~|])")  # characters with a meaning in a character class of `re`


def _translate(pattern: str) -> re.Pattern[str]:
    parts = re.split(rf"(\*\*\.|\*\*|\*|\?|{_CHARACTER_CLASS})", pattern)
    try:
        return re.compile("".join(map(_translate_part, parts)))
    except re.error as error:
        raise FilchError(f"{pattern!r} is not a valid pattern of module names: {error}") from error


def _translate_part(part: str) -> str:
    """Return the regular expression of a wildcard, a character class or plain text."""
    if re.fullmatch(_CHARACTER_CLASS, part):
        inner = part[1:-1]
        negation, inner = ("^", inner[1:]) if inner.startswith("!") else ("", inner)
        escaped = _SPECIAL_IN_CLASS.sub(r"\\\1", inner)
        return rf"(?!\.)[{negation}{escaped}]"  # not even `[!0]` matches a dot
    return _WILDCARDS.get(part) or re.escape(part)


def _example(named: list[tuple[str, nn.Module]]) -> str:
    """Return the name of the first submodule of the first module, or its own if it has none, for a message."""
    name, module = named[0]
    path = next((path for path, _ in list(module.named_modules())[1:]), "")
    return f"{name}.{path}" if name and path else path or name
