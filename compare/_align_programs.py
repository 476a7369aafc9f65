"""Judge the alignment of two ONNX programs as `compare_programs` judges them."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from filch.export import Graph, Node
from filch.export.common._memory import release_memory

from ._compare_programs import ProgramPair, compare_pair, pair_programs
from .alignment._notes import other_settings
from .pairing._paired_value import PairedValue
from .results._alignment import AlignedOutput, Alignment, Departure
from .results._report import Report
from .results._rows import Row
from .runs._program_run import ProgramSource


def align_programs(reference: ProgramSource, actual: ProgramSource, align: Callable[[], Alignment]) -> Alignment:
    """Return an alignment of two programs with the outcome of `compare_programs`, and the nodes that it names.

    Where that names the node behind steps that only B has and that it can't judge, the alignment says which of them
    leaves A.

    Args:
        reference: implementation A; inputs are drawn if it has none.
        actual: implementation B.
        align: returns which weights and values correspond, and where B leaves A in float64.

    Raises:
        CompareError: a program can't be run, or the inputs don't fit.
    """
    sides = (source.written or source.program for source in (reference, actual))
    compared = _ComparedPrograms.of(pair_programs(*sides, inputs=reference.feed))
    release_memory()  # before the values in float64 take theirs
    report, alignment = compared.report, align()
    return replace(
        alignment,
        departures=tuple(_departures(alignment, compared)),
        missing=alignment.missing if report.proof.is_wrong else (),
        wrong_outputs=tuple(_problems(report)),
        remarks=(*alignment.remarks, *report.notes),
        compared="programs",
        outputs=alignment.outputs or tuple(_outputs(compared)),  # it has none if only weights were aligned
        gaps=report.proof.gaps,
    )


@dataclass(frozen=True)
class _ComparedPrograms:
    """What is kept of a comparison of two programs; their values are not.

    Attributes:
        report: the report.
        reference: the graph of the reference.
        pairs: the values of the program that are those of the reference, by their own names.
        outputs: the outputs of the program that correspond to those of the reference, in their order.
    """

    report: Report
    reference: Graph
    pairs: Mapping[str, PairedValue]
    outputs: Sequence[str]

    @classmethod
    def of(cls, pair: ProgramPair) -> "_ComparedPrograms":
        """Compare two programs."""
        return cls(compare_pair(pair), pair.graph, pair.pairs.by_value, pair.program.outputs)


def _departures(alignment: Alignment, compared: _ComparedPrograms) -> Sequence[Departure]:
    """Return where B leaves A: the nodes that are wrong by themselves, else the one of the first value that differs.

    If that node comes after some that could not be judged, those of them that leave A in float64 are returned instead.

    Args:
        alignment: the alignment in float64.
        compared: the comparison of the programs, whose outcome decides.
    """
    report = compared.report
    first = report.first_divergence
    if first is None:
        return ()
    in_float64 = {departure.value: departure for departure in alignment.departures}  # by the value of B that differs
    graph = report.graphs[first.stage]
    if any(node.outputs[0] in in_float64 for node in graph.nodes if node.name in first.unjudged):
        return alignment.departures
    rows = [row for row in report.introduced if row.stage == first.stage] or [first]
    nodes = ((graph.producer.get(row.value), row) for row in rows)
    return [in_float64.get(row.value) or _departure(compared, node, row) for node, row in nodes if node is not None]


def _departure(compared: _ComparedPrograms, node: Node, row: Row) -> Departure:
    """Return a node of B that is wrong, with the node of A whose value it should compute."""
    place = node.module or "", node.operator.name, node.source, row.value
    after = [f"after {name}, which could not be judged" for name in row.unjudged]
    paired = compared.pairs.get(row.value)
    reference = None if paired is None else compared.reference.producer.get(paired.sources[0])
    if reference is None:
        return Departure(*place, note="; ".join([*after, row.amount]))
    reference_place = reference.module or "", reference.operator.name, reference.source
    note = "; ".join([*other_settings(node, reference), *after, row.amount])
    return Departure(*place, *reference_place, note, reference.outputs[0])


def _problems(report: Report) -> Iterator[str]:
    """Yield a sentence for each output that is wrong, and for the lists of inputs and outputs; else for a value."""
    outputs = {row.value: row for row in report.diverged if row.kind == "output"}
    yield from (f"the output {name} of B is not that of A: {row.amount}" for name, row in outputs.items())
    yield from report.interface
    if report.proof.is_wrong and not outputs and not report.interface:
        yield f"the outputs are the same on these inputs, but a value is not: {report.first_difference}"


def _outputs(compared: _ComparedPrograms) -> Iterator[AlignedOutput]:
    """Yield the outputs of A, with those of B that they are; of several rows of an output, the first one counts."""
    rows = {row.value: row for row in reversed(compared.report.rows) if row.kind == "output"}
    for name, other in zip(compared.reference.outputs, compared.outputs, strict=True):
        row = rows.get(other)
        what = "" if row is None or row.shape is None else f"{row.dtype}[{', '.join(map(str, row.shape))}]"
        problem = "it is no output of B" if row is None else row.amount if row.diverged else ""
        yield AlignedOutput(f"output {name}", what, "" if problem else f"output {other}", problem=problem)
