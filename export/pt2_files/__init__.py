"""Read programs that torch.export stored as data; nothing in a file is run, unpickled or imported."""

from ._archive import Archive, StoredError, stored_members
from ._load import load_extra, load_graph, load_program
from ._targets import is_runnable

__all__ = ["Archive", "StoredError", "is_runnable", "load_extra", "load_graph", "load_program", "stored_members"]
