"""A MatMul with weights of four bits in blocks becomes MatMulNBits, which rounds the other operand to eight bits."""

import numpy as np
from onnx import TensorProto, helper

from museum._bug import OnnxBug
from museum._graphs import Graph

ROWS, COLUMNS, BLOCK = 32, 24, 16


def weights():
    rng = np.random.default_rng(7)
    return rng.integers(-7, 8, (ROWS, COLUMNS)), rng.uniform(0.01, 0.03, (ROWS // BLOCK, COLUMNS)).astype(np.float32)


def make():
    quantized, scales = weights()
    graph = Graph(21)
    x = graph.node("Tanh", graph.input("x", [4, ROWS]), name="act")
    values = helper.make_tensor("w", TensorProto.INT4, [ROWS, COLUMNS], quantized.reshape(-1).tolist())
    w = graph.node(
        "DequantizeLinear",
        graph.constant("w", values),
        graph.constant("scales", scales),
        name="unpack",
        axis=0,
        block_size=BLOCK,
    )
    x = graph.node("MatMul", x, w, name="product")
    x = graph.node("Add", x, graph.constant("bias", np.linspace(-1, 1, COLUMNS, dtype=np.float32)), name="shift")
    graph.output(graph.node("Abs", x, name="size"))
    return graph.model()


def inputs():
    return {"x": np.random.default_rng(8).normal(size=(4, ROWS)).astype(np.float32)}


def expected(feed):
    quantized, scales = weights()
    x = np.tanh(feed["x"].astype(np.float64)) @ (quantized * np.repeat(scales.astype(np.float64), BLOCK, 0))
    return [np.abs(x + np.linspace(-1, 1, COLUMNS, dtype=np.float32)).astype(np.float32)]


BUG = OnnxBug(
    issue="onnxsim/onnxsim#749",
    kind="quantized",
    wrong="1.32.0",
    right="1.24.1",
    make=make,
    inputs=inputs,
    expected=expected,
    nodes=frozenset({"unpack", "product", "shift"}),
    near=frozenset({"act", "size"}),
    optimizers=frozenset({"QDQSelectorActionTransformer"}),
)
