"""Map an ONNX program that another tool made to the export of the model, whose values are its references."""

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import onnx_ir as ir

from filch.export import Graph, ModuleCall, Port, Program, optimize
from filch.steal import Records, phase

from ._compare import ProgramLike, time_limit
from ._compare_programs import Ends, ProgramSide, label_of, pairs_note, shapes_of, with_shapes
from .common._errors import CompareError
from .pairing._observed import Observed
from .pairing._paired_value import Pairs
from .pairing._program_pairs import pair_values
from .references._inputs import captured_calls, cast_inputs, empty_shape
from .references._renamed import RenamedOriginal

_BACKEND = "onnxruntime-cpu"  # runs both programs node by node, to find the values of one in the other
_METADATA = ("namespace", "pkg.torch.")  # prefixes of what says where in the model a node is


def map_to_export(
    program: ProgramLike,
    exported: Program,
    reference: Records,
    *,
    lower_precision: bool = False,
    limit: float | None = None,
) -> Program:
    """Return a program of another tool with the references of an exported model.

    An ONNX file that was made by `torch.onnx.export` alone, or by a builder or an optimizer, does not say which of its
    values the model has. Both programs run on the inputs of the first captured call, and their values are matched as by
    `compare_programs`. The result is compared like an exported program: `compare`, `blame`, `bisect` and `write_repro`
    judge each matched value by what eager PyTorch and float64 compute. A value that was matched by its numbers alone is
    judged by tolerance, and its `Row.evidence` is `inferred`.

    Inputs and outputs are matched by their names, or by the numbers and the last word in them (`present.0.key` is
    `past_key_values.layers[0].keys`), else by their positions if shapes and dtypes fit. Inputs for a past, which the
    model was not given, are empty.

    Args:
        program: the path of an ONNX file, an ONNX model, or a program.
        exported: the result of `export` for the model.
        reference: a capture or dump of the model.
        lower_precision: see `compare`.
        limit: see `compare`.

    Returns:
        the program, with the module calls and the original of `exported` by the names of its own values.

    Raises:
        FilchError: a program is invalid or can't be run; the inputs do not fit.

    Example:
        >>> import torch
        >>> from filch.compare import compare, map_to_export
        >>> from filch.export import export
        >>> from filch.steal import steal_forward
        >>> model, x = torch.nn.Linear(3, 2).eval(), torch.ones(1, 3)
        >>> with steal_forward(model) as capture:
        ...     _ = model(x)
        >>> foreign = torch.onnx.export(model, (x,), verbose=False).model_proto
        >>> compare(capture, map_to_export(foreign, export(model, (x,)), capture)).close
        True
    """
    original = exported.original
    if original is None:
        raise CompareError("the exported program has no original: give the result of `export`")
    expected = ProgramSide.of(exported, "the exported model", _BACKEND)
    judged = ProgramSide.of(program, "the program", _BACKEND)
    calls = captured_calls(reference, expected.program).calls
    call = expected.feed(calls[0].inputs)
    same_shapes = all(shapes_of(other.inputs) == shapes_of(calls[0].inputs) for other in calls)
    with time_limit(judged.program, limit), phase("matching the values of both programs"):
        try:
            observed = expected.observe(expected.compile(), call)
        except CompareError:  # without the exporter's optimizer, some operators have inputs that no runtime supports
            exported = optimize(exported)
            expected = ProgramSide.of(exported, "the exported model", _BACKEND)
            observed = expected.observe(expected.compile(), call)
        paths = {**exported.inputs, **_output_paths(exported)}
        if (whole := expected.unrolled([call])) is not expected:
            expected, observed = whole, whole.observe(whole.compile(), call)
        judged, empty = _without_empty_inputs(
            judged, Ends.of(expected.program.graph, judged.program.graph, paths), observed
        )
        graph = judged.program.graph
        ends = Ends.of(expected.program.graph, graph, paths)
        feed = ends.feed(call, graph, lower_precision=lower_precision)
        written, judged = judged.program, judged.unrolled([cast_inputs(graph, feed)])
        graph = judged.program.graph
        accurate = _in_full_accuracy(judged) if lower_precision else judged
        actual = accurate.observe(accurate.compile(), feed)
        pairs = pair_values(actual, observed, ends.names, reshaped=same_shapes, rerun=accurate.rerun(feed))
    references = pairs.references(observed.values)
    inferred = {name: tensor for name, tensor in references.items() if pairs.by_value[name].evidence == "numbers"}
    notes = (*ends.notes, *empty, pairs_note(pairs, graph))
    model = with_shapes(written.model, actual.values)
    _add_metadata(model, exported.model, pairs)
    found = _first_names(pairs, ends)
    read = {*expected.program.graph.consumers, *expected.program.graph.outputs}
    return Program(
        model,
        inputs={
            ends.inputs[name]: path
            for name, path in exported.inputs.items()
            if name in read or ends.inputs[name] in graph.inputs  # not what neither program uses
        },
        module_calls={key: _mapped_call(call, found) for key, call in exported.module_calls.items()},
        model_type=exported.model_type,
        operators=tuple(replace(item, value=found.get(item.value or "")) for item in exported.operators),
        original=RenamedOriginal(expected.program.original or original, pairs, graph, inferred=inferred, notes=notes),
        path=written.path,
        outputs=_ordered_outputs(exported, ends, graph),
        strategy=exported.strategy,
    )


