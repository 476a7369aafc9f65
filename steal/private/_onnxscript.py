"""All private names of onnxscript that Filch uses."""

from typing import TYPE_CHECKING, Any

from ._names import PrivateNames

if TYPE_CHECKING:
    DEFAULT_REWRITE_RULES: tuple[Any, ...]

NAMES = PrivateNames("onnxscript", {"DEFAULT_REWRITE_RULES": "onnxscript.rewriter:_DEFAULT_REWRITE_RULES"})
# Private attributes of objects, by the class that has them.
ATTRIBUTES = {"onnxscript.rewriter:RewriteRule": ("_matcher",)}

if not TYPE_CHECKING:  # else any name would do
    __getattr__ = NAMES.find
