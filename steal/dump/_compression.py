"""Lossless compression of tensor data: bytes of equal significance are stored together, then compressed with zlib."""

import zlib

import numpy as np

_LEVEL = 1  # higher levels take several times as long for a few percent
_RATIO = 60  # the highest ratio that `compress_bytes` produces; a higher one in a file is a decompression bomb


def compress_bytes(raw: memoryview, itemsize: int) -> bytes:
    """Compress numbers of `itemsize` bytes each."""
    planes = np.frombuffer(raw, dtype=np.uint8).reshape(-1, itemsize).T
    compressed = zlib.compress(planes.tobytes(), _LEVEL)
    return compressed.ljust(-(-len(raw) // _RATIO), b"\0")  # zeros keep the ratio at most _RATIO


def decompress_bytes(compressed: bytes | bytearray | memoryview, nbytes: int, itemsize: int) -> bytearray:
    """Decompress what `compress_bytes` returned.

    Args:
        compressed: untrusted bytes.
        nbytes: the expected number of bytes.
        itemsize: bytes of each number.

    Raises:
        ValueError: the data is damaged, or has another number of bytes.
    """
    if nbytes > _RATIO * len(compressed) or nbytes % itemsize:
        raise ValueError(f"{len(compressed)} compressed bytes can't contain {nbytes} bytes")
    decompressor = zlib.decompressobj()
    try:
        raw = decompressor.decompress(compressed, nbytes + 1)  # a limit of 0 would mean none
    except zlib.error as error:
        raise ValueError(str(error)) from error
    if len(raw) != nbytes or not decompressor.eof or decompressor.unused_data.strip(b"\0"):
        raise ValueError(f"the number of decompressed bytes is not {nbytes}")
    planes = np.frombuffer(raw, dtype=np.uint8).reshape(itemsize, -1).T
    return bytearray(planes.tobytes())
