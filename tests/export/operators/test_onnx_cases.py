"""Operators compute in float64 what the onnx package expects of them, for each of its test cases."""

import re

import torch

from support.operators.cases import as_tensor, cases, computed, in_float64

# The cases, as patterns of their names, whose values differ from the expected ones, and why.
EXCEPTIONS = {
    r"bitcast_.*(float|int32_to_float|int64_to_float).*": "a float64 value has not the bits of the float32 one",
    r"training_dropout.*|bernoulli.*": "random",
    r"image_decoder.*": "a picture file, not numbers",
    r"adagrad.*|adam.*|.*momentum.*": "steps of training, which no runtime has without its own build",
    r"cast(like)?_FLOAT(16)?_to_FLOAT4E2M1": "NaN, which FLOAT4E2M1 does not have",
    r"resize_downsample_scales_(linear|cubic)_align_corners": "the size is that of the output, a whole number",
    r"maxunpool_export_with_output_shape": "indices are those of the output, as in torch and ONNX Runtime",
}
FEW_DIGITS = r"averagepool_2d_ceil_last_window_starts_on_pad|gridsample_bicubic|roialign_aligned_.*"  # four


def _is_equal(case, value, expected):
    if isinstance(expected, list):
        both = isinstance(value, list) and len(value) == len(expected)
        return both and all(_is_equal(case, *pair) for pair in zip(value, expected, strict=True))
    if expected is None or not isinstance(value, torch.Tensor):
        return expected is value
    wide = in_float64(expected)
    if (value.dtype, value.shape) != (wide.dtype, wide.shape):
        return False
    is_coarse = expected.is_floating_point() and expected.dtype.itemsize < 4
    digits = 1e-2 if is_coarse else 2e-4 if re.fullmatch(f"test_({FEW_DIGITS})", case.name) else 2e-5
    return torch.allclose(value, wide, rtol=digits, atol=digits / 10, equal_nan=True)


def test_the_cases_of_onnx():
    """All that are not listed with a reason; integers are equal, and other numbers to the digits of their dtype."""
    differs, checked = set(), 0
    for case in cases():
        values = computed(case.model, {name: in_float64(as_tensor(value)) for name, value in case.inputs.items()})
        expected = {name: as_tensor(value) for name, value in case.outputs.items()}
        checked += 1
        if not all(_is_equal(case, values.get(name), value) for name, value in expected.items()):
            differs.add(case.name)
    listed = {name for name in differs if any(re.fullmatch(f"test_({item})", name) for item in EXCEPTIONS)}
    assert differs - listed == set()
    assert checked > 1_000
    unused = [item for item in EXCEPTIONS if not any(re.fullmatch(f"test_({item})", name) for name in listed)]
    assert unused == []
