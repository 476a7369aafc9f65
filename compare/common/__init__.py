"""Helpers that know nothing of comparisons: errors, progress, delta debugging, complex numbers."""
