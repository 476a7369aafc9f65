"""Inductor, the compiler of torch.compile: runs its kernels and returns what they store."""
