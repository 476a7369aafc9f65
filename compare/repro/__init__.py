"""Write a fault as a folder that reproduces it."""
