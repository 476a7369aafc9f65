"""The arguments of an operator call: their leaves, and those that the operator writes to."""

from collections import OrderedDict, namedtuple

import pytest
import torch
from torch import fx
from torch.utils import _pytree as pytree

from filch.export.graph._arguments import leaves_of, map_leaves, written_arguments

Pair = namedtuple("Pair", ["first", "second"])  # noqa: PYI024  as operators return
TREES = {
    "a leaf": 1,
    "nothing": None,
    "empty": ([], (), {}),
    "nested": [torch.ones(1), (2, [None, "text", torch.float32]), {"b": 3.0, "a": [True, 1j]}],
    "other containers": [Pair(1, [2]), OrderedDict(x=3, y=(4,)), fx.immutable_collections.immutable_list([5, 6])],
    "other leaves": [torch.memory_format, slice(1, 2), object],
}


@pytest.mark.parametrize("tree", TREES.values(), ids=TREES)
def test_leaves_are_those_of_pytree(tree):
    """In the same order; what replaces them stands in containers of the same classes."""
    assert [*map(id, leaves_of(tree))] == [*map(id, pytree.tree_leaves(tree))]
    assert repr(map_leaves(lambda leaf: f"<{leaf}>", tree)) == repr(pytree.tree_map(lambda leaf: f"<{leaf}>", tree))


def test_written_arguments_are_those_of_the_schema():
    """Given by position or by name; a function without a schema is not known to write."""
    aten, x, y = torch.ops.aten, torch.ones(2), torch.ones(2)
    assert [*map(id, written_arguments(aten.add_.Tensor, (x, y), {}))] == [id(x)]
    assert [*map(id, written_arguments(aten.add.out, (x, x), {"out": y}))] == [id(y)]
    assert written_arguments(aten.add.Tensor, (x, y), {}) == []
    assert written_arguments(torch.add, (x, y), {}) == []
