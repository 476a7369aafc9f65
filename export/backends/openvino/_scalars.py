"""Moves scalar factors of an OpenVINO model to where OpenVINO itself moves them.

OpenVINO computes `multiply(transpose(x), scale)` as `transpose(multiply(x, scale))`, and goes on like that until the
factor is in the layer that makes `x`. Once the product is asked for as an output, it no longer does so. In a model in
which the factor is before the last move already, the moved value is the product, and can be asked for. (It is not put
further up: right behind a sum it would go into the weights instead.)
"""

from collections.abc import Collection

import openvino as ov
from openvino import opset13 as opset

_MOVES = frozenset({"Reshape", "Squeeze", "Transpose", "Unsqueeze"})
_LIKE = "ConvertLike"
_LOOKS = frozenset({_LIKE, "ShapeOf"})  # read what a value is like, and not its numbers


def move_scalars(model: ov.Model, names: Collection[str]) -> list[str]:
    """Put the scalar factors of some products before the last move of the other factor, in the model itself.

    Args:
        model: it is changed.
        names: names of values; those that are no such products are left as they are.

    Returns:
        the names of those that are.
    """
    found = []
    for op in model.get_ordered_ops():
        asked = [name for name in names if op.get_type_name() == "Multiply" and name in op.output(0).get_names()]
        if asked and any(_move(op, side) for side in (0, 1)):
            found += asked
    return found


def _move(product: ov.Node, side: int) -> bool:
    """Whether input `side` of a product was moved and its other input is a scalar; if so, this is now put before."""
    moved, scalar = product.input_value(side), product.input_value(1 - side)
    move = moved.get_node()
    if move.get_type_name() not in _MOVES or not _is_alone(moved):
        return False
    start = move.input_value(0)
    for user in moved.get_target_inputs():
        if user.get_node().get_type_name() == _LIKE:
            user.replace_source_output(start)  # of the same type; else the scalar may be made of what it goes into
    if not _is_scalar(scalar, start) or _is_behind(move, scalar.get_node()):
        return False
    move.input(0).replace_source_output(opset.multiply(start, scalar).output(0))
    moved.get_tensor().set_names(product.output(0).get_names())
    product.output(0).get_tensor().set_names(set())
    for user in product.output(0).get_target_inputs():
        user.replace_source_output(moved)
    return True


def _is_alone(port: ov.Output) -> bool:
    """Whether no more than one other reads its numbers."""
    users = (user.get_node().get_type_name() for user in port.get_target_inputs())
    return sum(user not in _LOOKS for user in users) <= 1


def _is_behind(node: ov.Node, other: ov.Node) -> bool:
    """Whether the other one is made of what a node makes."""
    seen: set[str] = set()
    pending = [other]
    while pending:
        at = pending.pop()
        if at.get_name() == node.get_name():
            return True
        if at.get_name() not in seen:
            seen.add(at.get_name())
            pending += [source.get_node() for source in at.input_values()]
    return False


def _is_scalar(port: ov.Output, beside: ov.Output) -> bool:
    shape, other = port.get_partial_shape(), beside.get_partial_shape()
    ranks = shape.rank.is_static and other.rank.is_static and shape.rank.get_length() <= other.rank.get_length()
    return ranks and shape.is_static and all(dim == 1 for dim in shape.to_shape())
