"""Models to compare: loading them, calling them, resizing their inputs."""
