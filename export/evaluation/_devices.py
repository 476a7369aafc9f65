"""Move exported programs to a device: weights, and the devices that are written in their graphs."""

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import fx
from torch.export import ExportedProgram
from torch.fx.node import map_aggregate

from filch.steal.private._torch import pytree


def program_on(program: ExportedProgram, device: torch.device) -> ExportedProgram:
    """Return a program that runs on a device: the program itself if all of it is there, or else a changed copy."""
    weights = (program.state_dict, program.constants)
    is_there = all(_is_on(value, device) for values in weights for value in values.values())
    if is_there and not _named_devices(program.graph_module) - {device}:
        return program
    moved = copy.copy(program)
    moved._state_dict, moved._constants = (  # noqa: SLF001  they have no setters
        {name: _to(value, device) for name, value in values.items()} for values in weights
    )
    moved._graph_module = module_on(program.graph_module, device)  # noqa: SLF001  nor has this
    return moved


def module_on(module: fx.GraphModule, device: torch.device) -> fx.GraphModule:
    """Return a copy of a graph module that creates its tensors on a device; the export wrote the model's device."""

    def moved_argument(argument: Any) -> Any:
        return device if isinstance(argument, torch.device) else argument

    def move(node: fx.Node) -> None:
        node.args, node.kwargs = map_aggregate(node.args, moved_argument), map_aggregate(node.kwargs, moved_argument)
        if "val" in node.meta:
            node.meta["val"] = pytree.tree_map(lambda value: _to(value, device), node.meta["val"])

    moved = changed_copy(module, move)
    _move_buffers(moved, device)
    return moved


def _move_buffers(module: fx.GraphModule, device: torch.device) -> None:
    """Move the buffers of a graph module and of those in it."""
    for name, buffer in module.named_buffers(recurse=False):
        setattr(module, name, _to(buffer, device))
    for child in module.children():
        if isinstance(child, fx.GraphModule):
            _move_buffers(child, device)


def changed_copy(module: fx.GraphModule, change: Callable[[fx.Node], None] = lambda _: None) -> fx.GraphModule:
    """Copy a graph module and those in it (branches, loop bodies), and call `change` with each node of the copies.

    The copies have the same weights.
    """
    copied = fx.GraphModule(module, copy.deepcopy(module.graph))
    keep_names(copied.graph, module.graph)
    for node in copied.graph.nodes:
        change(node)
    for name in {str(node.target) for node in copied.graph.nodes if node.op in ("get_attr", "call_module")}:
        if isinstance(child := getattr(copied, name, None), fx.GraphModule):
            setattr(copied, name, changed_copy(child, change))
    copied.meta = {**module.meta}
    copied.recompile()
    return copied


def keep_names(copied: fx.Graph, graph: fx.Graph) -> None:
    """Name the nodes of a copy as those of a graph: a copy renames what is no identifier or a builtin."""
    for node, original in zip(copied.nodes, graph.nodes, strict=True):
        node.name = original.name


def _named_devices(module: fx.GraphModule) -> set[torch.device]:
    """Return the devices that are arguments of nodes."""
    found: set[torch.device] = set()

    def add(item: Any) -> Any:
        if isinstance(item, torch.device):
            found.add(item)
        return item

    for part in module.modules():
        if isinstance(part, fx.GraphModule):
            for node in part.graph.nodes:
                map_aggregate((node.args, node.kwargs), add)
    return found


def _is_on(value: Any, device: torch.device) -> bool:
    """Return whether a value is on a device, or is no tensor."""
    return not isinstance(value, torch.Tensor) or value.device == device


def _to(value: Any, device: torch.device) -> Any:
    """Return a tensor on a device; a parameter becomes a plain tensor there. Other values are returned unchanged."""
    return value if _is_on(value, device) else value.detach().to(device)
