"""Nodes that are wrong, as folders that show it without Filch."""

import json
import math
import runpy
from dataclasses import dataclass

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest
import torch
from torch import fx, nn

from filch.compare import CompareError, write_repro
from filch.compare.repro._code import DIFFERENCE_ERROR
from filch.compare.repro._folder import _check_script
from filch.compare.repro._fx_part import TorchParts
from filch.export import Program, export, graph_from_fx
from filch.export.backends import Compiled, Script, get_backend
from filch.export.backends.onnxruntime._backend import OnnxRuntimeBackend
from support.faults.fakes import WrongBackend
from support.models.small import capture_of
from support.processes.commands import run
from support.thorough import slow

APPROXIMATE = {"session_config": "optimization.enable_gelu_approximation=1"}


class Erf(nn.Module):
    """A Gelu in parts, which ONNX Runtime fuses."""

    def forward(self, x):
        return x * 0.5 * (1 + torch.erf(x / math.sqrt(2)))


class Block(nn.Module):
    """The perceptron of a transformer block."""

    def __init__(self):
        super().__init__()
        self.up, self.act, self.down, self.norm = nn.Linear(16, 64), Erf(), nn.Linear(64, 16), nn.LayerNorm(16)

    def forward(self, x):
        return self.norm(self.down(self.act(self.up(x))))


@dataclass(frozen=True)
class Given:
    """A model's dump, and a program of it."""

    dump: str
    program: Program


@pytest.fixture(scope="module")
def given(tmp_path_factory):
    torch.manual_seed(0)
    model, x = Block().eval(), 3 * torch.randn(4, 8, 16)
    dump = tmp_path_factory.mktemp("given") / "ref.onnx"
    capture_of(model, x, submodules=True, dump_file=dump)
    program = export(model, (x,))
    program.model.graph.opset_imports[""] = 18  # ONNX Runtime approximates its own Gelu, not that of opset 20
    return Given(str(dump), program)


def shows(folder):
    """Return whether the script finds a difference; if not, it has to run to its end."""
    try:
        runpy.run_path(str(folder / "repro.py"))
    except AssertionError:
        return True
    return False


def mend(file, old, new):
    text = file.read_text("utf-8")
    assert old in text
    file.write_text(text.replace(old, new), "utf-8")


@slow
def test_a_wrong_fusion_is_found_from_one_of_its_nodes_and_reduced(given, tmp_path, monkeypatch, capsys):
    """Erf alone is correct: neighbors are added until they are fused, and those that are not needed are removed."""
    monkeypatch.chdir(tmp_path)
    given.program.save("model.onnx")
    option = f"session_config={APPROXIMATE['session_config']}"
    assert run("compare", given.dump, "model.onnx", "--option", option, "-o", "report.json", "-q") == 1
    (erf,) = (node.name for node in given.program.graph.nodes if node.op == "Erf")

    assert run("repro", "report.json", "--node", "FastGelu", "-o", "fused", "-q") == 0
    made = write_repro(given.dump, "model.onnx", erf, "grown", options=APPROXIMATE)

    assert (made.expected_source, made.culprit) == ("reference", "optimizer")
    assert made.operators == ("Mul", "Div", "Erf", "Add", "Mul")
    assert made.before.nodes > made.after.nodes
    assert made.before.elements > 2000 and made.after.elements < 10
    for folder in (tmp_path / "fused", tmp_path / "grown"):
        assert [*sorted(path.name for path in folder.iterdir())] == [
            *("README.md", "expected.onnx", "inputs.onnx", "model.onnx", "repro.py")
        ]
        onnx.checker.check_model(onnx.load(folder / "model.onnx"), full_check=True)
        assert "filch" not in (folder / "repro.py").read_text("utf-8")
        assert shows(folder)
        mend(folder / "repro.py", "gelu_approximation', '1'", "gelu_approximation', '0'")
        assert not shows(folder)
    assert "With its optimizations disabled, onnxruntime-cpu is correct." in (
        tmp_path / "grown" / "README.md"
    ).read_text("utf-8")


@slow
def test_a_wrong_translation_is_compared_with_torch(given, tmp_path):
    """The script has the operation of PyTorch and the ONNX model; with the correct epsilon, nothing differs."""
    wrong = Program(given.program.model.clone(), **{name: getattr(given.program, name) for name in KEPT})
    (norm,) = (node for node in wrong.model.graph if node.op_type == "LayerNormalization")
    norm.attributes["epsilon"] = ir.AttrFloat32("epsilon", 1e-2)

    made = write_repro(given.dump, wrong, norm.name, tmp_path / "out")

    assert (made.expected_source, made.culprit, made.operators) == ("torch", "translation", ("LayerNormalization",))
    assert made.after.elements < made.before.elements / 5
    assert "torch.ops.aten.layer_norm.default(" in made.script.read_text("utf-8")
    assert shows(made.folder)
    model = onnx.load(made.folder / "model.onnx")
    next(item for item in model.graph.node[0].attribute if item.name == "epsilon").f = 1e-5
    onnx.save(model, made.folder / "model.onnx")
    assert not shows(made.folder)


