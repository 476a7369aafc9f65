"""Quantize a float32 graph with ONNX Runtime's tools."""

import contextlib
import functools
import inspect
import logging
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import torch
from onnx_ir import serde
from onnxruntime.quantization import CalibrationDataReader, QuantType, quantize_static

from filch.steal.files._scratch import Scratch
from filch.steal.private import _onnxruntime
from filch.steal.private._onnxruntime import PREPARED

from ..common._arrays import torch_to_array

_BLOCK = 32  # weights that share a scale; engines for language models use this size
_CAN_CACHE = "calibration_cache_path" in inspect.signature(quantize_static).parameters  # since ONNX Runtime 1.27


class _CalibrationReader(CalibrationDataReader):  # type: ignore[misc] # onnxruntime has no types
    """Passes the inputs of each call to ONNX Runtime's calibration."""

    def __init__(self, calls: Sequence[Mapping[str, torch.Tensor]], names: Collection[str]) -> None:
        self._feeds = iter([{name: torch_to_array(call[name]) for name in names} for call in calls])

    def get_next(self) -> Mapping[str, object] | None:  # pyright: ignore[reportIncompatibleMethodOverride]  None is the end
        """Return the inputs of the next call; None after the last one."""
        return next(self._feeds, None)


def quantize_int8(
    model: ir.Model, keep: Collection[str], calibration: Sequence[Mapping[str, torch.Tensor]], ranges: Path
) -> ir.Model:
    """Quantize weights (per channel) and activations to 8 bits with pairs of QuantizeLinear and DequantizeLinear.

    Weights have 7 bits if products of 8-bit integers saturate on this processor (see `products_saturate`).

    Args:
        model: the model; its nodes must have names.
        keep: names of nodes that are not quantized.
        calibration: inputs for measuring the ranges of the activations.
        ranges: the file that caches the ranges; created if it does not exist. ONNX Runtime before 1.27 measures them
            anew each time.
    """
    proto = serde.serialize_model(model)
    # The exporter inferred the shapes; without this, the tool logs a warning to the root logger.
    proto.metadata_props.add(key=PREPARED[0], value=PREPARED[1])
    names = [value.name or "" for value in model.graph.inputs]
    cache: dict[str, Any] = {"calibration_cache_path": ranges} if _CAN_CACHE else {}
    with _preserve_logging(), Scratch() as folder:
        written = folder / "quantized.onnx"
        quantize_static(
            proto,
            written,
            _CalibrationReader(calibration, names),
            per_channel=True,
            activation_type=QuantType.QUInt8,
            weight_type=QuantType.QInt8,
            reduce_range=products_saturate(),
            nodes_to_exclude=list(keep),
            **cache,
        )
        return _from_proto(onnx.load(written))


@functools.cache
def products_saturate() -> bool:
    """Whether ONNX Runtime's sums of products of 8-bit integers saturate on this processor.

    On x86-64 with AVX2 or AVX-512 but without VNNI, it adds two products of a uint8 and an int8 in 16 bits, which can't
    represent 2 * 255 * 127. Weights of 7 bits (ONNX Runtime's `reduce_range`) do not overflow.
    """
    model = onnx.parser.parse_model(
        '<ir_version: 10, opset_import: ["": 20]> products (uint8[1, 2] a) => (int32[1, 1] y) '
        "<int8[2, 1] b = {127, 127}> { y = MatMulInteger (a, b) }"
    )
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    (result,) = session.run(None, {"a": np.full((1, 2), 255, np.uint8)})
    return int(np.asarray(result)[0, 0]) != 2 * 255 * 127


def quantize_int4(model: ir.Model, keep: Collection[str]) -> ir.Model:
    """Quantize the weights of MatMul nodes to 4 bits, in blocks of 32 along the reduction (`MatMulNBits`)."""
    with _preserve_logging():
        quantizer = _onnxruntime.MatMulNBitsQuantizer(
            serde.serialize_model(model), block_size=_BLOCK, nodes_to_exclude=list(keep)
        )
        quantizer.process()
    return _from_proto(quantizer.model.model)  # a wrapper of the proto after `process`


@contextlib.contextmanager
def _preserve_logging() -> Iterator[None]:
    """Suppress the tools' log output, and remove the handler and the level that they give the root logger."""
    root = logging.getLogger()
    handlers, level, disabled = list(root.handlers), root.level, root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        yield
    finally:
        logging.disable(disabled)
        root.setLevel(level)
        root.handlers[:] = handlers


def _from_proto(proto: onnx.ModelProto) -> ir.Model:
    """Return a model that a tool returned, without the entry that `quantize_int8` added."""
    model = serde.deserialize_model(proto)
    model.metadata_props.pop(PREPARED[0], None)
    return model
