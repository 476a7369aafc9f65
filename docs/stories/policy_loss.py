"""A policy loss on tensor parallel logits: `log_softmax` without `cross_entropy`, inside `loss_parallel()`.

Writes reference.onnx in one process, and run.0.onnx, run.1.onnx, … under torchrun.
"""

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, loss_parallel, parallelize_module

from filch import record_reference, steal_forward


class Policy(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.logits, self.logp = nn.Linear(32, 64, bias=False), nn.LogSoftmax(-1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.logp(self.logits(x))


def main() -> None:
    torch.manual_seed(0)
    policy, states, advantages = Policy(), torch.randn(8, 32), torch.randn(8, 64)
    if "RANK" not in os.environ:
        record_reference(policy, lambda: (policy(states) * advantages).sum().backward(), "reference.onnx")
        return
    dist.init_process_group("gloo")
    mesh = init_device_mesh("cpu", (dist.get_world_size(),), mesh_dim_names=("tp",))
    layers = {"logits": ColwiseParallel(output_layouts=Shard(-1), use_local_output=False)}
    parallelize_module(policy, mesh, layers)
    weights = distribute_tensor(advantages, mesh, [Shard(-1)])
    options = {"submodules": True, "gradients": True, "parameters": True, "collectives": True}
    with steal_forward(policy, dump_file="run.{rank}.onnx", **options), loss_parallel():
        (policy(states) * weights).sum().backward()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
