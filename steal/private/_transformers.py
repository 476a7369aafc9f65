"""All names of transformers that Filch uses and that the package itself does not have, or that are private."""

import contextlib
import sys
from typing import TYPE_CHECKING, Any

from ._names import PrivateNameError, PrivateNames

if TYPE_CHECKING:  # an optional library, whose names are Any to type checkers
    Cache: Any
    DynamicCache: Any
    DynamicLayer: Any
    EncoderDecoderCache: Any
    HQQQuantizedLayer: Any
    QuantizedCache: Any
    StaticCache: Any
    StaticLayer: Any
    register_cache_pytrees_for_model: Any
    register_dynamic_cache_export_support: Any

CACHES = "transformers.cache_utils"
MODELS = "transformers.models."  # where the modules of models are, some with caches of their own
NAMES = PrivateNames(
    "transformers",
    {
        "Cache": f"{CACHES}:Cache",
        "DynamicCache": f"{CACHES}:DynamicCache",
        "DynamicLayer": f"{CACHES}:DynamicLayer",
        "EncoderDecoderCache": f"{CACHES}:EncoderDecoderCache",
        "HQQQuantizedLayer": f"{CACHES}:HQQQuantizedLayer",
        "QuantizedCache": f"{CACHES}:QuantizedCache",
        "StaticCache": f"{CACHES}:StaticCache",
        "StaticLayer": f"{CACHES}:StaticLayer",
        "register_cache_pytrees_for_model": ("transformers.exporters.exporter_dynamo:register_cache_pytrees_for_model"),
        "register_dynamic_cache_export_support": (
            "transformers.integrations.executorch:register_dynamic_cache_export_support"
        ),
    },
)
# Private attributes of objects, by the class that has them.
ATTRIBUTES = {
    "transformers:PreTrainedModel": (
        *("_can_compile_fullgraph", "_can_set_experts_implementation", "_skip_keys_device_placement"),
    ),
    f"{CACHES}:QuantizedLayer": ("_dequantize", "_quantized_keys"),
    "optimum.quanto:QBitsTensor": ("_scale", "_shift"),  # its quantized tensors
}


def register_caches(model: Any) -> None:
    """Register the cache classes of transformers as pytrees, if that library is imported.

    Versions before 5.18 have one function for all models.
    """
    if "transformers" not in sys.modules:
        return
    with contextlib.suppress(PrivateNameError):
        NAMES.find("register_cache_pytrees_for_model")(model)
        return
    with contextlib.suppress(PrivateNameError):
        NAMES.find("register_dynamic_cache_export_support")()


if not TYPE_CHECKING:  # else any name would do
    __getattr__ = NAMES.find