KEPT = ("inputs", "module_calls", "model_type", "operators", "original")


@dataclass(frozen=True)
class Coarse:
    """A compiler of torch that adds in bfloat16."""

    name: str = "coarse"
    stages: tuple = ("compiled",)

    def compile(self, program, *, optimize):
        return Compiled(program.graph, None)

    def run(self, compiled, inputs, watch=()):
        raise NotImplementedError

    def compile_graph(self, module, inputs):
        def handle(*arguments):
            return fx.Interpreter(coarse(module)).run(*arguments)

        return Compiled(graph_from_fx(module.graph), handle)

    def script(self, *, optimize):
        return Script("torch", ("import torch",), COARSE, "torch")


COARSE = """\
def run(function, inputs):
    add = torch.ops.aten.add.Tensor
    torch.ops.aten.add.Tensor = lambda a, b: add(a.bfloat16(), b).float()
    try:
        return function(**inputs)
    finally:
        torch.ops.aten.add.Tensor = add"""


def coarse(module):
    made = fx.GraphModule({}, fx.Graph())
    made.graph.output(made.graph.graph_copy(module.graph, {}))
    for node in made.graph.find_nodes(op="call_function", target=torch.ops.aten.add.Tensor):
        node.target = lambda a, b: torch.ops.aten.add.Tensor(a.bfloat16(), b).float()
    made.recompile()
    return made


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("onnxruntime-cpu", {"session_options": "execution_mode=ORT_PARALLEL", "threads": 1, "level": "basic"}),
        ("onnxruntime-cpu", {**APPROXIMATE, "disabled_optimizers": "MatMulAddFusion"}),
        ("openvino", {"config": {"NUM_STREAMS": "1"}}),
        ("reference", {}),
    ],
)
def test_the_script_of_a_backend_computes_the_same_numbers(given, tmp_path, name, options):
    """The script uses the options of the backend."""
    backend = get_backend(name, **options)
    script = backend.script(optimize=True)
    (tmp_path / "script.py").write_text("\n".join([*script.imports, script.code]), "utf-8")
    given.program.save(tmp_path / "model.onnx", original=False)
    x = torch.randn(4, 8, 16)

    (found,) = runpy.run_path(str(tmp_path / "script.py"))["run"](
        tmp_path / "model.onnx", ["layer_norm"], {"x": x.numpy()}
    )

    expected = backend.run(backend.compile(given.program, optimize=True), {"x": x})["layer_norm"]
    assert torch.equal(torch.from_numpy(found), expected)


def test_a_compiler_of_torch_is_compared_with_eager(given, tmp_path, monkeypatch):
    """The script has only the operations of the exported program that are needed, and few numbers."""
    monkeypatch.setattr(
        "filch.compare.repro._folder._check_script", lambda folder, _: shows(folder)
    )  # others start a process
    made = write_repro(given.dump, given.program, "mul_1", tmp_path / "out", backend=Coarse())

    assert (made.expected_source, made.culprit) == ("torch", "compiler")
    assert "aten.add.Tensor" in made.operators and "aten.erf.default" not in made.operators
    assert made.before.nodes > made.after.nodes
    assert made.before.elements > 100 * made.after.elements
    assert sorted(path.name for path in made.folder.iterdir()) == ["README.md", "inputs.onnx", "repro.py"]
    assert shows(made.folder)
    mend(made.script, "a.bfloat16(), b", "a, b")
    assert not shows(made.folder)


@dataclass(frozen=True)
class WrongHere(OnnxRuntimeBackend):
    """ONNX Runtime that is wrong only in this process."""

    def run(self, compiled, inputs, watch=()):
        return {name: 1.1 * tensor for name, tensor in super().run(compiled, inputs, watch).items()}


