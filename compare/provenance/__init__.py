"""Map compiled nodes to the exported nodes that they compute."""
