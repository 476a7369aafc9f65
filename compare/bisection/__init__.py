"""Find the transformations that cause an error."""
