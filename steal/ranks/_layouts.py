"""Layouts of plain tensors that a user declares, or that were learned from an earlier run."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache
from math import prod
from typing import NamedTuple

from .._errors import FilchError
from .._key import Key
from ..values._sharding import Placement
from ._distributed import Distributed
from ._part_layout import layout_of

_DIM = re.compile(r"(?P<name>[A-Za-z_]\w*|\d+|\*)(?:[\[(](?P<marks>[^\])]*)[\])])?")
_LEARNED = re.compile(r"(\d+(?:x\d+)*): (.+?)(?: / (\d+))?")
_PLACEMENT = re.compile(r"[A-Z](?:\([^)]*\))?")
_PARAMETERS = ("P", "GP", "GF")  # kinds of records


def parse_dims(text: str) -> dict[str, Placement]:
    """Return how a tensor is distributed, from the names of its dimensions, as SGLang writes them.

    `"b[dp] s d"` is sharded along its first dimension over the mesh dimension `dp`; `"b s[cp:zigzag] d"` in zigzag
    order along its second; `"b s d[tp:partial]"` is the sum of what the ranks of `tp` have. Over a dimension of the
    mesh that does not occur, it is replicated.

    Returns:
        the placement for each dimension of the mesh that occurs, by name.

    Raises:
        FilchError: the text is not of this form.
    """
    placements = {}
    for dim, word in enumerate(text.split()):
        match = _DIM.fullmatch(word)
        if match is None:
            raise FilchError(f"{text!r:.200} does not name dimensions as 'b[dp] s d[tp:partial]' does: {word!r:.80}")
        for mark in filter(None, (match["marks"] or "").split(",")):
            name, _, modifier = mark.strip().partition(":")
            if modifier not in ("", "partial", "zigzag"):
                raise FilchError(f"{text!r:.200}: {modifier!r:.80} is not 'partial' or 'zigzag'")
            sharded = Placement("shard", dim=dim, zigzag=modifier == "zigzag")
            placements[name] = Placement("partial") if modifier == "partial" else sharded
    return placements


class LearnedLayout(NamedTuple):
    """How parts were put together in an earlier run, written as `"2x2: S(0), R / 2"`.

    Attributes:
        mesh: the sizes of the mesh.
        placements: one for each of its dimensions.
        divisor: of the tensor.
    """

    mesh: tuple[int, ...]
    placements: tuple[Placement, ...]
    divisor: int = 1

    def __str__(self) -> str:
        divisor = f" / {self.divisor}" if self.divisor > 1 else ""
        return f"{'x'.join(map(str, self.mesh))}: {', '.join(map(str, self.placements))}{divisor}"

    @classmethod
    def parse(cls, text: str) -> "LearnedLayout":
        """Return the layout that is written as `text`.

        Raises:
            FilchError: the text is not of this form.
        """
        match = _LEARNED.fullmatch(text)
        try:
            if match is not None:
                sizes, names, divisor = match.groups()
                mesh = tuple(map(int, sizes.split("x")))
                placements = tuple(Placement.parse(name) for name in _PLACEMENT.findall(names))
                if len(placements) == len(mesh):
                    return cls(mesh, placements, int(divisor or 1))
        except ValueError:  # `Placement.parse` refuses a name
            pass
        raise FilchError(f"{text!r:.200} is not a layout like '2: S(0)'")


@dataclass(frozen=True)
class Layouts:
    """Layouts of plain tensors.

    Attributes:
        mesh: the sizes of the mesh dimensions by name, in row-major order of the ranks.
        dims: the dimensions of tensors (see `parse_dims`) by pattern; the last pattern that matches a value counts. A
            pattern matches `name` or `name.kind`, with `*` for any characters except a dot, and `**` for any;
            parameters and their gradients only match a pattern that ends with their kind, such as `"**.weight.P"`. It
            tells nothing about tensors that do not have a dimension that is sharded.
        learned: how the parts of single values were put together in an earlier run, by the value's place.
    """

    mesh: Mapping[str, int] = field(default_factory=dict)
    dims: Mapping[str, str] = field(default_factory=dict)
    learned: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for text in self.dims.values():
            for name in parse_dims(text):
                if name not in self.mesh:
                    raise FilchError(f"the mesh has no dimension {name!r}, which {text!r} names: {dict(self.mesh)}")

    def join_declared(self, key: Key, item: Distributed) -> Distributed | None:
        """Return a tensor put together as declared for its key; None if nothing was declared for it.

        Raises:
            FilchError: the mesh has another number of ranks.
        """
        texts = [text for pattern, text in self.dims.items() if _matches(pattern, key)]
        by_name = parse_dims(texts[-1]) if texts else None
        if by_name is None or not _have_dims(item, by_name.values()):
            return None
        # The layout names the dimensions of the mesh along which the parts have been put together already.
        joined = {name for name in self.mesh if re.search(rf"(?<![\w.-]){re.escape(name)}=", item.layout)}
        sizes = {name: size for name, size in self.mesh.items() if name not in joined}
        if prod(sizes.values()) != len(item.parts):
            raise FilchError(f"the mesh {dict(self.mesh)} does not have {len(item.parts)} ranks, as {key} does")
        placements = [by_name.get(name, Placement("replicate")) for name in sizes]
        return item.joined(layout_of(item.tensors, placements, tuple(sizes.values())), "declared")

    def join_learned(self, key: Key, path: str, item: Distributed) -> Distributed | None:
        """Return a tensor put together as in an earlier run; None if that is not known, or its shape has changed."""
        layout = self._learned(key, path)
        if layout is None or prod(layout.mesh) != len(item.parts) or not _have_dims(item, layout.placements):
            return None
        return item.joined(layout_of(item.tensors, layout.placements, layout.mesh), "learned", layout.divisor)

    def learned_divisor(self, key: Key, path: str) -> int | None:
        """Return the divisor of a tensor in an earlier run; None if it is not known."""
        layout = self._learned(key, path)
        return None if layout is None else layout.divisor

    def _learned(self, key: Key, path: str) -> LearnedLayout | None:
        text = self.learned.get(key.place(path))
        return None if text is None else LearnedLayout.parse(text)


def _have_dims(item: Distributed, placements: Iterable[Placement]) -> bool:
    """Return whether all parts have the dimensions that are sharded."""
    dims = min(tensor.dim() for tensor in item.tensors)
    return all(placement.dim < dims for placement in placements if placement.kind == "shard")


def _matches(pattern: str, key: Key) -> bool:
    if key.kind in _PARAMETERS and not pattern.endswith(f".{key.kind}"):
        return False
    return any(_expression(pattern).fullmatch(text) for text in (key.name, f"{key.name}.{key.kind}"))


@cache
def _expression(pattern: str) -> re.Pattern[str]:
    """Return a regular expression that never tries the same way twice, so that no pattern takes a long time.

    Where `*` follows `*`, or `**` follows anything, the first place at which the text between them fits is as good as
    any later one: it is kept (an atomic group). Only the end of the pattern has to be at the end of the text.
    """
    *blocks, last = pattern.split("**")
    first = "".join(f"(?>{'.*?' if index else ''}{_block(block)})" for index, block in enumerate(blocks))
    head, star, tail = last.rpartition("*")
    end = f"{_block(head)}[^.]*{re.escape(tail)}" if star else re.escape(tail)
    return re.compile(f"{first}{'.*' if blocks else ''}{end}", re.DOTALL)


def _block(pattern: str) -> str:
    """Return the expression of a pattern without `**`."""
    first, *others = map(re.escape, pattern.split("*"))
    return first + "".join(f"(?>[^.]*?{other})" for other in others)
