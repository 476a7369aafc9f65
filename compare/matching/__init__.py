"""Find the values of one ONNX program that are those of another one."""
