"""The pytest plugin: the `filch` fixture, golden dumps, expected failures."""
