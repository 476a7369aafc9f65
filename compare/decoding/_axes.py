"""`Axes`: which axes of a value have the tokens of a step, and which have all tokens so far."""

import bisect
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import torch

Role = Literal["queries", "keys", "fixed", "joint"]
_ROUNDING = 1e-3  # a mean difference relative to the mean size, which rounding may cause


@dataclass(frozen=True)
class StepSpans:
    """The steps in which a program computes some sequences.

    Attributes:
        rows: the number of sequences.
        all: the first position of each step, and the one after its last.
        slots: the number of slots of a static cache; 0 for a dynamic one.
        in_rows: whether one call has the steps in its rows, all of a sequence one after the other (see
            `filch.export.stepwise_call`), and not in a row of tokens. Keys are then the last ones.
    """

    rows: int
    all: tuple[tuple[int, int], ...]
    slots: int = 0
    in_rows: bool = False

    @classmethod
    def of(cls, shape: Sequence[int], first: int, last: int, slots: int) -> "StepSpans":
        """Return the steps for tokens of a shape, [rows, length]: the `first`, then one each, then the `last`."""
        starts = [0, *range(first, shape[1] - last + 1)]
        return cls(shape[0], tuple(zip(starts, [*starts[1:], shape[1]], strict=True)), slots)

    @classmethod
    def in_rows_of(cls, rows: int, length: int) -> "StepSpans":
        """Return the steps of one token each that one call has in its rows."""
        return cls(rows, tuple((index, index + 1) for index in range(length)), in_rows=True)

    def keys_of(self, end: int, size: int) -> tuple[int, int]:
        """Return the first key of a step that ends at a position, among those of one call, and how many there are.

        Args:
            end: the position.
            size: the number of keys of one call: of all tokens, or in rows of the last ones that a window has.
        """
        count = min(end, size) if self.in_rows else end
        return size - count if self.in_rows else 0, count

    @property
    def length(self) -> int:
        """The number of tokens of each sequence."""
        return self.all[-1][1]

    def step_of(self, position: int) -> int:
        """Return the index of the step that computes a position."""
        return bisect.bisect_right(self.ends, position)

    @cached_property
    def counts(self) -> list[int]:
        """The number of tokens of each step."""
        return [end - start for start, end in self.all]

    @cached_property
    def ends(self) -> list[int]:
        """The position after the last one of each step."""
        return [end for _, end in self.all]


