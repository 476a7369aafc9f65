"""Find the nodes that have to stay in float32 when a program's precision is lowered."""
