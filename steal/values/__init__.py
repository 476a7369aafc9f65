"""Convert any nesting of Python values to JSON plus a list of tensors, bit for bit, and back."""
