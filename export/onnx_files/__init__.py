"""Read untrusted ONNX files, and refuse those that would need too much memory or time."""
