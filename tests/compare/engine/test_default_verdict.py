"""The default verdict of `compare`: by float64 where the exported program is available, else by tolerance."""

import copy
from dataclasses import replace

import pytest
import torch
from torch import nn

from filch.compare import CompareError, compare
from filch.export import export
from filch.export.backends import get_backend
from filch.steal import steal_forward
from filch.steal._tf32 import Product
from filch.steal.values._arguments import argument_tensors
from support.faults.fakes import WrongBackend
from support.models.small import capture_of, module_of, recorded
from support.thorough import slow

WIDTH = 32


def chain(scale=1.0):
    """Layers whose second half is independent of the first."""
    return module_of(
        lambda self, x: (self.norm(torch.tanh(self.first(x))) * self.scale, torch.relu(self.second(x) + x).cumsum(-1)),
        first=nn.Linear(WIDTH, WIDTH),
        second=nn.Linear(WIDTH, WIDTH),
        norm=nn.LayerNorm(WIDTH),
        scale=scale,
    )


def subject(scale=1.0):
    """Return a capture, the exported program and the input."""
    torch.manual_seed(0)
    model, x = chain(scale).eval(), torch.randn(4, WIDTH)
    capture = capture_of(model, x, submodules=True)
    return capture, export(model, (x,)), x


def test_rounding_of_any_size_is_close():
    """The sine of a large number has the absolute error of that number, 1e-2 here."""
    torch.manual_seed(0)
    model, x = module_of(lambda self, x: torch.sin(1e5 * nn.functional.gelu(x).softmax(-1))), torch.randn(64, 64)
    capture, program = recorded(model, x)

    report = compare(capture, program)
    assert report.close
    assert report.worst is not None
    assert report.worst.error > 1e-3
    assert "Rounding explains all differences" in str(report.explanation)


def test_an_error_within_the_tolerance_is_found():
    """A LayerNorm with an epsilon of 8e-6 instead of 1e-5 is within the default tolerance."""
    capture, program, x = subject()
    wrong = with_epsilon(program, x, 8e-6)

    assert compare(capture, wrong, tolerance="default").close
    report = compare(capture, wrong)
    assert not report.close
    assert report.first_divergence is not None
    assert report.first_divergence.module == "norm"


def with_epsilon(program, x, epsilon):
    """Return the program with another epsilon of the LayerNorm; its `original` is the right one."""
    other = chain()
    other.load_state_dict(dict(program.exported_program.state_dict))
    other.norm.eps = epsilon
    return replace(export(other.eval(), (x,)), original=program.original)


def test_only_nodes_that_rounding_does_not_explain_run_in_isolation():
    """A clean run isolates none; with a fault, its node is named, and independent nodes are not isolated."""
    capture, program, x = subject()
    clean = compare(capture, program)
    assert clean.close
    assert not [row for row in clean.rows if row.isolated is not None]
    assert all(row.float64 is not None for row in clean.rows if row.judged and row.dtype == "float32")

    report = compare(capture, with_epsilon(program, x, 1e-3))
    assert not report.close
    assert {row.value for row in report.introduced} == {"layer_norm"}
    isolated = {row.value: row for row in report.rows if row.isolated is not None and row.stage == "exported"}
    assert isolated.keys() == {"layer_norm", "mul"}
    assert isolated["mul"].diverged
    assert isolated["mul"].isolated.sound
    every_node = compare(capture, program, every_node=True)
    assert all(row.isolated is not None for row in every_node.rows if row.judged and row.kind != "output")


def test_a_fault_that_is_only_suspicious_in_the_whole_run_is_not_close():
    """The node in isolation decides: it inherits large rounding errors, and has small ones of its own."""
    torch.manual_seed(0)
    model, x = module_of(lambda self, x: torch.sin(1e5 * nn.functional.gelu(x).softmax(-1)) * 2), torch.randn(64, 64)
    capture, program = recorded(model, x)
    name = program.graph.outputs[0]
    verdict = next(row.float64 for row in compare(capture, program).rows if row.value == name)
    assert verdict is not None

    def shift(tensor):
        return torch.where(tensor.abs() >= tensor.abs().max(), tensor + 5 * verdict.rounding, tensor)

    report = compare(capture, program, backend=WrongBackend({name: shift}))

    row = next(row for row in report.rows if row.value == name)
    assert row.float64 is not None
    assert row.float64.verdict == "suspicious"
    assert not row.diverged
    assert [row.value for row in report.introduced] == [name]
    assert not report.close


