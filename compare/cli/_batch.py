"""The commands that run several comparisons: `filch matrix`, `filch sweep` and `filch precision`."""

from pathlib import Path
from typing import Annotated, Any

import typer

from . import _options as shared
from ._cell_table import TableOptions, next_command, run_cells
from ._fleet import run_specs
from ._options import ExecutorOptions, Judging
from ._output import Writing


def matrix_command(
    factories: shared.Factories,
    backend: shared.Backends = ["onnxruntime-cpu"],  # noqa: B006  typer copies it
    dtype: Annotated[list[str] | None, typer.Option(help="Dtype of models and inputs; may be repeated.")] = None,
    device: Annotated[list[str] | None, typer.Option(help="Device for eager PyTorch; may be repeated.")] = None,
    *,
    judging: Judging,
    execution: ExecutorOptions,
    shown: TableOptions,
) -> None:
    """Compare models in each dtype, on each device and backend; one line each.

    Exits with 1 if one differs, else with 2 if one is missing or could not be compared.
    """
    variants: dict[str, Any] = {"backends": backend, "dtypes": dtype or [], "devices": device or []}
    if execution.executor:
        from ..fleet._cell import CellOptions, matrix_cells

        specs = matrix_cells(factories, folder=Path.cwd(), **variants, judged=CellOptions(**judging.arguments))
        raise run_specs("matrix", specs, execution, shown, factories=factories)
    from ..batch._matrix import matrix

    cells = matrix(factories, **variants, **judging.arguments)
    raise run_cells("matrix", lambda: [*cells], shown, lambda cells: next_command(cells, factories))


def sweep_command(
    factory: shared.Factory,
    dim: Annotated[list[str], typer.Option("--dim", help="Sizes of a dynamic dimension: batch=1,2,7,64.")],
    backend: shared.Backends = ["onnxruntime-cpu"],  # noqa: B006  typer copies it
    *,
    judging: Judging,
    execution: ExecutorOptions,
    shown: TableOptions,
) -> None:
    """Export a model once with dynamic shapes, and compare it at each size; one line each.

    With an executor, each comparison exports it. Exits with 1 if one differs, else with 2 if one is missing or could
    not be compared.
    """
    sizes = shared.parse_sizes(dim)
    if execution.executor:
        from ..fleet._cell import CellOptions, sweep_cells

        judged = CellOptions(**judging.arguments)
        specs = sweep_cells(factory, sizes, folder=Path.cwd(), backends=backend, judged=judged)
        raise run_specs("sweep", specs, execution, shown, factories=[factory])
    from ..batch._sweep import sweep

    cells = sweep(factory, sizes, backends=backend, **judging.arguments)
    raise run_cells("sweep", lambda: [*cells], shown, lambda cells: next_command(cells, [factory]))


def precision_command(
    factory: shared.Factory,
    to: Annotated[shared.Precision, typer.Option(help="int8 lowers weights and activations, int4 weights alone.")],
    backend: shared.Backend = "onnxruntime-cpu",
    tolerance: shared.Tolerance = None,
    snr: Annotated[float | None, typer.Option(help="Least SNR of the outputs in dB, instead.")] = None,
    limit: shared.Limit = None,
    measure: Annotated[int | None, typer.Option(help="Number of nodes to lower one by one; default 32.")] = None,
    *,
    shown: Writing,
) -> None:
    """Lower a model's precision, and find the nodes that have to stay in float32 for its outputs to be close."""
    from filch.export import optimize
    from filch.steal import steal_forward

    from ..models._factory import make_subject
    from ..precision._precision import keep_precise

    with shown.progress("precision"):
        subject = make_subject(factory)
        program = optimize(subject.export(onnx_only=True))
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
    raise shown.finish(report)
