"""The names, limits and JSON of the dump format, shared by its writer and its reader.

A dump is an ONNX model without inputs. Each tensor is the `value` of one Constant node and a graph output with a
readable name. Its bytes are in the node or, in a large dump, in one file beside the model. Everything else is JSON in
ASCII under these keys of `metadata_props`:

- `filch.dump`: the version of the format.
- `filch.tensors`: `[output name, torch dtype, shape]` of each tensor, followed by `"zlib"` if its bytes are compressed.
  Records refer to a tensor by its index in this list, which is also the index of its node.
- `filch.grown`: `[first, tail, dim]` of each tensor that is the concatenation of an earlier tensor and new data.
  Records refer to these as -1, -2 … in the order of this list; so may `first`.
- `filch.records`: `[name, iteration, kind, spec, path, call, iteration in the call, source line]` of each record, in
  order of the run; null values at the end are omitted.
- `filch.failed`: `[name, iteration, exception]` of each call that raised.
- `filch.shardings`: the layout of each plain tensor that a DTensor was made of or converted to, by the tensor's index.
- `filch.modules`: the class and parameter names of each captured module, by name; with `tf32`, the products (`matmul`,
  `convolution`) that it may have computed in TF32.
- `filch.environment`: versions, processor, settings and time, for information (see `_environment`).

Other keys that begin with `filch.` belong to whoever adds them (`add_properties`); a reader that does not know them
ignores them. Golden dumps have `filch.golden` (see `compare/testing/_golden_file.py`).
"""

from ..files._kinds import FILE_KINDS

VERSION = 2
READABLE = ("1", "2")  # version 2 added optional values at the end of rows
VERSION_KEY = "filch.dump"
TENSORS_KEY = "filch.tensors"
RECORDS_KEY = "filch.records"
GROWN_KEY = "filch.grown"
FAILED_KEY = "filch.failed"
MODULES_KEY = "filch.modules"
SHARDINGS_KEY = "filch.shardings"
ENVIRONMENT_KEY = "filch.environment"
KEYS = frozenset(
    {VERSION_KEY, TENSORS_KEY, RECORDS_KEY, GROWN_KEY, FAILED_KEY, SHARDINGS_KEY, MODULES_KEY, ENVIRONMENT_KEY}
)

# 64 bytes suits vector loads; whole pages can be mapped on their own.
ALIGNMENT = 64
PAGE = 4096
# Smaller dumps are one file; larger ones need a data file, so that reading one tensor doesn't load the whole model.
INLINE_LIMIT = 32 * 2**20
MAX_MODEL_SIZE = FILE_KINDS["dump"].size
MAX_NODE_SIZE = 2**18  # bytes of one node that protobuf may parse; the resulting objects can be much larger
MAX_LABEL_LENGTH = 2**10  # characters of a tensor's name, which its node contains several times
MAX_INDEX_SIZE = MAX_MODEL_SIZE - 2 * INLINE_LIMIT  # what the writer accepts of the model, without the tensors' bytes
# Bytes of one row of the index and of one line of the journal; the objects that these are parsed into take at most 30
# times that.
MAX_ROW_SIZE = FILE_KINDS["dump"].line
# The ONNX IR version by the opset of the newest data type of a dump (see `Carrier.opset`): a runtime refuses both if
# they are newer than itself.
IR_VERSIONS = {13: 7, 19: 9, 24: 12}

# Field numbers in onnx.proto: of a model, an entry of its metadata, a graph, a node, an attribute and a tensor.
GRAPH, METADATA = 7, 14
ENTRY_KEY, ENTRY_VALUE = 1, 2
NODE, OUTPUT = 1, 12
ATTRIBUTE = 5
TENSOR = 5
RAW_DATA, EXTERNAL_DATA = 9, 13
