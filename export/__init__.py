"""Export models, read, draw and run their graphs, and map module calls to the values of a graph."""

from ._errors import BackendError, ExportError, PassError, ProgramError, TraceError, ViewError
from .common._copies import copy_tensors
from .common._memory import release_memory, returning_memory
from .common._suggestions import dtype_hint
from .common._telemetry import is_off as _is_off  # noqa: F401  runs before anything imports ONNX Runtime
from .common._time_limit import TimeLimit, default_limit, end_process_if_stuck
from .evaluation._unpredictable import (
    Unpredictable,
    draws_random,
    random_nodes,
    returns_uninitialized,
    uninitialized_nodes,
)
from .exporting._cached import (
    CacheKind,
    cached_call,
    has_only_states,
    has_recurrent_states,
    stepwise_call,
    window_sizes,
)
from .exporting._export import export
from .exporting._model_cache import cache_argument, is_cache, logits_of, returned_cache
from .graph._arguments import leaves_of, map_leaves, written_arguments
from .graph._cutting import AGAIN, Cutter
from .graph._finding import Finding, Histogram, PositionErrors
from .graph._fingerprint import fingerprint
from .graph._from_fx import graph_from_fx
from .graph._graph import Graph
from .graph._json import graph_from_json, graph_to_json
from .graph._module_calls import ModuleCall, Port
from .graph._nodes import Frame, Node, Value, shared_calls, split_call
from .graph._sizes import value_sizes
from .lowering._lower import Lowering, Precision, lower
from .onnx_files._read import read_graph
from .passes._optimize import optimize
from .program._graph_like import as_graph, as_program
from .program._original import Original
from .program._program import Program, load_program
from .tracing._flag_scope import clear_trace_data, dump_trace_data, flag_scope
from .tracing._replayable import ModuleOutput, RecordedCall, RecordedRun, RunResult, TensorReference, record_run
from .tracing._trace_check import check_trace
from .tracing._trace_file import load_trace, save_trace
from .tracing._tracing import trace, trace_graph

__all__ = [
    "AGAIN",
    "BackendError",
    "CacheKind",
    "Cutter",
    "ExportError",
    "Finding",
    "Frame",
    "Graph",
    "Histogram",
    "Lowering",
    "ModuleCall",
    "ModuleOutput",
    "Node",
    "Original",
    "PassError",
    "Port",
    "PositionErrors",
    "Precision",
    "Program",
    "ProgramError",
    "RecordedCall",
    "RecordedRun",
    "RunResult",
    "TensorReference",
    "TimeLimit",
    "TraceError",
    "Unpredictable",
    "Value",
    "ViewError",
    "as_graph",
    "as_program",
    "cache_argument",
    "cached_call",
    "check_trace",
    "clear_trace_data",
    "copy_tensors",
    "default_limit",
    "draws_random",
    "dtype_hint",
    "dump_trace_data",
    "end_process_if_stuck",
    "export",
    "fingerprint",
    "flag_scope",
    "graph_from_fx",
    "graph_from_json",
    "graph_to_json",
    "has_only_states",
    "has_recurrent_states",
    "is_cache",
    "leaves_of",
    "load_program",
    "load_trace",
    "logits_of",
    "lower",
    "map_leaves",
    "optimize",
    "random_nodes",
    "read_graph",
    "record_run",
    "release_memory",
    "returned_cache",
    "returning_memory",
    "returns_uninitialized",
    "save_trace",
    "shared_calls",
    "split_call",
    "stepwise_call",
    "trace",
    "trace_graph",
    "uninitialized_nodes",
    "value_sizes",
    "window_sizes",
    "written_arguments",
]
