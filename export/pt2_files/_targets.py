"""The operators that a saved program may contain, and those that may run."""

import re
from functools import lru_cache
from typing import Any

import torch

from filch.steal.private._torch import HigherOrderOperator, OpOverload, type_repr

from ._archive import StoredError

_OVERLOAD = re.compile(r"torch\.ops\.(\w+)\.(\w+)\.(\w+)")
_HIGHER = re.compile(r"torch\.ops\.higher_order\.(\w+)")
_OPERATORS = {"add", "and_", "eq", "floordiv", "ge", "getitem", "gt", "le", "lt", "mod", "mul", "ne", "neg", "or_"}
_OPERATORS |= {"pos", "pow", "sub", "truediv"}
_SYMBOLIC = ("sym_float", "sym_int", "sym_ite", "sym_max", "sym_min", "sym_not", "sym_sqrt")
PYTHON = frozenset(
    {"math.trunc", *(f"_operator.{name}" for name in _OPERATORS), *(f"torch.{name}" for name in _SYMBOLIC)}
)

# These always end; `while_loop` may not.
_RUN_HIGHER = frozenset({"associative_scan", "cond", "map_impl", "scan"})
_RUN_HIGHER |= {"wrap_with_autocast", "wrap_with_set_grad_enabled"}
_SHOWN_HIGHER = _RUN_HIGHER | {"flex_attention", "while_loop"}

_RUN_FROM = frozenset({"aten", "prims", "quantized_decomposed", "torchvision"})
_PLAIN = {"Tensor", "Device", "Dimname", "Generator", "bool", "complex", "float", "int", "number", "str"}
_TEXTS = {"UPLO", "approximate", "assert_msg", "driver", "equation", "indexing", "interpolation", "mode", "norm"}
_TEXTS |= {"ord", "p", "pad_mode", "padding", "padding_mode", "padding_side", "reduce", "rounding_mode", "side"}
# Most operators with a leading underscore are internal and do not check their arguments. These do.
_CHECKED = frozenset(
    """
    __and__ __lshift__ __or__ __rshift__ __xor__ _adaptive_avg_pool2d _adaptive_avg_pool3d _addmm_activation _aminmax
    _assert_async _assert_scalar _assert_tensor_metadata _cdist_forward _conj _conj_copy _conj_physical _convolution
    _convolution_mode _dim_arange _embedding_bag _embedding_bag_forward_only _euclidean_dist _fft_c2c _fft_c2r _fft_r2c
    _functional_assert_async _functional_assert_scalar _functional_sym_constrain_range
    _functional_sym_constrain_range_for_size _fused_rms_norm _grouped_mm _int_mm _is_all_true _is_any_true _linalg_det
    _linalg_eigh _linalg_eigvals _linalg_slogdet _linalg_solve_ex _linalg_svd _local_scalar_dense _log_softmax
    _log_softmax_backward_data _logcumsumexp _masked_softmax _native_batch_norm_legit
    _native_batch_norm_legit_functional _native_batch_norm_legit_no_training _neg_view _pad_circular _pad_enum
    _pdist_forward _prelu_kernel _reshape_copy _safe_softmax _scaled_dot_product_attention_math
    _scaled_dot_product_cudnn_attention _scaled_dot_product_efficient_attention _scaled_dot_product_flash_attention
    _scaled_dot_product_flash_attention_for_cpu _scaled_dot_product_fused_attention_overrideable _shape_as_tensor
    _softmax _softmax_backward_data _stack _to_copy _trilinear _unique2 _unsafe_index _unsafe_index_put
    _unsafe_masked_index _unsafe_view _upsample_bicubic2d_aa _upsample_bilinear2d_aa _upsample_nearest_exact1d
    _upsample_nearest_exact2d _upsample_nearest_exact3d _weight_norm _weight_norm_interface
    """.split()  # noqa: SIM905  a list of them would take a line each
)
# Operators that access files, use unchecked indices, or take arguments in a library's own format.
_NEVER = re.compile(r"from_file|set|resize\w*|.*(?:fbgemm|jagged|miopen|mkldnn|nested|sparse).*|(?!fake_).*quantize.*")
_BACKWARD = re.compile(r"(?:elu|gelu|hardsigmoid|hardswish|hardtanh|leaky_relu|logit|mish|native_group_norm|"
                       r"native_layer_norm|select|sigmoid|silu|slice|softplus|tanh|threshold)_backward")  # fmt: skip


@lru_cache(maxsize=4096)
def displayable(target: str) -> str:
    """Return `target` if it names an operator that torch knows here, so that a graph with it can be displayed.

    Raises:
        StoredError: torch does not know it.
    """
    if target not in PYTHON and _overload(target) is None and not _is_higher(target, _SHOWN_HIGHER):
        raise StoredError(f"torch knows no operator {target!r:.200} here")
    return target


@lru_cache(maxsize=4096)
def runnable(target: str) -> str:
    """Return `target` if it names a pure function of tensors and numbers.

    Raises:
        StoredError: torch does not know it, or it may have side effects.
    """
    displayable(target)
    overload = _overload(target)
    is_python = target in PYTHON or _is_higher(target, _RUN_HIGHER)
    if not (is_python if overload is None else _is_function(overload)):
        raise StoredError(f"it calls {target!r:.200}, which Filch does not run from a file")
    return target


def is_runnable(target: Any) -> bool:
    """Return whether `runnable` accepts the target of an FX node after the graph is saved."""
    if isinstance(target, OpOverload):
        return _is_function(target)
    if isinstance(target, HigherOrderOperator):
        return getattr(target, "_name", "") in _RUN_HIGHER
    module = getattr(target, "__module__", "")
    return f"{module}.{getattr(target, '__name__', '')}" in PYTHON or type_repr(target) in PYTHON


def _overload(target: str) -> Any:
    """Return the ATen-style operator of this name (`torch.ops.aten.add.Tensor`), or None."""
    match = _OVERLOAD.fullmatch(target)
    if match is None or match[1] == "higher_order":
        return None
    try:
        overload = getattr(getattr(getattr(torch.ops, match[1]), match[2]), match[3])
    except (AttributeError, RuntimeError):
        return None
    return overload if isinstance(overload, OpOverload) else None


def _is_higher(target: str, known: frozenset[str]) -> bool:
    """Return whether a name is that of one of these higher-order operators, and torch has it."""
    match = _HIGHER.fullmatch(target)
    return match is not None and match[1] in known and hasattr(torch.ops.higher_order, match[1])


def _is_function(overload: Any) -> bool:
    """Return whether an operator is a pure function of tensors and numbers."""
    schema = overload._schema  # noqa: SLF001  torch has no public name for it
    name = str(schema.name).partition("::")[2]
    if overload.namespace not in _RUN_FROM or _NEVER.fullmatch(name):
        return False
    if name.startswith("_") and name not in _CHECKED:
        return False
    if "backward" in name and name not in _CHECKED and not _BACKWARD.fullmatch(name):
        return False
    return not schema.is_mutable and all(map(_is_plain, schema.arguments))


def _is_plain(argument: Any) -> bool:
    """Return whether an argument is a tensor, a number, or one of the known options that are strings."""
    kind = re.sub(r"(?:Optional|List)\[|\]", "", str(argument.type))
    return kind in _PLAIN and ("str" not in kind or argument.name in _TEXTS)
