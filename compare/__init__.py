"""Where they part."""
