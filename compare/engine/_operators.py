"""The model's own operations, each with the row of its value."""

from collections.abc import Sequence

from filch.export import Program

from ..references._inputs import CapturedCall
from ..results._rows import Operator, Row


def operators_of(program: Program, call: CapturedCall, rows: Sequence[Row]) -> tuple[Operator, ...]:
    """Return the model's operations in one call, each with the row of its value from `rows` of the exported graph."""
    by_value = {row.value: row for row in rows}
    dtypes = {name: str(tensor.dtype).removeprefix("torch.") for name, tensor in call.inputs.items()}
    dtypes |= {row.value: row.dtype or "" for row in rows}
    return tuple(
        Operator(item.kind, item.text, by_value.get(item.value or ""), dtypes.get(item.value or "", ""))
        for item in program.operators
    )
