"""What the graph of an exported model says: its nodes and values, and which of them each module call took and gave."""

from ._calls import ModuleCall, Port
from ._cutting import AGAIN, Cutter
from ._errors import BackendError, ExportError, PassError, ProgramError, TraceError, ViewError
from ._export import export
from ._finding import Finding, Histogram
from ._fingerprint import fingerprint
from ._flag_scope import clear_trace_data, dump_trace_data, flag_scope
from ._from_fx import graph_from_fx
from ._graph import Frame, Graph, Node, Value, shared_calls
from ._graph_json import graph_from_json, graph_to_json
from ._graph_like import as_graph, as_program
from ._lower import Lowering, Precision, lower
from ._onnx_file import read_graph
from ._optimize import optimize
from ._original import Original
from ._program import Program, load_program
from ._sizes import value_sizes
from ._telemetry import is_off as _is_off  # noqa: F401  runs before anything imports ONNX Runtime
from ._time_limit import TimeLimit, default_limit, end_process_if_stuck
from ._trace_check import check_trace
from ._trace_file import load_trace, save_trace
from ._tracing import trace, trace_graph
from ._unpredictable import Unpredictable, random_nodes

__all__ = [
    "AGAIN",
    "BackendError",
    "Cutter",
    "ExportError",
    "Finding",
    "Frame",
    "Graph",
    "Histogram",
    "Lowering",
    "ModuleCall",
    "Node",
    "Original",
    "PassError",
    "Port",
    "Precision",
    "Program",
    "ProgramError",
    "TimeLimit",
    "TraceError",
    "Unpredictable",
    "Value",
    "ViewError",
    "as_graph",
    "as_program",
    "check_trace",
    "clear_trace_data",
    "default_limit",
    "dump_trace_data",
    "end_process_if_stuck",
    "export",
    "fingerprint",
    "flag_scope",
    "graph_from_fx",
    "graph_from_json",
    "graph_to_json",
    "load_program",
    "load_trace",
    "lower",
    "optimize",
    "random_nodes",
    "read_graph",
    "save_trace",
    "shared_calls",
    "trace",
    "trace_graph",
    "value_sizes",
]
