"""The role of a value in its graph: the five roles that AITemplate's pictures color."""

from ..graph._graph import Graph

# Operators whose result shares, or may share, the memory of their first input; in lower case, without domain and
# overload.
_VIEWS = frozenset(
    {
        *("alias", "broadcast_in_dim", "chunk", "detach", "diagonal", "expand", "flatten", "identity", "lift_fresh"),
        *("movedim", "narrow", "permute", "reshape", "select", "slice", "split", "squeeze", "t", "transpose"),
        *("unbind", "unflatten", "unsqueeze", "view", "view_as"),
    }
)
ROLES = ("intermediate", "view", "input", "output", "parameter")


def roles(graph: Graph) -> dict[str, str]:
    """Map each value to one of `ROLES`; 'output' takes precedence over the others."""
    result = dict.fromkeys((name for node in graph.nodes for name in node.outputs if name), "intermediate")
    result |= {node.outputs[0]: "view" for node in graph.nodes if is_view(node.op) and node.outputs and node.outputs[0]}
    result |= dict.fromkeys(graph.constants, "parameter")
    result |= dict.fromkeys(graph.inputs, "input")
    return result | dict.fromkeys(graph.outputs, "output")


def is_view(op: str) -> bool:
    """Return whether the result of an operator may share the memory of its first input."""
    name = op.rpartition("::")[2].lower()
    parts = name.split(".")
    return (parts[1] if parts[0] == "aten" and len(parts) > 1 else parts[0]) in _VIEWS
