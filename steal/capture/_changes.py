"""Warnings about modules that are replaced, added, removed or compiled while they are captured."""

import logging
from collections.abc import Callable, Collection, Iterator, Sequence

from torch import nn

from ._unhookable import is_compiled, is_scripted, subject_and_verb

_log = logging.getLogger("filch")

_Chosen = Sequence[tuple[str, nn.Module]]
_ADVICE = "begin another steal_forward block after the model has changed"


class Changes:
    """What has become of the captured modules since the block began.

    Args:
        chosen: the names and modules that have hooks.
        select: returns the names and modules that would be chosen now.
    """

    def __init__(self, chosen: _Chosen, select: Callable[[], _Chosen]) -> None:
        self._before, self._select = dict(chosen), select
        self._compiled = {name for name, module in chosen if is_compiled(module)}
        self._reported: set[str] = set()

    def report(self, lost: Collection[str] = ()) -> None:
        """Log a warning about each kind of change, with the modules that were not named before.

        Args:
            lost: the names of the modules whose hooks are gone.
        """
        for warning in self._warnings():
            _log.warning("%s", warning)
        if names := [name for name in self._before if name in lost and name not in self._reported]:
            _log.warning(
                "the hooks of %s were removed during the capture by other code, and later calls are not recorded; "
                "remove hooks one by one, with the handles that torch returned for them",
                subject_and_verb(names).rpartition(" ")[0],  # without the verb
            )

    def _warnings(self) -> Iterator[str]:
        now = dict(self._select())
        names = {id(module): name for name, module in now.items()}
        places = {name: names.get(id(module)) for name, module in self._before.items()}  # the names now, or None
        if replaced := self._new(name for name, module in self._before.items() if now.get(name, module) is not module):
            first, place = replaced[0], places[replaced[0]]
            which = f", {first!r}" if len(replaced) > 1 else ""
            moved = f" ({first!r} in the records is what is now {place!r})" if place else ""
            yield (
                f"{subject_and_verb(replaced)} replaced during the capture{which} by {type(now[first]).__name__}, "
                f"whose calls are not recorded{moved}; {_ADVICE}"
            )
        if added := self._new(name for name, module in now.items() if self._is_new(name, module)):
            yield f"{subject_and_verb(added)} added during the capture and not recorded; {_ADVICE}"
        if removed := self._new(name for name, place in places.items() if name not in now and place is None):
            yield f"{subject_and_verb(removed)} removed from the model during the capture; later calls are not recorded"
        if compiled := self._new(name for name, module in self._before.items() if is_compiled(module)):
            yield (
                f"{subject_and_verb(compiled)} compiled during the capture, and later calls are not recorded: "
                "torch.compile calls no hooks inside of compiled code. Compile the model after the block"
            )

    def _is_new(self, name: str, module: nn.Module) -> bool:
        """Return whether neither the name nor the module was selected before, and the module can have hooks."""
        before = self._before
        return not (name in before or is_scripted(module) or any(module is known for known in before.values()))

    def _new(self, names: Iterator[str]) -> list[str]:
        """Return the names that were not reported yet, and note that they are now.

        Modules that were compiled before the block are left out: `uncalled_hooks_warning` is about these.
        """
        new = [name for name in names if name not in self._reported and name not in self._compiled]
        self._reported.update(new)
        return new
