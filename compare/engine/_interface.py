"""Check that a program has the inputs and outputs of the model: the same number, order and names.

Values are compared by name, but ONNX files are often run by position: `session.run(None, feeds)` returns the outputs
in the order of the graph. So the lists of inputs and outputs are compared with those recorded at the export.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

import torch

from filch.export import Program
from filch.export.backends import Compiled, Stage

from ..metrics._metrics import compare_tensors
from ..metrics._nearest import Nearest

UNKNOWN = "the file does not say which inputs and outputs the model has: outputs were judged by their numbers"


def interface_problems(program: Program, made: Mapping[Stage, Compiled]) -> tuple[str, ...]:
    """Return the errors in the inputs and outputs of a program, and of the graphs that a backend compiled from it.

    Args:
        program: compared with what was recorded at its export; files of other exporters have no such record.
        made: the compiled program of each stage; its graph is compared with the program's.

    Returns:
        a sentence for each list of inputs or outputs with an error.
    """
    graph = program.graph
    own = frozenset(graph.inputs)
    found: list[str] = []
    if not program.is_foreign:
        found += _problems("the program", "input", graph.inputs, [*program.inputs], program.inputs)
    if program.outputs:
        found += _problems("the program", "output", graph.outputs, program.outputs, _results(program))
    for stage, compiled in made.items():
        # A compiled graph may have weights as inputs, and may lack unused inputs.
        inputs = [name for name in compiled.graph.inputs if name in own]
        there = frozenset(inputs)
        taken = [name for name in graph.inputs if name in there]
        found += _problems(f"the {stage} graph", "input", inputs, taken, program.inputs)
        outputs = [*map(compiled.exported_name, compiled.graph.outputs)]
        if graph.known.issuperset(outputs):  # other backends use names of their own
            found += _problems(f"the {stage} graph", "output", outputs, graph.outputs, {})
    return tuple(found)


def exchanged_output(names: Sequence[str], results: Sequence[torch.Tensor], outputs: Mapping[str, torch.Tensor]) -> str:
    """Find by its values an output of a foreign program that is at the position of another result.

    Args:
        names: the names of the graph's outputs, in order.
        results: the model's results, as many and in order.
        outputs: the graph's outputs, by name.

    Returns:
        a sentence about the first such output; `""` if there is none.
    """
    near: dict[object, Nearest] = {}
    for place, name in enumerate(names):
        actual = outputs.get(name)
        if actual is None or compare_tensors(results[place], actual).close:
            continue
        kind = _kind(actual)
        if kind not in near:
            alike = {str(number): one for number, one in enumerate(results) if _kind(one) == kind}
            near[kind] = Nearest(alike)
        if (other := near[kind].find(actual)) is not None:
            return f"the program gives the model's result {other} as output {place}, {name!r}"
    return ""


def _kind(tensor: torch.Tensor) -> object:
    return tensor.dtype, tensor.shape, tensor.layout


def _results(program: Program) -> Mapping[str, str]:
    """Map the name of each output to its path in the model's result."""
    ports = program.module_calls["", 0].outputs if ("", 0) in program.module_calls else ()
    return {port.value: port.path for port in ports if port.value is not None}


def _problems(
    whose: str, side: str, actual: Sequence[str], expected: Sequence[str], paths: Mapping[str, str]
) -> Iterator[str]:
    """Yield at most one sentence; `paths` maps values to their paths in the model where these differ."""
    if [*actual] == [*expected]:
        return
    there, wanted = Counter(actual), Counter(expected)
    if there == wanted:
        place = next(place for place, (a, b) in enumerate(zip(actual, expected, strict=True)) if a != b)
        which = " instead of ".join(_named(name, paths) for name in (actual[place], expected[place]))
        yield f"{whose} lists its {side}s in another order than the model: {side} {place} is {which}"
        return
    parts = [f"{_named(name, paths)} is missing" for name in expected if name not in there]
    parts += [f"{name!r} is not one of the model's" for name in dict.fromkeys(actual) if name not in wanted]
    parts += [
        f"{_named(name, paths)} is listed {_times(count)}, not {_times(wanted[name])}"
        for name, count in there.items()
        if wanted[name] not in (0, count)
    ]
    yield f"{whose} does not have the model's {side}s: {'; '.join(dict.fromkeys(parts))}"


def _named(name: str, paths: Mapping[str, str]) -> str:
    path = paths.get(name, name)
    return repr(name) if path in ("", name) else f"{name!r} ({path})"


def _times(count: int) -> str:
    return {1: "once", 2: "twice"}.get(count, f"{count} times")
