"""`torch.compile(backend="filch")`: compile each graph with another backend and check it."""
