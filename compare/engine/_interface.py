"""Whether a program takes its inputs and gives its outputs as the model does: by number, order and name.

Values are compared by name. Those who run an ONNX file often go by position: `session.run(None, feeds)` gives the
outputs in the order of the graph. So the lists themselves are held against those that were noted at the export.
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
    """What is wrong with the inputs and outputs of a program, and of the graphs that a backend made of it.

    Args:
        program: compared with what was noted when it was exported; a file of another exporter has no such notes.
        made: each graph is compared with the program's own.

    Returns:
        a sentence for each side of a graph that is not as it should be.
    """
    graph = program.graph
    own = frozenset(graph.inputs)
    found: list[str] = []
    if not program.is_foreign:
        found += _problems("the program", "input", graph.inputs, [*program.inputs], program.inputs)
    if program.outputs:
        found += _problems("the program", "output", graph.outputs, program.outputs, _results(program))
    for stage, compiled in made.items():
        # It may take weights besides, and not what nothing reads.
        inputs = [name for name in compiled.graph.inputs if name in own]
        there = frozenset(inputs)
        taken = [name for name in graph.inputs if name in there]
        found += _problems(f"the {stage} graph", "input", inputs, taken, program.inputs)
        outputs = [compiled.value_aliases.get(name, name) for name in compiled.graph.outputs]
        if graph.known.issuperset(outputs):  # elsewhere a backend has names of its own, which tell nothing
            found += _problems(f"the {stage} graph", "output", outputs, graph.outputs, {})
    return tuple(found)


def exchanged_output(names: Sequence[str], results: Sequence[torch.Tensor], outputs: Mapping[str, torch.Tensor]) -> str:
    """What is wrong with the order of outputs, as far as their numbers tell: a file without notes has no other.

    Args:
        names: of the graph's outputs, in order.
        results: what the model gave, as many and in order.
        outputs: what the graph gave, by name.

    Returns:
        a sentence about the first output that is another result than the one at its place; or `""`.
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
    """By the name of an output, where it stands in what the model returns."""
    ports = program.module_calls["", 0].outputs if ("", 0) in program.module_calls else ()
    return {port.value: port.path for port in ports if port.value is not None}


def _problems(
    whose: str, side: str, actual: Sequence[str], expected: Sequence[str], paths: Mapping[str, str]
) -> Iterator[str]:
    """At most one sentence; `paths` says what values are in the model, where it calls them something else."""
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
