"""What is known about the first value of several processes that differs."""

from collections.abc import Iterator, Sequence

from filch.export import Node
from filch.steal import AssembledRecords, Key

from ..locating._first_wrong import inherited
from ..results._rows import DiffRow


def culprit_reasons(rows: Sequence[DiffRow], actual: AssembledRecords) -> Iterator[str]:
    """Yield sentences about the first row that differs, if there is one.

    Args:
        rows: in the order in which they are judged.
        actual: the records of all processes.
    """
    culprit = next((row for row in rows if row.diverged), None)
    if culprit is None:
        return
    if culprit.key.kind in ("GO", "GI") and (module := _wrong_backward(rows)) is not None:
        where = module or "the model"
        yield f"the backward pass of {where} is wrong: the gradient of its output is right, that of its input is not"
    if nearest := _nearest_collective(culprit, actual):
        yield nearest


def _wrong_backward(rows: Sequence[DiffRow]) -> str | None:
    """Return the first module whose output has the right gradient, and whose input has not.

    Of a module and one below it, the lower one is meant. None if there is no such module.
    """
    wrong = {row.key.label for row in rows if row.diverged}
    unknown = {row.key.label for row in rows if not row.judged}
    steps = [
        Node(key.label, "backward", (key.label,), (key._replace(kind="GI").label,), module=key.name)
        for key in dict.fromkeys(row.key for row in rows if row.key.kind == "GO")
    ]
    inherits = inherited(steps, wrong | unknown)
    names = [step.module or "" for step in steps if step.outputs[0] in wrong and step.outputs[0] not in inherits]
    return next((name for name in names if not any(_is_below(other, name) for other in names if other != name)), None)


def _is_below(name: str, parent: str) -> bool:
    return not parent or name.startswith(f"{parent}.")


def _nearest_collective(row: DiffRow, actual: AssembledRecords) -> str:
    """Return a sentence about the last collective before a value; `""` if collectives were not recorded.

    In a backward pass, the value is a gradient, and the collective is one of the backward pass.
    """
    is_backward = row.key.kind.startswith("G")
    for rank, dump in actual.dumps.items():
        if row.ranks and rank not in row.ranks:
            continue
        last: Key | None = None
        for key in actual.keys_of(rank):
            if key == row.key:
                break
            if key.kind == "C" and dump[key]["backward"] == is_backward:
                last = key
        if last is not None:
            value = dump[last]
            ranks = ", ".join(map(str, value["ranks"]))
            place = "in the backward pass" if is_backward else f"in {last.name or 'the model'}"
            return f"the last collective before it is {value['collective']} of ranks {ranks} {place}"
    return ""
