"""Tell whether an error may come from a decision that rounding changes."""

from ._values import Float64Values


class Decisions:
    """The decisions that noise changes in the float64 values of a run, and the values that they may affect.

    A decision is an integer or boolean value that is computed from floating-point numbers, or what a function returns
    that jumps between constants (see `is_step`): an index, the bucket of a distance, the sign of a number, a number
    rounded to an integer. Rounding may change it where the numbers are nearly equal, and every value that depends on it
    then differs by more than its own rounding level.

    Args:
        float64: the float64 values.
    """

    def __init__(self, float64: Float64Values) -> None:
        self._float64 = float64
        self._unaffected: set[str] = set()
        self._maybe_affected: set[str] = set()

    def record_unaffected(self, name: str) -> None:
        """Record that a value of the run has no error beyond rounding, so that no changed decision has affected it."""
        self._unaffected.add(name)

    def may_affect(self, name: str) -> bool:
        """Return whether a changed decision may be the cause of the error of a value.

        It may if the value depends on one in any other way than through values that are not affected.

        Args:
            name: the name of the value, which was requested from the float64 values before.
        """
        changed, visited, pending = self._float64.changed_decisions, {name}, [name]
        if not changed:
            return False
        while pending:
            current = pending.pop()
            if current in changed or current in self._maybe_affected:
                self._maybe_affected.add(name)
                return True
            read = {*self._float64.reads(current)} - visited - self._unaffected
            visited |= read
            pending += read
        self._unaffected |= visited
        return False
