"""Run other versions of ONNX Runtime, in other Python interpreters."""

import json
import subprocess
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from filch.steal.files._scratch import Scratch

from ..._errors import BackendError
from ...graph._graph import Graph
from ...program._program import Program
from .._backend import Script, Values
from .._files import first_line, write_model

_MAIN = """
import json, sys
from pathlib import Path
import numpy as np
{imports}

{code}

folder = Path(sys.argv[1])
task = json.loads((folder / "task.json").read_text("utf-8"))
for call, names in enumerate(task["inputs"]):
    with np.load(folder / f"inputs-{{call}}.npz") as arrays:
        feeds = {{name: arrays[f"arr_{{index}}"] for index, name in enumerate(names)}}
    np.savez(folder / f"outputs-{{call}}.npz", *run(task["model"], task["outputs"], feeds))
(folder / "version.json").write_text(json.dumps({module}.__version__), "utf-8")
"""


def run_in(interpreter: str, program: Program, inputs: Sequence[Values], script: Script) -> tuple[str, list[Values]]:
    """Run the code of `script` in another interpreter; see `RunsOtherVersions.run_in`."""
    graph = program.graph
    with Scratch() as folder:
        task = {
            "model": str(write_model(program.model, folder / "program.onnx")),
            "inputs": [list(graph.inputs)] * len(inputs),
            "outputs": list(graph.outputs),
        }
        (folder / "task.json").write_text(json.dumps(task), "utf-8")
        for call, values in enumerate(inputs):
            np.savez(folder / f"inputs-{call}.npz", *(_array(key, values[key]) for key in graph.inputs))
        main = _MAIN.format(imports="\n".join(script.imports), code=script.code, module="ort")
        (folder / "main.py").write_text(main, "utf-8")
        _run(interpreter, folder)
        version = str(json.loads((folder / "version.json").read_text("utf-8")))
        outputs = [folder / f"outputs-{call}.npz" for call in range(len(inputs))]
        return version, [_outputs(path, graph) for path in outputs]


def _run(interpreter: str, folder: Path) -> None:
    """Run `main.py` of a folder with an interpreter; its error names the interpreter."""
    try:
        run = subprocess.run([interpreter, folder / "main.py", folder], capture_output=True, text=True, check=False)  # noqa: S603  the user's own
    except OSError as error:
        raise BackendError(f"can't run the interpreter {interpreter!r}: {error.strerror or error}") from error
    if run.returncode:
        last = (run.stderr.strip() or "no error message").splitlines()[-1]
        raise BackendError(f"the interpreter {interpreter!r} can't run the program: {last}")


def _array(name: str, value: torch.Tensor) -> "np.ndarray[tuple[int, ...], np.dtype[np.generic]]":
    """Return an input as an array; a complex one gets a last dimension with the real and the imaginary part."""
    plain = torch.view_as_real(value) if value.is_complex() else value
    try:
        return plain.detach().cpu().numpy()
    except TypeError as error:
        raise BackendError(f"{name!r} is {value.dtype}, which can't be passed to another interpreter") from error


def _outputs(path: Path, graph: Graph) -> Values:
    """Read the outputs that the other interpreter has written, by name, with the dtypes of the graph."""
    try:
        with np.load(path) as arrays:
            tensors = {name: torch.from_numpy(arrays[f"arr_{index}"]) for index, name in enumerate(graph.outputs)}
    except (TypeError, ValueError) as error:
        raise BackendError(f"can't read an output of another interpreter: {first_line(error)}") from error
    narrow = {name for name in tensors if graph.values[name].dtype == "bfloat16"}  # the script returns float32
    return {name: tensor.bfloat16() if name in narrow else tensor for name, tensor in tensors.items()}
