"""ONNX Runtime on CPU, CUDA and TensorRT, with its optimized graph observed."""
