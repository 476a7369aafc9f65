"""ResNet of torchvision."""

from torch import Tensor, nn

from support.models.zoo import build

from ._pair import Pair, State, image, renamed


def _original() -> nn.Module:
    settings = {"embedding_size": 64, "hidden_sizes": [64, 128, 256, 512], "depths": [1, 2, 1, 1], "num_labels": 5}
    return build("ResNetForImageClassification", settings | {"layer_type": "basic"})


def _port() -> nn.Module:
    from torchvision.models.resnet import BasicBlock, ResNet

    return ResNet(BasicBlock, [1, 2, 1, 1], num_classes=5)


def _weights(state: State) -> dict[str, Tensor]:
    return renamed(
        state,
        (r"^resnet\.embedder\.embedder\.convolution", "conv1"),
        (r"^resnet\.embedder\.embedder\.normalization", "bn1"),
        *((rf"^resnet\.encoder\.stages\.{index}\.layers", f"layer{index + 1}") for index in range(4)),
        (r"shortcut\.convolution", "downsample.0"),
        (r"shortcut\.normalization", "downsample.1"),
        *((rf"layer\.{index}\.convolution", f"conv{index + 1}") for index in range(2)),
        *((rf"layer\.{index}\.normalization", f"bn{index + 1}") for index in range(2)),
        (r"^classifier\.1", "fc"),
    )


PAIRS = {
    "torchvision_resnet": Pair(_original, _port, _weights, lambda: ((image(64),), (image(64),)), ("torchvision",)),
}
