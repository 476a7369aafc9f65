"""Bytes of numbers made smaller, without loss: those of equal significance together, then zlib."""

import zlib

import numpy as np

_LEVEL = 1  # higher ones take several times as long, for a few percent
_RATIO = 60  # no file gives more than so many times its size: a bomb is told by what it claims


def pack(raw: memoryview, itemsize: int) -> bytes:
    """`raw`, made of numbers of `itemsize` bytes, compressed."""
    planes = np.frombuffer(raw, dtype=np.uint8).reshape(-1, itemsize).T
    packed = zlib.compress(planes.tobytes(), _LEVEL)
    return packed.ljust(-(-len(raw) // _RATIO), b"\0")


def unpack(packed: bytes | bytearray | memoryview, nbytes: int, itemsize: int) -> bytearray:
    """The inverse of `pack`.

    Args:
        packed: from a file that is not trusted.
        nbytes: how many bytes it must give.
        itemsize: of each number.

    Raises:
        ValueError: it gives another number of bytes, or is damaged.
    """
    if nbytes > _RATIO * len(packed) or nbytes % itemsize:
        raise ValueError(f"{len(packed)} compressed bytes can't be {nbytes}")
    opener = zlib.decompressobj()
    try:
        raw = opener.decompress(packed, nbytes + 1)  # 0 would be no limit
    except zlib.error as error:
        raise ValueError(str(error)) from error
    if len(raw) != nbytes or not opener.eof or opener.unused_data.strip(b"\0"):
        raise ValueError(f"they give another number of bytes than {nbytes}")
    planes = np.frombuffer(raw, dtype=np.uint8).reshape(itemsize, -1).T
    return bytearray(planes.tobytes())
