"""Run a model again on the inputs of a run: in its own dtypes, and in float64."""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn

from filch.steal import Foreign, Key, Records, Skipped, Statistics, missing_tensors, steal_forward

from ..common._errors import CompareError
from ..float64._fingerprint import Fingerprint
from ..float64._stored_level import StoredLevel
from ..float64._values import Float64Values
from ..models._module_values import PutValue, module_values
from ..models._state import ModelState
from ..runs._measured_levels import measured_levels
from ..runs._mode import float64_values


class Rerun:
    """Repeats a run of a model, from the same state of buffers, gradients and random numbers.

    Args:
        name: the name of the model in the keys.
        model: the model.

    Attributes:
        draws_random: the state of the random numbers at the beginning, as a fingerprint, if the run has changed it;
            else `""`.
    """

    def __init__(self, name: str, model: nn.Module) -> None:
        self._name, self._model = name, model
        self._state = ModelState(model)
        self._run: Callable[[], None] | None = None
        self.draws_random = ""

    def finish(self, run: Callable[[], None]) -> None:
        """End the first run; `run` repeats it."""
        self._run = run
        if not torch.equal(self._state.random, torch.random.get_rng_state()):
            self.draws_random = Fingerprint.of(self._state.random).digest

    def into(self, sink: Callable[[Key, Any], object], **options: Any) -> None:
        """Run the model, and pass each record to a function (see `steal_forward`)."""
        with self._state.restored(), steal_forward((self._name, self._model), sink=sink, strict=True, **options):
            self._repeat()

    def float64(self) -> Float64Values:
        """Run the model in float64; the values are named by the label of their key and the path in the record."""

        def run() -> Mapping[str, torch.Tensor]:
            values: dict[str, torch.Tensor] = {}
            self._put_values(lambda key, path, tensor: values.update({key.label + path: tensor}))
            return values

        return float64_values(run)

    def levels(self, records: Records) -> tuple[dict[str, StoredLevel], str]:
        """Run the model in float64, and return the levels of the first run's values (see `measured_levels`)."""
        return measured_levels(self._put_values, records)

    def weights(self) -> dict[str, Fingerprint]:
        """Return the fingerprints of the parameters and buffers by name, without those that are not dense."""
        named = (*self._model.named_parameters(), *self._model.named_buffers())
        prefix = f"{self._name}." if self._name else ""
        return {prefix + name: Fingerprint.of(tensor) for name, tensor in named if tensor.layout is torch.strided}

    def _put_values(self, put: PutValue) -> None:
        """Run the model, and pass on the inputs and outputs of all modules."""
        with self._state.restored(), module_values(self._name, self._model, put):
            self._repeat()

    def _repeat(self) -> None:
        """Run the model once more, as in the first run."""
        if self._run is None:
            raise CompareError("the run has not ended")
        self._run()


def repeat_calls(name: str, model: nn.Module, records: Records) -> None:
    """Call a model on the inputs of its calls in a dump or capture, without gradients; not those of other models.

    Raises:
        CompareError: an input was not stored as what it was.
    """
    prefix = f"{name}." if name else ""
    for call in (call for call in records.calls() if call.name == name or call.name.startswith(prefix)):
        keys = [key for key in call.keys if key.kind == "I" and key.name == call.name == name]
        if not keys:  # those of the model itself, or only a module in it was called
            raise CompareError("the inputs of a call were not stored")
        repeat_call(model, records, keys[0])


def repeat_call(module: nn.Module, records: Records, key: Key) -> None:
    """Call a module on the inputs of one of its calls, of which `key` is a record, without gradients.

    Raises:
        CompareError: an input was not stored as what it was.
    """
    inputs = records.arguments_key(key.name, key.iteration)
    if inputs not in records:
        raise CompareError("the inputs of a call were not stored")
    args, kwargs = records[inputs]
    if foreign := next((item for item in (*args, *kwargs.values()) if isinstance(item, Foreign)), None):
        raise CompareError(f"an input of class {foreign!r:.80} can't be read from the dump")
    if missing := [*missing_tensors((args, kwargs)).values()]:
        raise CompareError(f"an input was not stored: {reason_not_stored(missing[0])}")
    with torch.no_grad():
        module(*args, **kwargs)


def reason_not_stored(stand_in: Skipped | Statistics) -> str:
    """Return why a recorded tensor has no numbers."""
    return stand_in.reason if isinstance(stand_in, Skipped) else "only its statistics were"
