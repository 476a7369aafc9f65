"""`Axes`: which axes of a value have the tokens of a decoding step, and which have all tokens so far.

A program with a cache computes sequences in steps, the first of which has several tokens (prefill) and the others one
or two (decode). What a step computes is a piece of what one call with all tokens computes, the `whole` value: along an
axis of queries, it has the tokens of the step, and along an axis of keys, all tokens up to the last one of the step.
The sizes of the axes in all steps tell which ones these are.
"""

import bisect
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import torch

# What an axis has: the tokens of a step; those up to the last one of a step, or all slots of a static cache; something
# that has the same size in each step; or sequences, the tokens of a step and something fixed, flattened to one axis.
Role = Literal["queries", "keys", "fixed", "joint"]
_ROUNDING = 1e-3  # a mean difference relative to the mean size, which rounding may cause


@dataclass(frozen=True)
class Steps:
    """The steps in which a program computes some sequences.

    Attributes:
        rows: the number of sequences.
        spans: the first position of each step, and the one after its last.
        slots: the number of slots of a static cache; 0 for a dynamic one.
        in_rows: whether one call has the steps in its rows, all of a sequence one after the other (see
            `filch.export.stepwise_call`), and not in a row of tokens. Keys are then the last ones.
    """

    rows: int
    spans: tuple[tuple[int, int], ...]
    slots: int = 0
    in_rows: bool = False

    @classmethod
    def of(cls, shape: Sequence[int], first: int, last: int, slots: int) -> "Steps":
        """Return the steps for tokens of a shape, [rows, length]: the `first`, then one each, then the `last`."""
        starts = [0, *range(first, shape[1] - last + 1)]
        return cls(shape[0], tuple(zip(starts, [*starts[1:], shape[1]], strict=True)), slots)

    @classmethod
    def in_rows_of(cls, rows: int, length: int) -> "Steps":
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
        return self.spans[-1][1]

    def step_of(self, position: int) -> int:
        """Return the index of the step that computes a position."""
        return bisect.bisect_right(self.ends, position)

    @cached_property
    def counts(self) -> list[int]:
        """The number of tokens of each step."""
        return [end - start for start, end in self.spans]

    @cached_property
    def ends(self) -> list[int]:
        """The position after the last one of each step."""
        return [end for _, end in self.spans]


