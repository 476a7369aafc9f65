"""Writes down how a session of ONNX Runtime is made and run."""

from collections.abc import Sequence
from typing import Any

from filch.steal.text import python_literal

from ._options import OrtOptions


def session_code(options: OrtOptions, level: str, providers: Sequence[Any]) -> str:
    """A function `run(path, names, inputs)`, as Python code that needs `onnxruntime` as `ort`.

    Args:
        options: what the session is told.
        level: the name of the optimisation level, as `onnxruntime.GraphOptimizationLevel` has it.
        providers: as `onnxruntime.InferenceSession` takes them.
    """
    told = {"graph_optimization_level": f"ort.GraphOptimizationLevel.{level}"}
    told |= {name: _text(value) for name, value in options.session_options.items()}
    told |= {} if options.threads is None else {"intra_op_num_threads": _text(options.threads)}
    entries = [f"{_text(name)}, {_text(value)}" for name, value in options.entries.items()]
    off = f", disabled_optimizers={_text([*options.disabled_optimizers])}" if options.disabled_optimizers else ""
    lines = [
        "options = ort.SessionOptions()",
        *(f"options.{name} = {value}" for name, value in told.items()),
        *(f"options.add_session_config_entry({entry})" for entry in entries),
        f"session = ort.InferenceSession(path, options, providers={_text([*providers])}{off})",
        "return session.run(names, inputs)",
    ]
    return "\n    ".join(["def run(path, names, inputs):", *lines])


def _text(value: Any) -> str:
    """A value as it is written; ONNX Runtime's own are members of its enumerations."""
    of = type(value)
    return f"ort.{of.__name__}.{value.name}" if of.__module__.startswith("onnxruntime") else python_literal(value)
