"""What ONNX Runtime does on this machine, asked with models of one node."""

from functools import cache

import numpy as np
import onnxruntime as ort
from onnx import TensorProto, helper

from .._nchwc import DOMAIN
from ._options import CPU


def starts(provider: str) -> bool:
    """Ask a session: a provider that is listed may still fail to load, and then the CPU steps in."""
    ort.set_default_logger_severity(4)  # it would write to the terminal's standard error by itself
    try:
        session = ort.InferenceSession(_model("Abs", "", [1]), providers=[provider], enable_fallback=0)
    except Exception:  # noqa: BLE001  ONNX Runtime's exceptions have no common base
        return False
    finally:
        ort.set_default_logger_severity(2)
    return provider in session.get_providers()


@cache
def block_size() -> int:
    """How many channels of a blocked tensor stand side by side: the place of the second number of the first channel."""
    model = _model("ReorderInput", DOMAIN.removesuffix("::"), [1, 64, 1, 2])
    session = ort.InferenceSession(model, providers=[CPU])
    (found,) = session.run(None, {"x": np.arange(128, dtype=np.float32).reshape(1, 64, 1, 2)})
    return int(np.flatnonzero(np.asarray(found).reshape(-1) == 1)[0])


def _model(op: str, domain: str, shape: list[int]) -> bytes:
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name in "xy"]
    graph = helper.make_graph([helper.make_node(op, ["x"], ["y"], domain=domain)], "probe", ends[:1], ends[1:])
    opsets = [helper.make_opsetid(name, 1 if name else 18) for name in {"", domain}]
    content: bytes = helper.make_model(graph, opset_imports=opsets, ir_version=10).SerializeToString()
    return content
