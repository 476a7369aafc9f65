"""Helpers that know nothing of comparisons: errors, progress, value lifetimes, complex numbers, operator names."""
