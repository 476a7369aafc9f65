"""Judge whether what A leaves to its caller is, whole and in a stated place and order, what B leaves to its caller."""

import itertools
import math
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import torch

from ..float64._noise import unit_of
from ..layouts._closeness import RELATIVE, root_mean_square
from ..layouts._layout import Layout, Shape, are_regrouped, long_sizes
from ..layouts._numbers import TensorNumbers
from ..metrics._metrics import compare_tensors
from ..runs._execution import Execution, Output, Tensors

_AGAIN = 2 * RELATIVE  # largest difference of equal numbers on other inputs
_ROUNDED = 1000  # more than this times the rounding of A is explained by no order of operations
_ON_THESE_INPUTS = "is that of A on these inputs, but not on others of the same shapes"
_CACHE = re.compile(r"\b(past_key_values|cache\w*|state|mems)\b")  # names of transformers
_DIMENSIONS = 6  # of tensors whose dimensions may be exchanged
_BATCHED = 3  # dimensions of which others than the first are moved by conventions, as channels are


@dataclass(frozen=True)
class JudgedOutput:
    """An output of A, and that of B.

    Attributes:
        reference: the output of A.
        actual: the output of B that it is; if it is none, the one in its place; None if there is none.
        order: in which shape and order B has the numbers; `""` if in those of A.
        problem: what is wrong with the output of B; `""` if it is that of A.
        is_native: whether float64 has no numbers of it, and those of both implementations were judged by tolerance.
        inner: the value of B that has the numbers, if B computes them and returns one tensor without a name; else `""`.
    """

    reference: Output
    actual: Output | None
    order: str = ""
    problem: str = ""
    is_native: bool = False
    inner: str = ""

    @property
    def has_name(self) -> bool:
        """Whether A returns it by name."""
        return self.reference.result.kind == "returned" and not _is_position(bare_name(self.reference))


@dataclass(frozen=True)
class JudgedOutputs:
    """The outputs of two executions.

    Attributes:
        judged: one for each output of A.
        further: the outputs of B that are none of A.
        changed: the arguments that B changes, and A does not.
        caches: the outputs of A that are tensors of a cache, if B has no cache: an implementation keeps it in a form of
            its own.
    """

    judged: tuple[JudgedOutput, ...]
    further: tuple[Output, ...] = ()
    changed: tuple[Output, ...] = ()
    caches: tuple[Output, ...] = ()

    @property
    def wrong(self) -> tuple[Output, ...]:
        """The outputs of B that are wrong."""
        return (*(item.actual for item in self.judged if item.problem and item.actual is not None), *self.changed)

    @property
    def cache_names(self) -> tuple[str, ...]:
        """The names of `caches`, one for all tensors of a cache."""
        parts = (_CACHE.split(output_name(item), maxsplit=1) for item in self.caches)
        return (*dict.fromkeys(before + name for before, name, _ in parts),)

    @property
    def problems(self) -> tuple[str, ...]:
        """Sentences on what is wrong; empty if B leaves to its caller what A does."""
        found = [item.problem for item in self.judged if item.problem]
        return (*found, *(f"B changes the argument {item.result.path}, which A does not" for item in self.changed))


Equal = Callable[[Output, Output, Layout], bool]


