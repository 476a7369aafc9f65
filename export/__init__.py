"""Export models, read, draw and run their graphs, and map module calls to the values of a graph."""

from ._errors import BackendError, ExportError, PassError, ProgramError, TraceError, ViewError
from .common._telemetry import is_off as _is_off  # noqa: F401  runs before anything imports ONNX Runtime
from .exporting._cached import CacheKind, cached_call, has_recurrent_states
from .exporting._export import export
from .exporting._model_cache import cache_argument
from .graph._finding import Finding, Histogram, PositionErrors
from .graph._fingerprint import fingerprint
from .graph._from_fx import graph_from_fx
from .graph._graph import Graph
from .graph._json import graph_from_json, graph_to_json
from .graph._module_calls import ModuleCall, Port
from .graph._nodes import Node, Value
from .lowering._lower import Precision, lower
from .onnx_files._read import read_graph
from .passes._optimize import optimize
from .program._graph_like import as_graph, as_program
from .program._original import Original
from .program._program import Program, load_program
from .tracing._flag_scope import clear_trace_data, dump_trace_data, flag_scope
from .tracing._replayable import record_run
from .tracing._trace_check import check_trace
from .tracing._trace_file import load_trace, save_trace
from .tracing._tracing import trace, trace_graph

__all__ = [
    "BackendError",
    "CacheKind",
    "ExportError",
    "Finding",
    "Graph",
    "Histogram",
    "ModuleCall",
    "Node",
    "Original",
    "PassError",
    "Port",
    "PositionErrors",
    "Precision",
    "Program",
    "ProgramError",
    "TraceError",
    "Value",
    "ViewError",
    "as_graph",
    "as_program",
    "cache_argument",
    "cached_call",
    "check_trace",
    "clear_trace_data",
    "dump_trace_data",
    "export",
    "fingerprint",
    "flag_scope",
    "graph_from_fx",
    "graph_from_json",
    "graph_to_json",
    "has_recurrent_states",
    "load_program",
    "load_trace",
    "lower",
    "optimize",
    "read_graph",
    "record_run",
    "save_trace",
    "trace",
    "trace_graph",
]
