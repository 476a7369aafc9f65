"""Judge the weights of a converted checkpoint: which are other numbers, and which are arranged as in no other layer."""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher

import torch

from ..layouts._described import described, row_blocks
from ..pairing._places import place_of
from ..pairing._weight_map import WeightMap, WeightMatch, WeightPart
from ..rendering._outcome import Gap
from ..rendering._words import listed
from ..runs._execution import Tensors

_NUMBER = re.compile(r"\d+")
# A factor, a summand or both; the last group refuses `""`.
_NUMERIC_CHANGE = re.compile(r"(times [-+.\de]+)?(, )?(plus [-+.\de]+)?(?<=.)")
_NUMBER_OF_LAYER = re.compile(r"([A-Za-z_][\w.]*?\.)\d+(?=\.)")  # in a factor, a number or the name of a weight


@dataclass(frozen=True)
class OtherWeight:
    """A weight of B with other numbers than the weight of A that it seems to be.

    Attributes:
        name: its name in B.
        counterpart: the weight of A with the same shape and the most similar name.
        differing: how many of the numbers differ.
        total: how many there are.
        largest: the largest difference.
    """

    name: str
    counterpart: str
    differing: int
    total: int
    largest: float

    def __str__(self) -> str:
        text = f"{self.differing} of {self.total} numbers differ, by {self.largest:.2g} at most"
        return f"the weight {self.name!r} of B has other numbers than {self.counterpart!r} of A: {text}"


def other_weights(weights: WeightMap, reference: Tensors, actual: Tensors) -> list[OtherWeight]:
    """Return the weights of B that have the shape of an unused weight of A, but other numbers.

    Args:
        weights: which weights correspond.
        reference: the weights of A.
        actual: the weights of B.
    """
    pairs = [
        (SequenceMatcher(None, name.lower(), counterpart.lower()).ratio(), name, counterpart)
        for name in weights.missing
        for counterpart in weights.unused
        if sorted(reference[counterpart].shape) == sorted(actual[name].shape)
    ]
    found: dict[str, OtherWeight] = {}
    taken: set[str] = set()
    for _, name, counterpart in sorted(pairs, key=lambda pair: -pair[0]):  # the most similar names first
        if name not in found and counterpart not in taken:
            taken.add(counterpart)
            found[name] = _difference(name, counterpart, actual[name], reference[counterpart])
    return [found[name] for name in weights.missing if name in found]


def _difference(name: str, counterpart: str, weight: torch.Tensor, reference: torch.Tensor) -> OtherWeight:
    """Return how a weight of B differs from its counterpart in A, which may be transposed, in the coarser dtype."""
    coarser = max((weight.dtype, reference.dtype), key=lambda dtype: torch.finfo(dtype).eps)
    first, second = (item.detach().to(coarser).double() for item in (weight, reference))
    ways = [item for item in (second, second.T if second.dim() == 2 else second) if item.shape == first.shape]
    errors = [(first - item).abs() for item in ways or [second.reshape(first.shape)]]
    least = min(errors, key=torch.Tensor.count_nonzero)
    return OtherWeight(name, counterpart, int(least.count_nonzero()), first.numel(), float(least.max()))


def incomplete_weights(weights: WeightMap, reference: Tensors) -> Iterator[tuple[str, str]]:
    """Yield the name of each weight of A that B has only in part, or with unknown factors, and a sentence about it.

    Args:
        weights: which weights correspond.
        reference: the weights of A.
    """
    left: dict[str, torch.Tensor] = {}  # for each weight of A, which of its elements no weight of B has yet
    for match in weights.matches:
        for part in match.parts:
            if part.is_unknown:
                text = f"the weight {match.weight!r} of B is {part.weight} of A {part.factor}, which no weight of A has"
                yield part.weight, text
            if part.weight in reference:
                mask = left.setdefault(part.weight, torch.ones(reference[part.weight].numel(), dtype=torch.bool))
                (part.layout.select(mask) if part.arrangement == "part" else mask).fill_(value=False)
    for match in weights.matches:
        for name in match.others:  # equal to a weight that B has
            left.pop(name, None)
    for name, mask in left.items():
        if bool(mask.any()):
            yield name, f"{int(mask.sum())} of {len(mask)} numbers of the weight {name!r} of A are not in B"


def odd_weights(weights: WeightMap, reference: Tensors) -> Iterator[str]:
    """Yield a sentence for each weight that is made in another way, or of another layer, than most are.

    Args:
        weights: which weights correspond.
        reference: the weights of A.
    """
    # `others`: several weights of A have the same numbers, and any of them may be the source.
    known = [match for match in weights.matches if match.parts and not match.others]
    odd = {**dict(_of_other_shape(known, reference)), **dict(_of_other_making(known, reference))}
    for match in (match for match in known if match.weight in odd):
        made_of = f"is made of {_sources(match)} ({_arrangement(match, reference)})"
        yield f"the weight {match.weight!r} of B {made_of}, {odd[match.weight]}"
    yield from _of_other_layers([match for match in known if match.weight not in odd])


