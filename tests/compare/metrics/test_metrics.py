"""Comparing two tensors: nothing that is wrong gets through, nothing that is right is flagged."""

import math
import random
import re

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from filch.compare import Tolerance, compare_tensors, default_tolerance, diff
from filch.compare.metrics._metrics import bytes_of, typical_magnitude
from filch.compare.metrics._nearest import Nearest
from filch.steal import steal_forward
from support.thorough import slow


def test_the_measures_follow_their_definitions():
    """The expected numbers were computed by hand for e = [1, -2, 0, 4] and a = [1.5, -2, 0.25, 3]."""
    expected, actual = torch.tensor([1.0, -2.0, 0.0, 4.0]), torch.tensor([1.5, -2.0, 0.25, 3.0])

    found = compare_tensors(actual, expected)

    assert found.error == 0.25
    assert found.mean_error == pytest.approx((0.25 + 0 + 0.25 + 0.2) / 4)
    assert (found.absolute, found.relative, found.scale) == (1.0, 0.5, 0.25)
    assert found.rms == pytest.approx(math.sqrt((0.25 + 0.0625 + 1) / 21))
    assert found.snr == pytest.approx(10 * math.log10(21 / (0.25 + 0.0625 + 1)))
    assert (found.mismatched, found.count, found.nonfinite, found.index) == (3, 4, 0, (0,))


@pytest.mark.parametrize("size", [2**20 - 1, 2**20, 2**20 + 1, 3 * 2**20 + 7])
def test_a_wrong_element_is_found_wherever_the_chunks_end(size):
    """The wrong element is the last one of a tensor that is compared in chunks."""
    expected = torch.zeros(size)
    actual = expected.clone()
    actual[-1] = 1

    found = compare_tensors(actual, expected)

    assert (found.close, found.mismatched, found.index, found.count) == (False, 1, (size - 1,), size)


def test_the_index_is_that_of_the_largest_error():
    """It is an index into the shape of the tensor."""
    expected = torch.zeros(2, 3, 4)
    actual = expected.clone()
    actual[1, 0, 2], actual[1, 2, 3] = 0.5, 2.0

    assert compare_tensors(actual, expected).index == (1, 2, 3)


def test_a_tolerance_of_zero_asks_for_equality():
    """A difference of one unit in the last place is found."""
    expected = torch.ones(3)
    actual = torch.nextafter(expected, torch.tensor(2.0))

    assert compare_tensors(actual, expected).close
    assert not compare_tensors(actual, expected, tolerance=0).close
    assert compare_tensors(expected.clone(), expected, tolerance=0).close


def test_both_limits_of_a_tolerance_hold():
    """Small values can be within the first limit and exceed the second."""
    expected, actual = torch.tensor([1e-4, 1e-4]), torch.tensor([1e-4, 1.5e-4])

    assert compare_tensors(actual, expected, tolerance=Tolerance(1e-3, 0.6)).close
    assert not compare_tensors(actual, expected, tolerance=Tolerance(1e-3, 0.1)).close


def test_rounding_of_large_inputs_is_no_difference_in_a_small_result():
    """100 - 100 is 1e-6 instead of 0; without the magnitude of the inputs that is an error of 100 %."""
    expected, actual = torch.tensor([1e-6]), torch.tensor([0.0])

    assert not compare_tensors(actual, expected).close
    assert compare_tensors(actual, expected, magnitude=100.0).close


@pytest.mark.parametrize("mask", [-1e4, -1e9, -3.4e38])
def test_a_mask_among_scores_does_not_explain_their_differences(mask):
    """16 units in the last place of -1e9 are 1000, which must not be tolerated for the scores."""
    expected = torch.linspace(0.5, 2, 64)
    expected[10:50] = mask
    actual = expected.clone()
    actual[3] += 1e-3

    assert not compare_tensors(actual, expected).close
    assert not compare_tensors(torch.ones(4) * 1.001, torch.ones(4), magnitude=typical_magnitude(expected)).close


@pytest.mark.parametrize("dtype", [torch.int64, torch.uint8, torch.bool, torch.int32])
def test_integers_are_compared_exactly_whatever_the_tolerance(dtype):
    """A difference of 1 is found."""
    expected, actual = torch.tensor([0, 1]).to(dtype), torch.tensor([1, 1]).to(dtype)

    assert not compare_tensors(actual, expected, tolerance=10).close


