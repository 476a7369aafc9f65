"""A check on Inductor judges what torch.compile compiles: inputs that are written to, and what can't be exported."""

import copy
import json

import pytest
import torch
from torch import fx, nn
from torch.nn import functional

from filch.compare import CompareError
from filch.compare.dynamo._compiled_call import CompiledCall
from filch.export import BackendError
from filch.export.backends.inductor._backend import InductorBackend
from support.processes.commands import run


class _Stateful(nn.Module):
    """Writes to the cache that it is given; a program of torch.export has no such input after the call."""

    def __init__(self):
        super().__init__()
        self.inner, self.outer = nn.Linear(6, 6), nn.Linear(6, 4)

    def forward(self, cache, x):
        cache.copy_(torch.tanh(self.inner(x)))
        return self.outer(functional.gelu(x))


class _Forces(nn.Module):
    """Computes derivatives sample by sample, which torch.export refuses."""

    def __init__(self):
        super().__init__()
        self.inner, self.outer = nn.Linear(6, 4), nn.Linear(4, 3)

    def forward(self, x):
        x = self.inner(x)
        return torch.tanh(self.outer(x + torch.func.vmap(torch.func.grad(lambda row: (row * row).sum()))(x)))


class _Corner(nn.Module):
    """Reads the memory around a part of a tensor, which is not recorded."""

    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(5, 2)

    def forward(self, x, part):
        return torch.tanh(self.inner(x)) - torch.as_strided(part, (3, 2), (6, 2), 6)


class _Plain(nn.Module):
    """Has nothing that torch.export leaves out."""

    def __init__(self):
        super().__init__()
        self.inner, self.outer = nn.Linear(6, 6), nn.Linear(6, 4)

    def forward(self, x):
        return self.outer(torch.tanh(self.inner(x)))


def plain():
    torch.manual_seed(0)
    return _Plain().eval(), (torch.randn(4, 6),)


def stateful():
    torch.manual_seed(0)
    return _Stateful().eval(), (torch.zeros(4, 6), torch.randn(4, 6))


def corner():
    torch.manual_seed(0)
    return _Corner().eval(), (torch.randn(3, 5), torch.randn(9, 6)[3:])


def forces():
    torch.manual_seed(0)
    return _Forces().eval(), (torch.randn(4, 6),)


@pytest.fixture
def wrong_tanh(monkeypatch):
    """Compile tanh to something a thousandth too large."""
    from torch._inductor import lowering

    tanh = torch.ops.aten.tanh.default
    right = lowering.lowerings[tanh]
    monkeypatch.setitem(lowering.lowerings, tanh, lambda x: lowering.mul(right(x), 1.001))


def _check(factory, tmp_path, *options):
    torch.compiler.reset()
    code = run("check", f"{__file__}:{factory}", "-b", "inductor", "-q", "-o", str(tmp_path / "r.json"), *options)
    return code, json.loads((tmp_path / "r.json").read_text())


@pytest.mark.parametrize("factory", ["stateful", "forces", "corner"])
def test_a_clean_model_is_close(tmp_path, factory):
    """Also where the exported program is incomplete, or another one, or there is none."""
    code, report = _check(factory, tmp_path)

    assert (code, report["outcome"]) == (0, "close"), report["headline"]


@pytest.mark.parametrize("factory", ["stateful", "forces", "corner"])
def test_a_wrong_lowering_is_named(tmp_path, factory, wrong_tanh):
    """Of `stateful`, only what is written to the input shows it."""
    code, report = _check(factory, tmp_path)

    wrong = [row for row in report["rows"] if row["status"] == "different"]
    assert (code, report["outcome"]) == (1, "different")
    assert "tanh" in wrong[0]["op"] and wrong[0]["source"].split(":")[0].endswith("test_check_model.py")


def test_the_step_of_the_compiler_that_makes_a_call_wrong_is_blamed(tmp_path, wrong_tanh):
    """Without it, the call is right. `stateful` shows it in an argument alone."""
    code, report = _check("stateful", tmp_path, "--blame", str(tmp_path / "why"))

    assert (code, report["culprits"]) == (1, ["lowerings.tanh"])
    assert _check("stateful", tmp_path, "--option", "without=lowerings.tanh")[0] == 0
    torch.compiler.reset()
    assert run("check", f"{__file__}:stateful", "-b", "inductor", "--option", "without=lowerings.tan") == 2


def test_a_decomposition_is_blamed(tmp_path, monkeypatch):
    """Of a program of torch.export, too; the search names the only wrong one of several."""
    from torch._inductor.decomposition import fast_random_decomps

    decompositions = fast_random_decomps()
    monkeypatch.setitem(decompositions, torch.ops.aten.addmm.default, lambda *a, **k: torch.ops.aten.mm(a[1], a[2]) * 1)
    code, report = _check("plain", tmp_path, "--blame", str(tmp_path / "why"))

    assert (code, report["culprits"]) == (1, ["aten.addmm.default"])


