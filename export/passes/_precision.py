"""Lower precision as passes; see `lower` for more options."""

from ..lowering._lower import lower
from ..program._program import Program


def float16(program: Program) -> Program:
    """Let every node compute in float16."""
    return lower(program, "float16")


def bfloat16(program: Program) -> Program:
    """Let every node compute in bfloat16."""
    return lower(program, "bfloat16")


def int4(program: Program) -> Program:
    """Quantize the weights of MatMul to 4 bits."""
    return lower(program, "int4")
