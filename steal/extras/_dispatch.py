"""An extra that sees each call that torch dispatches."""

from contextlib import ExitStack

from ..capture._recorder import Extra, Recorder
from ..private._torch import TorchDispatchMode


class DispatchExtra(TorchDispatchMode, Extra):  # type: ignore[no-untyped-call]
    """A dispatch mode in the thread that opened the block; subclasses define `__torch_dispatch__`."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._modes = ExitStack()

    def start(self, recorder: Recorder) -> None:
        """Enter the mode."""
        super().start(recorder)
        self._modes.enter_context(self)

    def stop(self) -> None:
        """Exit the mode."""
        self._modes.close()

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """Let torch.compile work as usual; by default it compiles nothing inside a dispatch mode."""
        return True
