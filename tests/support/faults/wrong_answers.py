"""Planted comparisons: pairs of tensors, and whether a comparer has to call them close."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch

NAN = float("nan")
INF = float("inf")


# eq=False: the generated __eq__ would compare tensors element by element and fail on the ambiguous truth value.
@dataclass(frozen=True, eq=False)
class Case:
    """One comparison whose correct result is known.

    Args:
        name: What was planted, as a short sentence.
        expected: The reference value; None if there is none.
        actual: The value to be judged; None if it is missing.
        close: True if the two have to pass as the same value, False if they must never pass.
    """

    name: str
    expected: torch.Tensor | None
    actual: torch.Tensor | None
    close: bool


def _close(name: str, expected: torch.Tensor, actual: torch.Tensor) -> Case:
    return Case(name, expected, actual, close=True)


def _different(name: str, expected: torch.Tensor | None, actual: torch.Tensor | None) -> Case:
    return Case(name, expected, actual, close=False)


def _a_million_with_one_wrong() -> Case:
    expected = torch.linspace(1.0, 2.0, 1_000_000)
    actual = expected.clone()
    actual[765_432] += 0.5
    return _different("one element among a million is wrong", expected, actual)


def _one_float32_step() -> Case:
    expected = torch.arange(1, 9) / 3
    return _close("float32 is one rounding step (1e-7) away", expected, torch.nextafter(expected, torch.tensor(INF)))


def _float8(*values: float) -> torch.Tensor:
    return torch.tensor(values).to(torch.float8_e4m3fn)


NOT_A_NUMBER = (
    _different("a NaN stands where a number is expected", torch.tensor([1.0, 2.0]), torch.tensor([1.0, NAN])),
    _different("a number stands where NaN is expected", torch.tensor([1.0, NAN]), torch.tensor([1.0, 2.0])),
    _close("NaN is at the same place in both", torch.tensor([1.0, NAN]), torch.tensor([1.0, NAN])),
    _different("a wrong number stands beside an equal NaN", torch.tensor([NAN, 5.0]), torch.tensor([NAN, 7.0])),
    _different("NaN is at different places", torch.tensor([NAN, 1.0]), torch.tensor([1.0, NAN])),
    # 1e10 is what some comparers replace NaN by.
    _different("1e10 stands where NaN is expected", torch.tensor([1.0, NAN]), torch.tensor([1.0, 1e10])),
    _close("+inf is at the same place in both", torch.tensor([1.0, INF]), torch.tensor([1.0, INF])),
    _different("-inf stands where +inf is expected", torch.tensor([1.0, INF]), torch.tensor([1.0, -INF])),
    # nan_to_num turns inf into the largest number.
    _different(
        "the largest float64 stands where +inf is expected",
        torch.tensor([1.0, INF], dtype=torch.float64),
        torch.tensor([1.0, torch.finfo(torch.float64).max], dtype=torch.float64),
    ),
)

# All elements are equal, so that broadcasting leaves no difference to see.
SHAPES_AND_TYPES = (
    _different("shape (2, 1) is compared with (1, 2)", torch.ones(2, 1), torch.ones(1, 2)),
    _different("shape (3, 1) is compared with (3, 3)", torch.ones(3, 1), torch.ones(3, 3)),
    _different("a scalar is compared with shape (1,)", torch.tensor(1.0), torch.ones(1)),
    _close("both are empty", torch.empty(0, 3), torch.empty(0, 3)),
    _different("shape (0,) is compared with (0, 3)", torch.empty(0), torch.empty(0, 3)),
    _different("a tensor is compared with an empty one", torch.ones(1, 3), torch.empty(0, 3)),
    _different(
        "float32 is compared with float64 of the same numbers", torch.ones(3), torch.ones(3, dtype=torch.float64)
    ),
    _different("the value is missing", torch.ones(3), None),
)

EXACT_TYPES = (
    _different("int64 2**53 is one too large", torch.tensor([2**53]), torch.tensor([2**53 + 1])),
    _different("int64 2**24 is one too large", torch.tensor([2**24]), torch.tensor([2**24 + 1])),
    # 127 - -1 is -128 in int8, and so is its absolute value: less than any tolerance.
    _different(
        "int8 difference overflows to -128",
        torch.tensor([127], dtype=torch.int8),
        torch.tensor([-1], dtype=torch.int8),
    ),
    _different(
        "uint8 difference wraps around from -255 to 1",
        torch.tensor([0, 7], dtype=torch.uint8),
        torch.tensor([255, 7], dtype=torch.uint8),
    ),
    _different("one bool is flipped", torch.tensor([True, False, True]), torch.tensor([True, True, True])),
)

PRECISION = (
    _different(
        "float64 is off by one part in a million",
        torch.tensor([1000.0, 1.0], dtype=torch.float64),
        torch.tensor([1000.0 + 1e-3, 1.0], dtype=torch.float64),
    ),
    # Nine million rounding steps of float64 and ten times 1e-10 as |a - e| / (|e| + 1), yet nothing in float32.
    _different(
        "float64 is off by one part in a billion",
        torch.tensor([1000.0, 1.0], dtype=torch.float64),
        torch.tensor([1000.0 + 1e-6, 1.0], dtype=torch.float64),
    ),
    _one_float32_step(),
    _different(
        "float16 difference overflows to inf",
        torch.tensor([65504.0], dtype=torch.float16),
        torch.tensor([-65504.0], dtype=torch.float16),
    ),
    _close(
        "bfloat16 is equal",
        torch.tensor([1.0, -2.5], dtype=torch.bfloat16),
        torch.tensor([1.0, -2.5], dtype=torch.bfloat16),
    ),
    _close("float8_e4m3fn is equal", _float8(1.0, -2.0), _float8(1.0, -2.0)),
    _different("float8_e4m3fn differs", _float8(1.0, -2.0), _float8(1.0, -4.0)),
)

VALUES = (
    _different("the sign is flipped", torch.tensor([1.0, 1.0]), torch.tensor([1.0, -1.0])),
    _close("-0.0 is compared with 0.0", torch.tensor([-0.0]), torch.tensor([0.0])),
    _different("0.1 stands where 0.0 is expected", torch.tensor([0.0, 1.0]), torch.tensor([0.1, 1.0])),
    # No absolute tolerance sees it: only an error relative to the tensor's own scale does.
    _different("every tiny value is twice too large", torch.full((4,), 1e-7), torch.full((4,), 2e-7)),
    _different("complex64 has another imaginary part", torch.tensor([1 + 1j, 2 + 0j]), torch.tensor([1 + 9j, 2 + 0j])),
    _close("complex64 is equal", torch.tensor([1 + 1j, 2 + 0j, 3j]), torch.tensor([1 + 1j, 2 + 0j, 3j])),
    _a_million_with_one_wrong(),
)

FLOATS = (torch.float64, torch.float32, torch.bfloat16, torch.float16)


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _normal(*shape: int, scale: float = 1.0, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    made = torch.Generator().manual_seed(sum(size * 100**place for place, size in enumerate(shape)))
    return (torch.randn(*shape, generator=made, dtype=torch.float64) * scale).to(dtype)


def _uniform(*shape: int) -> torch.Tensor:
    return torch.rand(*shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def _steps(tensor: torch.Tensor, count: int) -> torch.Tensor:
    """Return the numbers that are `count` rounding steps further from 0."""
    kind = torch.finfo(tensor.dtype)
    return (tensor.double() * (1 + count * kind.eps)).to(tensor.dtype)


def _put(tensor: torch.Tensor, index: int, number: float) -> torch.Tensor:
    """Return a copy with another number at one place."""
    changed = tensor.clone()
    changed.view(-1)[index] = number
    return changed


def _of_each_float() -> Iterator[Case]:
    for dtype in FLOATS:
        plain, name, most = _normal(4, 6, dtype=dtype), _name(dtype), torch.finfo(dtype).max
        odd = {
            "NaN": NAN,
            "+inf": INF,
            "-inf": -INF,
            "the largest number": most,
            "the negated number": -float(plain[1, 1]),
        }
        for told in ("NaN", "+inf", "the negated number"):
            yield _different(f"{name}: {told} stands where a number is expected", plain, _put(plain, 7, odd[told]))
        for told, instead in (
            ("NaN", "the largest number"),
            ("+inf", "the largest number"),
            ("+inf", "-inf"),
            ("+inf", "NaN"),
            ("NaN", "-inf"),
            ("-inf", "the negated number"),
        ):
            wrong = _different(
                f"{name}: {instead} stands where {told} is expected",
                _put(plain, 7, odd[told]),
                _put(plain, 7, odd[instead]),
            )
            yield wrong
        special = plain.clone()
        special.view(-1)[:3] = torch.tensor([NAN, INF, -INF])
        yield _close(f"{name}: NaN and infinities are alike, numbers are a step apart", special, _steps(special, 1))
        yield _different(
            f"{name}: all of small numbers are 0", _normal(64, scale=1e-3, dtype=dtype), torch.zeros(64, dtype=dtype)
        )
        low, high = {torch.float64: (9e-11, 1e-4), torch.float32: (9e-6, 1e-2)}.get(dtype, (9e-3, 5e-2))
        peak = _put((_uniform(1000) * low).to(dtype), 0, high)
        yield _different(
            f"{name}: 999 of 1000 numbers beside a peak are 0", peak, torch.where(peak == peak[0], peak, 0)
        )
        yield _different(f"{name}: a square matrix is transposed", plain[:, :4].clone(), plain[:, :4].T.clone())
        yield _different(f"{name}: all numbers are a fourth too large", plain, plain * 1.25)
        least = torch.finfo(dtype).smallest_normal * (torch.finfo(dtype).eps if dtype == torch.float16 else 0.5)
        yield _close(f"{name}: what processors flush is 0", _put(plain, 7, least), _put(plain, 7, 0.0))


def _of_each_integer() -> Iterator[Case]:
    signed = (torch.int8, torch.int16, torch.int32, torch.int64)
    for dtype in (*signed, torch.uint8, torch.uint16, torch.uint32, torch.uint64):
        last = torch.iinfo(dtype).max
        right = torch.tensor([0, 1, last - 1, last], dtype=dtype)
        wrong = torch.tensor([0, 1, last, last - 1], dtype=dtype)
        yield _different(f"{_name(dtype)}: its two largest numbers are swapped", right, wrong)
    yield _different("int64: the smallest stands for the largest", torch.tensor([2**63 - 1]), torch.tensor([-(2**63)]))
    yield _different("int32: the sign is lost", torch.tensor([-3, 3]).int(), torch.tensor([3, 3]).int())
    yield _different(
        "int64: one index among a million is the next", torch.arange(10**6), _put(torch.arange(10**6), 7, 8)
    )
    yield _close("uint64: numbers over 2**63 are equal", *[torch.tensor([2**63 + 1], dtype=torch.uint64)] * 2)
    flags = _uniform(10**6) < 0.5
    yield _different("bool: one among a million is flipped", flags, _put(flags, 99, not flags[99]))
    yield _different("bool: all are negated", flags[:8], ~flags[:8])
    yield _close("bool: a million are equal", flags, flags.clone())
    yield _different(
        "uint8: two packed 4-bit numbers are swapped", torch.tensor([0x1F]).byte(), torch.tensor([0xF1]).byte()
    )
    yield _different("int8: the zero point is off by one", torch.arange(-9, 9).char(), torch.arange(-8, 10).char())


def _of_scales() -> Iterator[Case]:
    for scale in (1e-30, 1e-20, 1e-10, 1e10, 1e30):
        plain = _normal(32, scale=scale)
        yield _different(f"numbers of {scale:.0e} are doubled", plain, plain * 2)
        yield _different(f"numbers of {scale:.0e} are 0", plain, torch.zeros(32))
        yield _close(f"numbers of {scale:.0e} are two rounding steps away", plain, _steps(plain, 2))
    for scale in (1e-200, 1e200):  # float64 does not hold their squares
        plain = _normal(32, scale=scale, dtype=torch.float64)
        yield _different(f"numbers of {scale:.0e} have another sign", plain, -plain)
        yield _different(f"one number of {scale:.0e} is 0", plain, _put(plain, 5, 0.0))
        yield _close(f"numbers of {scale:.0e} are two rounding steps away", plain, _steps(plain, 2))
    most = torch.finfo(torch.float64).max
    yield _different(
        "float64: the largest number is negated", torch.tensor([most]).double(), torch.tensor([-most]).double()
    )
    low = torch.finfo(torch.float32).smallest_normal
    yield _different("float32: four times the smallest normal number is 0", torch.full((8,), 4 * low), torch.zeros(8))
    small = torch.full((64,), 2e-5).half()
    yield _different("float16: probabilities that are subnormal numbers are 0", small, torch.zeros_like(small))


def _of_places() -> Iterator[Case]:
    plain = _normal(4, 6, 8)
    yield _different("rows are in reversed order", plain, plain.flip(0))
    yield _different("rows are shifted by one", plain, plain.roll(1, 1))
    yield _different("two rows are swapped", plain, plain[[1, 0, 2, 3]])
    yield _different("the last row is the first again", plain, plain[[0, 1, 2, 0]])
    yield _different("the first row is in all places", plain, plain[:1].expand(4, 6, 8).clone())
    yield _different("two axes are swapped, and their sizes kept", plain, plain.transpose(1, 2).reshape(4, 6, 8))
    yield _different(
        "heads are merged in another order", plain, plain.reshape(4, 2, 3, 8).transpose(1, 2).reshape(4, 6, 8)
    )
    yield _different("the last row is stale", plain, torch.cat([plain[:3], _normal(1, 6, 8)]))
    yield _different("all numbers are those of another call", plain, _normal(8, 6, 4).reshape(4, 6, 8))
    yield _different("the mean stands in all places", plain, plain.mean().expand(4, 6, 8).clone())
    yield _different("a constant is added", plain, plain + 1e-3)
    yield _different("all numbers are a thousandth too large", plain, plain * 1.001)
    tens = plain * 10
    yield _different("one number of 1e-3 among tens is negated", _put(tens, 9, 1e-3), _put(tens, 9, -1e-3))
    yield _close("a row is written in another layout", plain, plain.transpose(0, 1).contiguous().transpose(0, 1))
    many = _uniform(10**6).float()
    yield _different("one number among a million is 0", many, _put(many, 765_432, 0.0))
    yield _different("one number among a million is NaN", many, _put(many, 765_432, NAN))
    yield _different("one number among a million is negated", many, _put(many, 765_432, -float(many[765_432])))
    yield _close("a million numbers are a rounding step away", many, _steps(many, 1))


def _of_masks() -> Iterator[Case]:
    low = torch.finfo(torch.float32).min
    for mask, name in ((low, "-3.4e38"), (-INF, "-inf"), (-1e4, "-1e4")):
        scores = _normal(8, 8).masked_fill(torch.ones(8, 8).triu(1).bool(), mask)
        yield _different(
            f"a score beside masks of {name} is wrong", scores, _put(scores, 0, float(scores[0, 0]) + 0.015)
        )
        yield _different(f"one mask of {name} is left out", scores, _put(scores, 1, 0.5))
        yield _different(f"a score is masked with {name}", scores, _put(scores, 8, mask))
        yield _close(
            f"scores beside masks of {name} are a rounding step away",
            scores,
            torch.where(scores == mask, scores, _steps(scores, 1)),
        )
    yield _different("a mask of -inf is -3.4e38", torch.full((4, 8), -INF), torch.full((4, 8), low))
    yield _different(
        "a mask of -3.4e38 is a tenth less", torch.full((4, 8), low), _put(torch.full((4, 8), low), 3, 0.9 * low)
    )


def _of_types() -> Iterator[Case]:
    ones = torch.ones(3)
    yield _different("int32 is compared with int64 of the same numbers", torch.arange(4).int(), torch.arange(4))
    yield _different("float16 is compared with bfloat16 of the same numbers", ones.half(), ones.bfloat16())
    yield _different("bool is compared with uint8 of the same numbers", ones.bool(), ones.byte())
    yield _different("complex64 is compared with complex128 of the same numbers", ones + 1j, ones.double() + 1j)
    yield _different("complex64 is compared with its real part", ones + 0j, ones)
    yield _different("shape (2, 3) is compared with (3, 2)", torch.ones(2, 3), torch.ones(3, 2))
    yield _different("shape (1, 3) is compared with (3,)", torch.ones(1, 3), ones)
    yield _different("shape (0, 3) is compared with (3, 0)", torch.ones(0, 3), torch.ones(3, 0))
    yield _different("nothing is expected", None, ones)
    yield _different("a scalar is negated", torch.tensor(1.5), torch.tensor(-1.5))
    yield _different("a scalar is NaN", torch.tensor(1.5), torch.tensor(NAN))
    yield _different("a scalar stands where NaN is expected", torch.tensor(NAN), torch.tensor(1.5))
    yield _close("two scalars are equal", torch.tensor(1.5), torch.tensor(1.5))
    yield _close("both are empty integers", torch.empty(2, 0).int(), torch.empty(2, 0).int())


def _of_complex_numbers() -> Iterator[Case]:
    for dtype in (torch.complex64, torch.complex128):
        plain, name = torch.complex(_normal(16).double(), _normal(4, 4).double().reshape(-1)).to(dtype), _name(dtype)
        yield _different(f"{name}: numbers are conjugate", plain, plain.conj())
        yield _different(f"{name}: real and imaginary parts are swapped", plain, torch.complex(plain.imag, plain.real))
        yield _different(f"{name}: the magnitude stands for the number", plain, plain.abs().to(dtype))
        yield _close(
            f"{name}: a conjugate that is not yet computed is equal", plain.conj(), plain.conj().resolve_conj()
        )
        yield _different(f"{name}: the imaginary part is NaN", plain, _put(plain, 3, complex(1, NAN)))  # type: ignore[arg-type]
    dwarfed = torch.tensor([complex(1e5, 0.1)])
    yield _different("the sign of a small imaginary part is flipped", dwarfed, dwarfed.conj())
    half = torch.tensor([complex(NAN, 1)])
    yield _different("another imaginary part stands beside an equal NaN", half, torch.tensor([complex(NAN, 2)]))
    yield _close("a NaN and its imaginary part are equal", half, half.clone())


def _of_quantized_numbers() -> Iterator[Case]:
    plain = _normal(64)
    for dtype in (torch.float8_e4m3fn, torch.float8_e5m2):
        right, name = plain.to(dtype), _name(dtype)
        yield _different(f"{name}: all numbers are 0", right, torch.zeros(64).to(dtype))
        yield _different(f"{name}: all numbers are negated", right, (-plain).to(dtype))
        yield _different(f"{name}: a NaN stands where a number is expected", right, _float8_with(right, NAN))
        yield _different(f"{name}: a number stands where NaN is expected", _float8_with(right, NAN), right)
    infinite = plain.to(torch.float8_e5m2)
    yield _different(
        "float8_e5m2: the largest number stands for +inf", _float8_with(infinite, INF), _float8_with(infinite, 57344.0)
    )
    whole = torch.round(plain * 20)
    yield _different("dequantized numbers have the scale of another channel", whole / 20, whole / 16)
    yield _different("dequantized numbers have another zero point", whole / 20, (whole + 1) / 20)


def _float8_with(tensor: torch.Tensor, number: float) -> torch.Tensor:
    return _put(tensor.float(), 3, number).to(tensor.dtype)


CASES = (
    *(NOT_A_NUMBER + SHAPES_AND_TYPES + EXACT_TYPES + PRECISION + VALUES),
    *_of_each_float(),
    *_of_each_integer(),
    *_of_scales(),
    *_of_places(),
    *_of_masks(),
    *_of_types(),
    *_of_complex_numbers(),
    *_of_quantized_numbers(),
)