def decay(offset):
    """Decays as in a state space model: large steps decide how they are rounded, and small ones what the decays are."""

    def forward(self, x):
        rounded = (8 * self.linear(x) + 64) - 64
        return torch.exp(-24 * (nn.functional.softplus(rounded) + self.offset))

    return module_of(forward, linear=nn.Linear(256, 256), offset=nn.Parameter(torch.tensor(offset)))


@pytest.mark.parametrize(("offset", "own"), [(7e-7, "suspicious"), (2e-6, "wrong")])
def test_an_error_that_rounding_hides_until_a_later_node_is_found(offset, own):
    """No unexplained node is wrong by itself, so those before the first value that differs run in isolation, too."""
    torch.manual_seed(0)
    right, wrong, x = decay(0.01).eval(), decay(0.01 + offset).eval(), torch.randn(8, 256)
    wrong.linear.load_state_dict(right.linear.state_dict())
    capture = capture_of(right, x)
    program = replace(export(wrong, (x,)), original=export(right, (x,)).original)

    report = compare(capture, program, stages=["exported"])

    rows = {row.op: row for row in report.rows if row.kind != "output"}
    add, exp = rows["Add"], rows["Exp"]  # the last of each
    assert add.float64 is not None and add.float64.sound
    assert exp.diverged and exp.isolated is not None and exp.isolated.sound
    assert add.isolated is not None and add.isolated.verdict == own
    text = str(report.explanation)
    if own == "wrong":
        assert report.first_divergence is add
        assert text.startswith(f"The exported graph is already wrong. Divergence starts at `{add.node}`")
    else:
        assert report.explanation is not None and report.explanation.largest is add
        assert f"Of the nodes that compute the first difference, `{add.node}` (Add, " in text
    assert not report.close


def test_without_the_exported_program_the_tolerance_decides():
    """`truth` refuses such a program."""
    capture, program, _ = subject()
    bare = replace(program, original=None)

    report = compare(capture, bare)

    assert report.close
    assert not [row for row in report.rows if row.float64 is not None]
    assert report.explanation is None
    with pytest.raises(CompareError, match="float64 needs the exported program"):
        compare(capture, bare, every_node=True)


def test_a_tolerance_replaces_float64():
    """Any number, any `Tolerance` and the default of each dtype; nothing else is a tolerance."""
    capture, program, _ = subject()
    for tolerance in (1e-3, "default"):
        report = compare(capture, program, tolerance=tolerance)
        assert report.close
        assert not [row for row in report.rows if row.float64 is not None or row.isolated is not None]
    with pytest.raises(CompareError, match="tolerance must be a number, a Tolerance or 'default', not 'none'"):
        compare(capture, program, tolerance="none")


def test_coarse_weights_that_are_cast_before_they_are_used_get_no_rounding_of_their_own_dtype():
    """Weights of float16 in a float32 model are exact: other weights within float16's rounding are wrong."""

    class Half(nn.Module):
        def __init__(self, weight):
            super().__init__()
            self.register_buffer("weight", weight)

        def forward(self, x):
            return x @ self.weight.float().T

    torch.manual_seed(0)
    weight, x = torch.randn(16, WIDTH).half(), torch.randn(4, WIDTH)
    with steal_forward(model := Half(weight)) as capture:
        model(x)
    program = export(model, (x,))
    assert compare(capture, program).close

    changed = copy.deepcopy(weight)
    changed[3, 5] = torch.nextafter(changed[3, 5], torch.tensor(torch.inf).half())
    wrong = replace(export(Half(changed), (x,)), original=program.original)
    assert not compare(capture, wrong).close


def test_float32_values_computed_from_float16_have_its_rounding_once():
    """An error of a hundred times float16's rounding is found, and so is a cast that is off by one of them."""
    torch.manual_seed(0)
    model = module_of(lambda self, x: self.narrow(x.half()).float() * 2, narrow=nn.Linear(64, 64).half()).eval()
    x = torch.randn(4, 64)
    capture, program = recorded(model, x)
    assert compare(capture, program).close
    for error, options in ((0.1, {}), (1e-3, {"every_node": True})):
        report = compare(capture, program, backend=WrongBackend({"_to_copy_1": lambda t, e=error: t + e}), **options)
        assert [row.value for row in report.introduced] == ["_to_copy_1"]


