"""Steal every intermediate tensor of a PyTorch model, and say which node of its graph gets it wrong.

The names that most users need; `filch.steal`, `filch.export` and `filch.compare` have all of them.

Nothing is imported until a name is asked for: importing torch takes longer than most that is done here.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from filch import compare, export, steal
    from filch.compare import (
        Alignment,
        CompareError,
        Golden,
        Report,
        Tolerance,
        align,
        bisect,
        blame,
        compare_gradients,
        compare_tensors,
        compiled_graph,
        diff,
        keep_precise,
        load_report,
        record_reference,
        write_repro,
    )
    from filch.export import (
        BackendError,
        ExportError,
        Graph,
        Program,
        check_trace,
        load_program,
        load_trace,
        lower,
        optimize,
        read_graph,
        save_trace,
        trace,
    )
    from filch.steal import (
        Capture,
        Dump,
        DumpError,
        FilchError,
        Key,
        Layouts,
        assemble,
        describe,
        load_layouts,
        recover,
        restore,
        save_layouts,
        steal_append,
        steal_forward,
        string_type,
    )

__version__ = "0.1.0"

__all__ = [
    "Alignment",
    "BackendError",
    "Capture",
    "CompareError",
    "Dump",
    "DumpError",
    "ExportError",
    "FilchError",
    "Golden",
    "Graph",
    "Key",
    "Layouts",
    "Program",
    "Report",
    "Tolerance",
    "align",
    "assemble",
    "bisect",
    "blame",
    "check_trace",
    "compare",
    "compare_gradients",
    "compare_tensors",
    "compiled_graph",
    "describe",
    "diff",
    "export",
    "keep_precise",
    "load_layouts",
    "load_program",
    "load_report",
    "load_trace",
    "lower",
    "optimize",
    "read_graph",
    "record_reference",
    "recover",
    "restore",
    "save_layouts",
    "save_trace",
    "steal",
    "steal_append",
    "steal_forward",
    "string_type",
    "trace",
    "write_repro",
]

_PACKAGES = ("compare", "steal", "export")  # compare's names are known before anything is imported, export's are last


def __getattr__(name: str) -> object:
    if name in _PACKAGES:
        return import_module(f".{name}", __name__)
    if name in __all__:
        for package in _PACKAGES:
            module = import_module(f".{package}", __name__)
            if name in module.__all__:
                found = globals()[name] = getattr(module, name)
                return found
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
