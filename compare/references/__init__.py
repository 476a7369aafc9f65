"""Find the value that each graph value should have."""