def judge_outputs(
    reference: Execution,
    actual: Execution,
    reference_again: Execution | None = None,
    actual_again: Execution | None = None,
    equal: Equal | None = None,
) -> JudgedOutputs:
    """Return what is said of the outputs of B.

    An output has its place by its name or, without names, by the order of the outputs; further ones of B may stand
    between them. Arguments and buffers that A changes may be those of B with any names, or outputs.

    Args:
        reference: a run of A.
        actual: a run of B.
        reference_again: a run of A on other inputs; None if there is none.
        actual_again: likewise of B.
        equal: returns whether an output of A (the first argument) has the numbers of one of B, of which the layout
            (the third one) says where each is in A; None compares runs in float64.
    """
    again: tuple[Tensors, Tensors] | None = None
    if reference_again is not None and actual_again is not None:
        again = reference_again.output_tensors, actual_again.output_tensors
    judge = _OutputPairing(reference, actual, again, equal)  # an output of B is found once, so that the order counts
    found = {item.result.key: judge.found(item) for item in reference.outputs}
    judge.refuse_other_order(found)  # sets those to None
    # If all outputs of A are of a cache, they are judged: there is nothing else.
    has_cache = any(map(_is_of_cache, actual.outputs)) or all(map(_is_of_cache, reference.outputs))
    lacking = [item for item in reference.outputs if found[item.result.key] is None]
    caches = [] if has_cache else [item for item in lacking if _is_of_cache(item)]
    judged = tuple(found[item.result.key] or judge.wrong(item) for item in reference.outputs if item not in caches)
    taken = {item.actual.result.key for item in judged if item.actual is not None}
    left = [item for item in actual.outputs if item.result.key not in taken]
    return JudgedOutputs(
        judged,
        tuple(item for item in left if item.result.kind == "returned"),
        tuple(item for item in left if item.result.kind == "argument" and judge.is_kept_by_reference(item)),
        tuple(caches),
    )


