"""Find which weights of two implementations are the same numbers, and how they are arranged."""

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from types import MappingProxyType
from typing import Literal

import torch

from ..layouts._closeness import Closeness
from ..layouts._index import TensorIndex
from ..layouts._layout import Layout
from ..layouts._numbers import TensorNumbers
from ..layouts._solve import solve
from ._folded import FoldedWeight

_EXACT = 1e-9  # conversions move and cast numbers; they do not compute
_FOLDED = 2e-6  # of a product in float32
_SHOWN = 12  # rows in a sentence
_UNKNOWN = "times a factor for each index of dimension"
Arrangement = Literal["same", "moved", "part", "holds"]
Tensors = Mapping[str, torch.Tensor]


@dataclass(frozen=True)
class WeightPart:
    """Numbers that a weight of the one implementation shares with one of the other.

    Attributes:
        weight: the name of the weight in the reference implementation A.
        layout: where the elements of the smaller one are in the larger one.
        arrangement: `same` (equal numbers in the same order), `moved` (in another order), `part` (the weight of B is a
            part of that of A), `holds` (the weight of A is a part of that of B).
        factor: what the numbers were multiplied with, `""` if they are equal.
        order: the places of the rows, if they are in no regular order; the layout is then that of the same rows in
            ascending order.
    """

    weight: str
    layout: Layout
    arrangement: Arrangement
    factor: str = ""
    order: tuple[int, ...] = ()

    @property
    def is_unknown(self) -> bool:
        """Whether each row or column was multiplied by a factor of its own, which no weight of A has."""
        return self.factor.startswith(_UNKNOWN)

    @property
    def order_of_rows(self) -> str:
        """The order of the rows, for people; `""` if it is regular."""
        some = ", ".join(map(str, self.order[:_SHOWN]))
        return f"rows in the order {some}{', …' if len(self.order) > _SHOWN else ''}" if self.order else ""


@dataclass(frozen=True)
class WeightMatch:
    """The weights of A from which a weight of B was made.

    Attributes:
        weight: the name of the weight in B.
        shape: its shape.
        parts: the weights of A, in the order of their first elements; empty if none was found.
        others: further weights of A with the same numbers, between which the numbers do not decide.
        complete: whether all numbers of the weight are accounted for.
    """

    weight: str
    shape: tuple[int, ...]
    parts: tuple[WeightPart, ...] = ()
    others: tuple[str, ...] = ()
    complete: bool = False


@dataclass(frozen=True)
class WeightMap:
    """Which weights of two implementations correspond.

    Attributes:
        matches: one for each weight of B.
        unused: the weights of A whose numbers are in no weight of B.
        tables: the weights of B that A does not have, and of which nothing shows that they are wrong.
        exact: the weights of B that have factors or summands, as computed from those of A without rounding: float64.
    """

    matches: tuple[WeightMatch, ...]
    unused: tuple[str, ...] = ()
    tables: frozenset[str] = frozenset()
    exact: Tensors = field(default_factory=dict, compare=False, repr=False)

    @cached_property
    def by_weight(self) -> Mapping[str, WeightMatch]:
        """The matches by the names of B's weights."""
        return {match.weight: match for match in self.matches}

    @property
    def missing(self) -> tuple[str, ...]:
        """The weights of B of which at least a part is in no weight of A."""
        return tuple(match.weight for match in self.matches if not match.complete)


def match_weights(
    reference: Tensors, actual: Tensors, folded: Mapping[str, FoldedWeight] = MappingProxyType({})
) -> WeightMap:
    """Find the weights of `other` among those of `reference`.

    A weight may be transposed, split, joined with others, or its rows and columns interleaved; of those that are left,
    each row or column may be multiplied by a factor. Tensors of integers are left out.

    Args:
        reference: the weights of implementation A by name.
        actual: the weights of implementation B by name.
        folded: what the weights of A become if they are folded into others, by what it is called.
    """
    reference, actual = _real(reference), _real(actual)
    dtypes = {tensor.dtype for tensor in (*reference.values(), *actual.values())}
    coarsest = max(dtypes, key=lambda dtype: torch.finfo(dtype).eps, default=torch.float32)
    matcher = _Matcher(
        {name: TensorNumbers(tensor.to(coarsest)) for name, tensor in reference.items()},
        {name: TensorNumbers(tensor.to(coarsest)) for name, tensor in actual.items()},
        folded,
    )
    matcher.match_whole()
    matcher.match_parts()
    matcher.match_folded()
    matcher.match_joined_and_folded()
    matcher.match_shifted()
    matcher.match_rows()
    matcher.match_constant()
    return matcher.result()


