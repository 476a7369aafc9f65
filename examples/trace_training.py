"""Write Jittor's four data sets with PyTorch: a two-layer model and ResNet-18, a call and a training step of each."""

import tempfile
from pathlib import Path

import torch
from torch import nn

from filch.export import check_trace, load_trace, save_trace, trace


def matmul(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Multiply `(n, m)` by `(m, k)` by broadcasting."""
    (n, m), k = a.shape, b.shape[-1]
    a = a[:, :, None].expand(n, m, k)
    b = b[None, :, :].expand(n, m, k)
    return (a * b).sum(dim=1)


class Relu(nn.Module):
    """The positive part of each element."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.maximum(x, x.new_zeros(()))


class Linear(nn.Module):
    """A linear layer with its own matrix product."""

    def __init__(self, in_features: int, out_features: int, *, bias: bool = True) -> None:
        super().__init__()
        self.w = nn.Parameter((torch.rand(in_features, out_features) - 0.5) / in_features**0.5)
        self.b = nn.Parameter(torch.rand(out_features) - 0.5) if bias else None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = matmul(x, self.w)
        return x if self.b is None else x + self.b


class Model(nn.Module):
    """Two layers."""

    def __init__(self, input_size: int) -> None:
        super().__init__()
        self.linear1 = Linear(input_size, 10)
        self.relu1 = Relu()
        self.linear2 = Linear(10, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.linear1(x)
        x = self.relu1(x)
        return self.linear2(x)


class BasicBlock(nn.Module):
    """Two convolutions with a residual connection."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.relu = nn.ReLU(inplace=True)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.downsample = None
        if stride != 1 or inputs != outputs:
            self.downsample = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        shortcut = x if self.downsample is None else self.downsample(x)
        x = self.relu(self.bn1(self.conv1(x)))
        return self.relu(self.bn2(self.conv2(x)) + shortcut)


class ResNet18(nn.Module):
    """An image classifier of 18 layers."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 64, 7, 2, 3, bias=False)
        self.bn1 = nn.BatchNorm2d(64)
        self.relu = nn.ReLU(inplace=True)
        self.maxpool = nn.MaxPool2d(3, 2, 1)
        self.layer1 = nn.Sequential(BasicBlock(64, 64, 1), BasicBlock(64, 64, 1))
        self.layer2 = nn.Sequential(BasicBlock(64, 128, 2), BasicBlock(128, 128, 1))
        self.layer3 = nn.Sequential(BasicBlock(128, 256, 2), BasicBlock(256, 256, 1))
        self.layer4 = nn.Sequential(BasicBlock(256, 512, 2), BasicBlock(512, 512, 1))
        self.avgpool = nn.AdaptiveAvgPool2d((1, 1))
        self.fc = nn.Linear(512, 1000)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.maxpool(self.relu(self.bn1(self.conv1(x))))
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        return self.fc(self.avgpool(x).flatten(1))


def summary(file: Path) -> str:
    """Describe a data set by its JSON file."""
    data = load_trace(file.with_suffix(".json"))
    assert data == load_trace(file)
    operators = [node for node in data["node_data"].values() if node["attrs"]["is_var"] == "0"]
    gradients = sum("grad_op_id" in node["attrs"] for node in operators)
    executed = data["execute_op_info"].values()
    kernels = sum(bool(item["file_path"]) for item in executed)
    problems = check_trace(data)
    return (
        f"{file.name}: {len(operators)} operators, {gradients} of them gradients; {len(executed)} executions, "
        f"{kernels} of them with generated code; {len(problems)} problems"
    )


if __name__ == "__main__":
    torch.manual_seed(0)
    models = {
        "simple_model": (Model(input_size=1), torch.rand(10, 1)),
        "resnet": (ResNet18(), torch.rand(2, 3, 64, 64)),
    }
    with tempfile.TemporaryDirectory() as folder:
        for name, (model, x) in models.items():
            for suffix, train in (("", False), ("_train", True)):
                model.train(train)
                save_trace(trace(model, x, train=train), Path(folder) / f"{name}{suffix}.pkl")
                print(summary(Path(folder) / f"{name}{suffix}.pkl"))