class _OutputPairing:
    """Finds the outputs of B that are those of A; see `judge_outputs`.

    Args:
        reference: a run of A.
        actual: a run of B.
        again: the outputs of both on other inputs by their keys; None if there are none.
        equal: see `judge_outputs`.
    """

    def __init__(
        self, reference: Execution, actual: Execution, again: tuple[Tensors, Tensors] | None, equal: Equal | None
    ) -> None:
        self._reference, self._actual, self._again, self._equal = reference, actual, again or ({}, {}), equal
        self._taken: set[str] = set()  # keys of the outputs of B that are one of A

    def found(self, reference: Output) -> JudgedOutput | None:
        """Return an output of A with that of B that it is; None if there is none.

        An output of B is that of only one of its own kind, but may also be one of another kind, as a changed argument.
        """
        for actual in self._candidates(reference):
            is_taken = actual.result.key in self._taken and reference.result.kind == actual.result.kind
            found = None if is_taken else self._pair(reference, actual)
            if found is not None:
                self._taken.add(actual.result.key)
                return found
        return None

    def _candidates(self, reference: Output) -> list[Output]:
        """Return the outputs of B, the likeliest ones first: with the same name, and then of the same kind."""
        name, kind = bare_name(reference), reference.result.kind
        named = [item for item in self._actual.outputs if item.result.kind == kind and bare_name(item) == name]
        if named and kind == "returned" and not _is_position(name):
            return named
        return sorted(self._actual.outputs, key=lambda item: (item not in named, item.result.kind != kind))

    def _pair(self, reference: Output, actual: Output) -> JudgedOutput | None:
        """Return an output of A with one of B if that has its numbers, in whichever of the possible orders."""
        shape, actual_shape = tuple(reference.tensor.shape), tuple(actual.tensor.shape)
        layouts = [*output_orders(shape, actual_shape)]
        if not layouts or _class_problem(reference, actual):
            return None
        is_native = not (_has_float64(reference) and _has_float64(actual))
        are_equal = self._equal or (self._are_close if is_native else self._are_equal)
        for layout in layouts:
            if are_equal(reference, actual, layout):
                return JudgedOutput(reference, actual, order_text(layout, shape, actual_shape), is_native=is_native)
        return None

    def _are_equal(self, reference: Output, actual: Output, layout: Layout) -> bool:
        """Whether two outputs are equal in float64, on both inputs, and finite or not in their own dtypes alike."""
        if not have_equal_numbers(actual.tensor.reshape(-1), in_order(layout, reference.tensor)):
            return False
        if reference.native is not None and actual.native is not None:
            if not have_same_kinds(actual.native.reshape(-1), in_order(layout, reference.native)):
                return False
            if self._is_rounded(reference, actual):
                return False
        first, second = self._again[0].get(reference.result.key), self._again[1].get(actual.result.key)
        if first is None or second is None:
            return True
        is_same_shape = (first.shape, second.shape) == (reference.tensor.shape, actual.tensor.shape)
        layouts = [layout] if is_same_shape else output_orders(tuple(first.shape), tuple(second.shape))
        return any(have_equal_numbers(second.reshape(-1), in_order(item, first), _AGAIN) for item in layouts)

    def _is_rounded(self, reference: Output, actual: Output) -> bool:
        """Whether B rounds an output to a dtype that a run in float64 does not show, such as one of 8 bits."""
        unit = 0.0 if reference.native is None else unit_of(reference.native.dtype)
        expected = max(_rounding(reference), unit, self._actual.units.get(actual.result.value, 0.0))
        return _rounding(actual) > _ROUNDED * expected

    def _are_close(self, reference: Output, actual: Output, layout: Layout) -> bool:
        """Whether two outputs are equal by tolerance as the implementations computed them, in their own dtypes."""
        if reference.native is None or actual.native is None:
            return False
        expected = in_order(layout, reference.native)
        return compare_tensors(actual.native.reshape(-1).to(expected.dtype), expected).close

    def refuse_other_order(self, found: dict[str, JudgedOutput | None]) -> None:
        """Refuse what is returned before an earlier output, where outputs have no names but positions.

        Args:
            found: the outputs of A by their keys, with those of B that they are; refused ones get a problem.
        """
        order = {item.result.key: index for index, item in enumerate(self._actual.outputs)}
        last = -1
        for key, item in found.items():
            if item is None or item.actual is None or not _is_by_position(item.reference, item.actual):
                continue
            index = order[item.actual.result.key]
            if index < last:
                label = f"the {output_name(item.actual)} of B is the {output_name(item.reference)} of A"
                found[key] = replace(item, problem=f"{label}: they are in another order")
            last = index

    def wrong(self, reference: Output) -> JudgedOutput:
        """Return an output of A that is none of B, with the one of B in its place and what is wrong."""
        places = [item for item in self._candidates(reference) if item.result.kind == reference.result.kind]
        same = [item for item in places if bare_name(item) == bare_name(reference)]
        free = [item for item in places if item.result.key not in self._taken]
        actual = next(iter(same or free), None)
        if actual is None:
            return JudgedOutput(reference, None, problem=f"the {output_name(reference)} of A is no output of B")
        self._taken.add(actual.result.key)
        problem = _problem(reference, actual, is_rounded=self._is_rounded(reference, actual))
        return JudgedOutput(reference, actual, problem=problem)

    def is_kept_by_reference(self, actual: Output) -> bool:
        """Whether an argument that B changes is one of A, which does not change it."""
        given = self._actual.values.get(actual.result.given)
        changed = {item.result.given for item in self._reference.outputs}
        unchanged = [self._reference.values[name] for name in self._reference.graph.inputs if name not in changed]
        same_shape = [item for item in unchanged if given is not None and item.shape == given.shape]
        return given is not None and any(have_equal_numbers(given, item) for item in same_shape)


def _has_float64(output: Output) -> bool:
    """Whether float64 has numbers where the implementation has: not all operators have a kernel for it."""
    return output.native is None or bool((output.tensor.isfinite() | ~output.native.isfinite()).all())


def _class_problem(reference: Output, actual: Output) -> str:
    """Say what an output of B is in place of that of A: a number, an integer, a boolean or a string; `""` if the same.

    A dtype of another size is none of these: what it can't hold is seen in the numbers.
    """
    if _text_of(reference) is _text_of(actual) is None and "" in (reference.result.value, actual.result.value):
        return ""  # a Python number, of which 1 is 1.0
    classes = [_number_class(item) for item in (actual, reference)]
    return "" if classes[0] == classes[1] else f"is {classes[0]}, that of A {classes[1]}"