def test_the_default_tolerances_follow_the_dtype():
    """They are those of the documentation."""
    limits = [
        default_tolerance(dtype).harmonic
        for dtype in (torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int8)
    ]

    assert limits == [1e-10, 1e-5, 1e-2, 5e-2, 0.0]


@pytest.mark.parametrize("view", ["transposed", "expanded", "conjugate", "negative"])
def test_views_are_compared_by_their_numbers(view):
    """Strides and lazy conjugation make no difference."""
    base = torch.randn(3, 3, dtype=torch.complex64)
    made = {
        "transposed": base.T,
        "expanded": base[:1].expand(3, 3),
        "conjugate": base.conj(),
        "negative": base.conj().imag,
    }[view]

    assert compare_tensors(made.clone().resolve_conj().resolve_neg().contiguous(), made).close
    assert not compare_tensors((made + 1).contiguous(), made).close


def test_the_message_names_the_limit_that_is_exceeded():
    """Small numbers that are all wrong have a small absolute error, and one as large as the tensor's scale."""
    told = str(compare_tensors(torch.full((4,), 2e-6), torch.full((4,), 1e-6)))

    assert "relative to the tensor's scale 1.0e+00 (up to " in told
    one = str(compare_tensors(torch.tensor([1000.0, 2e-3]), torch.tensor([1000.0, 1e-3]), tolerance=1e-5))
    assert "(up to 1.0e-05 allowed)" in one and "allowed" not in one.rpartition("scale")[2]


def test_the_limit_that_is_exceeded_most_comes_first():
    """The message does not begin with the number of elements that differ."""
    tiny = torch.full((32,), 1e-6)
    peak = torch.full((1000,), 9e-3).half()
    peak[0] = 0.1
    lost = torch.where(peak == peak[0], peak, 0)

    assert str(compare_tensors(tiny * 2, tiny)).startswith(
        "absolute 1.0e-06, relative to the tensor's scale 1.0e+00 (up to"
    )
    assert str(compare_tensors(lost, peak)).startswith(
        "root mean square 9.4e-01 relative to the tensor's (up to 2.0e-02"
    )
    assert str(compare_tensors(torch.zeros(2), torch.ones(2))).startswith("2 of 2 elements differ")
    assert str(compare_tensors(torch.tensor([1, math.inf]), torch.ones(2))).startswith(
        "1 NaN or inf, on one side or not the same; "
    )
    assert str(compare_tensors(torch.ones(2), torch.ones(2))).startswith(
        "0 of 2 elements differ; greatest harmonic error 0.0e+00"
    )


def _wrong_tensors():
    """Return wrong tensors and what they should be, by the kind of the fault."""
    torch.manual_seed(0)
    small = torch.softmax(torch.randn(64, 1000), 1)
    mixed = torch.randn(4, 50)
    nan, infinite = mixed.clone(), mixed.clone()
    nan[0, :3], infinite[1, :5] = math.nan, math.inf
    numbers = torch.arange(-10, 10)
    return {
        "small zeros": (torch.zeros_like(small, dtype=torch.bfloat16), small.bfloat16()),
        "small factor": (small.bfloat16() * 1.5, small.bfloat16()),
        "small zeros of float32": (torch.zeros_like(small), small),
        "NaN": (nan, mixed),
        "NaN lost": (mixed, nan),
        "infinite": (infinite, mixed),
        "other infinity": (-infinite, infinite),
        "zeros for NaN": (torch.zeros(4, 50), nan),
        "largest numbers": (torch.full((8,), 65504.0).half(), torch.full((8,), -65504.0).half()),
        "overflow": (torch.full((8,), math.inf).half(), torch.full((8,), 65504.0).half()),
        "subnormal": (torch.zeros(8), torch.full((8,), 1e-40)),
        "rounding": (mixed * (1 + 1e-7), mixed),
        "equal": (mixed, mixed.clone()),
        "integers": (numbers + (numbers % 3 == 0), numbers),
        "integer zeros": (torch.zeros_like(numbers), numbers),
        "extreme integers": (torch.full((3,), 2**63 - 1), torch.full((3,), -(2**63))),
        "neighbouring integers": (torch.full((3,), 2**62 + 1), torch.full((3,), 2**62)),
        "booleans": (torch.tensor([True, False, False]), torch.tensor([True, True, False])),
        "complex": (torch.ones(3, dtype=torch.complex64), torch.full((3,), 1 + 1j)),
        "empty": (torch.zeros(0, 3), torch.ones(0, 3)),
    }


