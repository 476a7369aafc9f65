"""The hooks of one capture, and the stores that keep what they record."""
