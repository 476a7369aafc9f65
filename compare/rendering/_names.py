"""Shorten names and paths for a column of a table, so that different ones stay different."""

import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from itertools import groupby

_MAX_PARTS = 16  # of a path that is shortened part by part
_MIN_NAMES = (8, 5)  # characters of the last name of a path that is shortened: the limits in the order of preference


def shortened_paths(paths: Iterable[str], width: int) -> dict[str, tuple[str, ...]]:
    """Return each path in a line of up to `width` characters, or in several if each short form is another path's.

    As many leading and trailing names as fit are kept, and the numbers between them.

    >>> shortened_paths(["model.layers.3.self_attn.q_proj"], 20)
    {'model.layers.3.self_attn.q_proj': ('…3.self_attn.q_proj',)}
    >>> shortened_paths(["model.layers.3.post_attention_layernorm"], 24).popitem()[1]
    ('…3.post_atten…_layernorm',)
    >>> list(shortened_paths(["h.6.attn.c_proj", "h.6.mlp.c_proj"], 12).values())
    [('…6.at…c_proj',), ('…6.ml…c_proj',)]
    """
    return _shortened(paths, width, _short_paths, may_fit_others=True)


def shortened_names(names: Iterable[str], width: int) -> dict[str, tuple[str, ...]]:
    """Return each name without its middle, or in several lines if each short form would fit another name, too.

    >>> shortened_names(["node_convert_element_type_default_1"], 14).popitem()[1]
    ('node_c…fault_1',)
    """
    return _shortened(names, width, _short_names, may_fit_others=False)


def without_middle(name: str, width: int) -> str:
    """Return the beginning and the end of a name: the names of generated kernels differ in their last number."""
    return name if len(name) <= width else _without_middle(name, width, (width - 1) // 2)


def _shortened(
    names: Iterable[str], width: int, short_forms: Callable[[str, int], Iterable[str]], *, may_fit_others: bool
) -> dict[str, tuple[str, ...]]:
    """Return for each name its first short form that fits no other name; without one, all of it in lines.

    Args:
        names: the names.
        width: the longest line, in characters.
        short_forms: yields the short forms of a name, the most readable ones first.
        may_fit_others: whether a name without such a form gets one that could stand for another name, too, if none is
            shown by it; else it is in several lines.
    """
    forms = {
        name: [name] if len(name) <= width else list(dict.fromkeys(short_forms(name, width)))
        for name in dict.fromkeys(names)
    }
    count = Counter(form for some in forms.values() for form in some)
    chosen = {name: next((form for form in some if count[form] == 1), "") for name, some in forms.items()}
    taken = set(chosen.values())
    for name, some in forms.items():
        if may_fit_others and not chosen[name]:
            chosen[name] = next((form for form in some if form not in taken), "")
            taken.add(chosen[name])
    return {name: (form,) if form else _lines(name, width) for name, form in chosen.items()}


def _lines(name: str, width: int) -> tuple[str, ...]:
    """Return a name in lines that end at punctuation, if its parts are not longer than a line."""
    lines = [""]
    for part in re.findall(r".+?(?:[._:/]|$)", name, re.DOTALL):
        if lines[-1] and len(lines[-1]) + len(part) > width:
            lines.append("")
        lines[-1] += part
    return tuple(line[start : start + width] for line in lines for start in range(0, len(line), width))


def _short_names(name: str, width: int) -> Iterable[str]:
    """Yield forms without the middle: equal halves, then longer ends, then longer beginnings."""
    half = (width - 1) // 2
    for head in (*range(half, 0, -1), *range(half + 1, width - 1)):
        yield _without_middle(name, width, head)


def _short_paths(path: str, width: int) -> Iterable[str]:
    """Yield short forms of a path, the most readable ones first.

    They are whole names with all numbers; these with a shorter last name; a longer form without its middle; whole names
    without the numbers; the path without its middle.
    """
    names = path.split(".")
    if 1 < len(names) <= _MAX_PARTS:
        numbers = {index for index, name in enumerate(names) if name.isdecimal()}
        with_numbers = _with_gaps(names, numbers)
        yield from (text for text in with_numbers if len(text) <= width)
        yield from _last_name_shortened(with_numbers, names[-1], width)
        longer = (text for text in reversed(with_numbers) if text.startswith("…") and len(text) > width)
        yield from (form for text in longer for form in _short_names(text, width) if "……" not in form)
        yield from (text for text in _with_gaps(names, ()) if len(text) <= width)
    yield from _short_names(path, width)


def _last_name_shortened(texts: Sequence[str], last: str, width: int) -> Iterable[str]:
    """Yield paths whose last name is without its middle, those that show most of it first."""
    befores = [text.removesuffix(last) for text in reversed(texts)]
    for least in _MIN_NAMES if len(last) > max(_MIN_NAMES) else ():
        for before in befores:
            if least <= width - len(before) < len(last):
                yield before + without_middle(last, width - len(before))


def _with_gaps(names: Sequence[str], always: Collection[int]) -> list[str]:
    """Return the path with gaps, in all ways that keep its last name; those with more names at its ends first."""
    count = len(names)
    ends = [(head, tail) for tail in range(1, count) for head in range(count - tail)]
    ends.sort(key=lambda end: (sum(end), end[1]), reverse=True)
    return [_with_gap(names, {*range(head), *range(count - tail, count), *always}) for head, tail in ends]


def _with_gap(names: Sequence[str], kept: Collection[int]) -> str:
    """Return the path with the names of some indices, and an ellipsis in place of neighboring other ones."""
    runs = groupby(range(len(names)), kept.__contains__)  # neighboring names that are kept, or not
    return "".join(".".join(names[index] for index in run) if is_kept else "…" for is_kept, run in runs)


def _without_middle(name: str, width: int, head: int) -> str:
    """Return the first `head` characters of a name, an ellipsis, and as many of the last ones as fit."""
    return f"{name[:head]}…{name[len(name) - (width - 1 - head) :]}"
