"""Two layers of a GraphSAGE network, which take the mean of what a node is sent (chemprop/chemprop#1335)."""

import torch
from torch import nn


class Mean(nn.Module):
    def forward(self, messages: torch.Tensor, receivers: torch.Tensor, nodes: int) -> torch.Tensor:
        index = receivers[:, None].expand_as(messages)
        start = messages.new_zeros(nodes, messages.shape[1])
        return start.scatter_reduce(0, index, messages, "mean", include_self=False)


class SAGEConv(nn.Module):
    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.aggregate = Mean()
        self.neighbors = nn.Linear(inputs, outputs)
        self.own = nn.Linear(inputs, outputs, bias=False)

    def forward(self, x: torch.Tensor, edges: torch.Tensor) -> torch.Tensor:
        senders, receivers = edges
        return self.neighbors(self.aggregate(x[senders], receivers, x.shape[0])) + self.own(x)


class GraphSAGE(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.conv2 = SAGEConv(4, 8), SAGEConv(8, 3)

    def forward(self, x: torch.Tensor, edges: torch.Tensor) -> torch.Tensor:
        return self.conv2(torch.relu(self.conv1(x, edges)), edges)


def make() -> tuple[nn.Module, tuple[torch.Tensor, torch.Tensor]]:
    torch.manual_seed(0)
    edges = torch.tensor([[0, 1, 2, 3, 4, 0, 2], [1, 0, 1, 1, 0, 3, 4]])  # from, to
    return GraphSAGE().eval(), (torch.randn(5, 4), edges)
