"""Run a program and compare each of its values with its reference."""
