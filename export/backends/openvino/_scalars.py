"""Move scalar factors of an OpenVINO model to where OpenVINO moves them.

OpenVINO computes `multiply(transpose(x), scale)` as `transpose(multiply(x, scale))`, and repeats this until the factor
is in the layer that computes `x`. It does not if the product is requested as an output. If the model already has the
factor before the last move, the moved value is the product and can be requested. (Factors are moved only once: right
after a sum, OpenVINO would fold the factor into the weights.)
"""

from collections.abc import Collection

import openvino as ov
from openvino import opset13 as opset

from ...operators._registry import operator_of

_LIKE = "ConvertLike"
_TYPE_ONLY = frozenset({_LIKE, "ShapeOf"})  # read the type or shape of a value, not its numbers


def move_scalars(model: ov.Model, names: Collection[str]) -> list[str]:
    """Move the scalar factors of some products before the last move of the other factor, in place.

    Args:
        model: the model to change.
        names: names of values; those that are not such products stay as they are.

    Returns:
        the names of the changed products.
    """
    changed = []
    for op in model.get_ordered_ops():
        products = [name for name in names if op.get_type_name() == "Multiply" and name in op.output(0).get_names()]
        if products and any(_move(op, side) for side in (0, 1)):
            changed += products
    return changed


def _move(product: ov.Node, side: int) -> bool:
    """Multiply before a reshape or transpose instead of after it: `move(x) * scalar` becomes `move(x * scalar)`.

    The output of the move is then the product, and gets its name.

    Args:
        product: a multiplication.
        side: the index of its input that may be the output of a move; the other one has to be a scalar.

    Returns:
        whether the product has this form.
    """
    moved, scalar = product.input_value(side), product.input_value(1 - side)
    move = moved.get_node()
    if operator_of(move.get_type_name()).movement not in ("reshape", "permute") or not _has_one_reader(moved):
        return False
    start = move.input_value(0)
    for user in moved.get_target_inputs():
        if user.get_node().get_type_name() == _LIKE:
            user.replace_source_output(start)  # the same type; otherwise the graph would have a cycle
    if not _is_scalar(scalar, start) or _depends_on(move, scalar.get_node()):
        return False
    move.input(0).replace_source_output(opset.multiply(start, scalar).output(0))
    moved.get_tensor().set_names(product.output(0).get_names())
    product.output(0).get_tensor().set_names(set())
    for user in product.output(0).get_target_inputs():
        user.replace_source_output(moved)
    return True


def _has_one_reader(port: ov.Output) -> bool:
    """Return whether at most one node reads the numbers of a value; others may read its type or shape."""
    users = (user.get_node().get_type_name() for user in port.get_target_inputs())
    return sum(user not in _TYPE_ONLY for user in users) <= 1


def _depends_on(node: ov.Node, other: ov.Node) -> bool:
    """Return whether `other` depends on `node`."""
    seen: set[str] = set()
    pending = [other]
    while pending:
        current = pending.pop()
        if current.get_name() == node.get_name():
            return True
        if current.get_name() not in seen:
            seen.add(current.get_name())
            pending += [source.get_node() for source in current.input_values()]
    return False


def _is_scalar(port: ov.Output, beside: ov.Output) -> bool:
    """Return whether a value has one element, and not more dimensions than another value."""
    shape, other = port.get_partial_shape(), beside.get_partial_shape()
    ranks = shape.rank.is_static and other.rank.is_static and shape.rank.get_length() <= other.rank.get_length()
    return ranks and shape.is_static and all(dim == 1 for dim in shape.to_shape())