def test_differences_that_the_script_does_not_show_are_refused(given, tmp_path):
    """Write nothing if the error needs this process, the backend has no script, or the node is correct or unknown."""
    wrong_here = WrongHere(**vars(get_backend("onnxruntime-cpu")))
    not_shown = (
        "in a separate process, onnxruntime-cpu does not show the difference; the last output is 'no difference'"
    )
    refused = {
        not_shown: wrong_here,
        "backend 'wrong' can't be run without Filch": WrongBackend(),
        "'layer_norm' is correct on onnxruntime-cpu, alone and with its neighbors": "onnxruntime-cpu",
    }

    for message, backend in refused.items():
        with pytest.raises(CompareError, match=message):
            write_repro(given.dump, given.program, "layer_norm", tmp_path / "out", backend=backend)
    with pytest.raises(CompareError, match=r"no node or value 'layer_nrm' in .* did you mean 'node_layer_norm'"):
        write_repro(given.dump, given.program, "layer_nrm", tmp_path / "out")
    assert not (tmp_path / "out").exists()

    (tmp_path / "there").mkdir()
    (tmp_path / "there" / "file").touch()
    with pytest.raises(CompareError, match="exists already: give a new or an empty folder"):
        write_repro(given.dump, given.program, "layer_norm", tmp_path / "there")


def test_the_command_refuses_reports_without_what_it_needs(given, tmp_path, monkeypatch, capsys):
    """The reports are of a capture in memory, without a difference, of a lower precision, or lack the node."""
    monkeypatch.chdir(tmp_path)
    given.program.save("model.onnx")
    assert run("compare", given.dump, "model.onnx", "-o", "report.json", "-q") == 0
    report = json.loads((tmp_path / "report.json").read_text("utf-8"))
    (tmp_path / "memory.json").write_text(json.dumps(report | {"reference": "the capture"}), "utf-8")
    (tmp_path / "lower.json").write_text(json.dumps(report | {"lower_precision": True}), "utf-8")
    trusting = {"backend": "inductor", "options": {"config": {"cpp.cxx": "./canary"}}}
    (tmp_path / "config.json").write_text(json.dumps(report | trusting), "utf-8")
    lacks = {
        ("config.json", "--node", "layer_norm"): "made with the option 'config', which may run programs or write files",
        ("report.json",): "nothing differs in this report: choose a node with --node",
        ("report.json", "--node", "gelu"): "there is no node or value 'gelu' in this report",
        ("memory.json", "--node", "layer_norm"): "the reference 'the capture' is not a file: give --reference DUMP",
        ("lower.json",): "was made with lower_precision, which allows differences",
    }

    for arguments, message in lacks.items():
        assert run("repro", *arguments, "-o", "out") == 2
        assert message in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_a_value_with_the_name_of_a_builtin_keeps_it():
    """The argument of a sequence is called `input`, and torch renames the node that reads it."""
    x = torch.ones(2, 4)
    program = export(nn.Sequential(nn.ReLU()), (x,)).exported_program
    assert program is not None

    case = TorchParts(program, {"input": x, "relu": x}).case(["relu"])

    assert case is not None and [*case.inputs] == ["input"]


def test_the_script_finds_a_runtime_in_a_folder_of_pythonpath(tmp_path, monkeypatch):
    """As another version is tried without another environment."""
    (tmp_path / "packages").mkdir()
    (tmp_path / "packages" / "other_runtime.py").touch()
    (tmp_path / "repro.py").write_text(f"import other_runtime\nraise {DIFFERENCE_ERROR}('they differ')\n", "utf-8")
    with pytest.raises(CompareError, match="other_runtime"):
        _check_script(tmp_path, "onnxruntime-cpu")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "packages"))
    _check_script(tmp_path, "onnxruntime-cpu")


def test_a_kernel_that_makes_the_same_error_in_both_runs_is_compared_with_float64(tmp_path, monkeypatch):
    """A file is compared with itself: only float64 differs. ReduceMax of ONNX Runtime loses NaN at some places."""
    monkeypatch.chdir(tmp_path)
    text = (
        '<ir_version: 10, opset_import: ["": 13]> g (float[5, 7] x) => (float[5] z)'
        "{y = Sqrt(x) m = ReduceMax <axes = [-1], keepdims = 0> (y) z = Softplus(m)}"
    )
    onnx.save(onnx.parser.parse_model(text), "model.onnx")
    x = np.linspace(1, 2, 35, dtype=np.float32).reshape(5, 7)
    x[0, 0] = x[1, 3] = x[2, 6] = x[3, 1] = -1
    (z,) = ort.InferenceSession("model.onnx", providers=["CPUExecutionProvider"]).run(None, {"x": x})
    if np.isnan(z[:4]).all():
        pytest.skip(f"ONNX Runtime {ort.__version__} keeps NaN")
    np.savez("inputs.npz", x=x)

    assert run("compare", "model.onnx", "model.onnx", "--inputs", "inputs.npz", "--blame", "why", "-q") == 1

    assert shows(tmp_path / "why")
    assert "differs from the same in float64" in (tmp_path / "why" / "README.md").read_text("utf-8")
