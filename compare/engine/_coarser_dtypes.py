"""Find the coarser dtype in which a wrong value was computed, by the dtypes of its graph or by its numbers."""

from collections.abc import Collection, Iterable, Sequence

import torch

from filch.export import ExportError, Graph

from ..common._dtypes import declared_dtype, torch_dtype
from ..metrics._metrics import Difference
from ..metrics._tolerance import is_coarser
from ..results._rows import Row
from ._prepare import Prepared

_COARSEST_FIRST = (torch.bfloat16, torch.float16)
_SAMPLE_SIZE = 2**14
_MIN_DISTINCT = 8  # numbers: zeros, or a few powers of two, are exact in every dtype
_MAX_RMS = 16  # of the coarser dtype's epsilons: rounding in that dtype explains the difference


def coarser_dtype(prepared: Prepared, rows: Sequence[Row], first: Row) -> str:
    """Return the coarser dtype that a graph has on the way to a value, but not the model; `""` if it has none.

    Args:
        prepared: the comparison.
        rows: its rows.
        first: the row of the value. The way to it starts at the values that were judged and have the model's dtype.
    """
    original = prepared.program.original
    if original is None or prepared.options.lower_precision:
        return ""
    try:
        exported, model_dtypes = original.graph, original.types
    except ExportError:
        return ""
    compiled = prepared.compiled[first.stage]
    graph, same_run = compiled.graph, [row for row in rows if (row.call, row.stage) == (first.call, first.stage)]
    observed = {row.value: torch_dtype(row.dtype) for row in same_run if row.kind != "output"}
    judged = {row.value for row in same_run if row.status in ("same", "different") and row.value != first.value}
    # A value that only the compiled graph has is computed from what its node computes in the model.
    name = compiled.exported_name(first.value)
    outputs = {node.name: node.outputs for node in prepared.program.graph.nodes}
    ends = [name] if name in exported.producer else [item for origin in first.origins for item in outputs[origin]]
    computed = _computed(exported, ends, {*map(compiled.exported_name, judged)} - {*ends})
    model = [model_dtypes.get(item) for item in computed]
    if not model or None in model:
        return ""
    found = [
        _coarsest(observed.get(item), declared_dtype(graph, item)) for item in _computed(graph, [first.value], judged)
    ]
    expected = [dtype for dtype in model if dtype is not None and dtype.is_floating_point]
    coarser = (dtype for dtype in _COARSEST_FIRST if dtype in found)
    lower = next((dtype for dtype in coarser if all(is_coarser(dtype, other) for other in expected)), None)
    return "" if lower is None else str(lower).removeprefix("torch.")


def exact_dtype(tensor: torch.Tensor, reference: torch.Tensor, difference: Difference) -> str:
    """Return the coarser dtype that a value seems to be rounded to; `""` if there is none.

    All numbers of the value are exact in that dtype, those of the reference are not, and rounding in that dtype
    explains the difference of both.

    Args:
        tensor: the value.
        reference: its reference.
        difference: the difference of both.
    """
    for dtype in _COARSEST_FIRST:
        is_explained = is_coarser(dtype, tensor.dtype) and difference.rms <= _MAX_RMS * torch.finfo(dtype).eps
        if is_explained and _is_exact(tensor, dtype) and not _is_exact(reference, dtype):
            return str(dtype).removeprefix("torch.")
    return ""


def _is_exact(tensor: torch.Tensor, dtype: torch.dtype) -> bool:
    """Return whether a dtype has all numbers of a tensor, and these are various enough to show that."""
    sample = tensor.reshape(-1)[:: max(1, tensor.numel() // _SAMPLE_SIZE)]
    if not torch.equal(sample, sample.to(dtype).to(tensor.dtype)) or len({*sample.tolist()}) < _MIN_DISTINCT:
        return False
    return torch.equal(tensor, tensor.to(dtype).to(tensor.dtype))


def _computed(graph: Graph, ends: Iterable[str], stop: Collection[str]) -> list[str]:
    """Return the names of the values on the way from those in `stop` to `ends`, and of `ends`, but not of constants."""
    nodes = graph.cone(ends, stop)
    return [name for node in nodes for name in node.outputs if name and name not in graph.constant_values]


def _coarsest(*dtypes: torch.dtype | None) -> torch.dtype | None:
    """Return the coarsest known dtype: a backend may return a value in another dtype than it has in its graph."""
    return max(
        (dtype for dtype in dtypes if dtype is not None and dtype.is_floating_point),
        key=lambda dtype: torch.finfo(dtype).eps,
        default=None,
    )
