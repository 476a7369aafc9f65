"""Record the inputs and outputs of a model's module calls in eager mode before the export."""

import copy
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from filch.steal import ModuleInfo, Records, steal_forward, tensors
from filch.steal.private._torch import pytree
from filch.steal.values._arguments import argument_tensors
from filch.steal.values._tensors import is_dense

from .._errors import ExportError, reason

_SCALARS = (torch.Tensor, int, float, bool, type(None))  # torch.export has no signatures for calls with strings


@dataclass
class EagerCall:
    """One call of a module in the eager run.

    Attributes:
        inputs: for each leaf of `(args, kwargs)`, in pytree order, the path of the tensor there (`mask`), or None.
        outputs: for each leaf of the output, the path of the tensor there (`[0]`), or None.
        plain: whether torch.export can rebuild its arguments and output without a visible effect: they contain only
            tuples, lists and dictionaries, and the module does not change these.
    """

    inputs: list[str | None] = field(default_factory=list)
    outputs: list[str | None] = field(default_factory=list)
    plain: bool = True


EagerCalls = dict[tuple[str, int], EagerCall]  # by module path and iteration, in the order in which they start


def record_calls(model: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any]) -> EagerCalls:
    """Run `model` once on copies of its inputs and record its module calls.

    Raises:
        ExportError: the model itself fails on these inputs.
    """
    recorder = _CallRecorder(model)
    _run(model, args, kwargs, recorder)
    return recorder.calls


def plain_modules(calls: EagerCalls) -> list[str]:
    """Return the paths of the submodules whose calls are all plain."""
    others = {path for (path, _), call in calls.items() if not call.plain}
    return sorted({path for path, _ in calls if path and path not in others})


def capture_calls(
    model: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any], keys: Sequence[tuple[str, int]]
) -> Records:
    """Run the model again and capture the inputs and outputs of the model itself and of these calls."""
    paths = sorted({path for path, _ in keys if path})
    with steal_forward([("", model), *((path, model.get_submodule(path)) for path in paths)]) as values:
        _run(model, args, kwargs, None)
    return values


class _CallRecorder:
    """Records the calls of a model's modules with forward hooks."""

    def __init__(self, model: nn.Module) -> None:
        self.calls: EagerCalls = {}
        self._counts: Counter[str] = Counter()
        self._running: list[tuple[EagerCall, list[int]]] = []  # with the `_identities` of the arguments
        self._paths = {id(module): path for path, module in model.named_modules()}
        self._parameters = {path: ModuleInfo.of(module).parameters for path, module in model.named_modules()}
        names = Counter(id(module) for _, module in model.named_modules(remove_duplicate=False))
        # Modules by id; torch counts the calls of each name separately.
        self._has_several_names = {module for module, count in names.items() if count > 1}
        self._forms: dict[str, Any] = {}  # the structure of the arguments of each module's first call, by path

    def before(self, module: nn.Module, args: Any, kwargs: Any) -> None:
        """Record the inputs of a call; a forward pre-hook."""
        if torch.compiler.is_dynamo_compiling():  # in the branches of torch.cond, which must not have side effects
            return
        path = self._paths[id(module)]
        call = self.calls[path, self._counts[path]] = EagerCall()
        self._counts[path] += 1
        self._running.append((call, _identities(args, kwargs)))
        call.inputs = leaf_paths((args, kwargs), argument_tensors(self._parameters[path], args, kwargs))
        has_plain_arguments = _is_plain((args, kwargs)) and self._has_same_form(path, args, kwargs)
        call.plain = has_plain_arguments and id(module) not in self._has_several_names

    def _has_same_form(self, path: str, args: Any, kwargs: Any) -> bool:
        """Whether the arguments have the structure of the module's first call; all calls share one signature."""
        leaves, spec = pytree.tree_flatten((args, kwargs))
        form = (spec, [torch.Tensor if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves])
        return bool(self._forms.setdefault(path, form) == form)

    def after(self, _module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        """Record the outputs of a call; a forward hook."""
        if torch.compiler.is_dynamo_compiling():
            return
        call, before = self._running.pop()
        call.outputs = leaf_paths(output, tensors(output))
        call.plain = call.plain and _is_plain(output) and _identities(args, kwargs) == before


def _run(model: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any], recorder: _CallRecorder | None) -> None:
    """Run a model on copies of its inputs, with the recorder's hooks if any, and restore buffers and random state."""
    args, kwargs = copy.deepcopy((tuple(args), dict(kwargs)))  # models extend caches in place
    buffers = [
        (module, name, buffer, buffer.clone())
        for module in model.modules()
        for name, buffer in module.named_buffers(recurse=False)
    ]
    handles = []
    for module in model.modules():
        if recorder is not None and not isinstance(module, torch.jit.ScriptModule):  # which does not support hooks
            handles += [
                # A program starts with what the caller of the model passes.
                module.register_forward_pre_hook(recorder.before, prepend=module is model, with_kwargs=True),
                module.register_forward_hook(recorder.after, with_kwargs=True),
            ]
    try:
        with torch.no_grad(), torch.random.fork_rng():
            model(*args, **kwargs)
    except Exception as error:
        raise ExportError(f"{type(model).__name__} itself fails on these inputs: {reason(error)}") from error
    finally:
        for handle in handles:
            handle.remove()
        _restore(buffers)


def _restore(buffers: Sequence[tuple[nn.Module, str, torch.Tensor, torch.Tensor]]) -> None:
    """Restore buffers (counters, running statistics), so that exporting does not change the model."""
    with torch.no_grad():
        for module, name, buffer, before in buffers:
            if getattr(module, name) is not buffer:
                setattr(module, name, buffer)
            if is_dense(buffer) and not buffer.is_meta and not torch.equal(buffer, before):
                buffer.copy_(before)


def leaf_paths(tree: Any, tensors_by_path: Mapping[str, torch.Tensor]) -> list[str | None]:
    """Return, for each pytree leaf of `tree`, the path of the same tensor in `tensors_by_path`, or None.

    A tensor that is at several paths has them in order, one for each leaf.
    """
    paths: dict[int, list[str]] = {}
    for path, tensor in tensors_by_path.items():
        paths.setdefault(id(tensor), []).append(path)
    return [paths[id(leaf)].pop(0) if paths.get(id(leaf)) else None for leaf in pytree.tree_leaves(tree)]


def _identities(args: Any, kwargs: Any) -> list[int]:
    """Return the ids of the objects in the arguments.

    If a call changes them, the module writes to its arguments, of which torch.export would pass it a copy.
    """
    return [id(leaf) for leaf in pytree.tree_leaves((args, kwargs))]


def _is_plain(value: Any) -> bool:
    """Whether torch can flatten and rebuild a value without a visible effect, as it does with the arguments of a call.

    It rebuilds tuples, lists and dictionaries; a cache that is rebuilt is another object than the one that was passed.
    """
    if isinstance(value, _SCALARS):
        return True
    if type(value) in (tuple, list) or (isinstance(value, tuple) and hasattr(value, "_fields")):
        return all(_is_plain(item) for item in value)
    if isinstance(value, Mapping):
        known = type(value) is dict or type(value) in pytree.SUPPORTED_NODES
        return known and all(_is_plain(item) for item in value.values())
    return False
