"""Read programs that torch.export stored as data; nothing in a file is run, unpickled or imported."""
