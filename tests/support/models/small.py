"""Models that a test describes in one expression, and their captures."""

from collections.abc import Callable
from typing import Any

import onnx
import torch
from torch import nn

from filch.export import Program, export
from filch.steal import Capture, steal_forward


def module_of(forward: Callable[..., Any], /, **parts: Any) -> nn.Module:
    """Return a module whose `forward` is this function of itself and its inputs; tensors but parameters are buffers."""
    module: nn.Module = type("Model", (nn.Module,), {"forward": forward})()
    for name, part in parts.items():
        if isinstance(part, torch.Tensor) and not isinstance(part, nn.Parameter):
            module.register_buffer(name, part)
        else:
            setattr(module, name, part)
    return module


def capture_of(model: nn.Module, *inputs: Any, **options: Any) -> Capture:
    """Return a capture, with these options of `steal_forward`, of one call of the model without gradients."""
    with torch.no_grad(), steal_forward(model, **options) as capture:
        model(*inputs)
    return capture


def recorded(model: nn.Module, *inputs: Any, **options: Any) -> tuple[Capture, Program]:
    """Return such a capture, and the exported program."""
    return capture_of(model, *inputs, **options), export(model, inputs)


def onnx_model(text: str, opset: int = 20, *, ir_version: int = 10) -> onnx.ModelProto:
    """Return the model of a graph in ONNX's text form, such as `(float[3] x) => (float[3] y) { y = Relu(x) }`."""
    imports = f'"": {opset}, "ai.onnx.ml": 3, "com.microsoft": 1, "own": 1'
    return onnx.parser.parse_model(f"<ir_version: {ir_version}, opset_import: [{imports}]> main {text}")
