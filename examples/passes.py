"""Save the graph after each optimization pass, time each pass, and find the pass that introduces an error.

This follows hidet's 'Visualize optimization intermediate graphs', with a custom pass that is wrong.
"""

import math
import tempfile
from pathlib import Path

import onnx_ir as ir
import torch
from torch import nn

from filch.export import Program, export, optimize
from filch.export.passes import PassContext, default_passes
from filch.steal import steal_forward


class SelfAttention(nn.Module):
    """A stand-in for your model."""

    def __init__(self, hidden_size: int = 64, heads: int = 4) -> None:
        super().__init__()
        self.heads = heads
        self.query_layer = nn.Linear(hidden_size, hidden_size)
        self.key_layer = nn.Linear(hidden_size, hidden_size)
        self.value_layer = nn.Linear(hidden_size, hidden_size)

    def split(self, x: torch.Tensor) -> torch.Tensor:
        return x.unflatten(-1, (self.heads, -1)).transpose(1, 2)

    def forward(self, hidden_states: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        query = self.split(self.query_layer(hidden_states))
        key = self.split(self.key_layer(hidden_states))
        value = self.split(self.value_layer(hidden_states))
        scores = query @ key.transpose(-1, -2) / math.sqrt(query.shape[-1]) + attention_mask
        return (scores.softmax(-1) @ value).transpose(1, 2).flatten(2)


def forget_the_scale(program: Program) -> ir.Model:
    """Remove the division by the scale, as a wrong pass would that takes it for a no-op."""
    model = program.model
    for node in list(model.graph):
        if node.op_type == "Div":
            node.outputs[0].replace_all_uses_with(node.inputs[0])
            model.graph.remove(node, safe=True)
    return model


def main(outs: Path) -> None:
    torch.manual_seed(0)
    model = SelfAttention().eval()
    inputs = (torch.randn(1, 16, 64), torch.ones(1, 16))
    with torch.no_grad(), steal_forward(model, submodules=True) as capture:
        model(*inputs)
    program = export(model, inputs)

    with PassContext() as ctx:
        # print the time cost of each pass
        ctx.profile_pass_instrument(print_stdout=True)
        # save the graph after each pass
        ctx.save_graph_instrument(out_dir=outs, views=("text",))
        # compare the program with the model after each pass
        judge = ctx.compare_instrument(capture)

        # run the passes that torch.onnx.export runs
        optimized = optimize(program)
        print(f"\n{judge}\n")
        if not judge.close or judge.culprit is not None:
            raise SystemExit("a pass of torch introduces an error")
        print(f"{len(program.graph.nodes)} nodes became {len(optimized.graph.nodes)}\n")

        # the same with a wrong pass, followed by passes of ONNX Runtime
        optimize(program, [*default_passes(), forget_the_scale, "OrtBasicPass", "OrtExtendedPass"])
        print(f"\n{judge}")
        if judge.culprit is None or judge.culprit.name != "forget_the_scale":
            raise SystemExit("the wrong pass was not found")

    print()
    for path in sorted(outs.glob("*.txt"), key=lambda path: int(path.name.partition("_")[0])):
        print(path.name)
    print((outs / "16_OrtExtendedPass.txt").read_text())


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        main(Path(folder) / "outs")
