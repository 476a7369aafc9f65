"""All names of ONNX Runtime that Filch uses and that its packages do not export, or that are private."""

from typing import TYPE_CHECKING, Any

from ._names import PrivateNames

if TYPE_CHECKING:  # it has no types
    MatMulNBitsQuantizer: Any
    capi: Any

NAMES = PrivateNames(
    "onnxruntime",
    {
        "MatMulNBitsQuantizer": "onnxruntime.quantization.matmul_nbits_quantizer:MatMulNBitsQuantizer",
        "capi": "onnxruntime.capi",  # the folder of its libraries
    },
)
PREPARED = ("onnx.quant.pre_process", "onnxruntime.quant")  # metadata that says that shapes are inferred
# Private attributes of objects, by the class that has them.
ATTRIBUTES = {"onnxruntime:OrtValue": ("_ortvalue",)}

if not TYPE_CHECKING:  # else any name would do
    __getattr__ = NAMES.find
