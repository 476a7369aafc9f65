"""Cases for operators of ONNX."""
