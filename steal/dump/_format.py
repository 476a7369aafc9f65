"""The names, limits and JSON of the dump format, shared by its writer and its reader.

A dump is an ONNX model without inputs. Each tensor is the `value` of one Constant node, and a graph output whose name a
person can read. Its bytes stand in the node, or, in a large dump, in one file beside it. What ONNX can't say is JSON
under these keys of `metadata_props`:

- `filch.dump`: the version of the format.
- `filch.tensors`: `[output name, torch dtype, shape]` for each tensor, with a fourth `"zlib"` where its bytes are
  compressed; records name tensors by their place here, which is that of the node too.
- `filch.grown`: `[first, tail, dim]` for each tensor that is kept in parts, as it is an earlier one with something
  added; records name it -1, -2 … by its place here, and `first` may name one that came before it.
- `filch.records`: `[name, iteration, kind, spec, path, call, iteration in the call, source line]` for each record, as
  the run went; what is null at the end is left out.
- `filch.failed`: `[name, iteration, what it raised]` for each call that raised.
- `filch.modules`: the class and the parameters of each stolen module, by name.
- `filch.environment`: versions and time, for people.
"""

from onnx import ModelProto

VERSION = 2
READABLE = ("1", "2")  # the second added what stands after a row's usual end
VERSION_KEY = "filch.dump"
TENSORS_KEY = "filch.tensors"
RECORDS_KEY = "filch.records"
GROWN_KEY = "filch.grown"
FAILED_KEY = "filch.failed"
MODULES_KEY = "filch.modules"
ENVIRONMENT_KEY = "filch.environment"

# 64 bytes is what vector loads want; a page is what can be mapped on its own.
ALIGNMENT = 64
PAGE = 4096
# Below, one file is handier; above, loading a dump to read one tensor of it would cost too much.
INLINE_LIMIT = 32 * 2**20
LARGEST = 2**31  # what protobuf can hold
# Constant has been able to hold every type since opset 21 (24 for float8 E8M0); ONNX Runtime and the checker read both.
OPSET = 24
IR_VERSION = 13

# Numbers of fields in onnx.proto: of a model, a graph, a node, an attribute and a tensor.
GRAPH, METADATA = 7, 14
NODE, OUTPUT = 1, 12
ATTRIBUTE = 5
TENSOR = 5
RAW_DATA, EXTERNAL_DATA = 9, 13


def metadata(model: ModelProto) -> dict[str, str]:
    """A model's `metadata_props` as a dictionary."""
    return {entry.key: entry.value for entry in model.metadata_props}
