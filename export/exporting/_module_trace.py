"""What a model's modules take and give, seen once in eager mode before it is exported."""

import copy
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch.utils import _pytree as pytree

from filch.steal import ModuleInfo, Records, argument_tensors, steal_forward, tensors

from .._errors import ExportError, reason

_SCALARS = (torch.Tensor, int, float, bool, type(None))  # torch.export keeps no signature of a call with a string


@dataclass
class SeenCall:
    """One call of a module in the eager run.

    Attributes:
        inputs: for each leaf of `(args, kwargs)`, in pytree order, the path of the tensor there (`mask`), or None.
        outputs: for each leaf of the output, the path of the tensor there (`[0]`), or None.
        plain: whether torch.export can rebuild its arguments and output without the module noticing: they nest in
            tuples, lists and dictionaries alone, and the module put nothing into these.
    """

    inputs: list[str | None] = field(default_factory=list)
    outputs: list[str | None] = field(default_factory=list)
    plain: bool = True


@dataclass
class Seen:
    """The eager run.

    Attributes:
        calls: by module path and iteration, in order of their start.
    """

    calls: dict[tuple[str, int], SeenCall] = field(default_factory=dict)

    def plain_modules(self) -> list[str]:
        """The modules below the model itself whose calls are all plain."""
        unplain = {path for (path, _), call in self.calls.items() if not call.plain}
        return sorted({path for path, _ in self.calls if path and path not in unplain})


def observe(model: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Seen:
    """Run `model` once on copies of its inputs and note what each of its modules took and gave.

    Raises:
        ExportError: the model itself fails on these inputs.
    """
    seen = Seen()
    _run(model, args, kwargs, _Watch(model, seen))
    return seen


def remember(
    model: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any], keys: Sequence[tuple[str, int]]
) -> Records:
    """Run the model again and keep what it and these calls took and gave, to be found again by their numbers."""
    paths = sorted({path for path, _ in keys if path})
    with steal_forward([("", model), *((path, model.get_submodule(path)) for path in paths)]) as values:
        _run(model, args, kwargs, None)
    return values


class _Watch:
    """Forward hooks on all modules of a model."""

    def __init__(self, model: nn.Module, seen: Seen) -> None:
        self._seen = seen
        self._ran: Counter[str] = Counter()
        self._open: list[tuple[SeenCall, list[int]]] = []
        self._paths = {id(module): path for path, module in model.named_modules()}
        self._parameters = {path: ModuleInfo.of(module).parameters for path, module in model.named_modules()}
        names = Counter(id(module) for _, module in model.named_modules(remove_duplicate=False))
        self._shared = {key for key, count in names.items() if count > 1}  # torch counts the calls of each name
        self._forms: dict[str, Any] = {}

    def before(self, module: nn.Module, args: Any, kwargs: Any) -> None:
        if torch.compiler.is_dynamo_compiling():  # the branches of torch.cond, which may have no effects
            return
        path = self._paths[id(module)]
        call = self._seen.calls[path, self._ran[path]] = SeenCall()
        self._ran[path] += 1
        self._open.append((call, _identities(args, kwargs)))
        call.inputs = leaf_paths((args, kwargs), argument_tensors(self._parameters[path], args, kwargs))
        call.plain = (
            id(module) not in self._shared and _is_plain((args, kwargs)) and self._is_as_before(path, args, kwargs)
        )

    def _is_as_before(self, path: str, args: Any, kwargs: Any) -> bool:
        """Whether a module is called as it was before, numbers aside: one signature has to do for all its calls."""
        leaves, spec = pytree.tree_flatten((args, kwargs))
        form = (spec, [torch.Tensor if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves])
        return bool(self._forms.setdefault(path, form) == form)

    def after(self, _module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        if torch.compiler.is_dynamo_compiling():
            return
        call, before = self._open.pop()
        call.outputs = leaf_paths(output, tensors(output))
        call.plain = call.plain and _is_plain(output) and _identities(args, kwargs) == before


def _run(model: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any], watch: _Watch | None) -> None:
    args, kwargs = copy.deepcopy((tuple(args), dict(kwargs)))  # caches are extended in place
    buffers = [
        (module, name, buffer, buffer.clone())
        for module in model.modules()
        for name, buffer in module.named_buffers(recurse=False)
    ]
    handles = []
    for module in (item for item in model.modules() if watch and not isinstance(item, torch.jit.ScriptModule)):
        handles += [
            module.register_forward_pre_hook(watch.before, with_kwargs=True),  # type: ignore[union-attr]
            module.register_forward_hook(watch.after, with_kwargs=True),  # type: ignore[union-attr]
        ]
    try:
        with torch.no_grad(), torch.random.fork_rng():
            model(*args, **kwargs)
    except Exception as error:
        raise ExportError(f"{type(model).__name__} itself fails on these inputs: {reason(error)}") from error
    finally:
        for handle in handles:
            handle.remove()
        _put_back(buffers)


def _put_back(buffers: Sequence[tuple[nn.Module, str, torch.Tensor, torch.Tensor]]) -> None:
    """Give buffers their numbers again (counters, running statistics): exporting is no call of the user's."""
    with torch.no_grad():
        for module, name, buffer, before in buffers:
            if getattr(module, name) is not buffer:
                setattr(module, name, buffer)
            if not torch.equal(buffer, before):
                buffer.copy_(before)


def leaf_paths(tree: Any, found: Mapping[str, torch.Tensor]) -> list[str | None]:
    """For each pytree leaf of `tree`, the path under which `found` has the same tensor."""
    places: dict[int, list[str]] = {}
    for path, tensor in found.items():
        places.setdefault(id(tensor), []).append(path)
    return [places[id(leaf)].pop(0) if places.get(id(leaf)) else None for leaf in pytree.tree_leaves(tree)]


def _identities(args: Any, kwargs: Any) -> list[int]:
    """Which objects the arguments nest.

    A module that puts others in writes to what torch.export would hand it a copy of.
    """
    return [id(leaf) for leaf in pytree.tree_leaves((args, kwargs))]


def _is_plain(value: Any) -> bool:
    """Whether torch can take a value apart and rebuild it unnoticed: a cache, rebuilt, is not the caller's any more."""
    if isinstance(value, _SCALARS):
        return True
    if type(value) in (tuple, list) or (isinstance(value, tuple) and hasattr(value, "_fields")):
        return all(_is_plain(item) for item in value)
    if isinstance(value, Mapping):
        known = type(value) is dict or type(value) in pytree.SUPPORTED_NODES
        return known and all(_is_plain(item) for item in value.values())
    return False
