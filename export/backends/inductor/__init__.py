"""Inductor, the compiler behind torch.compile, with its kernels observed."""
