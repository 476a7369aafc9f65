"""The reference values around a node."""

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
    """Return the references of some values, where they have one, and the inputs of the call, by name.

    Args:
        held: the capture or dump.
        program: the program that is compared with it.
        call: the call of the model.
        names: names of values of the program, in the order of its graph.
        limits: the tolerance of each value.
    """
    # All values are in memory at once anyway: a smaller buffer would only compute some of them twice.
    sources = References(held, program, wanted=names, buffer=2**62).of(call, names)
    modules = Modules(held, program, call, limits)
    if not modules.is_resolved:  # a foreign file: match values of modules by their numbers
        engine = get_backend("onnxruntime-cpu")
        compiled = engine.compile(program, optimize=False)
        modules.infer({**call.inputs, **engine.run(compiled, call.inputs, program.graph.producer)})
    sources.set_preferred(modules.references())
    sources.set_fallback(result_references(held, program.graph, call))
    references = {name: sources.get(name) for name in names}
    return {**{name: known.tensor.detach() for name, known in references.items() if known is not None}, **call.inputs}