def _output_paths(exported: Program) -> Mapping[str, str]:
    """Return the paths of the model's results, by the names of the graph's outputs."""
    model = exported.module_calls.get(("", 0))
    return {} if model is None else {port.value: port.path for port in model.outputs if port.value is not None}


def _ordered_outputs(exported: Program, ends: Ends, graph: Graph) -> tuple[str, ...]:
    """Return the outputs in the order of the model's results, or of the file if its names say which they are."""
    outputs = [ends.outputs[name] for name in exported.outputs]
    named = any(label_of(path) == label_of(ends.outputs[name]) for name, path in _output_paths(exported).items())
    return tuple(sorted(outputs, key=graph.outputs.index) if named and {*outputs} <= {*graph.outputs} else outputs)


def _without_empty_inputs(judged: ProgramSide, ends: Ends, observed: Observed) -> tuple[ProgramSide, list[str]]:
    """Return a program without the inputs that are empty in a call without a past, and a note about them.

    Builders of models for generation add the keys and values of earlier tokens, whether or not the model was given any.
    A symbolic dimension has the size that it has in the inputs and outputs that the model has, else 0. Inputs
    without a dimension of 0, or of integers, are left as they are.
    """
    graph = judged.program.graph
    sizes: dict[object, int] = {}
    for name, source in ends.names.items():
        if source in observed.values:
            sizes |= dict(zip(graph.values[name].shape or (), observed.values[source].shape, strict=False))
    model, empty = judged.program.model.clone(), []
    for value in [value for value in model.graph.inputs if value.name in graph.inputs and value.name not in ends.names]:
        shape = empty_shape(graph.values[value.name or ""], sizes)
        if shape is not None and value.dtype is not None:
            model.graph.inputs.remove(value)
            value.const_value = ir.tensor(np.zeros(shape, value.dtype.numpy()), name=value.name)
            value.shape = ir.Shape(shape)
            model.graph.register_initializer(value)
            empty.append(f"{value.name} {shape}")
    notes = [f"inputs that the model does not have are empty: {', '.join(empty)}"] if empty else []
    return replace(judged, program=replace(judged.program, model=model)), notes


def _in_full_accuracy(side: ProgramSide) -> ProgramSide:
    """Return a program whose products with quantized weights do not quantize the other operand."""
    model = side.program.model.clone()
    for node in model.graph:
        node.attributes.pop("accuracy_level", None)
    return replace(side, program=replace(side.program, model=model))


def _first_names(pairs: Pairs, ends: Ends) -> Mapping[str, str]:
    """Return the name in the program of each value of the export that it has, by name.

    Values that were found by their numbers alone are left out, and those that the program has in another shape.
    """
    found: dict[str, str] = {}
    for name, pair in pairs.by_value.items():
        if pair.source is not None and pair.evidence != "numbers" and pair.shape is None:
            found.setdefault(pair.source, name)
    return {**found, **{source: name for name, source in ends.names.items()}}


def _mapped_call(call: ModuleCall, found: Mapping[str, str]) -> ModuleCall:
    """Return a module call with the values of the program."""

    def mapped(port: Port) -> Port:
        if port.value is None or port.value in found:  # None: the export has no value for it either
            return replace(port, value=found.get(port.value or ""))
        return replace(port, value=None, resolution="fused", note="the program has no value that was found to be it")

    return replace(call, inputs=tuple(map(mapped, call.inputs)), outputs=tuple(map(mapped, call.outputs)))


def _add_metadata(model: ir.Model, exported: ir.Model, pairs: Pairs) -> None:
    """Add to nodes without it where in the model they are, from the node of the export that computes the same value."""
    producers = {value.name: node for node in exported.graph for value in node.outputs}
    for node in model.graph:
        pair = pairs.by_value.get(node.outputs[0].name or "")
        source = None if pair is None or pair.source is None else producers.get(pair.source)
        if source is not None and not any(key.startswith(_METADATA) for key in node.metadata_props):
            node.metadata_props.update(
                {key: text for key, text in source.metadata_props.items() if key.startswith(_METADATA)}
            )
