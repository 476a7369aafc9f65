"""Attention adds its mask before softcap, which makes minus infinity a finite number: what is masked leaks in."""

import numpy as np

from museum._bug import OnnxBug
from museum._graphs import Graph

CAP = 2.0
MASK = np.where(np.random.default_rng(12).uniform(size=(4, 6)) < 0.6, 0.0, -np.inf).astype(np.float32)
MASK[:, 0] = 0


def make():
    graph = Graph(23, ir_version=11)
    q, k, v = graph.input("q", [1, 2, 4, 8]), graph.input("k", [1, 2, 6, 8]), graph.input("v", [1, 2, 6, 8])
    v = graph.node("Tanh", v, name="act")
    x = graph.node("Attention", q, k, v, graph.constant("mask", MASK), name="attend", softcap=CAP)
    graph.output(graph.node("Exp", x, name="grow"))
    return graph.model()


def inputs():
    rng = np.random.default_rng(11)
    return {name: rng.normal(size=(1, 2, rows, 8)).astype(np.float32) for name, rows in (("q", 4), ("k", 6), ("v", 6))}


def expected(feed):
    q, k, v = (feed[name].astype(np.float64) for name in "qkv")
    scores = q @ k.swapaxes(-1, -2) / np.sqrt(8)
    weights = np.exp(CAP * np.tanh(scores / CAP) + MASK)
    return [np.exp(weights / weights.sum(-1, keepdims=True) @ np.tanh(v)).astype(np.float32)]


BUG = OnnxBug(
    issue="microsoft/onnxruntime#28379",
    kind="kernel",
    wrong="1.26.0",
    right="1.27.0",
    make=make,
    inputs=inputs,
    expected=expected,
    nodes=frozenset({"attend"}),
    near=frozenset({"act", "grow"}),
)
