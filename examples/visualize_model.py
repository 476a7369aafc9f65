"""Optimize a small transformer block and draw it as an HTML page: AITemplate's 'How to visualize a model'."""

import tempfile
from pathlib import Path

import torch
from torch import Tensor, nn

from filch.compare import compiled_graph
from filch.export import Graph, Program, export
from filch.export.views import plot_graph


# 1. Define the model
class SimpleModel(nn.Module):
    def __init__(self, hidden: int, eps: float = 1e-5) -> None:
        super().__init__()
        self.dense1 = nn.Linear(hidden, 4 * hidden)
        self.fast_gelu = nn.GELU(approximate="tanh")
        self.dense2 = nn.Linear(4 * hidden, hidden)
        self.layernorm = nn.LayerNorm(hidden, eps=eps)

    def forward(self, x: Tensor) -> Tensor:
        hidden_states = self.fast_gelu(self.dense1(x))
        hidden_states = self.dense2(hidden_states)
        hidden_states = hidden_states + x
        return self.layernorm(hidden_states)


def gen_program() -> Program:
    batch_size, hidden = 512, 1024
    return export(SimpleModel(hidden).eval(), (torch.randn(1, batch_size, hidden),))


# 2. Apply the optimizations of ONNX Runtime
def apply_optimizations(program: Program) -> Graph:
    return compiled_graph(program, backend="onnxruntime-cpu")


# 3. Generate the visualization
def main(folder: Path) -> None:
    program = gen_program()
    graph = apply_optimizations(program)
    path = plot_graph(graph, folder / "model.html")
    print(f"{len(program.graph.nodes)} operations became {len(graph.nodes)}:")
    for node in graph.nodes:
        print(f"- {node.op} computes {', '.join(node.origins)}")
    print(f"{path.name}: {path.stat().st_size:,} bytes; opens in a browser without a server or a network")
    fused = {node.op: len(node.origins) for node in graph.nodes}
    assert fused["com.microsoft::SkipLayerNormalization"] == 2  # the addition and the normalization
    page = path.read_text("utf-8")
    assert "dense1" in page
    assert "<script src" not in page


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as name:
        main(Path(name))
