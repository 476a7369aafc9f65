"""Show a self-attention layer as text and in viewers, after each pass and fused: hidet's 'Visualize Flow Graph'."""

import json
import math
import tempfile
from pathlib import Path

import torch
from torch import Tensor, nn

from filch.compare import compiled_graph
from filch.export import export, optimize
from filch.export.passes import PassContext
from filch.export.views import netron, save


class SelfAttention(nn.Module):
    def __init__(self, hidden_size: int = 768, num_attention_heads: int = 12) -> None:
        super().__init__()
        self.num_attention_heads = num_attention_heads
        self.attention_head_size = hidden_size // num_attention_heads
        self.query_layer = nn.Linear(hidden_size, hidden_size)
        self.key_layer = nn.Linear(hidden_size, hidden_size)
        self.value_layer = nn.Linear(hidden_size, hidden_size)

    def transpose_for_scores(self, x: Tensor) -> Tensor:
        batch_size, seq_length, _ = x.shape
        x = x.reshape(batch_size, seq_length, self.num_attention_heads, self.attention_head_size)
        return x.permute(0, 2, 1, 3).flatten(0, 1)  # [batch * heads, sequence, head]

    def forward(self, hidden_states: Tensor, attention_mask: Tensor) -> Tensor:
        batch_size, seq_length, _ = hidden_states.shape
        query = self.transpose_for_scores(self.query_layer(hidden_states))
        key = self.transpose_for_scores(self.key_layer(hidden_states))
        value = self.transpose_for_scores(self.value_layer(hidden_states))
        attention_scores = query @ key.transpose(-1, -2) / math.sqrt(self.attention_head_size)
        attention_scores = attention_scores + attention_mask
        attention_probs = attention_scores.softmax(dim=-1)
        context = attention_probs @ value
        context = context.reshape(batch_size, self.num_attention_heads, seq_length, self.attention_head_size)
        return context.permute(0, 2, 1, 3).flatten(2)


def main(folder: Path) -> None:
    model = SelfAttention().eval()
    print(model)

    print("\nIts graph:")
    program = export(model, (torch.randn(1, 128, 768), torch.ones(1, 128, dtype=torch.int32)))
    graph = program.graph
    print(graph)
    assert str(graph).count("MatMul(") == 5

    print("\nWritten for hidet's viewer, and for Netron, as an annotated model:")
    with (folder / "attention-graph.json").open("w") as f:
        netron.dump(graph, f)
    written = save(graph, "netron", folder / "attention-graph.onnx")
    for path in (folder / "attention-graph.json", written):
        print(f"- {path.name}: {path.stat().st_size:,} bytes")
    nodes = json.loads((folder / "attention-graph.json").read_text())["graphs"][0]["nodes"]
    assert [node["type"]["name"] for node in nodes] == [node.op for node in graph.nodes]

    print("\nOptimized pass by pass; each pass is timed, and the graph after it is saved for both viewers:")
    with PassContext() as ctx:
        ctx.profile_pass_instrument(print_stdout=True)
        ctx.save_graph_instrument(out_dir=folder / "outs")
        optimized = optimize(program)
    saved = sorted(path.name for path in (folder / "outs").glob("[0-9]*"))
    print(", ".join(saved))
    assert {"0_Origin.json", "0_Origin.txt"} <= {*saved}
    print(optimized.graph)
    assert len(optimized.graph.nodes) < len(graph.nodes)

    print("\nThe graph that ONNX Runtime makes of it; fused nodes list the operations that they compute:")
    fused = compiled_graph(optimized, backend="onnxruntime-cpu")
    print(fused)
    assert 'fusion="Transpose MatMul Div"' in str(fused)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as name:
        main(Path(name))
