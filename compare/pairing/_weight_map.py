"""Find which weights of two implementations are the same numbers, and how they are arranged."""

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from types import MappingProxyType
from typing import Literal

import torch

from ..layouts._closeness import Closeness
from ..layouts._layout import Layout
from ..layouts._numbers import TensorNumbers
from ..layouts._solve import TensorIndex, fibers_of, solve
from ..rendering._words import listed
from ..runs._execution import Tensors
from ._folded import FoldedWeight

_EXACT = 1e-9  # conversions move and cast numbers; they do not compute
_FOLDED = 2e-6  # of a product in float32
_SHOWN = 12  # rows in a sentence
_UNKNOWN = "times a factor for each index of dimension"
Arrangement = Literal["same", "moved", "part", "holds"]


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
        return f"rows in the order {listed(self.order, _SHOWN, ', …')}" if self.order else ""


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
    """Find which weights of B are made of which weights of A.

    A weight of B may be transposed, split, joined with others, or its rows and columns interleaved; of those that are
    left, each row or column may be multiplied by a factor. Tensors of integers are left out.

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
    matcher.match_joined()
    matcher.match_folded()
    matcher.match_joined_and_folded()
    matcher.match_folded_vectors()
    matcher.match_shifted()
    matcher.match_rows()
    matcher.match_constant()
    return matcher.result()


def _real(tensors: Tensors) -> dict[str, torch.Tensor]:
    """Return the tensors of floating-point numbers, complex ones as pairs, without empty ones."""
    real = {name: torch.view_as_real(item) if item.is_complex() else item for name, item in tensors.items()}
    return {name: item.detach() for name, item in real.items() if item.is_floating_point() and item.numel()}


@dataclass
class _Matcher:
    """Matches weights in one way after the other; see `match_weights`.

    Attributes:
        reference: the weights of A by name.
        actual: the weights of B by name.
        folded: see `match_weights`.
        parts: what each weight of B that was matched is made of, by its name.
        others: further weights of A with the same numbers; see `WeightMatch`.
        used: the weights of A whose numbers are in B.
        exact: see `WeightMap`.
    """

    reference: dict[str, TensorNumbers]
    actual: dict[str, TensorNumbers]
    folded: Mapping[str, FoldedWeight]
    parts: dict[str, list[WeightPart]] = field(default_factory=dict)
    others: dict[str, tuple[str, ...]] = field(default_factory=dict)
    used: set[str] = field(default_factory=set)
    exact: dict[str, torch.Tensor] = field(default_factory=dict)

    @cached_property
    def _index(self) -> TensorIndex:
        """Finds the weights of A by their numbers."""
        return TensorIndex(self.reference, _EXACT)

    def _unmatched(self) -> dict[str, TensorNumbers]:
        """Return the weights of B that have not been matched yet, by name."""
        return {name: numbers for name, numbers in self.actual.items() if name not in self.parts}

    def match_whole(self) -> None:
        """Match weights that have the same numbers; of several equal ones, the first with the first."""
        turns: dict[tuple[str, ...], Iterator[str]] = {}  # of the weights of A that are equal
        for name, numbers in self.actual.items():
            candidates = self._index.equal_sized(numbers)
            layouts = {item: solve(numbers, self.reference[item], _EXACT) for item in candidates}
            found = {item: layout for item, layout in layouts.items() if layout is not None}
            if found:
                same = [item for item, layout in found.items() if layout.is_contiguous]
                equal = tuple(same or found)
                chosen = next(turns.setdefault(equal, itertools.cycle(equal)))
                self.parts[name] = [WeightPart(chosen, found[chosen], "same" if same else "moved")]
                self.others[name] = tuple(item for item in found if item != chosen)
                self.used.update(found)

    def match_parts(self) -> None:
        """Match weights that are a part of one of A, which was split."""
        for name, numbers in self._unmatched().items():
            for holder in (*_longer_vectors(self.reference, numbers), *self._index.holders(numbers)):
                if (layout := solve(numbers, self.reference[holder], _EXACT)) is not None:
                    self.parts[name] = [WeightPart(holder, layout, "part")]
                    self.used.add(holder)
                    break

    def match_joined(self) -> None:
        """Match weights in which several of A were joined."""
        joined = self._unmatched()
        index = TensorIndex(joined, _EXACT)
        for name, numbers in self.reference.items() if joined else ():
            is_matrix = numbers.tensor.dim() > 1
            if is_matrix and name in self.used:
                continue
            for holder in index.holders(numbers) if is_matrix else _longer_vectors(joined, numbers):
                if (layout := solve(numbers, joined[holder], _EXACT)) is not None:
                    self.parts.setdefault(holder, []).append(WeightPart(name, layout, "holds"))
                    self.used.add(name)
        for name in joined.keys() & self.parts.keys():
            self.parts[name] = _disjoint(self.parts[name])

    def match_folded(self) -> None:
        """Match weights whose rows or columns were multiplied by factors."""
        left = [name for name, item in self._unmatched().items() if item.tensor.dim() > 1]
        matrices = [name for name, item in self.reference.items() if item.tensor.dim() > 1]
        candidates = [*sorted(matrices, key=self.used.__contains__), *self._products]  # those that are not used first
        for reference_axis, axis, name in itertools.product((0, 1), (0, 1), left):
            dims = self.actual[name].tensor.dim()
            for row_dim in range(dims if dims > 2 and axis else 1):  # of factors by head, say
                if name not in self.parts:
                    self._match_scaled(name, row_dim, axis, candidates, reference_axis)

    def _match_scaled(self, name: str, row_dim: int, axis: int, candidates: Sequence[str], reference_axis: int) -> None:
        """Match a weight of B, as a matrix, with one of A whose fibers (rows or columns) have a factor each.

        Args:
            name: the weight of B.
            row_dim: its dimension whose indices are the rows of the matrix; all others make up the columns.
            axis: the dimension of the matrix along which its fibers lie.
            candidates: weights of A.
            reference_axis: the dimension along which their fibers lie.
        """
        weight = _matrix(self.actual[name], row_dim)
        if weight.shape[axis] == 1:  # a factor for each number would make anything of anything
            return
        for candidate in self._scaled(TensorNumbers(weight), axis, candidates, reference_axis):
            reference = _matrix(self._reference_matrix(candidate))
            layout = solve(_normalized(weight, axis), _normalized(reference, reference_axis), _FOLDED)
            if layout is None:
                continue
            unscaled = layout.select(reference).reshape(weight.shape).double()
            text, factors = self._factor(weight, unscaled, axis)
            moved = self.actual[name].tensor.movedim(row_dim, 0).shape
            exact = (unscaled * factors.unsqueeze(axis)).reshape(moved).movedim(0, row_dim)
            if row_dim:  # the layout was that of a matrix with other rows
                unscaled = unscaled.reshape(moved).movedim(0, row_dim)
                layout = solve(TensorNumbers(unscaled), TensorNumbers(reference.double()), _EXACT)
            if layout is None:
                continue
            whole: Arrangement = "same" if layout.is_contiguous else "moved"
            arrangement = whole if weight.numel() == reference.numel() else "part"
            self.parts[name] = [WeightPart(candidate, layout, arrangement, text)]
            self.exact[name] = exact.contiguous()
            self.used.update((candidate, *(self.folded[candidate].sources if candidate in self._products else ())))
            return

    @cached_property
    def _products(self) -> Mapping[str, TensorNumbers]:
        """The weights of A that are computed from several matrices."""
        return {name: TensorNumbers(item.tensor) for name, item in self.folded.items() if item.tensor.dim() > 1}

    def _reference_matrix(self, name: str) -> TensorNumbers:
        """Return a weight of A, or what is computed from several."""
        return self._products[name] if name in self._products else self.reference[name]

    def _scaled(self, weight: TensorNumbers, axis: int, candidates: Sequence[str], reference_axis: int) -> list[str]:
        """Return the weights of A that have some fibers of a matrix of B, apart from a factor for each of them."""
        ratios = _ratios(weight, axis)
        probes = ratios[sorted({0, len(ratios) // 2, len(ratios) - 1})]
        found = []
        for name in candidates:
            numbers = self._reference_matrix(name)
            if _matrix(numbers).shape[reference_axis] == weight.tensor.shape[axis]:
                distances = (_ratios(numbers, reference_axis) - probes[:, None]).abs().amax(-1)
                if bool((distances.amin(-1) <= _FOLDED).all()):
                    found.append(name)
        return found

    def match_joined_and_folded(self) -> None:
        """Match joined weights whose columns or rows were multiplied by a vector, such as the gain of a norm."""
        free = {name: item for name, item in self.reference.items() if item.tensor.dim() == 2 and name not in self.used}
        left = [name for name, item in self._unmatched().items() if item.tensor.dim() == 2]
        index = TensorIndex(free, _FOLDED)
        for name, axis in itertools.product(left, (1, 0)):
            if name not in self.parts:
                self._match_joined_times_vector(name, axis, free, index)

    def _match_joined_times_vector(
        self, name: str, axis: int, free: Mapping[str, TensorNumbers], index: TensorIndex
    ) -> None:
        """Match a joined weight of B that was multiplied by a vector of A.

        Args:
            name: the weight of B.
            axis: its dimension along which the vector lies.
            free: the weights of A that may have been joined.
            index: finds these by their numbers.
        """
        weight = self.actual[name].tensor.double().movedim(axis, -1)
        for vector_name, text, vector in self._factors(weight.shape[-1]):
            if not index.holders(TensorNumbers(weight[:1] / vector)):
                continue
            unscaled = TensorNumbers((weight / vector).movedim(-1, axis))
            unscaled_index = TensorIndex({name: unscaled}, _FOLDED)
            parts = [
                WeightPart(source, layout, "holds", f"times {text}, along dimension {axis}")
                for source, numbers in free.items()
                if unscaled_index.holders(numbers) and (layout := solve(numbers, unscaled, _FOLDED)) is not None
            ]
            if parts:
                self.used.update((vector_name, *(part.weight for part in parts)))
                self.parts[name] = _disjoint(parts)
                for part in self.parts[name]:
                    part.layout.select(unscaled.tensor).copy_(free[part.weight].tensor.reshape(part.layout.sizes))
                self.exact[name] = (unscaled.tensor.movedim(axis, -1) * vector).movedim(-1, axis)
                return

    def _factors(self, count: int) -> Iterator[tuple[str, str, torch.Tensor]]:
        """Yield the vectors of a length by which weights may have been multiplied: name, what to call it, float64."""
        for name, vector in ((name, item.tensor.double()) for name, item in self.reference.items()):
            if vector.shape == (count,):
                yield name, name, vector
                yield name, f"1 + {name}", 1 + vector

    def match_folded_vectors(self) -> None:
        """Match vectors that are computed from weights of A."""
        folded = {name: item for name, item in self.folded.items() if item.tensor.dim() == 1}
        for name, numbers in self._unmatched().items():
            for candidate, item in folded.items():
                vector, flat = item.tensor, numbers.tensor.reshape(-1)
                if vector.numel() == flat.numel() and _are_equal(flat, vector):
                    self._add_vector(name, candidate, vector)
                    self.used.update(item.sources)
                    break

    def match_shifted(self) -> None:
        """Match vectors that differ by a factor and a summand."""
        vectors = {name: item.tensor for name, item in self.reference.items() if item.tensor.dim() == 1}
        for name, vector in ((name, item.tensor) for name, item in self._unmatched().items()):
            if vector.dim() != 1 or vector.numel() < 4:  # two numbers always fit
                continue
            for candidate, reference in vectors.items():
                is_free = reference.shape == vector.shape and candidate not in self.used
                found = _affine(vector, reference) if is_free else None
                if found is not None:
                    text, exact = found
                    self._add_vector(name, candidate, exact, text)
                    break

    def _add_vector(self, name: str, source: str, exact: torch.Tensor, factor: str = "") -> None:
        """Match a vector of B with one of A in the same order; `exact` are the numbers without rounding."""
        self.parts[name] = [WeightPart(source, Layout.contiguous(exact.numel()), "same", factor)]
        self.exact[name] = exact.reshape(self.actual[name].tensor.shape)
        self.used.add(source)

    def match_rows(self) -> None:
        """Match matrices of which one has the rows of the other one in no regular order, as of partly rotated heads."""
        matrices = {name: item.tensor for name, item in self.reference.items() if item.tensor.dim() == 2}
        for name, weight in ((name, item.tensor) for name, item in self.actual.items() if item.tensor.dim() == 2):
            if self._is_complete(name):
                continue
            for candidate, reference in matrices.items():
                if reference.shape[1] != weight.shape[1] or candidate in self.used:
                    continue
                is_part = len(weight) <= len(reference)
                rows = _rows_in(weight, reference) if is_part else _rows_in(reference, weight)
                layout = None if rows is None else _layout_of_rows(rows, reference.shape[1])
                if rows is not None and layout is not None:
                    order = tuple((rows - rows.min()).tolist())
                    part = WeightPart(candidate, layout, "part" if is_part else "holds", order=order)
                    self.parts[name] = [part] if is_part else [*self.parts.get(name, ()), part]
                    self.used.add(candidate)

    def match_constant(self) -> None:
        """Match what is left of weights, if it is one number throughout, such as joined biases of 0.

        Nothing tells weights of one number apart; those that have not been found come first.
        """
        constant: dict[float, list[str]] = {}  # the weights of A that have one number throughout
        for name, item in self.reference.items():
            if item.tensor.numel() > 1 and item.bounds[0] == item.bounds[1] == float(item.tensor.reshape(-1)[0]):
                constant.setdefault(item.bounds[0], []).append(name)
        for name, numbers in self.actual.items() if constant else ():
            places = _unaccounted(numbers.tensor, self.parts.get(name, ())).nonzero()[:, 0]
            left = numbers.tensor.reshape(-1)[places]
            if not len(left) or bool((left != left[0]).any()):
                continue
            names = sorted(constant.get(float(left[0]), ()), key=self.used.__contains__)
            sizes = [*itertools.accumulate(self.reference[item].tensor.numel() for item in names)]
            if len(left) in sizes:
                sources = names[: sizes.index(len(left)) + 1]
                self.used.update(sources)
                start = int(places[0])
                if int(places[-1]) - start + 1 == len(left):  # else between other parts, in pieces
                    self._join(name, sources, start)

    def _join(self, name: str, sources: Sequence[str], start: int) -> None:
        """Add weights of A as parts of one of B, one after the other from an element on."""
        for source in sources:
            count = self.reference[source].tensor.numel()
            whole = count == self.actual[name].tensor.numel()
            part = WeightPart(source, Layout.contiguous(count, start), "same" if whole else "holds")
            self.parts.setdefault(name, []).append(part)
            start += count

    def _is_complete(self, name: str) -> bool:
        """Whether all numbers of a weight of B are in its parts, but for zeros, as of joined layers without bias."""
        parts, weight = self.parts.get(name, []), self.actual[name].tensor
        if not parts or parts[0].arrangement != "holds":  # one part that is all of it
            return bool(parts)
        return bool((weight.reshape(-1)[_unaccounted(weight, parts)] == 0).all())

    def _factor(self, weight: torch.Tensor, reference: torch.Tensor, axis: int) -> tuple[str, torch.Tensor]:
        """Say what each fiber of a matrix was multiplied with, and return the factors.

        Args:
            weight: the matrix of B.
            reference: that of A, of the same shape.
            axis: the dimension along which the fibers lie.
        """
        power = reference.square().sum(axis)
        factors = (weight.double() * reference).sum(axis) / power.clamp_min(1e-300)
        if float(factors.max() - factors.min()) <= _FOLDED * float(factors.abs().max()):
            return f"times {float(factors.mean()):.6g}", factors.mean().expand(len(factors))
        for candidate, item in self.folded.items():
            if item.tensor.shape == factors.shape and _are_equal(factors, item.tensor):
                self.used.update(item.sources)
                return f"times {candidate}, along dimension {1 - axis}", item.tensor
        for name, text, vector in self._factors(len(factors)):
            if _are_equal(factors, vector):
                self.used.add(name)
                return f"times {text}, along dimension {1 - axis}", vector
        return f"{_UNKNOWN} {1 - axis}", factors

    def result(self) -> WeightMap:
        """Return the matches."""
        parts = {name: sorted(self.parts.get(name, ()), key=lambda part: part.layout.offset) for name in self.actual}
        matches = (
            WeightMatch(
                name, tuple(item.tensor.shape), (*parts[name],), self.others.get(name, ()), self._is_complete(name)
            )
            for name, item in self.actual.items()
        )
        unused = tuple(name for name in self.reference if name not in self.used)
        return WeightMap(tuple(matches), unused, exact=self.exact)


def _longer_vectors(weights: Mapping[str, TensorNumbers], vector: TensorNumbers) -> list[str]:
    """Return the vectors among weights that are longer than a vector; none for a matrix or for equal numbers."""
    if vector.tensor.dim() != 1 or vector.bounds[0] == vector.bounds[1]:
        return []
    vectors = {name: item.tensor for name, item in weights.items() if item.tensor.dim() == 1}
    return [name for name, item in vectors.items() if len(item) > len(vector.tensor)]


def _are_equal(vector: torch.Tensor, folded: torch.Tensor) -> bool:
    """Whether a vector is a folded one, up to the rounding of its weights."""
    return TensorNumbers(folded).closeness(10 * _FOLDED).holds(vector.double(), folded)


def _disjoint(parts: Sequence[WeightPart]) -> list[WeightPart]:
    """Return the parts of a joined weight, without those that have the numbers of an earlier part."""
    chosen: list[WeightPart] = []
    for part in sorted(parts, key=lambda item: -item.layout.numel):
        if all(part.layout != larger.layout for larger in chosen):
            chosen.append(part)
    return chosen


def _unaccounted(tensor: torch.Tensor, parts: Sequence[WeightPart]) -> torch.Tensor:
    """Return which numbers of a weight are in none of its parts, as a vector of booleans."""
    left = torch.ones(tensor.numel(), dtype=torch.bool)
    for part in parts:
        (part.layout.select(left) if part.arrangement == "holds" else left).fill_(value=False)
    return left


def _rows_in(inner: torch.Tensor, outer: torch.Tensor) -> torch.Tensor | None:
    """Return the index in a matrix of each row of another one, int64; None if one is not there or two are at one place.

    Rows are found by a weighted sum of their elements, and then compared.
    """
    weights = torch.linspace(1, 2, inner.shape[1], dtype=torch.float64)
    sums, order = (outer.double() @ weights).sort()
    least = inner.double() @ weights - _EXACT * sums.abs().max()
    rows = order[torch.searchsorted(sums, least).clamp_max(len(sums) - 1)]
    is_found = len(set(rows.tolist())) == len(rows) and torch.equal(outer[rows], inner)
    return rows if is_found else None


def _layout_of_rows(rows: torch.Tensor, width: int) -> Layout | None:
    """Return the layout of rows in ascending order: evenly spaced blocks of as many rows; None if they are others.

    Args:
        rows: the indices of the rows in a matrix, in any order.
        width: the number of columns of the matrix.
    """
    ordered = rows.sort().values
    gaps = (ordered.diff() != 1).nonzero()[:, 0]
    length = int(gaps[0]) + 1 if len(gaps) else len(ordered)
    if len(ordered) % length:
        return None
    starts = ordered[::length]
    step = int(starts[1] - starts[0]) if len(starts) > 1 else length
    blocks = Layout.of(int(starts[0]), [(len(starts), step), (length, 1)])
    if not torch.equal(blocks.places(torch.arange(len(ordered))), ordered):
        return None
    return Layout.of(int(starts[0]) * width, [(len(starts), step * width), (length * width, 1)])


def _matrix(numbers: TensorNumbers, row_dim: int = 0) -> torch.Tensor:
    """Return a tensor as a matrix: the indices of one of its dimensions are the rows, all others the columns."""
    moved = numbers.tensor.movedim(row_dim, 0)
    return moved.reshape(len(moved), -1)


def _ratios(numbers: TensorNumbers, axis: int) -> torch.Tensor:
    """Return statistics of the fibers of a matrix along a dimension that do not depend on a factor, as [*, 2]."""
    statistics = fibers_of(numbers, tuple(_matrix(numbers).shape), axis, _EXACT).statistics.abs()
    if statistics.shape[-1] == 1:
        return torch.ones(len(statistics), 2, dtype=torch.float64)
    return statistics[:, [0, 2]] / statistics[:, 1:2].clamp_min(1e-300)  # means by the root mean square


def _normalized(matrix: torch.Tensor, axis: int) -> TensorNumbers:
    """Return a matrix whose fibers along a dimension have the root mean square 1 and a positive sum."""
    numbers = matrix.double()
    sign = numbers.sum(axis, keepdim=True).sign()
    return TensorNumbers(numbers * sign / numbers.square().mean(axis, keepdim=True).sqrt().clamp_min(1e-300))


def _affine(vector: torch.Tensor, reference: torch.Tensor) -> tuple[str, torch.Tensor] | None:
    """Say how a vector is computed from another one by a factor and a summand, and return the result of that.

    Both are fitted by least squares; None if the result is not the vector up to rounding, if the factor is 0,
    or if they change nothing, up to rounding.
    """
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
