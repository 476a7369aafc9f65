"""Graphs to draw, and the programs that open what was drawn: Chromium and Netron's own loader."""
