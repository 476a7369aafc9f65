"""What a capture can take besides what modules take and give; each kind is an `Extra` in its own file."""

from contextlib import AbstractContextManager
from typing import Any, Protocol

from .._key import Key
from .._records import Origin
from ..values._foreign import Spec
from ._calls import Frame


class Recording(Protocol):
    """The recorder, as extras see it."""

    def guarded(self, name: str) -> AbstractContextManager[None]:
        """Alone, with what goes wrong inside kept from the model's run: for all that torch calls us from."""
        ...

    def wants(self, iteration: int) -> bool:
        """Whether this iteration of a module is asked for."""
        ...

    def takes(self, kind: str) -> bool:
        """Whether this kind of record is asked for and there is still room."""
        ...

    def running(self) -> Frame | None:
        """The innermost call that runs in this thread."""

    def record(self, key: Key, value: Any, origin: Origin) -> None:
        """Take `value`, as it is now."""

    def encoded(self, key: Key, value: Any, path: str) -> Spec:
        """Take a part of `key`'s value, as it is now; `keep` makes a record of the parts."""

    def keep(self, key: Key, spec: Spec, origin: Origin) -> None:
        """Make a record of what was taken already."""

    def value(self, key: Key, default: Any) -> Any:
        """What was recorded, or `default` if nothing was."""

    def tell(self, what: str) -> None:
        """Log a warning, once."""


class Extra(Protocol):
    """Takes something more from a run. Called with the recorder's lock held, except for what torch calls directly."""

    def start(self, recording: Recording) -> None:
        """The block begins."""

    def entered(self, frame: Frame, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """A call of a stolen module begins."""

    def left(self, frame: Frame, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
        """It has ended, and did not raise; its inputs and output are recorded."""

    def stop(self) -> None:
        """The block ends; the store is still open."""
