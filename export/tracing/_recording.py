"""A graph that grows while a program runs: which value each tensor is, and what was written over it since."""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils.weak import WeakIdKeyDictionary

from ..graph._graph import Graph
from ..graph._nodes import Node, Value

_PLAIN = (torch.Tensor, torch.nn.Parameter)  # a subclass may have no numbers
_Place = tuple[Any, ...]
_Known = tuple[str, int]  # a value's name, and how many times its memory had been written to by then


@dataclass
class _Memory:
    """What lies in one storage.

    Attributes:
        storage: as long as it is held, no other storage gets the address.
        held: the values, by where in it they lie and as what.
        writes: how many times a value in it was changed in place.
        last: the value that the last of these made.
    """

    storage: StorageWeakRef
    held: dict[_Place, _Known] = field(default_factory=dict)
    writes: int = 0
    last: str = ""


class Recording:
    """The nodes and values of a run so far.

    A tensor is known by itself, or by the memory that it shows: what autograd saved comes back as another tensor. No
    tensor is kept alive.

    Attributes:
        nodes: in the order in which they ran.
        inputs: names of the values that the run was given.
        constants: names of the values that it held; those that nobody named, too.
        labels: by a value's name, the path of the parameter or buffer that it is a state of, where that was told.
        keeping: whether the numbers of each new value are copied.
        kept: the copies, by the values' names.

    Args:
        name_of: the path of a tensor that the run holds, and that no node has made; None if it has none.
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
        """The run is given a tensor."""
        self.inputs.append(self._new(tensor, self.unique(name)))

    def hold(self, tensor: torch.Tensor, name: str) -> str:
        """The run holds a tensor: a parameter, a buffer, or some constant."""
        return self._constant(self._new(tensor, self.unique(name)))

    def hold_unseen(self, value: Value) -> str:
        """The run holds a value of which no tensor was seen."""
        return self._constant(self.state(replace(value, name=self.unique(value.name))))

    def _constant(self, name: str) -> str:
        self.constants.append(name)
        self._held.add(name)
        return name

    def unique(self, name: str) -> str:
        """`name`, or `name_1`, … if there is one of this name."""
        while True:
            made = f"{name}_{self._names[name]}" if self._names[name] else name
            self._names[name] += 1
            if made == name or made not in self._names:
                self._names[made] = max(self._names[made], 1)
                return made

    def read(self, tensor: torch.Tensor) -> tuple[str, ...]:
        """The value that a tensor is; and what was last written to its memory, if that was not through this tensor.

        The two may lie side by side in that memory: then the second is one too many, and no dependency is missing.
        """
        name, writes = self._known(tensor) or (self._found(tensor), 0)
        memory = self._memory(tensor)
        later = memory is not None and memory.writes > writes and memory.last != name
        return (name, memory.last) if later and memory is not None else (name,)

    def _found(self, tensor: torch.Tensor) -> str:
        """The value of a tensor that no node has made."""
        path = self._name_of(tensor) if self._name_of is not None else None
        name = self.hold(tensor, path or "constant")
        if path:
            self.labels[name] = path
        return name

    def label(self, tensor: torch.Tensor, path: str) -> None:
        """A tensor that a node has made is a parameter or a buffer."""
        known = self._known(tensor)
        if known is not None:
            self.labels.setdefault(known[0], path)

    def alive(self) -> set[str]:
        """The names of the values whose tensors are still there."""
        return {name for name, _ in self._tensors.values()}

    def knows(self, tensor: torch.Tensor) -> bool:
        """Whether a tensor is some value."""
        return self._known(tensor) is not None

    def make(self, tensor: torch.Tensor, name: str) -> str:
        """A node made a tensor; returns the value's name, which is `name`."""
        return self._new(tensor, name)

    def write(self, tensor: torch.Tensor, name: str) -> str:
        """A node changed a tensor in place; returns the new value's name: `weight@1` for that of a constant."""
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
        """A value that no tensor was seen of; returns its name."""
        self._values[value.name] = value
        return value.name

    def add(self, node: Node) -> None:
        """A node has run."""
        self.nodes.append(node)
        self._makers.update(dict.fromkeys(node.outputs, node))

    def maker(self, value: str) -> Node | None:
        """The node that made a value."""
        return self._makers.get(value)

    def graph(self, name: str, outputs: tuple[str, ...]) -> Graph:
        """The graph so far."""
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
