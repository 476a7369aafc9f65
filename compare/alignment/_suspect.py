"""`Suspect`: an operation of one implementation that computes something else than the other one."""

from dataclasses import dataclass

from filch.export import Node


@dataclass(frozen=True)
class Suspect:
    """An operation of B that computes something else than A, from A's numbers.

    Attributes:
        node: the operation.
        place: the operation to show: what moves the operand of `node`, if that is in a wrong order.
        reference: the operation of A that it corresponds to; None if that is not known.
        note: what is wrong with it, as far as that is known.
    """

    node: Node
    place: Node
    reference: Node | None = None
    note: str = ""
