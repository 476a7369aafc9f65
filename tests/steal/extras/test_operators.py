"""ATen calls of the model are recorded, and none of the capture itself."""

import threading
from collections import Counter

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint
from torch.utils.flop_counter import FlopCounterMode

from filch.steal import FilchError, Key, Origin, Skipped, restore, steal_forward
from support.models.small import module_of


class Mixed(nn.Module):
    """Computes before, between and after its submodules."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x):
        x = x * 2
        x = self.linear(x)
        return x.relu_().t()


class Listing(TorchDispatchMode):
    """A dispatch mode that lists all calls."""

    def __init__(self):
        super().__init__()
        self.calls = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.calls.append(str(func))
        return func(*args, **(kwargs or {}))


class Logits(nn.Module):
    """Makes one call of each kind that a capture makes itself."""

    def forward(self, x):
        view = x.t()[1:]
        view.add_(1)
        return torch.cat([view.softmax(-1), torch.zeros(1, x.shape[0])]).to(torch.float64)


def _calls(capture, kind="O"):
    return [(key.name, key.iteration) for key in capture if "/" in key.name and key.kind == kind]


@torch.no_grad()
def test_calls_are_named_by_module_position_and_operator(tmp_path):
    """Numbered per module call in order of the run, with their source line, also in a dump."""
    model = Mixed()
    line = Mixed.forward.__code__.co_firstlineno

    with steal_forward(("m", model), submodules=True, operators=True, dump_file=tmp_path / "x.onnx", strict=True):
        model(torch.ones(1, 4))
        model(torch.ones(1, 4))

    dump = restore(tmp_path / "x.onnx")
    once = ["m/0.aten.mul.Tensor", "m.linear/0.aten.t.default", "m.linear/1.aten.addmm.default",
            "m/1.aten.relu_.default", "m/2.aten.t.default"]  # fmt: skip
    assert _calls(dump) == [(name, index) for index in range(2) for name in once]
    origin = dump.records[Key("m.linear/1.aten.addmm.default", 1, "I")].origin
    assert origin == Origin("linear", 1, 0, f"test_operators.py:{line + 2}")
    assert dump["m/0.aten.mul.Tensor", 0, "I"][0][1] == 2
    assert [call.name for call in dump.calls()] == ["m", "m"]


@torch.no_grad()
def test_values_of_aten_calls_are_recorded_before_later_changes():
    """Before and after an in-place operation."""
    model = nn.ReLU(inplace=True)

    with steal_forward(("m", model), operators=True) as capture:
        model(torch.tensor([-1.0, 1.0]))

    name = "m/0.aten.relu_.default"
    assert capture[name, 0, "I"][0][0].tolist() == [-1, 1]
    assert capture[name, 0, "O"].tolist() == [0, 1]


@pytest.mark.parametrize("context", [torch.no_grad, torch.inference_mode])
def test_uninitialized_memory_is_skipped(context):
    """Until something is written to it."""
    module = module_of(lambda self, x: torch.empty_like(x).t().copy_(x))
    with context(), steal_forward(("m", module), operators="**copy_**", strict=True) as capture:
        module(torch.ones(2, 2))
    with context(), steal_forward(("all", module), operators=True, strict=True) as everything:
        module(torch.ones(2, 2))

    unwritten = Skipped("f32[2, 2]", "it is uninitialized")
    assert everything["all/0.aten.empty_like.default", 0, "O"] == unwritten
    (destination, source), _ = capture["m/2.aten.copy_.default", 0, "I"]
    assert destination == unwritten and source.tolist() == [[1, 1], [1, 1]]
    assert capture["m/2.aten.copy_.default", 0, "O"].tolist() == [[1, 1], [1, 1]]


@pytest.mark.parametrize(
    ("wanted", "found"),
    [
        ("aten.addmm.default", ["m.linear/1.aten.addmm.default"]),
        (["aten.relu*.*", "**mul**"], ["m/0.aten.mul.Tensor", "m/1.aten.relu_.default"]),
    ],
)
@torch.no_grad()
def test_patterns_do_not_change_the_numbering(wanted, found):
    """Unselected calls count as well."""
    model = Mixed()

    with steal_forward(("m", model), submodules=True, operators=wanted) as capture:
        model(torch.ones(1, 4))

    assert [name for name, _ in _calls(capture)] == found


def test_a_pattern_that_matches_no_call_logs_a_warning(caplog):
    """With the names of some calls."""
    model = Mixed()

    with steal_forward(("m", model), operators="aten.mm"):
        model(torch.ones(1, 4))

    assert "no ATen call matches 'aten.mm'; some calls are aten.addmm.default" in caplog.text


@pytest.mark.parametrize(
    "options", [{}, {"statistics_only": True}, {"verbose": 1}, {"gradients": True, "watch": "nan"}]
)
def test_only_calls_of_the_model_are_recorded(options):
    """The same calls as without a capture; an outer dispatch mode sees no others."""
    model, x = nn.Sequential(Logits(), Logits()), torch.randn(2, 3, requires_grad=True)

    def run():
        x.grad = None
        output = model(x * 1)
        output.sum().backward()
        return output

    with Listing() as without:
        expected = run()
    stealing = steal_forward(("m", model), submodules=True, operators=True, parameters=True, strict=True, **options)
    with Listing() as outside, stealing as capture, Listing() as inside:
        output = run()

    assert torch.equal(expected, output)
    assert outside.calls == inside.calls == without.calls
    names = [name.partition("/")[2].partition(".")[2] for name, _ in _calls(capture)]
    assert names == without.calls[1 : len(names) + 1]  # after `x * 1`
    assert without.calls[len(names) + 1] == "aten.sum.default"


@pytest.mark.parametrize("inside", [True, False])
def test_flops_are_counted_as_without_a_capture(inside):
    """Whichever of the two modes is the outer one."""
    model = Mixed()
    with FlopCounterMode(display=False) as alone:
        model(torch.ones(1, 4))

    stealing = steal_forward(("m", model), submodules=True, operators=True, strict=True)
    counting = FlopCounterMode(display=False)
    first, second = (stealing, counting) if inside else (counting, stealing)
    with first, second:
        model(torch.ones(1, 4))

    assert counting.get_total_flops() == alone.get_total_flops() > 0


@pytest.mark.parametrize("inside", [True, False])
def test_fake_tensors_are_recorded_as_skipped(inside):
    """They have no data."""
    fake = FakeTensorMode(allow_non_fake_inputs=True)
    model = Mixed()

    stealing = steal_forward(("m", model), operators=True, strict=True)
    with stealing as capture, fake:
        model(torch.ones(1, 4))
    if not inside:
        with fake, steal_forward(("m", model), operators=True, strict=True) as capture:
            model(torch.ones(1, 4))

    assert isinstance(capture["m", 0, "O"], Skipped)
    assert _calls(capture)
    assert isinstance(capture[(*_calls(capture)[0], "O")], Skipped)


@pytest.mark.parametrize("context", [
    torch.no_grad, torch.inference_mode, lambda: torch.autocast("cpu"), lambda: torch.device("cpu"),
], ids=["no_grad", "inference", "autocast", "device"])  # fmt: skip
def test_results_inside_other_contexts_are_bitwise_equal(context):
    """Such as autocast or inference mode."""
    model, x = Mixed(), torch.randn(3, 4)

    with context():
        expected = model(x)
        with steal_forward(("m", model), submodules=True, operators=True, strict=True) as capture:
            output = model(x)

    assert output.dtype == expected.dtype and torch.equal(output, expected)
    assert any(name.startswith("m.linear/") for name, _ in _calls(capture))


def test_a_module_that_uses_torch_func_has_the_same_results():
    """Forward calls of torch.func are recorded; those of the gradient belong to a backward pass."""
    module = module_of(lambda self, x: torch.func.vmap(torch.func.grad(lambda row: row.sin().sum()))(x))
    x = torch.randn(3, 2)

    with steal_forward(("m", module), operators=True, strict=True) as capture:
        output = module(x)

    assert torch.equal(output, module(x))
    assert any("aten.sin" in name for name, _ in _calls(capture))


@pytest.mark.parametrize("reentrant", [True, False])
def test_backward_passes_are_not_recorded(reentrant):
    """Neither is the recomputation of activation checkpointing."""
    model, x = nn.Sequential(nn.Tanh(), nn.Tanh()), torch.randn(3, requires_grad=True)

    with steal_forward(("m", model), submodules=True, operators="aten.tanh**", strict=True) as capture:
        checkpoint(model, x, use_reentrant=reentrant).sum().backward()

    assert _calls(capture) == [("m.0/0.aten.tanh.default", 0), ("m.1/0.aten.tanh.default", 0)]


def test_iterations_and_kinds_apply_to_aten_calls():
    """ATen calls of other iterations are not recorded."""
    module = nn.Tanh()

    with steal_forward(("m", module), operators=True, iterations=[1], kinds="I") as capture:
        for _ in range(3):
            module(torch.ones(1))

    assert {(key.iteration, key.kind) for key in capture} == {(1, "I")}
    assert len(capture) == 2 + ("m/1.aten.detach.default" in {key.name for key in capture})


@pytest.mark.parametrize("whole", [True, False])
def test_aten_calls_inside_compiled_code_are_not_recorded(whole):
    """The code is compiled once, as without a capture; calls outside of it are recorded."""
    model, x, graphs = Mixed(), torch.ones(1, 4), []

    def backend(graph, _):
        graphs.append(graph)
        return graph

    expected = model(x)
    compiled = torch.compile(model if whole else model.linear, backend=backend)
    if not whole:
        model.linear = compiled
    with torch.no_grad(), steal_forward(("m", model), operators=True, strict=True) as capture:
        output = (compiled if whole else model)(x)

    assert len(graphs) == 1
    assert torch.equal(output, expected)
    around = ["m/0.aten.mul.Tensor", "m/1.aten.relu_.default", "m/2.aten.t.default"]
    assert [name for name, _ in _calls(capture)] == ([] if whole else around)


def test_higher_order_operators_run():
    """`torch.cond` refuses modes that don't declare support for it."""
    module = module_of(lambda self, x: torch.cond(x.sum() > 0, torch.sin, torch.cos, (x,)))
    with torch.no_grad(), steal_forward(("m", module), operators=True, strict=True):
        output = module(torch.ones(2))

    assert torch.equal(output, torch.ones(2).sin())


