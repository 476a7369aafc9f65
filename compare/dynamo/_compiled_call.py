"""Check what `torch.compile` makes of one call of a model."""

import copy
from collections.abc import Mapping
from functools import partial
from typing import Any

import torch

from filch.steal import phase

from ..common._errors import reason_of
from ..metrics._tolerance import ToleranceOption
from ..models._state import ModelState
from ..models._subject import Subject
from ..results._report import Report
from ._backend import filch


def compiled_reports(
    subject: Subject, backend: str, *, options: Mapping[str, Any], tolerance: ToleranceOption
) -> tuple[list[Report], str]:
    """Return a report for each graph that `torch.compile` makes of a call without gradients, and why there is none.

    The model is compiled as it is, with its inputs as they are: what they share, their strides and offsets, and what
    the call writes to them. Its buffers are not changed.

    Args:
        subject: the model and its arguments.
        backend: the backend that compiles the graphs; see `DynamoOptions.inner`.
        options: further `DynamoOptions`.
        tolerance: see `compare`.
    """
    reports: list[Report] = []
    settings = {**options, "inner": backend, "correctness_report": reports, "tolerance": tolerance}
    compiled = torch.compile(subject.model, backend=partial(filch, options=settings))
    args, kwargs = copy.deepcopy((subject.args, dict(subject.kwargs)))  # keeps how tensors share memory
    try:
        with phase("torch.compile"), ModelState(subject.model).restored(), torch.no_grad():
            compiled(*args, **kwargs)
    except Exception as error:  # noqa: BLE001  Dynamo and compilers raise errors of all types
        return reports, f"torch.compile fails on this call: {reason_of(error)}"
    return reports, "" if reports else "torch.compile finds nothing to compile in this call"
