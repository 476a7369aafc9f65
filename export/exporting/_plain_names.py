"""Give weights names that Python code can contain while a program is translated: torch's passes write such code."""

import contextlib
import json
import keyword
from collections.abc import Callable, Iterator

import onnx_ir as ir
from torch.export import ExportedProgram

Restore = Callable[[ExportedProgram, ir.Model], None]


@contextlib.contextmanager
def plain_weight_names(exported: ExportedProgram) -> Iterator[Restore]:
    """Rename weights of modules that are called `class` or have quotes in their names, in the block.

    Yields:
        a function that gives the weights of a translated program and its ONNX model their own names.
    """
    targets = [spec.target for spec in exported.graph_signature.input_specs if spec.target is not None]
    names = {target: f"weight_{index}" for index, target in enumerate(targets) if not _is_plain(target)}
    original_names = {new: target for target, new in names.items()}
    _rename(exported, names)
    try:
        yield lambda program, model: _restore(program, model, original_names)
    finally:
        _rename(exported, original_names)


def _is_plain(target: str) -> bool:
    """Return whether generated Python code can have a weight of this path as an attribute."""
    parts = target.split(".")
    return not any(keyword.iskeyword(part) or json.dumps(part, ensure_ascii=False) != f'"{part}"' for part in parts)


def _restore(program: ExportedProgram, model: ir.Model, names: dict[str, str]) -> None:
    """Give the weights of a program and its ONNX model their own names."""
    _rename(program, names)
    for value in [value for name, value in model.graph.initializers.items() if name in names]:
        del model.graph.initializers[value.name or ""]
        value.name = names[value.name or ""]
        model.graph.register_initializer(value)


def _rename(program: ExportedProgram, names: dict[str, str]) -> None:
    """Rename weights in the signature and the state of a program."""
    if not names:
        return
    for spec in (*program.graph_signature.input_specs, *program.graph_signature.output_specs):
        spec.target = names.get(spec.target or "", spec.target)
    for weights in (program.state_dict, program.constants):
        renamed = {names.get(name, name): weight for name, weight in weights.items()}
        weights.clear()
        weights.update(renamed)
