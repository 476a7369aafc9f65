"""Graphs and files that try to be more than data: to run code, to reach other files, to exhaust the machine."""
