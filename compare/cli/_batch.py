"""The commands that run several comparisons: `filch matrix`, `filch sweep` and `filch precision`."""

import sys
from collections.abc import Iterable
from contextlib import redirect_stdout
from typing import TYPE_CHECKING, Annotated

import typer

from . import _options as shared
from ._command import command_line, usage_error
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
    cells = _run("matrix", comparisons, factories=factories, as_json=as_json, as_markdown=as_markdown, quiet=quiet)
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
    sizes = shared.parse_sizes(dim)
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
    cells = _run("sweep", comparisons, factories=[factory], as_json=as_json, as_markdown=as_markdown, quiet=quiet)
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
    echo_result(report, as_json=as_json, quiet=quiet, wide=wide)
    raise typer.Exit(not report.close)


def _run(
    title: str,
    comparisons: Iterable["Cell"],
    *,
    factories: list[str],
    as_json: bool,
    as_markdown: bool,
    quiet: bool,
) -> list["Cell"]:
    """Run the comparisons and print the table of their outcomes."""
    if as_json and as_markdown:
        raise usage_error("--json and --markdown are mutually exclusive")
    from ..common._progress import progress
    from ..results._cells import CellTable

    # Output of the user's own code must not mix with ours.
    with progress(title, quiet=quiet or as_json or as_markdown), redirect_stdout(sys.stderr):
        cells = list(comparisons)
    table = CellTable(tuple(cells), _next_command(cells, factories))
    if as_markdown:
        echo_unless(quiet, table.to_markdown().rstrip("\n"))
    else:
        echo_result(table, as_json=as_json, quiet=quiet)
    return cells


# Not repeated when one comparison is examined; its labels say which it is.
_NOT_REPEATED = {"--json": 0, "--markdown": 0, "-q": 0, "--quiet": 0, "--traceback": 0, "matrix": 0, "sweep": 0}
_NOT_REPEATED |= {"-b": 1, "--backend": 1, "--dtype": 1, "--device": 1, "--dim": 1}


def _next_command(cells: Iterable["Cell"], factories: list[str]) -> str:
    """Return the command line that examines the first comparison that is not close; `""` if all are."""
    cell = next((cell for cell in cells if cell.status in ("different", "failed")), None)
    if cell is None:
        return ""
    options = {"backend": "-b", "dtype": "--dtype", "device": "--device"}
    named = [part for name, text in cell.labels.items() if name in options for part in (options[name], text)]
    dims = {name: text for name, text in cell.labels.items() if name not in ("model", *options)}
    sized = [part for name, size in dims.items() for part in ("--dim", f"{name}={size}")]
    not_repeated = _NOT_REPEATED | dict.fromkeys(factories, 0)
    return command_line(not_repeated, cell.labels.get("model", factories[0]), *named, *sized, command="check")
