"""The commands that run several comparisons: `filch matrix`, `filch sweep` and `filch precision`."""

import sys
from collections.abc import Iterable
from contextlib import redirect_stdout
from typing import TYPE_CHECKING, Annotated

import typer

from . import _options as shared
from ._command import usage_error
from ._output import echo_result, echo_unless

if TYPE_CHECKING:
    from ..results._cells import Cell

Markdown = Annotated[bool, typer.Option("--markdown", help="Print a Markdown table.")]


def matrix_command(
    factories: shared.Factories,
    backend: shared.Backends = ["onnxruntime-cpu"],  # noqa: B006  typer copies it
    dtype: Annotated[list[str] | None, typer.Option(help="Dtype of models and inputs; may be repeated.")] = None,
    device: Annotated[list[str] | None, typer.Option(help="Device for eager PyTorch; may be repeated.")] = None,
    tolerance: shared.ToleranceOrDefault = None,
    lower_precision: shared.LowerPrecision = False,
    option: shared.Options = None,
    limit: shared.Limit = None,
    as_json: shared.Json = False,
    as_markdown: Markdown = False,
    quiet: shared.Quiet = False,
) -> None:
    """Compare models in each dtype, on each device and backend; one line each.

    Exits with 1 if one differs, else with 2 if one is missing or could not be compared.
    """
    from ..batch._matrix import matrix
    from ..results._cells import exit_code

    comparisons = matrix(
        factories,
        backends=backend,
        dtypes=dtype or [],
        devices=device or [],
        tolerance=shared.parse_tolerance(tolerance),
        lower_precision=lower_precision,
        options=shared.parse_options(option),
        limit=limit,
    )
    cells = _run("matrix", comparisons, as_json=as_json, as_markdown=as_markdown, quiet=quiet)
    raise typer.Exit(exit_code(cells))


def sweep_command(
    factory: shared.Factory,
    dim: Annotated[list[str], typer.Option("--dim", help="Sizes of a dynamic dimension: batch=1,2,7,64.")],
    backend: shared.Backends = ["onnxruntime-cpu"],  # noqa: B006  typer copies it
    tolerance: shared.ToleranceOrDefault = None,
    lower_precision: shared.LowerPrecision = False,
    option: shared.Options = None,
    limit: shared.Limit = None,
    as_json: shared.Json = False,
    as_markdown: Markdown = False,
    quiet: shared.Quiet = False,
) -> None:
    """Export a model once with dynamic shapes, and compare it at each size; one line each.

    Exits with 1 if one differs, else with 2 if one could not be compared.
    """
    sizes = _parse_sizes(dim)
    from ..batch._sweep import sweep
    from ..results._cells import exit_code

    comparisons = sweep(
        factory,
        sizes,
        backends=backend,
        options=shared.parse_options(option),
        tolerance=shared.parse_tolerance(tolerance),
        lower_precision=lower_precision,
        limit=limit,
    )
    cells = _run("sweep", comparisons, as_json=as_json, as_markdown=as_markdown, quiet=quiet)
    first = next((cell for cell in cells if cell.status == "different"), None)
    if first is not None and not (quiet or as_json or as_markdown):
        place = ", ".join(f"{name}={size}" for name, size in first.labels.items())
        echo_unless(quiet, f"\nfirst difference at {place}:\n  {first.detail}")
    raise typer.Exit(exit_code(cells))


def precision_command(
    factory: shared.Factory,
    to: Annotated[shared.Precision, typer.Option(help="int8 lowers weights and activations, int4 weights alone.")],
    backend: shared.Backend = "onnxruntime-cpu",
    tolerance: shared.Tolerance = None,
    snr: Annotated[float | None, typer.Option(help="Least SNR of the outputs in dB, instead.")] = None,
    limit: shared.Limit = None,
    measure: Annotated[int | None, typer.Option(help="Number of nodes to lower one by one; default 32.")] = None,
    wide: shared.Wide = False,
    as_json: shared.Json = False,
    quiet: shared.Quiet = False,
) -> None:
    """Lower a model's precision, and find the nodes that have to stay in float32 for its outputs to be close."""
    from filch.export import optimize
    from filch.steal import steal_forward

    from ..common._progress import progress
    from ..models._factory import make_subject
    from ..precision._precision import keep_precise

    with progress("precision", quiet=quiet or as_json), redirect_stdout(sys.stderr):
        subject = make_subject(factory)
        program = optimize(subject.export())
        with steal_forward(subject.model) as capture:
            subject.run()
        report = keep_precise(
            capture,
            program,
            to=to.value,
            backend=backend,
            tolerance=tolerance,
            snr=snr,
            measure=measure,
            limit=limit,
        )
    if not quiet:
        echo_result(report, as_json=as_json, wide=wide)
    raise typer.Exit(not report.close)


def _run(title: str, comparisons: Iterable["Cell"], *, as_json: bool, as_markdown: bool, quiet: bool) -> list["Cell"]:
    """Run the comparisons and print the table of their outcomes."""
    if as_json and as_markdown:
        raise usage_error("--json and --markdown are mutually exclusive")
    from ..common._progress import progress
    from ..results._cells import CellTable

    # Output of the user's own code must not mix with ours.
    with progress(title, quiet=quiet or as_json or as_markdown), redirect_stdout(sys.stderr):
        cells = list(comparisons)
    if not quiet:
        table = CellTable(tuple(cells))
        if as_markdown:
            typer.echo(table.to_markdown().rstrip("\n"))
        else:
            echo_result(table, as_json=as_json)
    return cells


def _parse_sizes(dimensions: list[str]) -> dict[str, list[int]]:
    """Return the sizes of each dimension by its name, from options like `batch=1,2,7`."""
    sizes: dict[str, list[int]] = {}
    for text in dimensions:
        name, _, numbers = text.partition("=")
        parts = numbers.split(",")
        if not name.isidentifier() or name in sizes or not all(part.isdecimal() for part in parts):
            raise usage_error(f"--dim is a name and its sizes, each name once, like batch=1,2,7,64, not {text!r}")
        sizes[name] = [int(part) for part in parts]
    return sizes
