"""Categories of operators, by which Netron and hidet's viewer color nodes."""

import re

_PATTERNS = {
    "Quantization": r"quantize",
    "Attention": r"attention|rotary|scaled_dot",
    "Dropout": r"dropout",
    "Normalization": r"norm(alization)?(_\w+)?$|layernorm|batch_norm|layer_norm|rms_norm|lrn",
    "Pool": r"pool",
    "Activation": r"(relu|elu|gelu|silu|tanh|sigmoid|softmax|softplus|softsign|swish|mish|clip|clamp)(d?_?\w{0,12})?$",
    "Layer": r"conv|gemm|matmul|linear|^b?mm$|^b?addb?mm$|einsum|lstm|gru|rnn|embedding",
    "Shape": r"reshape|flatten|^_?(unsafe_)?view$|squeeze|expand|tile|repeat|size|shape",
    "Transform": r"transpose|permute|^t$|gather|index|scatter|rearrange|depthtospace|spacetodepth",
    "Tensor": r"concat|^cat$|stack|split|chunk|slice|pad|getitem|select|narrow",
    "Control": r"^(if|loop|scan|cond|while_loop)$",
    "Constant": r"^constant(ofshape)?$",
}
_KNOWN = {name: re.compile(pattern, re.IGNORECASE) for name, pattern in _PATTERNS.items()}


def category(op: str) -> str:
    """Return the category of an operator of ONNX, ONNX Runtime or ATen; `""` for arithmetic and unknown operators.

    The categories and their colors are Netron's: `Layer`, `Activation`, `Pool`, `Normalization`, `Dropout`,
    `Shape`, `Tensor`, `Transform`, `Quantization`, `Attention`, `Control`, `Constant`.
    """
    name = op.rpartition("::")[2]
    return next((known for known, pattern in _KNOWN.items() if pattern.search(name)), "")