@pytest.mark.parametrize("factory", ["plain", "stateful"])
def test_a_pattern_is_blamed(tmp_path, monkeypatch, factory):
    """It is one of hundreds in a pass, of a program of torch.export and of a call; a pass that is needed stays on."""
    from torch._inductor import pattern_matcher as matcher
    from torch._inductor.fx_passes import post_grad

    def sigmoid_of_tanh(match, x):
        match.replace_by_example(torch.sigmoid, [x])

    tanh = torch.ops.aten.tanh.default
    wrong = matcher.GraphPatternEntry(
        pattern=matcher.CallFunction(tanh, matcher.Arg()), extra_check=lambda _: True, handler=sigmoid_of_tanh
    )
    monkeypatch.setitem(post_grad.pass_patterns[0].patterns, ("call_function", tanh), [wrong])
    code, report = _check(factory, tmp_path, "--blame", str(tmp_path / "why"))

    assert code == 1
    assert report["culprits"] == ["test_check_model.test_a_pattern_is_blamed.sigmoid_of_tanh"]
    assert wrong.extra_check(None), "it is as it was"


class _Enlarged(nn.Module):
    """Interpolates, which is decomposed before the table of decompositions is asked."""

    def forward(self, x):
        return functional.interpolate(torch.sin(x), scale_factor=2.0, mode="bilinear", align_corners=True)


def enlarged():
    torch.manual_seed(0)
    return _Enlarged(), (torch.randn(1, 2, 3, 4),)


def test_a_decomposition_by_a_kernel_in_python_is_blamed(tmp_path, monkeypatch):
    """CompilerBisector of torch is not asked about it."""
    operator = torch.ops.aten.upsample_bilinear2d.vec

    def wrong(x, *_):
        return x.repeat_interleave(2, -1).repeat_interleave(2, -2)

    kernels = {**operator.py_kernels}
    for key in {torch.DispatchKey.Autograd, torch.DispatchKey.CompositeImplicitAutograd} & kernels.keys():
        monkeypatch.setitem(operator.py_kernels, key, wrong)
    operator._dispatch_cache.clear()  # noqa: SLF001  there is no public API
    try:
        code, report = _check("enlarged", tmp_path, "--blame", str(tmp_path / "why"))
    finally:
        operator._dispatch_cache.clear()  # noqa: SLF001  as above

    assert (code, report["culprits"]) == (1, ["aten.upsample_bilinear2d.vec"])


def test_a_search_that_fails_leaves_the_report(tmp_path, wrong_tanh, monkeypatch):
    """Its reason is a note."""

    def fail(*_, **__):
        raise CompareError("results vary")

    monkeypatch.setattr("filch.compare._blame.search", fail)
    code, report = _check("stateful", tmp_path, "--blame", str(tmp_path / "why"))

    assert (code, report["culprits"]) == (1, [])
    assert any("results vary" in note for note in report["notes"])


@pytest.fixture
def wrong_call(monkeypatch):
    """Compile a sigmoid in place of tanh, but only for graphs of Dynamo."""
    right = InductorBackend.compile_graph

    def compile_graph(backend, module, inputs):
        other = fx.GraphModule(module, copy.deepcopy(module.graph))
        for node in other.graph.nodes:
            node.target = torch.sigmoid if node.target is torch.tanh else node.target
        other.recompile()
        return right(backend, other, inputs)

    monkeypatch.setattr(InductorBackend, "compile_graph", compile_graph)


def test_a_call_that_is_wrong_beside_a_program_that_is_right_is_named(tmp_path, wrong_call):
    """The report says that it is about another program."""
    code, report = _check("plain", tmp_path)

    assert (code, report["outcome"]) == (1, "different")
    assert next(row for row in report["rows"] if row["status"] == "different")["op"] == "tanh"
    assert any("the program that torch.export makes of the model is close" in note for note in report["notes"])


def test_a_clean_call_takes_one_more_compilation_and_no_report(tmp_path, monkeypatch):
    """A report would hold the values of all its graphs in memory, in float64, too."""
    compiled = []
    monkeypatch.setattr(CompiledCall, "reports", lambda call: pytest.fail("it is close"))
    right = InductorBackend.compile_graph
    monkeypatch.setattr(InductorBackend, "compile_graph", lambda *given: (compiled.append(1), right(*given))[1])

    code, report = _check("plain", tmp_path)

    assert (code, report["outcome"], len(compiled)) == (0, "close", 1)


def test_a_call_with_an_option_of_the_backend_alone_is_not_checked(tmp_path):
    """`torch.compile` has no device; the report says so, and not that torch.compile fails."""
    code, report = _check("plain", tmp_path, "--option", "device=cpu")

    assert (code, report["outcome"]) == (0, "close")
    assert "the compiled call is not checked with the option device" in report["notes"]


def test_a_program_that_the_backend_rejects_leaves_the_call(tmp_path, monkeypatch):
    """As a model that torch.export refuses does."""

    def reject(*_, **__):
        raise BackendError("it can't be compiled")

    monkeypatch.setattr(InductorBackend, "compile", reject)

    code, report = _check("plain", tmp_path)

    assert (code, report["outcome"]) == (0, "close") and report["reference"] == "eager PyTorch"


def test_a_model_that_can_not_be_exported_is_an_error_elsewhere(capsys):
    """ONNX Runtime needs the exported program."""
    code = run("check", f"{__file__}:forces", "-q")

    assert code == 2 and "torch can't export _Forces" in capsys.readouterr().err
