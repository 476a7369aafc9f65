"""Runs of programs and modules in float64, which can be repeated with noise and with other numbers."""
