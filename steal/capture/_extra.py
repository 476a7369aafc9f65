"""The interface of extras, which record more than module inputs and outputs."""

from contextlib import AbstractContextManager
from typing import Any, Protocol

from .._key import Key
from .._records import Origin
from ..values._foreign import Spec
from ._calls import Frame


class Recording(Protocol):
    """The recorder's interface for extras."""

    def guarded(self, name: str) -> AbstractContextManager[None]:
        """Hold the recorder's lock and keep exceptions out of the model's run; for callbacks that torch calls."""
        ...

    def wants(self, iteration: int) -> bool:
        """Return whether this iteration of a module is selected."""
        ...

    def accepts(self, kind: str) -> bool:
        """Return whether this kind of record is selected and can still be stored."""
        ...

    def innermost_call(self) -> Frame | None:
        """Return the innermost running call of this thread."""

    def record(self, key: Key, value: Any, origin: Origin) -> None:
        """Record `value` as it is now."""

    def encode_part(self, key: Key, value: Any, path: str) -> Spec:
        """Store part of a value as it is now, and return its spec; `add_record` makes a record of the parts."""

    def add_record(self, key: Key, spec: Spec, origin: Origin) -> None:
        """Make a record of a spec whose tensors are stored."""

    def recorded_value(self, key: Key, default: Any) -> Any:
        """Return the recorded value of a key, or `default`."""

    def warn_once(self, message: str) -> None:
        """Log a warning, unless it was logged before."""


class Extra(Protocol):
    """Records something more from a run. Called with the recorder's lock held, except for callbacks from torch."""

    def start(self, recording: Recording) -> None:
        """Start with the block."""

    def call_began(self, frame: Frame, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Handle the beginning of a captured module's call."""

    def call_ended(self, frame: Frame, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
        """Handle the end of a call that did not raise; its inputs and output are recorded."""

    def stop(self) -> None:
        """Stop at the end of the block; the store is still open."""