@dataclass(frozen=True)
class Axes:
    """The axes of a value that is computed in steps.

    Attributes:
        steps: the steps.
        roles: what each axis has; see `Role`.
        shape: the shape of the value in one call with all tokens.
    """

    steps: Steps
    roles: tuple[Role, ...]
    shape: tuple[int, ...]

    @classmethod
    def of(
        cls, steps: Steps, whole: torch.Tensor, in_steps: Sequence[torch.Tensor], *, is_fixed: bool = False
    ) -> "Axes | None":
        """Return the axes of a value; None if they are not known, or if it is another value in each step.

        Args:
            steps: the steps.
            whole: the value in one call with all tokens.
            in_steps: the value in each step.
            is_fixed: whether it has to be the same in each step, because it does not depend on the tokens.
        """
        roles = _roles(steps, whole.shape, in_steps)
        if roles is None:
            return None
        if steps.slots and "keys" in roles:
            roles = _with_one_key_axis(steps, roles, whole, in_steps)
        if {*roles} <= {"fixed"} and not (is_fixed or _is_one_value(steps, whole, in_steps)):
            return None
        is_index = "queries" in roles and whole.numel() == steps.length and not whole.is_floating_point()
        if is_index and all(torch.equal(item.flatten(), whole.flatten()[: item.numel()]) for item in in_steps):
            return None  # the places of tokens in a step, which begin at 0 in each
        return cls(steps, roles, tuple(whole.shape))

    @property
    def query_axis(self) -> int | None:
        """The axis of the tokens of a step in `split` values; None if there is none."""
        if "joint" in self.roles:
            return self.roles.index("joint") + 1  # of the three axes that `split` makes of it, the second
        return self.roles.index("queries") if "queries" in self.roles else None

    @property
    def key_axis(self) -> int | None:
        """The axis of the tokens up to the last one of a step in `split` values; None if there is none."""
        if "keys" not in self.roles:
            return None
        axis = self.roles.index("keys")
        return axis + 2 if "joint" in self.roles[:axis] else axis  # a joint axis before it is three

    @property
    def token_axis(self) -> int | None:
        """The axis of queries in `split` values, else that of keys; None if there is neither."""
        return self.key_axis if self.query_axis is None else self.query_axis

    @property
    def uncomputed(self) -> torch.Tensor | None:
        """Which keys no step has for its queries, for values with the axis of queries in front; None without both."""
        query, key = self.query_axis, self.key_axis
        if query is None or key is None:
            return None
        split = self.split(torch.empty(self.shape, device="meta"))
        ends = torch.tensor(self.steps.ends).repeat_interleave(torch.tensor(self.steps.counts))[:, None]
        keys = torch.arange(split.shape[key])
        found = keys < len(keys) - ends if self.steps.in_rows else keys >= ends
        shape = [1] * split.dim()
        shape[0], shape[key if key > query else key + 1] = found.shape
        return found.reshape(shape)

    def split(self, value: torch.Tensor, step: int | None = None) -> torch.Tensor:
        """Return a value of a step, or of one call, with a joint axis as three: sequences, tokens and something else.

        Args:
            value: the value.
            step: the index of its step; None if it is of one call.
        """
        if "joint" not in self.roles:
            return value
        count = self.steps.length if step is None else self.steps.counts[step]
        axis = self.roles.index("joint")
        return value.reshape(*value.shape[:axis], self.steps.rows, count, -1, *value.shape[axis + 1 :])

    def piece(self, whole: torch.Tensor, step: int) -> torch.Tensor:
        """Return what a step has of a value of one call."""
        start, end = self.steps.spans[step]
        found = self.split(whole)
        if self.query_axis is not None:
            found = found.narrow(self.query_axis, start, end - start)
        if self.key_axis is not None and not self.steps.slots:  # in a static cache, each step has all slots
            found = found.narrow(self.key_axis, *self.steps.keys_of(end, found.shape[self.key_axis]))
        if "joint" not in self.roles:
            return found
        axis = self.roles.index("joint")
        return found.flatten(axis, axis + 2)

    def joined(self, whole: torch.Tensor, in_steps: Sequence[torch.Tensor]) -> "JoinedSteps":
        """Return a value of one call with the numbers of each step in their places.

        Args:
            whole: has the numbers that no step computes.
            in_steps: the value in each step.
        """
        if self.query_axis is not None:
            numbers = self._joined_queries(self.query_axis, whole, in_steps)
            return JoinedSteps(numbers.reshape(self.shape), [*range(self.steps.length)])
        if self.key_axis is not None:
            return self._joined_keys(self.key_axis, whole, in_steps)
        # It has no tokens: the first one that is not the same as before, else the last one.
        pairs = zip(self.steps.spans, in_steps, strict=True)
        others = ((item, start) for (start, _), item in pairs if not torch.equal(item, in_steps[0]))
        value, position = next(others, (in_steps[-1], 0))
        return JoinedSteps(value, [position])

    def _joined_queries(self, axis: int, whole: torch.Tensor, in_steps: Sequence[torch.Tensor]) -> torch.Tensor:
        """Return the queries of all steps, split; of a value with keys, such as scores, in their places of `whole`."""
        split = [self.split(item, step) for step, item in enumerate(in_steps)]
        if self.key_axis is None:
            return torch.cat(split, axis)
        result = self.split(whole.clone())
        for (start, end), item in zip(self.steps.spans, split, strict=True):
            queries = result.narrow(axis, start, end - start)
            first, count = self.steps.keys_of(end, queries.shape[self.key_axis])
            queries.narrow(self.key_axis, first, count).copy_(item.narrow(self.key_axis, 0, count))
        return result

    def _joined_keys(self, axis: int, whole: torch.Tensor, in_steps: Sequence[torch.Tensor]) -> "JoinedSteps":
        """Return the keys of all tokens, of which each step has those so far, as a cache has.

        Numbers are those of the last step; those that are not the same in all steps are the farthest from `whole`.
        """
        spans = [self.steps.keys_of(end, whole.shape[axis]) for end in self.steps.ends]
        result = whole.clone()
        result.narrow(axis, *spans[-1]).copy_(in_steps[-1].narrow(axis, 0, spans[-1][1]))
        is_changed = False
        for span, item in zip(spans[:-1], in_steps[:-1], strict=True):
            if not is_changed and item.data_ptr() == in_steps[-1].data_ptr():  # a view of it; see `StepTensors`
                continue
            now, then, expected = result.narrow(axis, *span), item.narrow(axis, 0, span[1]), whole.narrow(axis, *span)
            if not torch.equal(now, then):
                is_changed = True
                now.copy_(torch.where(_is_farther(then, now, expected), then, now))
        positions = [*range(spans[-1][1])]
        if self.steps.in_rows:  # the last key is that of the first step
            positions.reverse()
        for key in range(len(positions) if is_changed else 0):  # else each key is from the step of its token
            of_key = [
                (start, item.select(axis, key - first))
                for (start, _), (first, count), item in zip(self.steps.spans, spans, in_steps, strict=True)
                if first <= key < first + count
            ]
            if not torch.equal(of_key[0][1], result.select(axis, key)):  # a later step has changed it
                changed = next(start for start, numbers in of_key if not torch.equal(numbers, of_key[0][1]))
                positions[key] = max(positions[key], changed)
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


def _is_farther(one: torch.Tensor, other: torch.Tensor, expected: torch.Tensor) -> torch.Tensor:
    """Return which numbers are farther from the expected ones than others are; NaN is the farthest."""
    if not one.is_floating_point():
        return other == expected
    return (one - expected).abs().nan_to_num(nan=torch.inf) > (other - expected).abs()


