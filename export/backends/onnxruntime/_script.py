"""Write Python code that creates and runs a session of ONNX Runtime."""

from collections.abc import Sequence
from typing import Any

from filch.steal.text import python_literal

from ._options import OrtOptions


def session_code(options: OrtOptions, level: str, providers: Sequence[Any]) -> str:
    """Return the code of a function `run(path, names, inputs)`, which needs `onnxruntime` imported as `ort`.

    Args:
        options: the options of the session.
        level: the name of the optimization level in `onnxruntime.GraphOptimizationLevel`.
        providers: see `onnxruntime.InferenceSession`.
    """
    attributes = {"graph_optimization_level": f"ort.GraphOptimizationLevel.{level}"}
    attributes |= {name: _code(value) for name, value in options.session_options.items()}
    attributes |= {} if options.threads is None else {"intra_op_num_threads": _code(options.threads)}
    entries = [f"{_code(name)}, {_code(value)}" for name, value in options.entries.items()]
    off = f", disabled_optimizers={_code([*options.disabled_optimizers])}" if options.disabled_optimizers else ""
    lines = [
        "options = ort.SessionOptions()",
        *(f"options.{name} = {value}" for name, value in attributes.items()),
        *(f"options.add_session_config_entry({entry})" for entry in entries),
        f"session = ort.InferenceSession(path, options, providers={_code([*providers])}{off})",
        "return session.run(names, inputs)",
    ]
    return "\n    ".join(["def run(path, names, inputs):", *lines])


def _code(value: Any) -> str:
    """Return the code of a value: a literal, or a member of an enumeration of ONNX Runtime."""
    kind = type(value)
    return f"ort.{kind.__name__}.{value.name}" if kind.__module__.startswith("onnxruntime") else python_literal(value)
