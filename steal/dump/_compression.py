"""Lossless compression of tensor data: bytes of equal significance are stored together, then compressed with zlib."""

import zlib

import numpy as np

_LEVEL = 1  # higher levels take several times as long for a few percent
_RATIO = 60  # the highest ratio that `pack` produces; a higher one in a file is a decompression bomb


def pack(raw: memoryview, itemsize: int) -> bytes:
    """Compress numbers of `itemsize` bytes each."""
    planes = np.frombuffer(raw, dtype=np.uint8).reshape(-1, itemsize).T
    packed = zlib.compress(planes.tobytes(), _LEVEL)
    return packed.ljust(-(-len(raw) // _RATIO), b"\0")


def unpack(packed: bytes | bytearray | memoryview, nbytes: int, itemsize: int) -> bytearray:
    """Decompress what `pack` compressed.

    Args:
        packed: untrusted bytes.
        nbytes: the expected number of bytes.
        itemsize: bytes of each number.

    Raises:
        ValueError: the data is damaged, or has another number of bytes.
    """
    if nbytes > _RATIO * len(packed) or nbytes % itemsize:
        raise ValueError(f"{len(packed)} compressed bytes can't contain {nbytes} bytes")
    decompressor = zlib.decompressobj()
    try:
        raw = decompressor.decompress(packed, nbytes + 1)  # a limit of 0 would mean none
    except zlib.error as error:
        raise ValueError(str(error)) from error
    if len(raw) != nbytes or not decompressor.eof or decompressor.unused_data.strip(b"\0"):
        raise ValueError(f"the number of decompressed bytes is not {nbytes}")
    planes = np.frombuffer(raw, dtype=np.uint8).reshape(itemsize, -1).T
    return bytearray(planes.tobytes())
