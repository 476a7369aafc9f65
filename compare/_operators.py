"""The model's own operations, each with the row that judges it."""

from collections.abc import Sequence

from filch.export import Program

from ._report import Operator, Row


def operators_of(program: Program, rows: Sequence[Row]) -> tuple[Operator, ...]:
    """The operations of the model, and for each the row of its value among `rows` of the exported graph."""
    by_value = {row.value: row for row in rows}
    return tuple(
        Operator(item.kind, item.text, by_value.get(item.value) if item.value else None) for item in program.operators
    )
