"""Find the first wrong value of a graph, and tell errors that a node introduces from those that it inherits."""
