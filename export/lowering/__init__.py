"""Lower a program's precision: float16, bfloat16, int8, int4."""
