"""Generate the script of a repro."""

import re
from collections.abc import Sequence
from pathlib import Path

import onnx_ir as ir
import torch
from onnx_ir import tensor_adapters
from torch import fx

from filch.export.backends import Script
from filch.steal.text._python import python_docstring, python_literal

from ._case import Case

_HEAD = """\
{docstring}

{imports}

HERE = Path(__file__).resolve().parent


{functions}


print("Python", platform.python_version(), *(f"{{lib.__name__}} {{lib.__version__}}" for lib in ({libraries})))
{compute}
for name, a, e in zip({outputs}, actual, expected, strict=True):
    a, e = np.asarray(a, np.float64), np.asarray(e, np.float64)
    np.testing.assert_allclose(a, e, rtol={limit}, atol={limit}, strict=True, err_msg=name)
print("no difference")
"""
DIFFERENCE_ERROR = "AssertionError"  # raised by numpy.testing.assert_allclose
_READ_ARRAYS = """\
def tensors(name):
    nodes = onnx.load(HERE / name).graph.node
    return {node.output[0]: numpy_helper.to_array(node.attribute[0].t) for node in nodes}"""
# NumPy has no bfloat16, so the bytes are read with torch.
_READ_TENSORS = """\
def tensors(name):
    dtypes = {{{dtypes}}}
    stored = {{node.output[0]: node.attribute[0].t for node in onnx.load(HERE / name).graph.node}}
    flat = {{name: torch.frombuffer(bytearray(t.raw_data), dtype=dtypes[t.data_type]) for name, t in stored.items()}}
    return {{name: tensor.reshape(*stored[name].dims) for name, tensor in flat.items()}}"""
_COMPUTE_ONNX = """\
expected = tensors("expected.onnx").values()
actual = run(HERE / "model.onnx", {outputs}, tensors("inputs.onnx"))"""
_COMPUTE_FAILING = """\
expected = tensors("expected.onnx").values()
try:
    actual = run(HERE / "model.onnx", {outputs}, tensors("inputs.onnx"))
except Exception as error:
    raise AssertionError(f"the model can't be run: {{error}}") from None"""
_COMPUTE_BOTH = """\
inputs = tensors("inputs.onnx")
expected = [tensor.double().numpy() for tensor in function(**inputs)]
actual = run(HERE / "model.onnx", {outputs}, {{name: inputs[name].numpy() for name in {model_inputs}}})"""
_COMPUTE_TORCH = """\
inputs = tensors("inputs.onnx")
expected = [tensor.double().numpy() for tensor in function(**inputs)]
actual = [tensor.double().numpy() for tensor in run(function, inputs)]"""
_NAMES_IN_CODE = {"device": "from torch import device", "inf": "from math import inf", "nan": "from math import nan"}


def repro_script(case: Case, script: Script, summary: str, limit: float, *, fails: bool = False) -> str:
    """Return a script that shows a difference with only the backend's library, torch, onnx and numpy.

    Args:
        case: the part; if it has a function, the script computes the expected values with it.
        script: the code that runs the backend.
        summary: the summary in the script's docstring.
        limit: the tolerance, as harmonic error.
        fails: whether the difference is that the model of the case can't be run.
    """
    imports = {"import platform", "from pathlib import Path", "import numpy as np", "import onnx", *script.imports}
    libraries = {"numpy": "np", "onnx": "onnx"}
    if case.function is None:
        imports.add("from onnx import numpy_helper")
        functions, compute = [_READ_ARRAYS, script.code], _COMPUTE_FAILING if fails else _COMPUTE_ONNX
    else:
        code = _function_code(case.function)
        imports.add("import torch")
        # fx writes devices, inf and nan without the name of a module.
        imports |= {line for name, line in _NAMES_IN_CODE.items() if re.search(rf"(?<![.\w]){name}\b", code)}
        dtypes = _dtypes([*case.inputs.values(), *case.weights.values()])
        functions = [_READ_TENSORS.format(dtypes=dtypes), code, script.code]
        libraries["torch"] = "torch"
        compute = _COMPUTE_TORCH if case.model is None else _COMPUTE_BOTH
    # The first import is that of the backend's library, unless it has a name above; its last word is the name.
    libraries.setdefault(script.module, script.imports[0].rpartition(" ")[2])
    outputs = python_literal(list(case.outputs))
    return _HEAD.format(
        docstring=python_docstring(f"{summary}. Exits with 1 if the difference shows, with 0 if not."),
        imports=_sorted_imports(imports),
        functions="\n\n\n".join(functions),
        libraries=", ".join(libraries.values()),
        compute=compute.format(outputs=outputs, model_inputs=python_literal(list(case.model_inputs))),
        outputs=outputs,
        limit=python_literal(limit),
    )


def _sorted_imports(lines: set[str]) -> str:
    """Return the imports in isort's order: the standard library, then others."""
    standard = ("import ctypes", "import platform", "from pathlib", "from math")
    order = sorted(lines, key=lambda line: (line.startswith("from"), line.split()[1]))
    first = [line for line in order if line.startswith(standard)]
    return "\n".join([*first, "", *(line for line in order if line not in first)])


def _function_code(function: fx.GraphModule) -> str:
    """Return the source code of the operations as a function."""
    code = re.sub(r";  [\w = ]+ = None", "", function.graph.python_code("self").src)  # statements that free tensors
    return code.strip().replace("def forward(self, ", "def function(").replace("def forward(self)", "def function()")


def _dtypes(tensors: Sequence[torch.Tensor]) -> str:
    """Return the source code of a mapping from ONNX's data type numbers to the dtypes of some tensors."""
    dtypes = {int(tensor_adapters.from_torch_dtype(tensor.dtype)): tensor.dtype for tensor in tensors}
    return ", ".join(f"{number}: {dtype}" for number, dtype in sorted(dtypes.items(), key=lambda item: item[0]))


def write_tensors(tensors: dict[str, torch.Tensor], path: Path) -> None:
    """Write tensors as an ONNX file of Constant nodes, in their order."""
    constants = [tensor_adapters.TorchTensor(tensor.contiguous(), name=name) for name, tensor in tensors.items()]
    nodes = [ir.node("Constant", [], {"value": tensor}) for tensor in constants]
    for node, tensor in zip(nodes, constants, strict=True):
        output = node.outputs[0]
        output.name, output.dtype, output.shape = tensor.name, tensor.dtype, ir.Shape(tensor.shape.numpy())
    outputs = [node.outputs[0] for node in nodes]
    graph = ir.Graph([], outputs, nodes=nodes, opset_imports={"": 20}, name="tensors")
    ir.save(ir.Model(graph, ir_version=10), path)