def test_an_exception_leaves_no_mode_behind():
    """The failed call has inputs but no output, and the exception is that of the model."""
    module = module_of(lambda self, x: x @ x)
    stealing = steal_forward(("m", module), operators=True)
    with pytest.raises(RuntimeError, match="cannot be multiplied"), stealing as capture:
        module(torch.ones(2, 3))

    assert not torch._C._len_torch_dispatch_stack()  # noqa: SLF001  there is no public API
    assert _calls(capture) == []
    assert [name for name, _ in _calls(capture, "I")] == ["m/0.aten.mm.default"]


def test_aten_calls_after_an_interrupt_belong_to_no_module():
    """Torch calls no hook for a KeyboardInterrupt."""

    class Interrupted(nn.Module):
        def forward(self, x):
            raise KeyboardInterrupt

    module = Interrupted()
    with steal_forward(("m", module), operators=True, strict=True) as capture:
        with pytest.raises(KeyboardInterrupt):
            module(torch.ones(1))
        torch.ones(1).add(1)

    assert _calls(capture) == []


def test_aten_calls_of_other_threads_are_not_recorded():
    """A mode belongs to its thread; module calls of other threads are recorded."""
    module = nn.Tanh()

    with steal_forward(("m", module), operators=True, strict=True) as capture:
        thread = threading.Thread(target=module, args=(torch.ones(1),))
        thread.start()
        thread.join()

    assert Counter(key.kind for key in capture) == {"I": 1, "O": 1}


def test_an_invalid_operators_option_leaves_no_state():
    """It is refused before anything runs."""
    with pytest.raises(FilchError, match="operators must be True"), steal_forward(nn.Identity(), operators=[5]):
        pytest.fail("the block was entered")

    assert not torch._C._len_torch_dispatch_stack()  # noqa: SLF001  there is no public API
