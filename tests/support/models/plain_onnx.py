"""ONNX files without metadata of Filch: models exported by torch alone, and what other tools make of them."""

import copy
import tempfile
import warnings
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path

import onnx
import onnxruntime as ort
import torch
from onnx import ModelProto, version_converter

from support.models.zoo import ZOO


@cache
def plain(name: str, *, optimize: bool = True) -> ModelProto:
    """Return the model of the zoo as `torch.onnx.export` exports it."""
    model, args, kwargs = ZOO[name]()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        program = torch.onnx.export(model, args, kwargs=kwargs, dynamo=True, optimize=optimize, verbose=False)
    return program.model_proto


def unoptimized(name: str) -> ModelProto:
    """Return the model as torch's exporter translates it, without optimizations."""
    return plain(name, optimize=False)


def renamed(model: ModelProto) -> ModelProto:
    """Return a copy in which no name of a value or node is kept except those of inputs and outputs."""
    made = copy.deepcopy(model)
    graph = made.graph
    kept = {value.name for value in (*graph.input, *graph.output)} | {""}
    names: dict[str, str] = {}

    def new(name: str) -> str:
        return name if name in kept else names.setdefault(name, f"t{len(names)}")

    for tensor in graph.initializer:
        tensor.name = new(tensor.name)
    for index, node in enumerate(graph.node):
        node.name = f"n{index}"
        node.input[:], node.output[:] = [*map(new, node.input)], [*map(new, node.output)]
        del node.metadata_props[:]
    del graph.value_info[:]
    return made


def new_names(model: ModelProto) -> Mapping[str, str]:
    """Return the names that `renamed` gives the nodes."""
    return {node.name: f"n{index}" for index, node in enumerate(model.graph.node)}


def saved_by_onnxruntime(model: ModelProto) -> ModelProto:
    """Return the optimized model that ONNX Runtime saves, with layouts that do not depend on the processor."""
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_EXTENDED
    options.log_severity_level = 3
    with tempfile.TemporaryDirectory() as folder:
        options.optimized_model_filepath = str(Path(folder) / "optimized.onnx")
        ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
        return onnx.load(options.optimized_model_filepath)


def of_other_opset(model: ModelProto) -> ModelProto:
    """Return the model converted to the next opset."""
    return version_converter.convert_version(model, model.opset_import[0].version + 1)


VARIANTS: Mapping[str, Callable[[str], ModelProto]] = {
    "itself": plain,
    "unoptimized": unoptimized,
    "renamed": lambda name: renamed(plain(name)),
    "saved by ONNX Runtime": lambda name: saved_by_onnxruntime(plain(name)),
    "other opset": lambda name: of_other_opset(plain(name)),
}