@dataclass(frozen=True)
class Axes:
    """The axes of a value that is computed in steps.

    Attributes:
        spans: the steps.
        roles: what each axis has: the tokens of a step, those up to its last one (or all slots), something else, or
            sequences, tokens of a step and something else in one.
        shape: the shape of the value in one call with all tokens.
    """

    spans: StepSpans
    roles: tuple[Role, ...]
    shape: tuple[int, ...]

    @classmethod
    def of(
        cls, spans: StepSpans, whole: torch.Tensor, parts: Sequence[torch.Tensor], *, is_fixed: bool = False
    ) -> "Axes | None":
        """Return the axes of a value; None if they are not known, or if it is another value in each step.

        Args:
            spans: the steps.
            whole: the value in one call with all tokens.
            parts: the value in each step.
            is_fixed: whether it has to be the same in each step, because it does not depend on the tokens.
        """
        if any(part.dim() != whole.dim() for part in parts):
            return None
        sizes = zip(whole.shape, *(part.shape for part in parts), strict=True)
        roles: list[Role | None] = [_role(spans, size, others) for size, *others in sizes]
        known: tuple[Role, ...] = tuple(role for role in roles if role is not None)
        if len(known) < len(roles):
            return None
        if spans.slots and "keys" in known:
            known = _with_one_key_axis(spans, known, whole, parts)
        if {*known} <= {"fixed"} and not is_fixed and not all(torch.equal(part, parts[-1]) for part in parts):
            # A number of the model, such as a slope, is in the first step what it is in one call; a size is not, except
            # that of an empty cache, which is 0.
            is_number = whole.is_floating_point() and whole.dtype == parts[0].dtype and bool(whole.any())
            if not is_number or spans.in_rows or not torch.allclose(parts[0], whole):
                return None
        counts_step = "queries" in known and whole.numel() == spans.length and not whole.is_floating_point()
        if counts_step and all(torch.equal(part.flatten(), whole.flatten()[: part.numel()]) for part in parts):
            return None  # the places of tokens in a step, which begin at 0 in each
        return cls(spans, known, tuple(whole.shape))

    @property
    def query_axis(self) -> int | None:
        """The axis of the tokens of a step in `split` values; None if there is none."""
        if "joint" in self.roles:
            return self.roles.index("joint") + 1
        return self.roles.index("queries") if "queries" in self.roles else None

    @property
    def key_axis(self) -> int | None:
        """The axis of the tokens up to the last one of a step in `split` values; None if there is none."""
        if "keys" not in self.roles:
            return None
        axis = self.roles.index("keys")
        return axis + 2 if "joint" in self.roles[:axis] else axis

    @property
    def uncomputed(self) -> torch.Tensor | None:
        """Which keys no step has for its queries, for values with the axis of queries in front; None without both."""
        query, key = self.query_axis, self.key_axis
        if query is None or key is None:
            return None
        split = self.split(torch.empty(self.shape, device="meta"))
        ends = torch.tensor([end for start, end in self.spans.all for _ in range(start, end)])[:, None]
        keys = torch.arange(split.shape[key])
        found = keys < len(keys) - ends if self.spans.in_rows else keys >= ends
        shape = [1] * split.dim()
        shape[0], shape[key if key > query else key + 1] = found.shape
        return found.reshape(shape)

    def split(self, value: torch.Tensor, step: int | None = None) -> torch.Tensor:
        """Return a value with an axis of its own for the tokens; of a step, or of one call."""
        if "joint" not in self.roles:
            return value
        axis, (start, end) = self.roles.index("joint"), (0, self.spans.length) if step is None else self.spans.all[step]
        return value.reshape(*value.shape[:axis], self.spans.rows, end - start, -1, *value.shape[axis + 1 :])

    def part(self, value: torch.Tensor, step: int) -> torch.Tensor:
        """Return what a step has of a value of one call."""
        start, end = self.spans.all[step]
        value = self.split(value)
        if self.query_axis is not None:
            value = value.narrow(self.query_axis, start, end - start)
        if self.key_axis is not None and not self.spans.slots:
            value = value.narrow(self.key_axis, *self.spans.keys_of(end, value.shape[self.key_axis]))
        if "joint" not in self.roles:
            return value
        axis = self.roles.index("joint")
        return value.flatten(axis, axis + 2)

    def joined(self, whole: torch.Tensor, parts: Sequence[torch.Tensor]) -> "JoinedSteps":
        """Return a value of one call with the numbers of each step in their places.

        Args:
            whole: has the numbers that no step computes.
            parts: the value in each step.
        """
        if self.query_axis is None and self.key_axis is None:
            steps = zip(self.spans.all, parts, strict=True)
            others = ((part, start) for (start, _), part in steps if not torch.equal(part, parts[0]))
            part, position = next(others, (parts[-1], 0))
            return JoinedSteps(part, [position])
        if self.query_axis is None:
            return self._farthest(whole, parts)
        if self.key_axis is None:
            split = [self.split(part, step) for step, part in enumerate(parts)]
            return JoinedSteps(torch.cat(split, self.query_axis).reshape(self.shape), [*range(self.spans.length)])
        result = self.split(whole.clone())
        for step, ((start, end), part) in enumerate(zip(self.spans.all, parts, strict=True)):
            place, own = result.narrow(self.query_axis, start, end - start), self.split(part, step)
            first, count = self.spans.keys_of(end, place.shape[self.key_axis])
            place.narrow(self.key_axis, first, count).copy_(own.narrow(self.key_axis, 0, count))
        return JoinedSteps(result.reshape(self.shape), [*range(self.spans.length)])

    def _farthest(self, whole: torch.Tensor, parts: Sequence[torch.Tensor]) -> "JoinedSteps":
        """Return the keys of all tokens; those that are not the same in all steps are the farthest from `whole`."""
        axis = self.roles.index("keys")
        spans = [self.spans.keys_of(end, whole.shape[axis]) for end in self.spans.ends]
        result = whole.clone()
        result.narrow(axis, *spans[-1]).copy_(parts[-1].narrow(axis, 0, spans[-1][1]))
        changed = False
        for span, part in zip(spans[:-1], parts[:-1], strict=True):
            if not changed and part.data_ptr() == parts[-1].data_ptr():  # a view of it; see `Parts`
                continue
            now, then, expected = result.narrow(axis, *span), part.narrow(axis, 0, span[1]), whole.narrow(axis, *span)
            if torch.equal(now, then):
                continue
            changed = True
            if not now.is_floating_point():
                now.copy_(torch.where(now == expected, then, now))
                continue
            is_farther = (then - expected).abs().nan_to_num(nan=torch.inf) > (now - expected).abs()
            now.copy_(torch.where(is_farther, then, now))
        positions = [*range(spans[-1][1])]
        if self.spans.in_rows:  # the last key is that of the first step
            positions = [len(positions) - 1 - key for key in positions]
        for key in range(len(positions) if changed else 0):
            steps = [
                (first, part.select(axis, key - start))
                for (first, _), (start, count), part in zip(self.spans.all, spans, parts, strict=True)
                if start <= key < start + count
            ]
            if not torch.equal(steps[0][1], result.select(axis, key)):  # it was changed later
                later = next(first for first, part in steps if not torch.equal(part, steps[0][1]))
                positions[key] = max(positions[key], later)
        return JoinedSteps(result, positions)


