"""Helpers without knowledge of comparisons: errors, progress, delta debugging, typed JSON."""
