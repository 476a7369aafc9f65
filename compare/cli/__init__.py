"""The `filch` command line."""
