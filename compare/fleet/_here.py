"""Run cells in this process, one after the other; those of a model share its export."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from filch.export import BackendError
from filch.export.backends import Backend, backend_names, get_backend
from filch.steal import Capture, FilchError, phase

from .._compare_export import compare_export
from ..common._errors import CompareError
from ..models._factory import Factory, find_factory
from ..models._variants import check_sizes, converted, device_problem, find_device, find_dtype, size_arguments, sized
from ..results._cells import Cell, run_cell
from ..results._report import Report
from ._cell import CellSpec

Sizes = tuple[tuple[str, int], ...]  # by the name of the dimension


def run_here(
    specs: Sequence[CellSpec], labels: Callable[[CellSpec], dict[str, str]] = lambda spec: spec.labels
) -> Iterator[Cell]:
    """Compare each cell. Consecutive cells of the same model, dtype and device share its export.

    Args:
        specs: the cells, which are judged alike.
        labels: makes the labels of an outcome.

    Yields:
        the outcome of each; the status is `missing` if the library or the device of its backend, or the device of the
        model, is not available.

    Raises:
        FilchError: there is no factory, dimension, backend, dtype or device of this name, a factory fails, or a model
            with sizes can't be exported.
    """
    factories = {name: find_factory(name) for name in dict.fromkeys(spec.factory for spec in specs)}
    options = {spec.backend: spec.judged.options for spec in specs}
    backends = {name: _find_backend(name, given) for name, given in options.items()}
    dtypes = {spec.dtype: find_dtype(spec.dtype) for spec in specs if spec.dtype}
    devices = {spec.device: find_device(spec.device) for spec in specs if spec.device}
    known: tuple[Any, ...] = ()
    model: _Model | None = None
    with phase("cell", len(specs)) as progress:
        for spec in specs:
            progress.next(_progress_text(spec))
            device, backend = devices.get(spec.device), backends[spec.backend]
            if device is not None and (problem := device_problem(device)):
                yield Cell(labels(spec), "missing", detail=problem)
                continue
            target = dtypes.get(spec.dtype), device
            key = factories[spec.factory], target, tuple((spec.export_sizes or spec.sizes).items())
            if model is None or key != known:
                model = None  # which frees its memory
                model, known = _Model(*key), key
            if isinstance(backend, str) and model.problem is None:  # else `compare` raises the problem of the model
                yield Cell(labels(spec), "missing", detail=backend)
            else:
                yield run_cell(labels(spec), partial(model.compare, spec, backend))


class _Model:
    """The model of a factory, its program, and the capture of the last sizes.

    Args:
        factory: the factory.
        target: the dtype and the device; None changes nothing.
        export_sizes: the sizes that the factory is called with, if it takes them; empty for a cell without sizes.

    Attributes:
        problem: why there is no program; None if there is one.
    """

    def __init__(self, factory: Factory, target: tuple[Any, Any], export_sizes: Sizes) -> None:
        sizes = dict(export_sizes)
        taken = size_arguments(factory, sizes)
        if taken and len(taken) < len(sizes):
            other = next(name for name in sizes if name not in taken)
            raise CompareError(f"the factory {factory.name!r} takes {taken[0]!r}, so it has to take {other!r}, too")
        self._factory, self._subject = factory, factory.make(**{name: sizes[name] for name in taken})
        check_sizes(factory.name, self._subject, sizes)
        self._recorded: tuple[Sizes, Capture] | None = None
        self.problem: FilchError | None = None
        try:
            self._subject = converted(self._subject, *target)
            if not sizes:
                self._capture(())
            self._program = self._subject.export()
        except FilchError as error:
            if sizes:
                raise
            self.problem = error

    def _capture(self, sizes: Sizes) -> Capture:
        """Return the capture of the model with inputs of these sizes; that of the former sizes is forgotten."""
        if self._recorded is None or self._recorded[0] != sizes:
            self._recorded = None
            subject = sized(self._factory, self._subject, dict(sizes)) if sizes else self._subject
            self._recorded = sizes, subject.steal()
        return self._recorded[1]

    def compare(self, spec: CellSpec, backend: Any) -> Report:
        """Return the report of a cell on a backend."""
        if self.problem is not None:
            raise self.problem
        judged = spec.judged
        return compare_export(
            self._capture(tuple(spec.sizes.items())),
            self._program,
            backend=backend,
            tolerance=judged.tolerance,
            lower_precision=judged.lower_precision,
            limit=judged.limit,
        )


def _progress_text(spec: CellSpec) -> str:
    if not spec.sizes:
        return " ".join(spec.labels.values())
    return " ".join((*(f"{name}={size}" for name, size in spec.sizes.items()), spec.backend))


def _find_backend(name: str, options: Mapping[str, Any]) -> Backend | str:
    """Return a backend, or why it is not available."""
    try:
        return get_backend(name, **options)
    except BackendError as error:
        if name not in backend_names():  # misspelt
            raise
        return str(error)
