"""ONNX Runtime in other interpreters: other versions of it, on the same inputs."""

import json
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from .._errors import BackendError
from .._program import Program
from ._backend import Values
from ._files import first_line, write_model
from ._ort_options import OrtOptions, level_name

_SCRIPT = Path(__file__).with_name("_ort_alone.py")


def run_in(
    interpreter: str, program: Program, inputs: Sequence[Values], *, options: OrtOptions, providers: Sequence[str]
) -> tuple[str, list[Values]]:
    """See `RunsElsewhere.run_in`.

    Raises:
        BackendError: the interpreter or its ONNX Runtime is missing, or can't run the program.
    """
    with tempfile.TemporaryDirectory(prefix="filch-") as name:
        folder = Path(name)
        told = {
            "model": str(write_model(program.model, folder / "program.onnx")),
            "level": level_name(options.level),
            "threads": options.threads,
            "config": dict(options.session_config),
            "off": list(options.disabled_optimizers),
            "providers": [[providers[0], options.told(replay=False)], *providers[1:]],
            "inputs": [list(values) for values in inputs],
            "outputs": list(program.graph.outputs),
        }
        (folder / "told.json").write_text(json.dumps(told), "utf-8")
        for call, values in enumerate(inputs):
            np.savez(folder / f"inputs-{call}.npz", *(_array(key, value) for key, value in values.items()))
        _run(interpreter, folder)
        version = str(json.loads((folder / "version.json").read_text("utf-8")))
        outputs = [folder / f"outputs-{call}.npz" for call in range(len(inputs))]
        return version, [_outputs(path, program.graph.outputs) for path in outputs]


def _run(interpreter: str, folder: Path) -> None:
    try:
        done = subprocess.run([interpreter, _SCRIPT, folder], capture_output=True, text=True, check=False)  # noqa: S603  the user's own
    except OSError as error:
        raise BackendError(f"can't run the interpreter {interpreter!r}: {error.strerror or error}") from error
    if done.returncode:
        last = (done.stderr.strip() or "it says nothing").splitlines()[-1]
        raise BackendError(f"the interpreter {interpreter!r} can't run the program: {last}")


def _array(name: str, value: torch.Tensor) -> "np.ndarray[tuple[int, ...], np.dtype[np.generic]]":
    held = torch.view_as_real(value) if value.is_complex() else value
    try:
        return held.detach().cpu().numpy()
    except TypeError as error:
        raise BackendError(f"{name!r} is {value.dtype}, which can't be handed to another interpreter") from error


def _outputs(path: Path, names: Sequence[str]) -> Values:
    try:
        with np.load(path) as held:
            return {name: torch.from_numpy(held[f"arr_{place}"]) for place, name in enumerate(names)}
    except (TypeError, ValueError) as error:
        raise BackendError(f"an output can't be handed over by another interpreter: {first_line(error)}") from error
