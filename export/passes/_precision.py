"""Lower precision, as passes; `lower` knows more of it."""

from ..lowering._lower import lower
from ..program._program import Program


def float16(program: Program) -> Program:
    """Every node computes in float16."""
    return lower(program, "float16")


def bfloat16(program: Program) -> Program:
    """Every node computes in bfloat16."""
    return lower(program, "bfloat16")


def int4(program: Program) -> Program:
    """The weights of MatMul are of 4 bits."""
    return lower(program, "int4")
