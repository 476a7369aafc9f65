"""Helpers that do not depend on graphs: entry points, time limits, process state."""