@dataclass(frozen=True)
class JoinedSteps:
    """A value of several steps, as of one call.

    Attributes:
        value: its numbers.
        positions: for each token along its axis of tokens, the position of the step from which its numbers are.
    """

    value: torch.Tensor
    positions: list[int]


def shape_in_one_call(spans: StepSpans, parts: Sequence[torch.Tensor]) -> tuple[int, ...] | None:
    """Return the shape of a value in one call by those in the steps; None if they do not tell it."""
    if spans.slots or spans.in_rows or len({part.dim() for part in parts}) > 1:
        return None
    sizes = [_size_in_one_call(spans, item) for item in zip(*(part.shape for part in parts), strict=True)]
    known = tuple(size for size in sizes if size is not None)
    return known if len(known) == len(sizes) else None


def _size_in_one_call(spans: StepSpans, parts: Sequence[int]) -> int | None:
    if parts.count(parts[0]) == len(parts):
        return parts[0]
    candidates = spans.length, spans.length * parts[-1] // spans.counts[-1]
    return next((size for size in candidates if _role(spans, size, parts) is not None), None)


def value_in_one_call(spans: StepSpans, parts: Sequence[torch.Tensor]) -> torch.Tensor | None:
    """Return a value of one call if the steps have all of its numbers, and the same ones; None if they have not.

    Args:
        spans: the steps.
        parts: the value in each step, which has a shape in one call; see `Parts`.
    """
    shape = shape_in_one_call(spans, parts)
    if shape is None:
        return None
    sizes = zip(shape, *(part.shape for part in parts), strict=True)
    axes = Axes(spans, tuple(_role(spans, size, others) or "fixed" for size, *others in sizes), shape)
    if axes.key_axis is None:
        return parts[-1] if axes.query_axis is None else axes.joined(parts[-1], parts).value
    is_same = axes.query_axis is None and all(part.data_ptr() == parts[-1].data_ptr() for part in parts)
    return parts[-1] if is_same else None


def _with_one_key_axis(
    spans: StepSpans, roles: tuple[Role, ...], whole: torch.Tensor, parts: Sequence[torch.Tensor]
) -> tuple[Role, ...]:
    """Return the roles with at most one axis of slots: other axes may have the same size, such as that of a head.

    Slots that a step has not written have other numbers than in one call, or masked ones. So it is the axis along which
    the numbers up to the end of each step are most like those of one call, if there are unlike ones behind in any step:
    a fault may make all of them unlike in some.
    """
    candidates = [axis for axis, role in enumerate(roles) if role == "keys"]

    def with_keys(axis: int | None) -> tuple[Role, ...]:
        return tuple("fixed" if role == "keys" and index != axis else role for index, role in enumerate(roles))

    def distances(axis: int | None) -> list[float]:
        axes, found = Axes(spans, with_keys(axis), tuple(whole.shape)), []
        for step, part in enumerate(parts[:-1]):
            expected, own, end = axes.part(whole, step), part, spans.all[step][1]
            if axis is not None:
                expected, own = (item.narrow(axis, 0, end) for item in (expected, own))
            difference = (expected.double() - own.double()).nan_to_num(nan=0.0).abs()
            found.append(float(difference.mean()) if difference.numel() else 0.0)
        return found

    best = min(candidates, key=lambda axis: sum(distances(axis)))
    size = float(whole.double().abs().nan_to_num(posinf=0.0).mean())
    pairs = zip(distances(None), distances(best), strict=True)
    is_fixed = all(fixed <= 2 * keys + _ROUNDING * size for fixed, keys in pairs)
    return with_keys(None if is_fixed else best)


def _role(spans: StepSpans, whole: int, parts: Sequence[int]) -> Role | None:
    if whole == spans.length and [*parts] == spans.counts:
        return "queries"
    if whole == spans.length and [*parts] == spans.ends:
        return "keys"
    if spans.in_rows and 1 < whole < spans.length and [*parts] == [min(end, whole) for end in spans.ends]:
        return "keys"
    if all(size == whole for size in parts):
        return "keys" if spans.slots and whole == spans.slots else "fixed"
    total = spans.rows * spans.length
    per_token = whole // total
    is_joint = whole == per_token * total and [*parts] == [per_token * spans.rows * count for count in spans.counts]
    return "joint" if is_joint else None
