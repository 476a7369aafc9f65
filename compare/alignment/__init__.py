"""Find which tensors of two implementations are the same numbers."""
