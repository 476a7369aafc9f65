"""Give the nodes of an exported program other names."""

import copy
import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from torch import fx
from torch.export import ExportedProgram
from torch.export.graph_signature import ExportGraphSignature, OutputKind


def renamed_program(program: ExportedProgram, names: Mapping[str, str]) -> ExportedProgram:
    """Return a copy of a program whose nodes have other names; it shares the weights.

    Names that are no identifiers can't be written as code: torch can run such a program, but not save it.

    Args:
        program: the program.
        names: the new names by the old ones, none of which another node has.
    """
    renamed, signature = copy.copy(program), program.graph_signature
    module = fx.GraphModule(program.graph_module, copy.deepcopy(program.graph))
    for node, original in zip(module.graph.nodes, program.graph.nodes, strict=True):
        node.name = names.get(original.name, original.name)  # a copy renames those that are built-in, such as `input`
    inputs = [_renamed_spec(spec, names) for spec in signature.input_specs]
    outputs = [
        replace(spec, target=names.get(spec.target or "", spec.target))
        if spec.kind == OutputKind.USER_INPUT_MUTATION  # whose target is the name of an input
        else spec
        for spec in (_renamed_spec(spec, names) for spec in signature.output_specs)
    ]
    renamed._graph_module = module  # noqa: SLF001  it has no setter
    renamed._graph_signature = ExportGraphSignature(inputs, outputs)  # noqa: SLF001  nor has this
    return renamed


def _renamed_spec(spec: Any, names: Mapping[str, str]) -> Any:
    name = getattr(spec.arg, "name", None) or ""
    return replace(spec, arg=replace(spec.arg, name=names[name])) if name in names else spec


def identifiers(program: ExportedProgram) -> dict[str, str]:
    """Return identifiers for those names of a program's nodes that are none, by the names."""
    taken = {node.name for node in program.graph.nodes}
    found: dict[str, str] = {}
    for name in [name for name in taken if not name.isidentifier()]:
        found[name] = re.sub(r"\W", "_", name)
        while found[name] in taken:
            found[name] += "_"
        taken.add(found[name])
    return found
