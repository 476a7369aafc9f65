"""Check that a program has the inputs and outputs of the model: the same number, order and names.

Values are compared by name, but ONNX files are often run by position: `session.run(None, feeds)` returns the outputs
in the order of the graph. So the lists of inputs and outputs are compared with those recorded at the export.
"""

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

import onnx_ir as ir
import torch
from torch.export.graph_signature import OutputKind

from filch.export import ExportError, Program
from filch.export.backends import Compiled, Stage

from ..metrics._metrics import compare_tensors
from ..metrics._nearest import Nearest
from ..results._rows import Row
from ..runs._onnx_original import OnnxOriginal

# The dtypes of numbers that all backends return; `FLOAT4` and `FLOAT8`, for example, are none.
_NUMBERS = re.compile("BOOL|(BFLOAT|FLOAT|INT|UINT)(16|32|64)?$|U?INT8$|DOUBLE|COMPLEX|UNDEFINED")
_UNWRITTEN = (
    "the model changes it, and the program has no output for it: return it as well, or name it with a reason "
    "(--accept, accepted=)"
)
UNKNOWN_INTERFACE = "the file does not say which inputs and outputs the model has: outputs were judged by their numbers"


def interface_problems(program: Program, compiled: Mapping[Stage, Compiled]) -> tuple[str, ...]:
    """Return the errors in the inputs and outputs of a program, and of the graphs that a backend compiled from it.

    Args:
        program: compared with what was recorded at its export; files of other exporters have no such record.
        compiled: the compiled program of each stage; its graph is compared with the program's.

    Returns:
        a sentence for each list of inputs or outputs with an error.
    """
    graph = program.graph
    problems: list[str] = []
    if not program.is_foreign:
        problems += _list_problems("the program", "input", graph.inputs, [*program.inputs], program.inputs)
    if program.outputs:
        results = program.module_calls["", 0].outputs if ("", 0) in program.module_calls else ()
        paths = {port.value: port.path for port in results if port.value is not None}
        problems += _list_problems("the program", "output", graph.outputs, program.outputs, paths)
    for stage, item in compiled.items():
        # A compiled graph may have weights as inputs, and may lack unused inputs.
        program_inputs, compiled_inputs = {*graph.inputs}, {*item.graph.inputs}
        inputs = [name for name in item.graph.inputs if name in program_inputs]
        expected = [name for name in graph.inputs if name in compiled_inputs]
        problems += _list_problems(f"the {stage} graph", "input", inputs, expected, program.inputs)
        outputs = [*map(item.exported_name, item.graph.outputs)]
        if graph.known.issuperset(outputs):  # other backends use names of their own
            problems += _list_problems(f"the {stage} graph", "output", outputs, graph.outputs, {})
    return tuple(problems)


def unwritten_rows(program: Program, stage: Stage) -> list[Row]:
    """Return a row for each input or buffer that a call of the model changes, and that is no output of the program.

    ONNX programs can't change what they read, and the exporter leaves the changed values out. They can't be judged.
    """
    if program.original is None or isinstance(program.original, OnnxOriginal):  # of which no exported program is known
        return []
    try:
        outputs = program.original.program.graph_signature.output_specs
    except ExportError:  # noted by `References`
        return []
    results = {spec.arg.name for spec in outputs if spec.kind == OutputKind.USER_OUTPUT}
    changed = {OutputKind.BUFFER_MUTATION: "buffer", OutputKind.USER_INPUT_MUTATION: "input"}
    unwritten = [spec for spec in outputs if spec.kind in changed and spec.arg.name not in results]
    return [
        Row(0, stage, index, "output", name, "input", f"{name}, after the call", status="no value", reason=_UNWRITTEN)
        for index, name in enumerate(f"{changed[spec.kind]} {spec.target}" for spec in unwritten)
    ]


def unjudged_type(kind: ir.TypeProtocol | None) -> str:
    """Return what an output is if no backend returns it as a tensor; `""` for numbers, and if the type is not known."""
    if isinstance(kind, ir.SequenceType | ir.OptionalType):
        return "a sequence" if isinstance(kind, ir.SequenceType) else "an optional value"
    if kind is None or _NUMBERS.match(kind.dtype.name):
        return ""
    return f"a tensor of {'strings' if kind.dtype == ir.DataType.STRING else kind.dtype.name.lower()}"


def exchanged_output(names: Sequence[str], results: Sequence[torch.Tensor], outputs: Mapping[str, torch.Tensor]) -> str:
    """Find by its values an output of a foreign program that is at the position of another result.

    Args:
        names: the names of the graph's outputs, in order.
        results: the model's results, as many and in order.
        outputs: the graph's outputs, by name.

    Returns:
        a sentence about the first such output; `""` if there is none.
    """
    nearest = Nearest({str(index): tensor for index, tensor in enumerate(results)})
    for index, name in enumerate(names):
        actual = outputs.get(name)
        if actual is None or compare_tensors(actual, results[index]).close:
            continue
        if (result := nearest.find(actual)) is not None:  # None: no result is close
            return f"the program gives the model's result {result} as output {index}, {name!r}"
    return ""


def _list_problems(
    owner: str, side: str, actual: Sequence[str], expected: Sequence[str], paths: Mapping[str, str]
) -> Iterator[str]:
    """Yield a sentence if a list of inputs or outputs is not as expected, with the paths of values in the model."""
    counts, expected_counts = Counter(actual), Counter(expected)
    if counts == expected_counts:
        for index, pair in enumerate(zip(actual, expected, strict=True)):
            if pair[0] != pair[1]:
                which = " instead of ".join(_with_path(name, paths) for name in pair)
                yield f"{owner} lists its {side}s in another order than the model: {side} {index} is {which}"
                return
        return
    parts = [f"{_with_path(name, paths)} is missing" for name in expected if name not in counts]
    parts += [f"{name!r} is not one of the model's" for name in counts if name not in expected_counts]
    parts += [
        f"{_with_path(name, paths)} is listed {_times(count)}, not {_times(expected_counts[name])}"
        for name, count in counts.items()
        if expected_counts[name] not in (0, count)
    ]
    yield f"{owner} does not have the model's {side}s: {'; '.join(dict.fromkeys(parts))}"


def _with_path(name: str, paths: Mapping[str, str]) -> str:
    """Write a name with its path in the model, if that is another one."""
    path = paths.get(name, name)
    return repr(name) if path in ("", name) else f"{name!r} ({path})"


def _times(count: int) -> str:
    return {1: "once", 2: "twice"}.get(count, f"{count} times")