@pytest.mark.parametrize(("actual", "expected"), _wrong_tensors().values(), ids=_wrong_tensors())
def test_the_counts_of_a_sentence_are_those_of_the_numbers(actual, expected):
    """No count contradicts the numbers, or another count of the same sentence."""
    difference = compare_tensors(actual, expected)
    real = [torch.view_as_real(item) if item.is_complex() else item for item in (actual, expected)]
    a, e = (item.flatten() for item in real)
    differ = ~((a == e) | (a.isnan() & e.isnan()))
    zeroed, both = int(((a == 0) & (e != 0)).sum()), a.isfinite() & e.isfinite()

    text = str(difference)
    counts = {what: int(count) for count, what in re.findall(r"(\d+) (became 0|overflowed|NaN or inf)", text)}
    assert counts.get("became 0", 0) == zeroed
    assert counts.get("overflowed", 0) == int((e.isfinite() & ~a.isfinite()).sum())
    assert counts.get("NaN or inf", 0) == int((differ & ~both).sum())
    allowed = re.search(r"(\d+) of (\d+) elements differ by more than is allowed", text)
    exactly = re.search(r"(\d+) of (\d+) elements differ(?! by)", text)
    if allowed is not None:
        errors = torch.where(both, (a.double() - e.double()).abs() / (e.double().abs() + 1), math.inf)
        beyond = differ & (~both | (errors > difference.tolerance.harmonic))
        assert 0 < int(allowed[1]) == int(beyond.sum())
        assert int(allowed[2]) == e.numel()
    if exactly is not None:
        assert (int(exactly[1]), int(exactly[2])) == (int(differ.sum()), e.numel())
    assert difference.close or "differ" in text or "allowed" in text


def test_what_becomes_zero_is_counted():
    """This holds for every dtype; elements whose reference is 0 are not counted."""
    for dtype in (torch.float32, torch.float16, torch.float64, torch.int64, torch.uint64, torch.float8_e5m2):
        expected, actual = torch.tensor([1, 0, 2, 3]).to(dtype), torch.tensor([0, 0, 0, 3]).to(dtype)
        found = compare_tensors(actual, expected)

        assert found.zeroed == found.measures["zeroed"] == 2
        assert "2 became 0" in str(found)
    assert compare_tensors(torch.full((3,), 2.5), torch.ones(3)).zeroed == 0


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_numbers_that_processors_flush_are_rounding(dtype):
    """These are the subnormal numbers only; with tolerance 0 they are a difference too."""
    least = torch.finfo(dtype).smallest_normal
    flushed, zeros = torch.full((8,), least * 0.75, dtype=dtype), torch.zeros(8, dtype=dtype)

    assert compare_tensors(zeros, flushed).close and compare_tensors(flushed, zeros).close
    assert not compare_tensors(zeros, flushed, tolerance=0).close
    assert not compare_tensors(zeros, torch.full_like(zeros, least * 1.5)).close


def test_underflow_of_float16_is_rounding_and_its_subnormal_numbers_are_not():
    """6e-8 is the smallest number; probabilities of 50,000 classes are under the smallest normal one."""
    zeros = torch.zeros(8).half()

    assert compare_tensors(zeros, torch.full((8,), 3e-8), lower_precision=True).close
    assert compare_tensors(zeros, torch.full((8,), 6e-8).half()).close
    assert not compare_tensors(zeros, torch.full((8,), 3e-7).half()).close
    assert not compare_tensors(zeros, torch.full((8,), 2e-5), lower_precision=True).close


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_close_to_float32_and_zeroed_probabilities_are_not(dtype):
    """The results of PyTorch in half precision are close to those in float32 on the same numbers."""
    x, w = (torch.randn(64, 256, generator=torch.Generator().manual_seed(seed)).to(dtype) for seed in range(2))
    operations = {
        "softmax": lambda x, _: functional.softmax(x * 2, -1),
        "layer_norm": lambda x, _: functional.layer_norm(x, (256,)),
        "gelu": lambda x, _: functional.gelu(x),
        "linear": functional.linear,
        "attention": lambda x, w: functional.scaled_dot_product_attention(x[None], w[None], x[None]),
    }

    for name, operation in operations.items():
        exact = operation(x.float(), w.float()).to(dtype)
        assert compare_tensors(operation(x, w), exact).close, name
    many = functional.softmax(torch.randn(4, 1000, generator=torch.Generator().manual_seed(2)) * 2, -1).to(dtype)
    lost = torch.where(many < 9e-3, 0, many)
    assert compare_tensors(lost, many).mismatched == 0 and not compare_tensors(lost, many).close


