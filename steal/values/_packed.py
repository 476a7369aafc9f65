"""Keep the specs of records in one object each, until they are read or written.

Python's garbage collector would scan the objects of a million specs again and again.
"""

import marshal

from ._foreign import Spec

Packed = bytes | int  # a marshalled spec, or the reference of a tensor that is all of the value (see `unpack`)


def pack(spec: Spec) -> bytes:
    """Pack a spec."""
    return marshal.dumps(spec)


def unpack(packed: Packed, kind: str) -> Spec:
    """Return the spec of a record of this kind; a number means this tensor alone, or inputs with this one argument."""
    if isinstance(packed, bytes):
        return marshal.loads(packed)  # noqa: S302  `pack` has written it in this process
    return spec_of_one({"tensor": packed}, kind)


def spec_of_one(tensor: Spec, kind: str) -> Spec:
    """Return the spec of a record of this kind whose value is one tensor.

    The inputs of a call are its positional and keyword arguments: the tensor is the only positional one then.

    Args:
        tensor: the spec of the tensor.
        kind: the kind of the record; `"I"` for inputs.
    """
    return {"tuple": [[0, {"tuple": [[0, tensor]]}], [1, {"dict": []}]]} if kind == "I" else tensor
