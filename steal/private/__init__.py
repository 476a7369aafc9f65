"""What Filch uses of other packages that is private there, and the versions that were tried."""
