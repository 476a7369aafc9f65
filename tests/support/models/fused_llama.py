"""A tiny Llama, and the ONNX file that a model builder makes of it: fused operators and joined weights."""

import copy
from typing import Any

import numpy as np
import onnx
import torch
from onnx import TensorProto, helper, numpy_helper
from onnxruntime.quantization.matmul_nbits_quantizer import MatMulNBitsQuantizer
from transformers import LlamaConfig, LlamaForCausalLM

_HEADS, _KEYS, _SIZE = 2, 1, 16  # heads, heads of keys and values, and the size of one
_WIDTH = _HEADS * _SIZE


def tiny_llama() -> tuple[LlamaForCausalLM, tuple[()], dict[str, Any]]:
    """Return a Llama of one layer and the arguments to call it with."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=40, hidden_size=_WIDTH, intermediate_size=64, num_hidden_layers=1, num_attention_heads=_HEADS,
        num_key_value_heads=_KEYS, max_position_embeddings=16, initializer_range=0.2, attn_implementation="eager",
    )  # fmt: skip
    model = LlamaForCausalLM(config).eval()
    for parameter in model.parameters():
        if parameter.dim() == 1:
            parameter.data += 0.1 * torch.randn_like(parameter)
    ids = torch.randint(0, config.vocab_size, (2, 5))
    return model, (), {"input_ids": ids, "attention_mask": torch.ones_like(ids), "use_cache": True}


def fused_onnx(model: LlamaForCausalLM) -> onnx.ModelProto:
    """Return the model of `tiny_llama` as an ONNX file with GroupQueryAttention and joined projections."""
    weights = {name: tensor.detach().numpy() for name, tensor in model.state_dict().items()}
    angles = np.outer(np.arange(16), 10000.0 ** -(np.arange(0, _SIZE, 2) / _SIZE))
    tensors = {
        "embedding": weights["model.embed_tokens.weight"],
        "cos": np.cos(angles).astype(np.float32),
        "sin": np.sin(angles).astype(np.float32),
        "one": np.array([1]),
        "length": np.array(5, np.int32),
    }
    nodes = [
        helper.make_node("ReduceSum", ["attention_mask", "one"], ["count"], "count", keepdims=0),
        helper.make_node("Sub", ["count", "one"], ["last"], "last"),
        helper.make_node("Cast", ["last"], ["past"], "past", to=TensorProto.INT32),
        helper.make_node("Gather", ["embedding", "input_ids"], ["hidden"], "embed"),
    ]

    def add(op: str, name: str, inputs: list[str], outputs: list[str] | None = None, **attributes: Any) -> str:
        domain = "com.microsoft" if op.startswith(("Skip", "Group")) else ""
        nodes.append(helper.make_node(op, inputs, outputs or [f"{name}.out"], name, domain=domain, **attributes))
        return nodes[-1].output[0]

    def product(name: str, value: str, *sources: str, output: str | None = None) -> str:
        tensors[f"{name}.weight"] = np.concatenate([weights[f"{source}.weight"] for source in sources]).T.copy()
        return add("MatMul", name, [value, f"{name}.weight"], [output] if output else None)

    def norm(name: str, source: str, value: str, skip: str) -> tuple[str, str]:
        tensors[f"{name}.weight"] = weights[f"{source}.weight"]
        if not skip:
            return add("SimplifiedLayerNormalization", name, [value, f"{name}.weight"], epsilon=1e-6), value
        outputs = [f"{name}.out", "", "", f"{name}.sum"]
        add("SkipSimplifiedLayerNormalization", name, [value, skip, f"{name}.weight"], outputs, epsilon=1e-6)
        return outputs[0], outputs[3]

    presents, residual, branch = [], "hidden", ""
    for index in range(model.config.num_hidden_layers):
        layer, place = f"layer{index}", f"model.layers.{index}"
        pasts = [f"past.{index}.{what}" for what in ("key", "value")]
        tensors |= {past: np.zeros((2, _KEYS, 0, _SIZE), np.float32) for past in pasts}
        presents += [f"present.{index}.{what}" for what in ("key", "value")]
        normed, residual = norm(f"{layer}.norm", f"{place}.input_layernorm", residual, branch)
        packed = product(f"{layer}.qkv", normed, *(f"{place}.self_attn.{part}_proj" for part in "qkv"))
        read = [packed, "", "", *pasts, "past", "length", "cos", "sin"]
        heads = {"num_heads": _HEADS, "kv_num_heads": _KEYS, "do_rotary": 1, "scale": _SIZE**-0.5}
        attended = add("GroupQueryAttention", f"{layer}.attention", read, [f"{layer}.heads", *presents[-2:]], **heads)
        branch = product(f"{layer}.o", attended, f"{place}.self_attn.o_proj")
        normed, residual = norm(f"{layer}.norm2", f"{place}.post_attention_layernorm", residual, branch)
        gate, up = (product(f"{layer}.{part}", normed, f"{place}.mlp.{part}_proj") for part in ("gate", "up"))
        gated = add("Mul", f"{layer}.silu", [gate, add("Sigmoid", f"{layer}.sigmoid", [gate])])
        branch = product(f"{layer}.down", add("Mul", f"{layer}.mul", [gated, up]), f"{place}.mlp.down_proj")
    normed, _ = norm("final", "model.norm", residual, branch)
    product("head", normed, "lm_head", output="logits")
    inputs = [
        helper.make_tensor_value_info(name, TensorProto.INT64, [2, 5]) for name in ("input_ids", "attention_mask")
    ]
    outputs = [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in ("logits", *presents)]
    stored = [numpy_helper.from_array(array, name) for name, array in tensors.items()]
    graph = helper.make_graph(nodes, "fused", inputs, outputs, stored)
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)


def with_cache(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return a file that takes any number of tokens and the keys and values of those before, as `export` names them."""
    proto = copy.deepcopy(model)
    graph = proto.graph
    pasts = {item.name for item in graph.initializer if item.name.startswith("past.")}
    for node in graph.node:
        node.input[:] = [f"past_key_values.{name[5:]}" if name in pasts else name for name in node.input]
    kept = [item for item in graph.initializer if item.name not in pasts | {"length"}]
    del graph.initializer[:], graph.input[:]
    graph.initializer.extend([*kept, numpy_helper.from_array(np.array(1), "axis")])
    sizes = {"input_ids": ["rows", "queries"], "attention_mask": ["rows", "keys"]}
    graph.input.extend(helper.make_tensor_value_info(name, TensorProto.INT64, shape) for name, shape in sizes.items())
    shape = ["rows", _KEYS, "past", _SIZE]
    names = sorted(f"past_key_values.{name[5:]}" for name in pasts)
    graph.input.extend(helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name in names)
    counting = [
        helper.make_node("Shape", ["attention_mask"], ["mask_shape"], "mask_shape"),
        helper.make_node("Gather", ["mask_shape", "axis"], ["keys"], "keys", axis=0),
        helper.make_node("Cast", ["keys"], ["length"], "total", to=TensorProto.INT32),
    ]
    nodes = [*counting, *graph.node]
    del graph.node[:]
    graph.node.extend(nodes)
    return proto


def quantized(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return a file whose products have weights of 4 bits and read their other operand in 8 bits."""
    quantizer = MatMulNBitsQuantizer(copy.deepcopy(model), block_size=16, is_symmetric=True, accuracy_level=4)
    quantizer.process()
    proto: onnx.ModelProto = quantizer.model.model
    return proto
