"""Lower precision as passes; see `lower` for more options."""

from functools import partial

from ..lowering._lower import lower

FLOAT16 = partial(lower, to="float16")
BFLOAT16 = partial(lower, to="bfloat16")
INT4 = partial(lower, to="int4")  # the weights of MatMul