def _number_class(output: Output) -> str:
    """Say what an output is: a string, a boolean, an integer or a floating-point number."""
    dtype = output.tensor.dtype
    if _text_of(output) is not None:
        return "a string"
    if dtype == torch.bool:
        return "a boolean"
    return "a floating-point number" if dtype.is_floating_point else "an integer"


def _text_of(output: Output) -> str | None:
    """Return an output that is a Python string, whose tensor has its bytes; None if it is a tensor or a number."""
    is_text = not output.result.value and output.tensor.dtype == torch.uint8
    return bytes(output.tensor.tolist()).decode(errors="surrogatepass") if is_text else None


def _problem(reference: Output, actual: Output, *, is_rounded: bool) -> str:
    """Say what is wrong with an output of B that is not that of A: the most telling difference.

    Args:
        reference: the output of A.
        actual: that of B.
        is_rounded: whether B rounds it to fewer digits than its dtype has.
    """
    label = f"the {output_name(actual)} of B"
    if problem := _class_problem(reference, actual):
        return f"{label} {problem}"
    if (text := _text_of(actual)) is not None:
        return f"{label} is {text!r:.80}, that of A {_text_of(reference)!r:.80}"
    shape, actual_shape = tuple(reference.tensor.shape), tuple(actual.tensor.shape)
    if next(output_orders(shape, actual_shape), None) is None:
        return f"{label} has the shape {[*actual_shape]}, that of A {[*shape]}"
    in_float64 = None if actual.problem else actual.tensor  # else NaN stands for what float64 can't compute
    not_finite = _not_finite(reference.tensor, in_float64, "")
    if not_finite := not_finite or _not_finite(reference.native, actual.native, " as it runs"):
        return f"{label}: {not_finite}"
    numbers, expected = actual.tensor.double().reshape(-1), reference.tensor.double().reshape(-1)
    if len(numbers) == 1:
        return f"{label} is {float(numbers):.8g}, that of A {float(expected):.8g}"
    if bool((numbers == numbers[0]).all()):
        return f"all numbers of {label} are {float(numbers[0]) + 0.0:.6g}, those of A are others"
    if not have_equal_numbers(numbers, expected):
        is_permuted = have_equal_numbers(numbers.sort().values, expected.sort().values)
        return f"{label} {'has the numbers of A in another order' if is_permuted else 'is not that of A'}"
    return f"{label} {'is rounded on the way to fewer digits than its dtype has' if is_rounded else _ON_THESE_INPUTS}"


def _not_finite(reference: torch.Tensor | None, actual: torch.Tensor | None, where: str) -> str:
    """Say how many numbers of an output of B are not finite, if there are more than in A."""
    for what, is_such in (("NaN", torch.isnan), ("infinite", torch.isinf)) if reference is not None else ():
        count, wanted = (int(is_such(item).sum()) if item is not None else 0 for item in (actual, reference))
        if count > wanted:
            return f"{count} numbers ({wanted} in A) are {what}{where}"
    return ""


def _rounding(output: Output) -> float:
    """Return the root mean square of what float64 and the implementation itself differ by, relative."""
    if output.native is None or not output.native.is_floating_point():
        return 0.0
    error = (output.native.double() - output.tensor)[output.tensor.isfinite() & output.native.isfinite()]
    return root_mean_square(error) / max(root_mean_square(TensorNumbers(output.tensor).finite), 1e-300)


def bare_name(output: Output) -> str:
    """Return the path of an output without what tells attributes and keys apart."""
    return re.sub(r"\['([^']*)'\]", r".\1", output.result.path).removeprefix(".")


def _is_of_cache(output: Output) -> bool:
    """Whether an output is a tensor of a cache, by its name."""
    return output.result.kind == "returned" and _CACHE.search(bare_name(output)) is not None


