"""The parts of an alignment: weights, values, arrays and departures."""

from dataclasses import dataclass
from typing import Literal

from filch.steal.text import short_line

Evidence = Literal["proved", "anchored", "by value", "ambiguous", "given", "contradicted", "uncovered"]
SideName = Literal["A", "B"]


@dataclass(frozen=True)
class AlignedWeight:
    """A weight of implementation B, and the weights of A from which it was made.

    Attributes:
        name: its name in B.
        shape: its shape.
        sources: the names of the weights of A; empty if there are none.
        arrangement: how its elements are arranged, for people: `"same"`, `"transposed"`, `"rows 0 to 63"`.
        complete: whether all its numbers are those of A.
        others: further weights of A with the same numbers.
    """

    name: str
    shape: tuple[int, ...]
    sources: tuple[str, ...]
    arrangement: str
    complete: bool
    others: tuple[str, ...] = ()


@dataclass(frozen=True)
class AlignedValue:
    """A tensor that a module of implementation A returned, and where its numbers are in B.

    Attributes:
        module: the path of the module in A, with `@1` after a second call.
        path: the path of the tensor in what the module returned; `""` for the only one.
        what: its dtype and shape.
        evidence: what shows that the values are the same.
        places: the values of B: the path of the module that returned it, or the operator with its line.
        order: how the elements are arranged in the first place, `""` if in the same order.
        layout: the same as offset, sizes and strides, `"0+14:128·64:1"`: where each element is in the value of B; `""`
            if not all are there.
        modules: the modules of B that returned the first place, with the path of the tensor; empty if none did.
        value: its name in the graph of A, or that of the value from which it was moved.
    """

    module: str
    path: str
    what: str
    evidence: Evidence
    places: tuple[str, ...] = ()
    order: str = ""
    layout: str = ""
    modules: tuple[str, ...] = ()
    value: str = ""


@dataclass(frozen=True)
class LinkedValue:
    """A value of one implementation that can be recognized by its numbers, and those of the other one that have them.

    Attributes:
        value: its name in the graph of its implementation.
        evidence: what shows that they are the same; `"in part"` if only some of its numbers are values of A.
        places: the names of the other values in their graph; of an uncovered value, those that operations with the same
            weights compute.
        orders: how the elements are arranged in each place, `""` if in the same order.
    """

    value: str
    evidence: Evidence | Literal["in part"]
    places: tuple[str, ...] = ()
    orders: tuple[str, ...] = ()


@dataclass(frozen=True)
class AlignedArray:
    """A named array of implementation B, and the values of A that it has the numbers of.

    Attributes:
        name: its name in B.
        what: its dtype and shape.
        places: the values of A: the path of the module that returned it, or the operator with its line; empty if its
            numbers are not all numbers of A.
        judged: whether it has enough different numbers to be recognized by them.
    """

    name: str
    what: str
    places: tuple[str, ...]
    judged: bool = True


@dataclass(frozen=True)
class Departure:
    """An operation of B that computes something else than A, from the numbers of A.

    Where B has no operations, it is the first named array that is no value of A; earlier steps may be the cause.

    Attributes:
        module: the path of the module of B in which it runs; `""` for the model itself. The name of an array.
        operator: its operator, or `array`.
        source: the line of the code of B, as `file.py:12`; None if not known.
        value: the name of the value that it computes in the graph of B.
        reference_module: the path of the module of A that computes the value otherwise; None if not known.
        reference_operator: the operator of A; None if not known.
        reference_source: the line of the code of A; None if not known.
        reference_value: the name of the value in the graph of A; None if not known.
        note: what is wrong with it, as far as that is known.
    """

    module: str
    operator: str
    source: str | None
    value: str
    reference_module: str | None = None
    reference_operator: str | None = None
    reference_source: str | None = None
    note: str = ""
    reference_value: str | None = None

    def __str__(self) -> str:
        place = f"{self.operator} in {self.module or 'the model'}"
        return short_line(", ".join(filter(None, (place, self.source, self.note))))
