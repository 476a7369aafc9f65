"""Find out what ONNX Runtime does on this machine by running models of one node."""

from functools import cache

import numpy as np
import onnxruntime as ort
from onnx import TensorProto, helper

from .._nchwc import DOMAIN
from ._options import CPU


def can_start(provider: str) -> bool:
    """Return whether a session can use a provider: a listed one may fail to load, and the CPU is used instead."""
    ort.set_default_logger_severity(4)  # otherwise it writes to standard error
    try:
        session = ort.InferenceSession(_model("Abs", "", [1]), providers=[provider], enable_fallback=0)
    except Exception:  # noqa: BLE001  ONNX Runtime's exceptions have no common base
        return False
    finally:
        ort.set_default_logger_severity(2)  # ONNX Runtime's default: warnings
    return provider in session.get_providers()


@cache
def block_size() -> int:
    """Return the number of channels in a block: the position of the second number of the first channel."""
    model = _model("ReorderInput", DOMAIN.removesuffix("::"), [1, 64, 1, 2])
    session = ort.InferenceSession(model, providers=[CPU])
    (blocked,) = session.run(None, {"x": np.arange(128, dtype=np.float32).reshape(1, 64, 1, 2)})
    return int(np.flatnonzero(np.asarray(blocked).reshape(-1) == 1)[0])


def _model(op: str, domain: str, shape: list[int]) -> bytes:
    """Return a serialized model of one node, which reads and computes float32 values of this shape."""
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name in "xy"]
    graph = helper.make_graph([helper.make_node(op, ["x"], ["y"], domain=domain)], "probe", ends[:1], ends[1:])
    opsets = [helper.make_opsetid(name, 1 if name else 18) for name in {"", domain}]
    content: bytes = helper.make_model(graph, opset_imports=opsets, ir_version=10).SerializeToString()
    return content
