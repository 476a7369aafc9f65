"""What the values around a node should be."""

from collections.abc import Sequence

import torch

from filch.export import Program
from filch.export.backends import get_backend
from filch.steal import Records

from ..engine._modules import Modules, result_references
from ..metrics._limits import Limits
from ..references._inputs import CapturedCall
from ..references._references import References


def known_values(
    held: Records, program: Program, call: CapturedCall, names: Sequence[str], limits: Limits
) -> dict[str, torch.Tensor]:
    """What these values should be, as far as something says it, and the inputs of the call, by name.

    Args:
        held: the capture or dump.
        program: what it is compared with.
        call: which call of the model.
        names: of values of the program, in the order of its graph.
        limits: the tolerance of each value.
    """
    # All of them are held at a time in any case: a buffer would only have some computed twice.
    sources = References(held, program, wanted=names, buffer=2**62).of(call, names)
    modules = Modules(held, program, call, limits)
    if not modules.is_resolved:  # a foreign file: its modules' values are found by what they are
        engine = get_backend("onnxruntime-cpu")
        made = engine.compile(program, optimize=False)
        modules.infer({**call.inputs, **engine.run(made, call.inputs, program.graph.producer)})
    sources.set_preferred(modules.references())
    sources.set_fallback(result_references(held, program.graph, call))
    found = {name: sources.get(name) for name in names}
    return {**{name: known.tensor.detach() for name, known in found.items() if known is not None}, **call.inputs}
