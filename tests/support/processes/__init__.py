"""Running commands, documentation and killed captures, and what a machine needs for running compiled code."""
