"""Helpers that know nothing of graphs: entry points, time limits, process state."""