def _is_position(name: str) -> bool:
    """Whether the path of an output is that of an element of a tuple, or of the only output."""
    return not name or name.startswith("[")


def _is_by_position(reference: Output, actual: Output) -> bool:
    """Whether two outputs correspond by their positions: one is returned, and neither has a name."""
    is_returned = "returned" in (reference.result.kind, actual.result.kind)
    has_name = not _is_position(bare_name(reference)) or actual.result.path.startswith((".", "['"))
    return is_returned and not has_name


def output_name(output: Output) -> str:
    """Return what an output is called: its path, or the argument or buffer that the call has changed."""
    result = output.result
    if result.kind != "returned":
        return f"{result.kind} {result.path} after the call"
    return f"output {bare_name(output)}".rstrip()


def output_orders(shape: Shape, output_shape: Shape) -> Iterator[Layout]:
    """Yield the orders in which an output may have all numbers of a tensor: where its elements are in that tensor.

    An output of the same shape has the same order. One of another shape may have dimensions that are joined or split
    and, if there are three or more, in another order, as where channels are last. Those of an empty output are the same
    ones: no numbers would show how others were joined.

    Args:
        shape: of the tensor.
        output_shape: of the output.
    """
    if math.prod(shape) != math.prod(output_shape):
        return
    if 0 in shape and sorted(long_sizes(shape)) != sorted(long_sizes(output_shape)):
        return
    strides = [math.prod(shape[axis + 1 :]) for axis in range(len(shape))]
    digits = [digit for digit in zip(shape, strides, strict=True) if digit[0] != 1]
    is_other_shape = long_sizes(shape) != long_sizes(output_shape)
    may_move = is_other_shape and len(shape) >= _BATCHED and len(digits) <= _DIMENSIONS
    for order in itertools.permutations(digits) if may_move else [digits]:
        if are_regrouped([size for size, _ in order], output_shape):
            yield Layout.of(0, order)


def in_order(layout: Layout, tensor: torch.Tensor) -> torch.Tensor:
    """Return the numbers of a tensor, of any size, in the order of an output: a vector."""
    return layout.select(tensor).reshape(-1) if tensor.numel() else tensor.reshape(-1)


def order_text(layout: Layout, shape: Shape, output_shape: Shape) -> str:
    """Say in which order an output has the numbers of a tensor; `""` if it has the same shape."""
    if shape == output_shape:
        return ""
    return f"{'' if layout.is_contiguous else 'in another order, '}{[*output_shape]} for {[*shape]}"


def have_equal_numbers(actual: torch.Tensor, reference: torch.Tensor, relative: float = RELATIVE) -> bool:
    """Whether two tensors of one shape are equal: finite numbers but for rounding, others in their kind and sign."""
    if not (actual.is_floating_point() or reference.is_floating_point()):
        return bool((actual.long() == reference.long()).all())  # torch compares no uint16 with another dtype
    first, second = actual.double(), reference.double()
    if not have_same_kinds(first, second):
        return False
    finite = second.isfinite()
    sizes = TensorNumbers(torch.where(finite, second, 0.0)).closeness(relative).sizes(second)
    return bool((~finite | ((first - second).abs() <= relative * sizes)).all())


def have_same_kinds(actual: torch.Tensor, reference: torch.Tensor) -> bool:
    """Whether two tensors of one shape are NaN, infinite, and of which sign, in the same places."""
    return torch.equal(_kinds(actual), _kinds(reference))


def _kinds(tensor: torch.Tensor) -> torch.Tensor:
    """Return 0 for each finite number, 1 or -1 for an infinite one by its sign, and 2 for NaN: int8."""
    if not tensor.is_floating_point():
        return torch.zeros(tensor.shape, dtype=torch.int8)
    infinite = tensor.isinf()
    return torch.where(infinite, tensor.sign().to(torch.int8), tensor.isnan().to(torch.int8) * 2)
