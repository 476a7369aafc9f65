"""Find which tensors of two implementations are the same numbers, and where the second one leaves the first."""