def _real(tensors: Tensors) -> dict[str, torch.Tensor]:
    real = {name: torch.view_as_real(item) if item.is_complex() else item for name, item in tensors.items()}
    return {name: item.detach() for name, item in real.items() if item.is_floating_point() and item.numel()}


def not_compared(reference: Tensors, actual: Tensors) -> Iterator[str]:
    """Yield a sentence for each side that has tensors of integers that the other side does not have bit for bit."""
    reference_integers, actual_integers = (
        {name: item for name, item in side.items() if not (item.is_floating_point() or item.is_complex())}
        for side in (reference, actual)
    )
    sides = ("A", reference_integers, actual_integers), ("B", actual_integers, reference_integers)
    for side, integers, other_integers in sides:
        odd = [
            f"{name!r} ({str(item.dtype).removeprefix('torch.')})"
            for name, item in integers.items()
            if item.numel() > 1
            and not any(item.shape == same.shape and torch.equal(item, same) for same in other_integers.values())
        ]
        if odd:
            names = ", ".join(odd[:_NAMED]) + (", …" if len(odd) > _NAMED else "")
            yield f"weights of {side} that are integers which the other one does not have are not compared: {names}"


_NAMED = 5  # weights in a sentence


@dataclass
class _Matcher:
    """The state of `match_weights`; see there."""

    reference: dict[str, TensorNumbers]
    actual: dict[str, TensorNumbers]
    folded: Mapping[str, FoldedWeight]
    parts: dict[str, list[WeightPart]] = field(default_factory=dict)
    others: dict[str, tuple[str, ...]] = field(default_factory=dict)
    used: set[str] = field(default_factory=set)
    exact: dict[str, torch.Tensor] = field(default_factory=dict)

    @cached_property
    def _index(self) -> TensorIndex:
        return TensorIndex(self.reference, _EXACT)

    def match_whole(self) -> None:
        """Match weights that have the same numbers; of several equal ones, the first with the first."""
        taken: dict[tuple[str, ...], Iterator[str]] = {}
        for name, numbers in self.actual.items():
            found = {}
            for candidate in self._index.equal_sized(numbers):
                if (layout := solve(numbers, self.reference[candidate], _EXACT)) is not None:
                    found[candidate] = layout
            if found:
                same = [item for item in found if found[item].is_contiguous]
                group = tuple(same or found)
                chosen = next(taken.setdefault(group, itertools.cycle(group)))
                arrangement: Arrangement = "same" if same else "moved"
                self.parts[name] = [WeightPart(chosen, found[chosen], arrangement)]
                self.others[name] = tuple(item for item in found if item != chosen)
                self.used.update(found)

    def match_parts(self) -> None:
        """Match weights that were split or joined."""
        left = {name: numbers for name, numbers in self.actual.items() if name not in self.parts}
        for name, numbers in left.items():
            for holder in (*self._vectors(self.reference, numbers), *self._index.holders(numbers)):
                layout = solve(numbers, self.reference[holder], _EXACT)
                if layout is not None:
                    self.parts[name] = [WeightPart(holder, layout, "part")]
                    self.used.add(holder)
                    break
        joined = {name: numbers for name, numbers in left.items() if name not in self.parts}
        index = TensorIndex(joined, _EXACT)
        for name, numbers in self.reference.items() if joined else ():
            if name in self.used and numbers.tensor.dim() > 1:
                continue
            for holder in index.holders(numbers) if numbers.tensor.dim() > 1 else self._vectors(joined, numbers):
                layout = solve(numbers, joined[holder], _EXACT)
                if layout is not None:
                    self.parts.setdefault(holder, []).append(WeightPart(name, layout, "holds"))
                    self.used.add(name)
        for name in joined:
            if name in self.parts:
                self.parts[name] = _disjoint(self.parts[name])

    def _vectors(self, among: Mapping[str, TensorNumbers], vector: TensorNumbers) -> list[str]:
        """Return the vectors that are longer than a vector."""
        count = vector.tensor.numel()
        longer = (name for name, item in among.items() if item.tensor.dim() == 1 and item.tensor.numel() > count)
        return [*longer] if vector.tensor.dim() == 1 and vector.bounds[0] < vector.bounds[1] else []

    def match_folded(self) -> None:
        """Match weights whose rows or columns were multiplied by factors."""
        left = [name for name in self.actual if name not in self.parts and self.actual[name].tensor.dim() > 1]
        matrices = [name for name, item in self.reference.items() if item.tensor.dim() > 1]
        free = [*sorted(matrices, key=self.used.__contains__), *self._products]
        for reference_axis, axis, name in itertools.product((0, 1), (0, 1), left):
            shape = self.actual[name].tensor.shape
            for first in range(len(shape) if len(shape) > 2 and axis else 1):  # of factors by head, say
                if name not in self.parts:
                    self._match_scaled(name, first, axis, free, reference_axis)

    def _match_scaled(self, name: str, first: int, axis: int, among: Sequence[str], reference_axis: int) -> None:
        """Match a weight of B, as a matrix with one of its dimensions as rows, whose fibers have factors."""
        weight = _matrix(self.actual[name], first)
        if weight.shape[axis] == 1:  # a factor for each number would make anything of anything
            return
        for candidate in self._scaled(TensorNumbers(weight), axis, among, reference_axis):
            reference = _matrix(self._reference_matrix(candidate))
            layout = solve(_normalized(weight, axis), _normalized(reference, reference_axis), _FOLDED)
            if layout is None:
                continue
            numbers = layout.select(reference).reshape(weight.shape).double()
            factor, factors = self._factor(weight, numbers, axis)
            moved = self.actual[name].tensor.movedim(first, 0).shape
            exact, numbers = (
                item.reshape(moved).movedim(0, first) for item in (numbers * factors.unsqueeze(axis), numbers)
            )
            natural = solve(TensorNumbers(numbers), TensorNumbers(reference.double()), _EXACT) if first else layout
            if natural is None:
                continue
            whole: Arrangement = "same" if natural.is_contiguous else "moved"
            arrangement = whole if weight.numel() == reference.numel() else "part"
            self.parts[name] = [WeightPart(candidate, natural, arrangement, factor)]
            self.exact[name] = exact.contiguous()
            self.used.update((candidate, *(self.folded[candidate].sources if candidate in self._products else ())))
            return

    @cached_property
    def _products(self) -> Mapping[str, TensorNumbers]:
        """The weights of A that are computed from several matrices."""
        return {name: TensorNumbers(item.tensor) for name, item in self.folded.items() if item.tensor.dim() > 1}

    def _reference_matrix(self, name: str) -> TensorNumbers:
        return self._products[name] if name in self._products else self.reference[name]

    def _scaled(self, weight: TensorNumbers, axis: int, among: Sequence[str], reference_axis: int) -> list[str]:
        """Return the weights of A that have some fibers of a matrix of B, apart from a factor for each of them."""
        ratios = _ratios(weight, axis)
        probes = ratios[sorted({0, len(ratios) // 2, len(ratios) - 1})]
        found = []
        for name in among:
            numbers = self._reference_matrix(name)
            if _matrix(numbers).shape[reference_axis] == weight.tensor.shape[axis]:
                distances = (_ratios(numbers, reference_axis) - probes[:, None]).abs().amax(-1)
                if bool((distances.amin(-1) <= _FOLDED).all()):
                    found.append(name)
        return found

    def match_joined_and_folded(self) -> None:
        """Match joined weights whose columns or rows were multiplied by a vector, such as the gain of a norm."""
        free = {name: item for name, item in self.reference.items() if item.tensor.dim() == 2 and name not in self.used}
        left = [name for name in self.actual if name not in self.parts and self.actual[name].tensor.dim() == 2]
        index = TensorIndex(free, _FOLDED)
        for name, axis in itertools.product(left, (1, 0)):
            weight = self.actual[name].tensor.double().movedim(axis, -1)
            for vector_name, text, vector in self._factors(weight.shape[-1]) if name not in self.parts else ():
                if not index.holders(TensorNumbers(weight[:1] / vector)):
                    continue
                unit = TensorNumbers((weight / vector).movedim(-1, axis))
                whole = TensorIndex({name: unit}, _FOLDED)
                parts = [
                    WeightPart(source, layout, "holds", f"times {text}, along dimension {axis}")
                    for source, numbers in free.items()
                    if whole.holders(numbers) and (layout := solve(numbers, unit, _FOLDED)) is not None
                ]
                if parts:
                    self.parts[name] = _disjoint(parts)
                    for part in self.parts[name]:
                        part.layout.select(unit.tensor).copy_(free[part.weight].tensor.reshape(part.layout.sizes))
                    self.exact[name] = (unit.tensor.movedim(axis, -1) * vector).movedim(-1, axis)
                    self.used.update((vector_name, *(part.weight for part in parts)))
                    break

    def _factors(self, count: int) -> Iterator[tuple[str, str, torch.Tensor]]:
        """Yield the vectors of a length by which weights may have been multiplied: name, what to call it, float64."""
        for name, vector in ((name, item.tensor.double()) for name, item in self.reference.items()):
            if vector.shape == (count,):
                yield name, name, vector
                yield name, f"1 + {name}", 1 + vector

    def match_shifted(self) -> None:
        """Match vectors that are folded, or differ by a factor and a summand."""
        folded = {name: item for name, item in self.folded.items() if item.tensor.dim() == 1}
        for name, numbers in self.actual.items():
            for candidate, item in folded.items() if name not in self.parts else ():
                vector = item.tensor
                if vector.numel() == numbers.tensor.numel() and self._are_equal(numbers.tensor.reshape(-1), vector):
                    layout = Layout.of(0, [(vector.numel(), 1)])
                    self.parts[name] = [WeightPart(candidate, layout, "same")]
                    self.exact[name] = vector.reshape(numbers.tensor.shape)
                    self.used.update((candidate, *item.sources))
                    break
        vectors = {name: item.tensor for name, item in self.reference.items() if item.tensor.dim() == 1}
        free = {name: item for name, item in vectors.items() if name not in self.used}
        for name, vector in ((name, item.tensor) for name, item in self.actual.items()):
            if name in self.parts or vector.dim() != 1 or vector.numel() < 4:
                continue
            for candidate, reference in free.items():
                is_free = reference.shape == vector.shape and candidate not in self.used
                found = _affine(vector, reference) if is_free else None
                if found is not None:
                    layout = Layout.of(0, [(vector.numel(), 1)])
                    self.parts[name] = [WeightPart(candidate, layout, "same", found[0])]
                    self.exact[name] = found[1]
                    self.used.add(candidate)
                    break

    def match_rows(self) -> None:
        """Match matrices of which one has the rows of the other one in no regular order, as of partly rotated heads."""
        matrices = {name: item.tensor for name, item in self.reference.items() if item.tensor.dim() == 2}
        for name, weight in ((name, item.tensor) for name, item in self.actual.items() if item.tensor.dim() == 2):
            if self._is_complete(name):
                continue
            for candidate, reference in matrices.items():
                if reference.shape[1] != weight.shape[1] or candidate in self.used:
                    continue
                inner, outer = (weight, reference) if len(weight) <= len(reference) else (reference, weight)
                rows = _rows_in(inner, outer)
                layout = None if rows is None else _layout_of_rows(rows, reference.shape[1])
                if rows is not None and layout is not None:
                    arrangement: Arrangement = "part" if inner is weight else "holds"
                    part = WeightPart(candidate, layout, arrangement, order=tuple((rows - rows.min()).tolist()))
                    self.parts[name] = [*(self.parts.get(name, ()) if arrangement == "holds" else ()), part]
                    self.used.add(candidate)

    def match_constant(self) -> None:
        """Match what is left of weights, if it is one number throughout, such as joined biases of 0.

        Nothing tells weights of one number apart; those that have not been found come first.
        """
        constant: dict[float, list[str]] = {}
        for name, item in self.reference.items():
            if item.tensor.numel() > 1 and item.bounds[0] == item.bounds[1] == float(item.tensor.reshape(-1)[0]):
                constant.setdefault(item.bounds[0], []).append(name)
        for name, numbers in self.actual.items() if constant else ():
            flat = numbers.tensor.reshape(-1)
            places = _unaccounted(numbers.tensor, self.parts.get(name, ())).nonzero()[:, 0]
            if not len(places) or bool((flat[places] != flat[places[0]]).any()):
                continue
            names, start = sorted(constant.get(float(flat[places[0]]), ()), key=self.used.__contains__), int(places[0])
            sizes = [*itertools.accumulate(self.reference[item].tensor.numel() for item in names)]
            if len(places) in sizes:
                chosen = names[: sizes.index(len(places)) + 1]
                is_joined = len(places) == int(places[-1]) - start + 1
                self._join(name, chosen, start if is_joined else None)

    def _join(self, name: str, sources: Sequence[str], start: int | None) -> None:
        """Add weights of one number each as parts of one of B, one after the other; None if they are in pieces."""
        self.used.update(sources)
        for source in sources if start is not None else ():
            count = self.reference[source].tensor.numel()
            whole = count == self.actual[name].tensor.numel()
            part = WeightPart(source, Layout.of(start or 0, [(count, 1)]), "same" if whole else "holds")
            self.parts.setdefault(name, []).append(part)
            start = (start or 0) + count

    def _is_complete(self, name: str) -> bool:
        parts = self.parts.get(name, [])
        return bool(parts) and (parts[0].arrangement != "holds" or _is_made_of(self.actual[name].tensor, parts))

    def _factor(self, weight: torch.Tensor, reference: torch.Tensor, axis: int) -> tuple[str, torch.Tensor]:
        """Say what each fiber of a weight was multiplied with, and return the factors."""
        dims = tuple(dim for dim in range(weight.dim()) if dim == axis)
        power = reference.double().square().sum(dims)
        factors = (weight.double() * reference.double()).sum(dims) / power.clamp_min(1e-300)
        if float(factors.max() - factors.min()) <= _FOLDED * float(factors.abs().max()):
            return f"times {float(factors.mean()):.6g}", factors.mean().expand(len(factors))
        for candidate, item in self.folded.items():
            if item.tensor.shape == factors.shape and self._are_equal(factors, item.tensor):
                self.used.update(item.sources)
                return f"times {candidate}, along dimension {1 - axis}", item.tensor
        for name, text, vector in self._factors(len(factors)):
            if self._are_equal(factors, vector):
                self.used.add(name)
                return f"times {text}, along dimension {1 - axis}", vector
        return f"{_UNKNOWN} {1 - axis}", factors

    def _are_equal(self, vector: torch.Tensor, folded: torch.Tensor) -> bool:
        """Whether a vector is a folded one, up to the rounding of its weights."""
        return TensorNumbers(folded).closeness(10 * _FOLDED).holds(vector.double(), folded)

    def result(self) -> WeightMap:
        """Return the matches."""
        matches = []
        for name, tensor in ((name, item.tensor) for name, item in self.actual.items()):
            parts = sorted(self.parts.get(name, ()), key=lambda part: part.layout.offset)
            match = WeightMatch(name, tuple(tensor.shape), tuple(parts), self.others.get(name, ()))
            matches.append(replace(match, complete=self._is_complete(name)))
        unused = tuple(name for name in self.reference if name not in self.used)
        return WeightMap(tuple(matches), unused, exact=self.exact)


def _disjoint(parts: Sequence[WeightPart]) -> list[WeightPart]:
    """Return the parts of a joined weight, without those that have the numbers of an earlier part."""
    chosen: list[WeightPart] = []
    for part in sorted(parts, key=lambda item: -item.layout.numel):
        if all(part.layout != larger.layout for larger in chosen):
            chosen.append(part)
    return chosen


def _is_made_of(tensor: torch.Tensor, parts: Sequence[WeightPart]) -> bool:
    """Whether all numbers of a weight are in its parts, but for zeros, as of layers without bias that were joined."""
    return bool((tensor.reshape(-1)[_unaccounted(tensor, parts)] == 0).all())


def _unaccounted(tensor: torch.Tensor, parts: Sequence[WeightPart]) -> torch.Tensor:
    """Return which numbers of a weight are in none of its parts, as a vector of booleans."""
    left = torch.ones(tensor.numel(), dtype=torch.bool)
    for part in parts:
        (part.layout.select(left) if part.arrangement == "holds" else left).fill_(value=False)
    return left


def _rows_in(inner: torch.Tensor, outer: torch.Tensor) -> torch.Tensor | None:
    """Return the places of the rows of a matrix in another one, int64; None if some are not there."""
    weights = torch.linspace(1, 2, inner.shape[1], dtype=torch.float64)
    keys, order = (outer.double() @ weights).sort()
    rows = order[
        torch.searchsorted(keys, inner.double() @ weights - _EXACT * keys.abs().max()).clamp_max(len(keys) - 1)
    ]
    is_found = len(set(rows.tolist())) == len(rows) and torch.equal(outer[rows], inner)
    return rows if is_found else None


def _layout_of_rows(rows: torch.Tensor, width: int) -> Layout | None:
    """Return the layout of rows in ascending order; None if they are not evenly spaced."""
    ordered = rows.sort().values
    gaps = (ordered.diff() != 1).nonzero()[:, 0]
    length = int(gaps[0]) + 1 if len(gaps) else len(ordered)
    if len(ordered) % length:
        return None
    starts = ordered[::length]
    step = int(starts[1] - starts[0]) if len(starts) > 1 else length
    layout = Layout.of(int(starts[0]) * width, [(len(starts), step * width), (length * width, 1)])
    expected = starts[0] + torch.arange(len(starts))[:, None] * step + torch.arange(length)
    return layout if torch.equal(expected.reshape(-1), ordered) else None


def _matrix(numbers: TensorNumbers, first: int = 0) -> torch.Tensor:
    """Return a tensor as a matrix with one of its dimensions as rows."""
    moved = numbers.tensor.movedim(first, 0)
    return moved.reshape(len(moved), -1)


def _ratios(numbers: TensorNumbers, axis: int) -> torch.Tensor:
    """Return statistics of the fibers of a matrix along a dimension that do not depend on a factor, as [*, 2]."""
    statistics = numbers.fibers(tuple(_matrix(numbers).shape), axis, _EXACT).statistics.abs()
    if statistics.shape[-1] == 1:
        return torch.ones(len(statistics), 2, dtype=torch.float64)
    return statistics[:, [0, 2]] / statistics[:, 1:2].clamp_min(1e-300)


def _normalized(matrix: torch.Tensor, axis: int) -> TensorNumbers:
    """Return a matrix whose fibers along a dimension have the root mean square 1 and a positive sum."""
    numbers = matrix.double()
    sign = numbers.sum(axis, keepdim=True).sign()
    return TensorNumbers(numbers * sign / numbers.square().mean(axis, keepdim=True).sqrt().clamp_min(1e-300))


def _affine(vector: torch.Tensor, reference: torch.Tensor) -> tuple[str, torch.Tensor] | None:
    """Say how a vector is computed from another one by a factor and a summand, and return the result of that."""
    first, second = reference.double(), vector.double()
    centered = first - first.mean()
    power = float(centered.square().sum())
    if power == 0:
        return None
    factor = float((centered * second).sum()) / power
    summand = float(second.mean() - factor * first.mean())
    scale = TensorNumbers(second).scale
    closeness = Closeness(_FOLDED, max(scale, abs(summand)))
    if not factor or not closeness.holds(first * factor + summand, second):
        return None
    factor, summand = _without_rounding(factor, 1.0), _without_rounding(summand, scale)
    times = "" if factor == 1 else f"times {factor:.6g}"
    text = ", ".join(filter(None, (times, f"plus {summand:.6g}" if summand else "")))
    return (text, first * factor + summand) if text else None


def _without_rounding(number: float, scale: float) -> float:
    """Return a short decimal number if that is equal but for rounding."""
    short = float(f"{number:.6g}") if abs(number) >= _FOLDED * scale else 0.0
    return short if abs(number - short) < _FOLDED * scale else number