def _of_other_making(known: Sequence[WeightMatch], reference: Tensors) -> Iterator[tuple[str, str]]:
    """Yield the weights made in another way than most weights of their shape in the same place, and how those are."""
    for group in _grouped(known, lambda match: match.shape):
        made = {match.weight: (_making(match, group), *_way(match, reference)) for match in group}
        usual, count = Counter(made.values()).most_common(1)[0]
        for name in (name for name, making in made.items() if making != usual and 2 * count > len(group)):
            yield name, f"but in {count} of {len(group)} layers it is made of {usual[0]} ({usual[1]})"


def _of_other_shape(known: Sequence[WeightMatch], reference: Tensors) -> Iterator[tuple[str, str]]:
    """Yield the weights with another shape than most weights in the same place that are made of such weights of A.

    Also in half of the layers: one of both ways must be wrong.
    """
    for group in _grouped(known, lambda match: (_kinds(match), _shapes(match, reference))):
        ways = {match.weight: (match.shape, *_way(match, reference)) for match in group}
        usual, count = Counter(ways.values()).most_common(1)[0]
        text = f"but in {count} of {len(group)} layers such a weight has the shape {[*usual[0]]} ({usual[1]})"
        yield from ((name, text) for name, way in ways.items() if way != usual)


def _sources(match: WeightMatch) -> str:
    """Return the names of the weights of A of which a weight of B is made, for people."""
    return ", ".join(part.weight for part in match.parts)


def lone_changes(weights: WeightMap, reference: Tensors) -> Iterator[Gap]:
    """Yield each weight that is multiplied, added to, or arranged anew in the same shape, as no other weight is.

    Such a change is right only if what reads the weight expects it, which weights alone don't show.

    Args:
        weights: which weights correspond.
        reference: the weights of A.
    """
    changes = {match: change for match in weights.matches if (change := _lone_change(match, reference))}
    counts = Counter(changes.values())
    for match, change in changes.items():
        if counts[change] == 1:
            yield Gap(
                match.weight, f"it is {_sources(match)} of A, {change}, as no other weight is: run both to judge it"
            )


def _lone_change(match: WeightMatch, reference: Tensors) -> str:
    """Return how a weight was changed though its shape is that of A's, or by numbers that no weight has; or `""`."""
    factors = [part.factor for part in match.parts if _NUMERIC_CHANGE.fullmatch(part.factor)]
    if factors:
        return "; ".join(dict.fromkeys(factors))
    only = match.parts[0] if len(match.parts) == 1 and not match.others else None
    if only is None or only.factor or only.weight not in reference or len(match.shape) < 2:
        return ""
    is_rearranged = match.shape == tuple(reference[only.weight].shape) and only.arrangement == "moved"
    return _arrangement(match, reference) if is_rearranged else ""


def _grouped(matches: Sequence[WeightMatch], what: Callable[[WeightMatch], object]) -> Iterable[list[WeightMatch]]:
    """Return groups of weights in the same place of all layers for which a function returns the same."""
    groups: dict[tuple[str, object], list[WeightMatch]] = {}
    for match in matches:
        groups.setdefault((place_of(match.weight), what(match)), []).append(match)
    return groups.values()


def _shapes(match: WeightMatch, reference: Tensors) -> tuple[object, ...]:
    """Return the shapes of the weights of A."""
    return tuple(tuple(reference[part.weight].shape) for part in match.parts if part.weight in reference)


def _way(match: WeightMatch, reference: Tensors) -> tuple[str, object]:
    """Return how the weights of A are arranged and multiplied, for people, and the orders of rows."""
    return _arrangement(match, reference), tuple(part.order for part in match.parts)


def _kinds(match: WeightMatch) -> tuple[str, ...]:
    """Return the names of the weights of A without numbers."""
    return tuple(place_of(part.weight) for part in match.parts)


def _of_other_layers(matches: Sequence[WeightMatch]) -> Iterator[str]:
    """Yield a sentence for each weight that was exchanged with that of another layer.

    Its layer in A is then another one than that of most weights of its layer in B, and the weight of that layer is
    where it does not belong either. The weights of one place may all be of the layer before or after, as norms that are
    applied earlier.
    """
    layers = {match: (_layer(match.weight), _layer(match.parts[0].weight)) for match in matches}
    pairs = {match: (at, source) for match, (at, source) in layers.items() if at is not None and source is not None}
    source_layers: dict[int, Counter[int]] = {}  # of all weights of a layer of B
    steps: dict[str, Counter[int]] = {}  # from the layer in B to that in A, of all weights in a place of the layers
    for match, (layer, source_layer) in pairs.items():
        source_layers.setdefault(layer, Counter())[source_layer] += 1
        steps.setdefault(place_of(match.weight), Counter())[source_layer - layer] += 1
    sources = {(place_of(match.weight), match.parts[0].weight) for match in matches}
    for match, (layer, source_layer) in pairs.items():
        (usual, count), place = source_layers[layer].most_common(1)[0], place_of(match.weight)
        is_odd = source_layer != usual and 2 * count > source_layers[layer].total()
        if is_odd and 2 * steps[place][source_layer - layer] <= steps[place].total():
            source = match.parts[0].weight
            expected = _NUMBER.sub(str(usual), source, count=1)
            kinds = {place_of(item) for name, item in sources if name == place}
            if (place, expected) in sources and len(kinds) == 1:  # else its number is not that of a layer
                yield f"the weight {match.weight!r} of B is made of {source}, where {expected} would be expected"


