"""Open files of unknown origin and write files for users without following links."""