def shape_in_one_call(steps: Steps, in_steps: Sequence[torch.Tensor]) -> tuple[int, ...] | None:
    """Return the shape of a value in one call by those in the steps; None if they do not tell it."""
    if steps.slots or steps.in_rows or len({item.dim() for item in in_steps}) > 1:
        return None
    sizes = [_size_in_one_call(steps, sizes) for sizes in zip(*(item.shape for item in in_steps), strict=True)]
    known = tuple(size for size in sizes if size is not None)
    return known if len(known) == len(sizes) else None


def _size_in_one_call(steps: Steps, in_steps: Sequence[int]) -> int | None:
    """Return the size of an axis in one call by its sizes in the steps; None if they are not those of tokens."""
    if in_steps.count(in_steps[0]) == len(in_steps):
        return in_steps[0]
    candidates = steps.length, steps.length * in_steps[-1] // steps.counts[-1]  # of queries or keys, or of a joint axis
    return next((size for size in candidates if _role(steps, size, in_steps) is not None), None)


def value_in_one_call(steps: Steps, in_steps: Sequence[torch.Tensor]) -> torch.Tensor | None:
    """Return a value of one call if the steps have all of its numbers, and the same ones; None if they have not.

    Args:
        steps: the steps.
        in_steps: the value in each step, which has a shape in one call; see `StepTensors`.
    """
    shape = shape_in_one_call(steps, in_steps)
    roles = None if shape is None else _roles(steps, shape, in_steps)
    if shape is None or roles is None:
        return None
    axes, last = Axes(steps, roles, shape), in_steps[-1]
    if axes.key_axis is None:
        return last if axes.query_axis is None else axes.joined(last, in_steps).value
    is_same = axes.query_axis is None and all(item.data_ptr() == last.data_ptr() for item in in_steps)
    return last if is_same else None


def _is_one_value(steps: Steps, whole: torch.Tensor, in_steps: Sequence[torch.Tensor]) -> bool:
    """Return whether a value without tokens is the same in all steps, or is a number of the model in the first one.

    A number of the model, such as a slope, is in the first step what it is in one call; a size is not, except that of
    an empty cache, which is 0.
    """
    if all(torch.equal(item, in_steps[-1]) for item in in_steps):
        return True
    is_number = whole.is_floating_point() and whole.dtype == in_steps[0].dtype and bool(whole.any())
    return is_number and not steps.in_rows and torch.allclose(in_steps[0], whole)


def _with_one_key_axis(
    steps: Steps, roles: tuple[Role, ...], whole: torch.Tensor, in_steps: Sequence[torch.Tensor]
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
        """Return the mean difference of each step from one call, along an axis up to the end of the step."""
        axes, found = Axes(steps, with_keys(axis), tuple(whole.shape)), []
        for step, item in enumerate(in_steps[:-1]):  # behind the last one are no slots
            expected, own, end = axes.piece(whole, step), item, steps.ends[step]
            if axis is not None:
                expected, own = (tensor.narrow(axis, 0, end) for tensor in (expected, own))
            difference = (expected.double() - own.double()).nan_to_num(nan=0.0).abs()  # NaN: of equal infinities
            found.append(float(difference.mean()) if difference.numel() else 0.0)
        return found

    best = min(candidates, key=lambda axis: sum(distances(axis)))
    size = float(whole.double().abs().nan_to_num(posinf=0.0).mean())
    pairs = zip(distances(None), distances(best), strict=True)
    is_fixed = all(fixed <= 2 * keys + _ROUNDING * size for fixed, keys in pairs)  # nothing unlike is behind a step
    return with_keys(None if is_fixed else best)


def _roles(steps: Steps, whole: Sequence[int], in_steps: Sequence[torch.Tensor]) -> tuple[Role, ...] | None:
    """Return the role of each axis of a value by its shape in one call; None if one has other sizes in the steps."""
    if any(item.dim() != len(whole) for item in in_steps):
        return None
    sizes = zip(whole, *(item.shape for item in in_steps), strict=True)
    roles: list[Role | None] = [_role(steps, size, others) for size, *others in sizes]
    known: tuple[Role, ...] = tuple(role for role in roles if role is not None)
    return known if len(known) == len(roles) else None


def _role(steps: Steps, whole: int, in_steps: Sequence[int]) -> Role | None:
    """Return the role of an axis by its size in one call and in each step; None if it has none of them."""
    sizes = [*in_steps]
    if whole == steps.length and sizes == steps.counts:
        return "queries"
    if whole == steps.length and sizes == steps.ends:
        return "keys"
    if steps.in_rows and 1 < whole < steps.length and sizes == [min(end, whole) for end in steps.ends]:
        return "keys"  # of a window
    if all(size == whole for size in sizes):
        return "keys" if steps.slots and whole == steps.slots else "fixed"
    per_token, remainder = divmod(whole, steps.rows * steps.length)
    is_joint = not remainder and sizes == [per_token * steps.rows * count for count in steps.counts]
    return "joint" if is_joint else None
