"""Measure how far two tensors are apart, and what tolerance applies."""