def test_the_third_limit_is_the_second_one_by_default():
    """The two limits of a user also apply to small elements beside one large element."""
    peak = torch.full((1000,), 1e-3)
    peak[0] = 0.1
    lost = torch.where(peak == peak[0], peak, 0)

    assert Tolerance(1e-2, 1e-1) == Tolerance(1e-2, 1e-1, 1e-1)
    assert not compare_tensors(lost, peak, tolerance=Tolerance(1e-2, 1e-1)).close
    assert compare_tensors(lost, peak, tolerance=Tolerance(1e-2, 1e-1, 0.5)).close


def test_complex_numbers_are_compared_part_by_part():
    """A wrong sign of a small part beside a large one is found, and the index names the part."""
    expected = torch.tensor([[complex(1, 2), complex(1e5, 0.1)]])

    found = compare_tensors(expected.conj(), expected)

    assert (found.close, found.index, found.count) == (False, (0, 0, 1), 4)


def test_numbers_that_are_repeated_are_compared_once():
    """An expanded tensor of a few bytes may have terabytes of elements; all of them are counted."""
    expected, actual = torch.tensor([[[1.0], [2.0], [0.5]]]), torch.tensor([[[1.0], [2.5], [torch.nan]]])
    few = compare_tensors(actual.expand(2, 3, 5).contiguous(), expected.expand(2, 3, 5).contiguous())

    assert compare_tensors(actual.expand(2, 3, 5), expected.expand(2, 3, 5)) == few
    assert compare_tensors(actual.expand(2, 3, 5).contiguous(), expected.expand(2, 3, 5)) == few
    many = compare_tensors(actual.expand(2**20, 3, 2**20), expected.expand(2**20, 3, 2**20))
    assert (many.mismatched, many.nonfinite, many.count) == (2 * 2**40, 2**40, 3 * 2**40)
    assert compare_tensors(expected.expand(2**20, 3, 2**20), expected.expand(2**20, 3, 2**20)).close


def test_numbers_that_are_repeated_beyond_all_proportion_in_other_dimensions_are_not_compared():
    size = 2**20
    expected, actual = torch.ones(size, 1).expand(size, size), torch.ones(1, size).expand(size, size)
    found = compare_tensors(actual, expected)
    assert not found.close
    assert found.problem == (
        "numbers are repeated to 4,096.0 GiB, more than 64 times what is stored: they are not compared"
    )
    assert compare_tensors(actual[:9, :9], expected[:9, :9]).close


@pytest.mark.parametrize("shape", [(), (1,), (1, 1), (0, 3), (2, 3)], ids=str)
def test_the_bytes_of_a_tensor_are_those_of_its_numbers(shape):
    for tensor in (torch.ones(shape), torch.ones(()).expand(shape), torch.ones(shape, dtype=torch.complex64)):
        assert bytes_of(tensor).numpy().tobytes() == tensor.numpy().tobytes()


def test_comparing_changes_neither_side():
    """The tensors are equal to copies that were made before."""
    expected, actual = torch.tensor([0.0, math.nan]), torch.tensor([0.0, 1.0])

    compare_tensors(actual, expected)

    assert expected[0] == 0 and expected[1].isnan() and actual.tolist() == [0.0, 1.0]


@pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor.*deprecated:UserWarning")
@pytest.mark.parametrize(
    ("make", "kind"),
    [
        (torch.Tensor.to_sparse, "sparse_coo"),
        (lambda x: torch.quantize_per_tensor(x, 0.1, 0, torch.qint8), "quantized"),
    ],
)
def test_what_is_not_dense_is_not_compared_and_never_close(make, kind):
    """A sparse tensor does not equal itself either; the problem says what to do."""
    tensor = make(torch.eye(3))
    for expected, actual in ((tensor, tensor), (tensor, torch.eye(3)), (torch.eye(3), tensor)):
        found = compare_tensors(actual, expected)
        assert not found.close
        assert found.problem == f"a {kind} tensor can't be compared: convert it to a dense one"


NAN, INF = float("nan"), float("inf")


def test_the_error_of_complex_numbers_includes_the_imaginary_part():
    """The distance of 1+1j and 1+9j is 8."""
    expected, actual = (torch.from_numpy(np.array([number])) for number in (1 + 1j, 1 + 9j))
    assert compare_tensors(actual, expected).absolute == 8


def _doubles(*numbers):
    return torch.tensor(numbers, dtype=torch.float64)


@pytest.mark.parametrize("value", [_doubles(NAN, 1.0), _doubles(INF, -INF), torch.empty(0), torch.tensor([2**53 + 1])])
def test_equal_values_are_close(value):
    """With NaN and infinities at the same places."""
    found = compare_tensors(value.clone(), value)

    assert found.close
    assert found.absolute == 0


@pytest.mark.parametrize(("first", "second", "close"), [("a", "b", False), ("a", "a", True), (None, "a", False)])
def test_diff_compares_values_that_are_not_tensors(first, second, close):
    """A different string is a divergence, not an error."""

    def stolen(value):
        module = nn.Identity()
        with steal_forward(("m", module)) as capture:
            module([torch.ones(1), value])
        return capture

    found = diff(stolen(first), stolen(second))

    assert found.close == close
    assert all("'a'" in row.what + row.reason for row in found.diverged)


def _nearest_of_all(values, tensor):
    found = {name: compare_tensors(value, tensor) for name, value in values.items()}
    close = [(difference.error, name) for name, difference in found.items() if difference.close]
    return min(close)[1] if close else None


def _some(kind, shape, draw):
    if not kind.is_floating_point and not kind.is_complex:
        return torch.randint(0, 2, shape).to(kind)
    values = torch.randn(shape, dtype=torch.float64) * 10 ** draw.uniform(-8, 8)
    for special in (torch.inf, -torch.inf, torch.nan, torch.finfo(torch.float32).min, 0.0):
        if draw.random() < 0.2:
            values.reshape(-1)[: draw.randint(0, 2)] = special
    return values.to(kind)


@slow
@pytest.mark.parametrize("kind", [torch.float32, torch.float16, torch.complex64, torch.int64, torch.bool], ids=str)
@pytest.mark.parametrize("shape", [(), (1,), (2, 3), (0,)], ids=str)
def test_it_is_the_nearest_of_all(kind, shape):
    draw = random.Random(f"{kind}{shape}")  # noqa: S311  the same ones each time
    torch.manual_seed(0)
    found = 0
    for _ in range(20):
        wanted = _some(kind, shape, draw)
        values = {f"v{i}": _some(kind, shape, draw) for i in range(10)}
        for place in range(10):  # of which some are hardly different, and some are the same
            moved = wanted if wanted.dtype in {torch.int64, torch.bool} else wanted * (1 + 10 ** draw.uniform(-9, -1))
            values[f"n{place}"] = moved.to(kind)
        values |= {f"again{place}": values[f"n{place}"].clone() for place in range(3)}
        nearest = _nearest_of_all(values, wanted)
        found += nearest is not None
        assert Nearest(values).find(wanted) == nearest
    assert found >= 10


def test_large_integers_that_float64_does_not_hold_are_told_apart():
    values = {"a": torch.tensor([2**62 + 1]), "b": torch.tensor([2**62])}
    assert Nearest(values).find(torch.tensor([2**62])) == "b"


def test_none_is_close():
    assert Nearest({"a": torch.zeros(3), "b": torch.ones(3)}).find(torch.full((3,), 0.5)) is None
    assert Nearest({"a": torch.zeros(3)}).find(torch.tensor([0.0, 0.0, torch.nan])) is None
    assert Nearest({"a": torch.eye(3)}).find(torch.eye(3).to_sparse()) is None
