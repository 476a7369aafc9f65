"""Find the backends of several comparisons, some of which may not be available."""

from collections.abc import Mapping
from typing import Any

from filch.export import BackendError
from filch.export.backends import Backend, backend_names, get_backend

from ..results._cells import Cell


def find_backend(name: str, options: Mapping[str, Any]) -> Backend | Cell:
    """Return a backend; if it is not available, return the cell of its comparisons, `missing` and without labels.

    Raises:
        BackendError: there is no backend of this name.
    """
    try:
        return get_backend(name, **options)
    except BackendError as error:
        if name not in backend_names():  # misspelt
            raise
        return Cell({}, "missing", detail=str(error))
