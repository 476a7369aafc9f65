"""Measure the difference of two tensors, and choose the tolerance."""
