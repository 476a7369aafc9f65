"""`Graph`, one representation for FX and ONNX graphs, with readers, text, JSON and module calls."""
