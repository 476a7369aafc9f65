"""What Filch knows of the operators of ONNX, of runtimes and of PyTorch, one file for each family."""
