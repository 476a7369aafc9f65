"""A graph recorded while a program runs, which maps tensors to values and tracks in-place changes."""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils.weak import WeakIdKeyDictionary

from ..graph._graph import Graph
from ..graph._nodes import Node, Value

_PLAIN = (torch.Tensor, torch.nn.Parameter)  # a subclass may have no data
_Place = tuple[Any, ...]
_Known = tuple[str, int]  # the name of a value, and the number of writes to its memory before it


@dataclass
class _Memory:
    """The values in one storage.

    Attributes:
        storage: a weak reference, which keeps other storages from getting the address.
        held: the values by offset, shape, strides and dtype.
        writes: the number of in-place changes.
        last: the value of the last change.
    """

    storage: StorageWeakRef
    held: dict[_Place, _Known] = field(default_factory=dict)
    writes: int = 0
    last: str = ""


class GraphRecording:
    """The nodes and values of a run so far.

    A tensor is found by identity or by its memory: autograd returns saved tensors as other objects. No tensor is kept
    alive.

    Attributes:
        nodes: the nodes in the order in which they ran.
        inputs: names of the inputs.
        constants: names of parameters, buffers and other constants.
        labels: maps the names of values to the path of the parameter or buffer of which they are a state.
        keeping: whether the data of each new value is copied.
        kept: the copies by the names of the values.

    Args:
        name_of: returns the path of a tensor that no node has computed, or None.
    """

    def __init__(self, name_of: Callable[[torch.Tensor], str | None] | None = None) -> None:
        self.labels: dict[str, str] = {}
        self.keeping = False
        self.kept: dict[str, torch.Tensor] = {}
        self._name_of = name_of
        self.nodes: list[Node] = []
        self.inputs: list[str] = []
        self.constants: list[str] = []
        self._held: set[str] = set()
        self._values: dict[str, Value] = {}
        self._tensors: Any = WeakIdKeyDictionary()  # of _Known
        self._memories: dict[int, _Memory] = {}
        self._names: Counter[str] = Counter()
        self._makers: dict[str, Node] = {}

    def give(self, tensor: torch.Tensor, name: str) -> None:
        """Add an input."""
        self.inputs.append(self._new(tensor, self.unique(name)))

    def hold(self, tensor: torch.Tensor, name: str) -> str:
        """Add a parameter, a buffer or a constant, and return its name."""
        return self._constant(self._new(tensor, self.unique(name)))

    def hold_unseen(self, value: Value) -> str:
        """Add a constant without a tensor, and return its name."""
        return self._constant(self.state(replace(value, name=self.unique(value.name))))

    def _constant(self, name: str) -> str:
        self.constants.append(name)
        self._held.add(name)
        return name

    def unique(self, name: str) -> str:
        """Return `name`, or `name_1`, … if it is taken."""
        while True:
            made = f"{name}_{self._names[name]}" if self._names[name] else name
            self._names[name] += 1
            if made == name or made not in self._names:
                self._names[made] = max(self._names[made], 1)
                return made

    def read(self, tensor: torch.Tensor) -> tuple[str, ...]:
        """Return the value of a tensor, and the last value written to its memory through another tensor.

        The two may not overlap in memory: then the second is an unnecessary dependency, but none is missing.
        """
        name, writes = self._known(tensor) or (self._found(tensor), 0)
        memory = self._memory(tensor)
        later = memory is not None and memory.writes > writes and memory.last != name
        return (name, memory.last) if later and memory is not None else (name,)

    def _found(self, tensor: torch.Tensor) -> str:
        """Add a tensor that no node has computed, and return its name."""
        path = self._name_of(tensor) if self._name_of is not None else None
        name = self.hold(tensor, path or "constant")
        if path:
            self.labels[name] = path
        return name

    def label(self, tensor: torch.Tensor, path: str) -> None:
        """Label a computed tensor as a parameter or a buffer."""
        known = self._known(tensor)
        if known is not None:
            self.labels.setdefault(known[0], path)

    def alive(self) -> set[str]:
        """Return the names of the values whose tensors are alive."""
        return {name for name, _ in self._tensors.values()}

    def knows(self, tensor: torch.Tensor) -> bool:
        """Return whether a tensor is a recorded value."""
        return self._known(tensor) is not None

    def make(self, tensor: torch.Tensor, name: str) -> str:
        """Add the result of a node, and return its name."""
        return self._new(tensor, name)

    def write(self, tensor: torch.Tensor, name: str) -> str:
        """Add an in-place change, and return the name of the new value: `weight@1` for a constant."""
        known = self._known(tensor)
        owner = known[0].partition("@")[0] if known else ""
        if owner in self._held:
            self._names[f"{owner}@"] += 1
            name = f"{owner}@{self._names[f'{owner}@']}"
        if known and known[0] in self.labels:
            self.labels[name] = self.labels[known[0]]
        memory = self._memory(tensor)
        if memory is not None:
            memory.writes += 1
            memory.last = name
        return self._new(tensor, name)

    def state(self, value: Value) -> str:
        """Add a value without a tensor, and return its name."""
        self._values[value.name] = value
        return value.name

    def add(self, node: Node) -> None:
        """Add a node that has run."""
        self.nodes.append(node)
        self._makers.update(dict.fromkeys(node.outputs, node))

    def maker(self, value: str) -> Node | None:
        """Return the node that computed a value."""
        return self._makers.get(value)

    def graph(self, name: str, outputs: tuple[str, ...]) -> Graph:
        """Return the graph so far."""
        nodes, values = tuple(self.nodes), dict(self._values)
        return Graph(name, tuple(self.inputs), outputs, tuple(self.constants), nodes, values)

    def _known(self, tensor: torch.Tensor) -> _Known | None:
        memory = self._memory(tensor)
        known = self._tensors.get(tensor)
        return known or (memory.held.get(_place(tensor)) if memory is not None else None)

    def _new(self, tensor: torch.Tensor, name: str) -> str:
        memory = self._memory(tensor)
        self._tensors[tensor] = known = (name, memory.writes if memory is not None else 0)
        if memory is not None:
            memory.held[_place(tensor)] = known
        self._values[name] = Value(name, str(tensor.dtype).removeprefix("torch."), tuple(map(_size, tensor.shape)))
        if self.keeping and type(tensor) in _PLAIN and not tensor.is_meta:
            self.kept[name] = tensor.detach().clone()
        return name

    def _memory(self, tensor: torch.Tensor) -> _Memory | None:
        if tensor.layout != torch.strided:
            return None  # several storages, or none
        storage = tensor.untyped_storage()
        address: int = storage._cdata  # noqa: SLF001  what tells storages apart
        if address not in self._memories:
            self._memories[address] = _Memory(StorageWeakRef(storage))  # type: ignore[no-untyped-call]
        return self._memories[address]


def _place(tensor: torch.Tensor) -> _Place:
    return tensor.storage_offset(), tuple(tensor.shape), tensor.stride(), tensor.dtype


def _size(size: Any) -> int | str:
    return size if isinstance(size, int) else str(size)
