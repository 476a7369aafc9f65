"""Write graphs for Netron."""