def _layer(name: str) -> int | None:
    """Return the first number in a name; None if there is none."""
    number = _NUMBER.search(name)
    return None if number is None else int(number[0])


def _making(match: WeightMatch, group: Sequence[WeightMatch]) -> str:
    """Return the weights of A from which one of B is made; numbers that are those of its own name are replaced by `#`.

    Args:
        match: the weight.
        group: those of the same place in all layers. A number is that of the layer if it is so in most of them.
    """
    own_numbers = _NUMBER.findall(match.weight)
    peers = [item for item in group if _kinds(item) == _kinds(match)]
    names = []
    for index, part in enumerate(match.parts):
        pieces = re.split(r"(\d+)", part.weight)  # each second one is a number
        for place, number in enumerate(pieces[1::2]):
            equal = [position for position, own in enumerate(own_numbers) if own == number]
            if any(_are_linked(peers, position, index, place) for position in equal):
                pieces[2 * place + 1] = "#"
        names.append("".join(pieces))
    return ", ".join(names)


def _are_linked(group: Sequence[WeightMatch], position: int, index: int, place: int) -> bool:
    """Whether a number in the names of weights of B is one in the names of their parts, in most layers.

    Args:
        group: the weights of B.
        position: which number it is in their names.
        index: which of their parts has the other number.
        place: which number it is in the name of the part.
    """
    numbers = [(_NUMBER.findall(item.weight), _NUMBER.findall(item.parts[index].weight)) for item in group]
    return 2 * [of_weight[position] == of_part[place] for of_weight, of_part in numbers].count(True) > len(group)


def described_parts(match: WeightMatch, reference: Tensors) -> Iterator[tuple[WeightPart, str]]:
    """Yield each part of a weight of B, and how it is arranged in words; `""` for rows in an irregular order alone.

    Args:
        match: what the weight is made of.
        reference: the weights of A.
    """
    for part in match.parts:
        inner, outer = match.shape, tuple(reference[part.weight].shape) if part.weight in reference else match.shape
        text = described(part.layout, *((outer, inner) if part.arrangement == "holds" else (inner, outer)))
        yield part, "" if text == "same" and part.order else text


def _arrangement(match: WeightMatch, reference: Tensors) -> str:
    """Return how a weight of B is made of those of A, in words that are the same in all layers."""
    texts = (
        ", ".join(filter(None, (text, part.order_of_rows, _NUMBER_OF_LAYER.sub(r"\1#", part.factor))))
        for part, text in described_parts(match, reference)
    )
    return "; ".join(dict.fromkeys(texts))


def irregular_orders(weights: WeightMap) -> Iterator[str]:
    """Yield a sentence if rows of weights are in no regular order, which what reads their products has to expect.

    Args:
        weights: which weights correspond.
    """
    names = [match.weight for match in weights.matches if any(part.order for part in match.parts)]
    if names:
        several = f"{len(names)} weights of B, such as {names[0]!r}, have"
        subject = several if len(names) > 1 else f"the weight {names[0]!r} of B has"
        yield f"{subject} rows of A in no regular order: right only if what reads the results expects it"


def permuted_blocks(weights: WeightMap) -> Iterator[str]:
    """Yield a sentence if rows are permuted in blocks of several sizes: heads have one.

    Args:
        weights: which weights correspond.
    """
    sizes: dict[int, str] = {}  # a weight for each size
    for match in weights.matches:
        if len(match.parts) == 1 and match.parts[0].arrangement == "moved":
            blocks = row_blocks(match.parts[0].layout, match.shape)
            if blocks is not None:
                sizes.setdefault(blocks.size, match.weight)
    if len(sizes) > 1:
        text = ", ".join(f"{size} ({name})" for size, name in sizes.items())
        yield f"rows are permuted in blocks of several sizes, {text}: if the blocks are heads, one of them is wrong"


def not_compared(reference: Tensors, actual: Tensors) -> Iterator[str]:
    """Yield a sentence for each side that has tensors of integers that the other side does not have bit for bit."""
    reference_integers, actual_integers = (
        {name: item for name, item in side.items() if not (item.is_floating_point() or item.is_complex())}
        for side in (reference, actual)
    )
    sides = ("A", reference_integers, actual_integers), ("B", actual_integers, reference_integers)
    for side, integers, other_integers in sides:
        lone = [
            f"{name!r} ({str(item.dtype).removeprefix('torch.')})"
            for name, item in integers.items()
            if item.numel() > 1
            and not any(item.shape == same.shape and torch.equal(item, same) for same in other_integers.values())
        ]
        if lone:
            names = listed(lone, rest=", …")
            yield f"weights of {side} that are integers which the other one does not have are not compared: {names}"
