"""Read ONNX files of unknown origin, and refuse those that ask for too much memory or time."""
