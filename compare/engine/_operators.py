"""The model's own operations, each with the row of its value."""

from collections.abc import Sequence

from filch.export import Program

from ..references._inputs import CapturedCall
from ..results._rows import Operator, Row


def operators_of(program: Program, call: CapturedCall, rows: Sequence[Row]) -> tuple[Operator, ...]:
    """Return the model's operations in one call, each with the row of its value from `rows` of the exported graph."""
    by_value = {row.value: row for row in rows}
    found = []
    for item in program.operators:
        row = by_value.get(item.value) if item.value else None
        given = call.inputs.get(item.value or "")
        dtype = row.dtype if row else None if given is None else str(given.dtype).removeprefix("torch.")
        found.append(Operator(item.kind, item.text, row, dtype or ""))
    return tuple(found)
