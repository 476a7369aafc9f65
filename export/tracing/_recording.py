"""A graph recorded while a program runs, which maps tensors to values and tracks in-place changes."""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils.weak import WeakIdKeyDictionary

from filch.steal.values._tensors import is_dense

from ..graph._from_fx import tensor_value
from ..graph._graph import Graph
from ..graph._nodes import Node, Value, split_call

_PLAIN = (torch.Tensor, torch.nn.Parameter)  # a subclass may have no data
_Layout = tuple[Any, ...]  # offset, shape, strides and dtype of a tensor in its storage
_State = tuple[str, int]  # the name of a value, and the number of writes to its memory before it


@dataclass
class _Memory:
    """The values in one storage.

    Attributes:
        storage: a weak reference, which keeps other storages from getting the address.
        states: the values by their layouts in it.
        writes: the number of in-place changes.
        last: the value of the last change.
    """

    storage: StorageWeakRef
    states: dict[_Layout, _State] = field(default_factory=dict)
    writes: int = 0
    last: str = ""


class GraphRecording:
    """The nodes and values of a run so far.

    A tensor is found by identity or by its memory: autograd returns saved tensors as other objects. No tensor is kept
    alive.

    Attributes:
        inputs: the names of the inputs.
        nodes: the nodes by name, in the order in which they ran.
        producers: the node that computed each value, by the value's name.
        labels: maps the names of values to the path of the parameter or buffer of which they are a state.
        copies_data: whether the data of each new value is copied.
        data: the copies by the names of the values.

    Args:
        name_of: returns the path of a tensor that no node has computed, or None.
    """

    def __init__(self, name_of: Callable[[torch.Tensor], str | None] = lambda _: None) -> None:
        self.inputs: list[str] = []
        self.nodes: dict[str, Node] = {}
        self.producers: dict[str, Node] = {}
        self.labels: dict[str, str] = {}
        self.copies_data = False
        self.data: dict[str, torch.Tensor] = {}
        self._name_of = name_of
        self._constants: dict[str, None] = {}  # an ordered set
        self._values: dict[str, Value] = {}
        self._states: Any = WeakIdKeyDictionary()  # the `_State` of each tensor
        self._memories: dict[int, _Memory] = {}  # by the address of the storage
        self._names: Counter[str] = Counter()  # how often each was asked for; `weight@`: writes to `weight`

    def add_input(self, tensor: torch.Tensor, name: str) -> None:
        """Add an input."""
        self.inputs.append(self.add_result(tensor, self.unique(name)))

    def add_constant(self, tensor: torch.Tensor, name: str) -> str:
        """Add a parameter, a buffer or another constant, and return its name."""
        name = self.add_result(tensor, self.unique(name))
        self._constants[name] = None
        return name

    def add_constant_value(self, value: Value) -> str:
        """Add a constant without a tensor, and return its name."""
        name = self.add_value(replace(value, name=self.unique(value.name)))
        self._constants[name] = None
        return name

    def unique(self, name: str) -> str:
        """Return `name`, or `name_1`, … if it is taken."""
        while True:
            candidate = f"{name}_{self._names[name]}" if self._names[name] else name
            self._names[name] += 1
            if candidate == name or candidate not in self._names:
                self._names[candidate] = max(self._names[candidate], 1)
                return candidate

    def names_of(self, tensor: torch.Tensor) -> tuple[str, ...]:
        """Return the value of a tensor, and the last value written to its memory through another tensor.

        The two may not overlap in memory: then the second is an unnecessary dependency, but none is missing.
        """
        name, writes = self._state(tensor) or (self._add_unknown(tensor), 0)
        memory = self._memory(tensor)
        if memory is not None and memory.writes > writes and memory.last != name:
            return name, memory.last
        return (name,)

    def _add_unknown(self, tensor: torch.Tensor) -> str:
        """Add a tensor that no node has computed, and return its name."""
        path = self._name_of(tensor)
        name = self.add_constant(tensor, path or "constant")
        if path:
            self.labels[name] = path
        return name

    def label(self, tensor: torch.Tensor, path: str) -> None:
        """Label a recorded tensor as a parameter or a buffer."""
        state = self._state(tensor)
        if state is not None:
            self.labels.setdefault(state[0], path)

    def alive(self) -> set[str]:
        """Return the names of the values whose tensors are alive."""
        return {name for name, _ in self._states.values()}

    def is_recorded(self, tensor: torch.Tensor) -> bool:
        """Return whether a tensor is a recorded value."""
        return self._state(tensor) is not None

    def add_result(self, tensor: torch.Tensor, name: str) -> str:
        """Add the result of a node under a name, and return the name; later writes to its memory are noticed."""
        memory = self._memory(tensor)
        self._states[tensor] = state = (name, memory.writes if memory is not None else 0)
        if memory is not None:
            memory.states[_layout(tensor)] = state
        self.add_value(tensor_value(name, tensor))
        if self.copies_data and type(tensor) in _PLAIN and not tensor.is_meta:
            self.data[name] = tensor.detach().clone()
        return name

    def add_write(self, tensor: torch.Tensor, name: str) -> str:
        """Add an in-place change, and return the name of the new value: `weight@1` for a constant."""
        previous, _ = self._state(tensor) or ("", 0)
        constant, _ = split_call(previous)
        if constant in self._constants:
            self._names[f"{constant}@"] += 1
            name = f"{constant}@{self._names[f'{constant}@']}"
        if previous in self.labels:
            self.labels[name] = self.labels[previous]
        memory = self._memory(tensor)
        if memory is not None:
            memory.writes += 1
            memory.last = name
        return self.add_result(tensor, name)

    def add_value(self, value: Value) -> str:
        """Add a value without a tensor, and return its name."""
        self._values[value.name] = value
        return value.name

    def add_node(self, node: Node) -> None:
        """Add a node that has run."""
        self.nodes[node.name] = node
        self.producers.update(dict.fromkeys(node.outputs, node))

    def graph(self, name: str, outputs: tuple[str, ...]) -> Graph:
        """Return the graph so far."""
        nodes, values = tuple(self.nodes.values()), dict(self._values)
        return Graph(name, tuple(self.inputs), outputs, tuple(self._constants), nodes, values)

    def _state(self, tensor: torch.Tensor) -> _State | None:
        """Return the recorded value of a tensor, found by identity or by its layout in memory; else None."""
        memory = self._memory(tensor)
        state = self._states.get(tensor)
        return state or (memory.states.get(_layout(tensor)) if memory is not None else None)

    def _memory(self, tensor: torch.Tensor) -> _Memory | None:
        """Return the values in the storage of a tensor; None if it has not exactly one storage."""
        if not is_dense(tensor):
            return None  # several storages, or none
        storage = tensor.untyped_storage()
        address: int = storage._cdata  # noqa: SLF001  what tells storages apart
        if address not in self._memories:
            self._memories[address] = _Memory(StorageWeakRef(storage))  # type: ignore[no-untyped-call]
        return self._memories[address]


def _layout(tensor: torch.Tensor) -> _Layout:
    """Return what tells the tensors in one storage apart."""
    return tensor.storage_offset(), tuple(tensor.shape), tensor.stride(), tensor.dtype
