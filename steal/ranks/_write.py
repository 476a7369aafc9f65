"""Write the records of several processes as one dump."""

import os
from typing import Any

import torch

from .._key import Key
from ..dump._writer import BUFFER, DumpWriter
from ..values._dtypes import reason_not_storable
from ..values._encode import encode
from ..values._foreign import Spec, skipped
from ..values._packed import pack
from ..values._raw import contiguous_cpu
from ._assembled import AssembledRecords


def write_assembled(records: AssembledRecords, path: str | os.PathLike[str], *, compress: bool = False) -> None:
    """Write the global values of several processes as one dump, one value in memory at a time.

    Args:
        records: what `assemble` returned. Tensors whose layout is not known are skipped, with the reason.
        path: the new dump.
        compress: compress it, which takes time.

    Raises:
        DumpError: it can't be written.
    """
    with DumpWriter(path, records.modules, buffer=BUFFER, compress=compress) as writer:
        first = next(iter(records.dumps.values()))
        writer.index.environment = {name: text for name, text in first.environment.items() if name != "rank"}
        for key in records:
            writer.add(key, pack(_encoded(records[key], key, writer)), records.records[key].origin)
        for key, exception in records.failed.items():
            writer.add_failure(key, exception)
        writer.close()
        if writer.error is not None:
            raise writer.error


def _encoded(value: Any, key: Key, writer: DumpWriter) -> Spec:
    def put(tensor: torch.Tensor, path: str) -> Spec:
        reason = reason_not_storable(tensor)
        return skipped(tensor, reason) if reason else {"tensor": writer.put(contiguous_cpu(tensor), key, path)}

    return encode(value, put)
