"""Faults in one node of a sound graph: an ONNX model, what a backend compiled, or what an optimizer changed."""
