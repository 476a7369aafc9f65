"""Find how the elements of one tensor are arranged in another one: transposed, split, joined or interleaved."""
