"""The units by which numbers may be rounded on the way to a value."""

from collections.abc import Collection
from typing import NamedTuple

import torch

from filch.export import Node
from filch.steal._tf32 import Product

from ..common._dtypes import declared_dtype
from ..float64._noise import unit_of
from ..float64._reductions import TF32_UNIT
from ..float64._values import Float64Values
from ..metrics._tolerance import operand_unit
from ._run import JudgedProgram, Run


class Units(NamedTuple):
    """The coarsest units on the way to a value: half a unit in the last place, relative; 0 if it has none.

    Attributes:
        run: as the run may round.
        model: of the dtypes of the model.
        reference: as the model may round, some of whose products may round their factors.
    """

    run: float = 0.0
    model: float = 0.0
    reference: float = 0.0


class CoarsestUnits:
    """The coarsest units among each value and the values that it is computed from.

    Args:
        run: the run.
        program: the program that it computes.
        float64: the values in float64.
        replaced: the names of the values whose consumers read the reference, which has only the value's own unit.

    Attributes:
        floats: the names of the floating-point inputs and weights.
    """

    def __init__(self, run: Run, program: JudgedProgram, float64: Float64Values, replaced: Collection[str]) -> None:
        self._run, self._program, self._float64, self._replaced = run, program, float64, replaced
        # Of a program in lower precision: the units to which weights in float32 were rounded, by name.
        self._rounded_weights = {} if run.lowered is None else run.lowered.units
        # The nodes of the model's own graph, by the names of the values that they compute.
        self._originals = {} if program.original is None else program.original.producer
        dtypes = {name: declared_dtype(run.graph, name) for name in run.graph.constants}
        dtypes |= {name: tensor.dtype for name, tensor in run.inputs.items()}
        self.floats = [name for name, dtype in dtypes.items() if dtype is not None and unit_of(dtype)]
        leaves = dict.fromkeys((*dtypes, *self._rounded_weights))  # some weights are constants inside of nodes
        self._own = {name: self._own_units(name, dtypes.get(name)) for name in leaves}
        self._coarsest = dict(self._own)

    def add(self, node: Node, name: str, dtype: torch.dtype) -> None:
        """Add a value that a node computes, after the values that the node reads.

        Args:
            node: the node.
            name: the name of the value.
            dtype: its dtype in the run.
        """
        self._own[name] = self._own_units(name, dtype)
        inherited = [
            self._own.get(item, Units()) if item in self._replaced else self._of_ancestors(item) for item in node.reads
        ]
        self._coarsest[name] = _coarsest(self._own[name], self._of_products(node), *inherited)

    def of(self, name: str) -> Units:
        """Return the coarsest units of a value that was added."""
        return self._coarsest.get(name, Units())

    def operand(self, node: Node) -> float:
        """Return the unit to which a node may round an operand (see `operand_unit`): none coarser than the model's.

        If lower precision is allowed, the model need not do so.
        """
        nodes, is_any = self._program.computes(node), self._program.lower_precision
        found = (operand_unit(item) if is_any else min(operand_unit(item), self._of_original(item)) for item in nodes)
        return max(found, default=0.0)

    def _own_units(self, name: str, dtype: torch.dtype | None) -> Units:
        """Return the units of a value alone, whatever it is computed from; `dtype` is that in the run."""
        model = self._float64.unit(self._run.exported_name(name))
        if not self._program.lower_precision:
            return Units(model, model, model)  # another dtype in the run is an error, and allows no coarser unit
        own = 0.0 if dtype is None else unit_of(dtype)
        return Units(max(own, self._rounded_weights.get(name, 0.0)), model, model)

    def _of_ancestors(self, name: str) -> Units:
        """Return the units of a value, which the run may not show; a sequence has those of its elements."""
        if name not in self._coarsest:
            node = self._run.graph.producer.get(name)
            self._coarsest[name] = Units()  # of an omitted input
            if node is not None:
                self._coarsest[name] = _coarsest(self._of_products(node), *map(self._of_ancestors, node.reads))
        return self._coarsest[name]

    def _of_products(self, node: Node) -> Units:
        """Return the units to which the factors of the products of a node may be rounded."""
        nodes = self._program.computes(node)
        model = max(self._tf32(self._program.model_tf32, node), *map(self._of_original, nodes), 0.0)
        return Units(max(self._tf32(self._run.compiled.tf32, node), self.operand(node)), 0.0, model)

    def _tf32(self, tf32: Collection[Product], node: Node) -> float:
        """Return the unit of TF32 if a node computes one of the products whose factors are rounded to it; else 0."""
        # `computes` returns the exported nodes. A product of weights alone is no node there, but a folded constant, so
        # that the operator of the compiled node counts, too.
        is_rounded = tf32 and any(item.operator.product in tf32 for item in (node, *self._program.computes(node)))
        return TF32_UNIT if is_rounded else 0.0

    def _of_original(self, node: Node) -> float:
        """Return the unit to which the model itself may round an operand of an exported node."""
        own = (self._originals.get(name) for name in node.outputs)
        return max((operand_unit(item) for item in own if item is not None), default=0.0)


def _coarsest(*units: Units) -> Units:
    """Return the largest of each of the three units."""
    return Units(*map(max, zip(*units, strict=True)))