def test_an_input_named_like_a_builtin_has_the_rounding_of_its_dtype():
    """FX renames `input` in a copy of a graph."""
    torch.manual_seed(0)
    model, x = nn.Linear(8, 8).double(), torch.randn(2, 8, dtype=torch.float64)
    capture, program = recorded(model, x)
    assert program.graph.inputs == ("input",)

    report = compare(capture, program, backend=WrongBackend({"linear": lambda tensor: tensor + 1e-11}))

    assert [row.value for row in report.introduced] == ["linear"]


def half_block():
    """A block with float16 numbers, of which Inductor's kernel stores the mean in float32."""
    model = module_of(
        lambda self, x: self.outer(self.after(x + self.inner(self.before(x)))),
        inner=nn.Linear(64, 64),
        outer=nn.Linear(64, 64),
        before=nn.LayerNorm(64),
        after=nn.LayerNorm(64),
    )
    return model.half().eval(), 8 * torch.randn(4, 16, 64).half()


def embeddings():
    """Embeddings in bfloat16 that Inductor adds in float32, where eager PyTorch rounds each sum to bfloat16."""
    model = module_of(
        lambda self, ids: self.norm(self.words(ids) + self.places(ids) + self.types(ids)),
        words=nn.Embedding(50, 64),
        places=nn.Embedding(50, 64),
        types=nn.Embedding(50, 64),
        norm=nn.LayerNorm(64),
    )
    return model.bfloat16().eval(), torch.randint(0, 50, (2, 16))


@slow
@pytest.mark.parametrize(("make", "error"), [(half_block, 1e-5), (embeddings, 1e-4)])
def test_values_that_only_a_kernel_has_are_judged_by_the_coarsest_dtype_that_it_reads(make, error):
    """Also if it reads only weights."""
    torch.manual_seed(0)
    model, x = make()

    report = compare(capture_of(model, x), export(model, (x,)), backend="inductor")

    derived = [row for row in report.rows if row.evidence == "derived" and row.dtype == "float32"]
    assert any(row.error > error for row in derived)
    assert report.close


@pytest.mark.parametrize("optimize", [False, True])
def test_isolation_of_some_nodes_gives_the_same_values_as_of_all(optimize):
    """ONNX Runtime then runs no other node; the values that they read are given."""
    _, program, x = subject()
    inputs = dict(zip(program.graph.inputs, argument_tensors(["x"], (x,), {}).values(), strict=True))
    backend = get_backend("onnxruntime-cpu")
    compiled = backend.compile(program, optimize=optimize)
    observed = dict(backend.observe(compiled, inputs, buffer=2**20))
    every = dict(backend.isolate(compiled, inputs, observed.get, buffer=2**20))
    fresh = backend.compile(program, optimize=optimize)  # has not run before
    for node in compiled.graph.nodes:
        if not node.reads or node.op == "Constant":
            continue
        some = dict(backend.isolate(fresh, inputs, observed.get, nodes={node.name}, buffer=2**20))
        assert some.keys() == {*node.outputs} & every.keys()
        assert all(torch.equal(some[name], every[name]) for name in some)


class Tf32Linear(nn.Linear):
    """Rounds its factors to 10 mantissa bits, as a GPU does, unless it is being exported."""

    def forward(self, x):
        if torch.compiler.is_exporting():
            return super().forward(x)
        factors = [(item.view(torch.int32) + 0x1000 & -0x2000).view(torch.float32) for item in (x, self.weight)]
        return nn.functional.linear(*factors, self.bias)


@pytest.mark.parametrize("backend", ["eager", "onnxruntime-cpu"])
def test_a_model_that_ran_in_tf32_is_as_exact_as_that(backend, monkeypatch):
    """A program in float32 is right then, and one with another weight is wrong; without TF32 the model is off."""

    def tf32_capture(model, x, tf32):
        monkeypatch.setattr("filch.steal._records.tf32_products", lambda _: tf32)
        return capture_of(model, x, submodules=True)

    torch.manual_seed(0)
    model = nn.Sequential(Tf32Linear(64, 128), nn.GELU(), Tf32Linear(128, 64), nn.Softmax(-1)).eval()
    wrong, x = copy.deepcopy(model), torch.randn(4, 64)
    with torch.no_grad():
        wrong[2].weight.mul_(1.03)
    captures = {
        is_known: tf32_capture(model, x, frozenset(Product) if is_known else frozenset()) for is_known in (True, False)
    }

    program = export(model, (x,))
    assert compare(captures[True], program, backend=backend).close
    assert not compare(captures[False], program, backend=backend).close
    report = compare(captures[True], export(wrong, (x,)), backend=backend)
    assert report.first_divergence is not None, report
    assert report.first_divergence.module == "2"
