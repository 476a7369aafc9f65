"""Gradients are recorded as they are computed, and are the same as without a capture."""

import copy
import gc
import threading
import weakref

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils.checkpoint import checkpoint

from filch.steal import Key, Origin, Skipped, restore, steal_forward
from support.models.small import module_of


def scale_module():
    """Multiplies by three."""
    return module_of(lambda self, x: x * 3)


def _both(run):
    """Return the results of `run` without a capture and with one that records gradients, and the capture."""
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(inplace=True), nn.Dropout(0.5), nn.Linear(4, 1))
    torch.manual_seed(0)
    without = run(copy.deepcopy(model))
    torch.manual_seed(0)
    with steal_forward(("m", model), submodules=True, gradients=True) as capture:
        return without, run(model), capture


def test_outputs_and_gradients_are_bitwise_equal_to_a_run_without_capture():
    """The graph has the same nodes."""

    def run(model):
        x = torch.randn(3, 4, requires_grad=True)
        output = model(x).sum()
        output.backward()
        names, node = [], output.grad_fn
        while node is not None:
            names.append(node.name())
            node = next((below for below, _ in node.next_functions if below is not None), None)
        return [output, x.grad, *(parameter.grad for parameter in model.parameters())], names

    (without, nodes), (captured, same_nodes), _ = _both(run)

    assert nodes == same_nodes
    assert all(torch.equal(one, other) for one, other in zip(without, captured, strict=True))


def test_gradients_equal_those_of_autograd_and_are_stored_in_a_dump(tmp_path):
    """Each record has the origin of its call."""
    model, seen = nn.Sequential(nn.Linear(4, 3), nn.Tanh()), []
    model[0].register_forward_hook(lambda _, args, output: seen.extend([args[0], output]))
    for_x = torch.randn(2, 4, requires_grad=True)

    with steal_forward(("m", model), submodules=True, gradients=True, dump_file=tmp_path / "x.onnx"):
        output = model(for_x)
        expected = torch.autograd.grad(output.square().sum(), [*seen, output], retain_graph=True)
        output = model(for_x)
        output.square().sum().backward()

    dump = restore(tmp_path / "x.onnx")
    assert torch.equal(dump["m.0", 1, "GI"][0][0], expected[0])
    assert torch.equal(dump["m.0", 1, "GO"], expected[1])
    assert torch.equal(dump["m", 1, "GO"], expected[2])
    assert dump.records[Key("m.0", 1, "GI")].origin == Origin("0", 1, 0)


def test_gradient_records_have_the_nesting_of_the_values(steal):
    """Of arguments, keyword arguments and outputs; with None for tensors without a gradient, and for other values."""
    module = module_of(
        lambda self, pair, *, more: {"sum": pair[0] * more["scale"] + pair[1], "rest": [more["x"] * 2, None, 5]}
    )
    leaf, scale = torch.ones(2, requires_grad=True), torch.full((2,), 5.0, requires_grad=True)

    def run():
        output = module((leaf, torch.ones(2)), more={"x": leaf * 1, "scale": scale, "note": 0.5})
        output["sum"].sum().backward()

    records = steal(("m", module), run, gradients=True)

    (pair,), kwargs = records["m", 0, "GI"]
    assert pair[0].tolist() == [5, 5] and pair[1] is None
    assert kwargs["more"].pop("scale").tolist() == [1, 1]
    assert kwargs == {"more": {"x": None, "note": None}}
    assert records["m", 0, "GO"]["sum"].tolist() == [1, 1]
    assert records["m", 0, "GO"]["rest"] == [None, None, None]
    assert {key.kind for key in records} == {"I", "O", "GO", "GI"}


def test_accumulating_calls_have_separate_gradients():
    """One leaf, one module, three calls and two backward passes: each call has the gradients of the pass through it."""
    module, leaf = scale_module(), torch.ones(1, requires_grad=True)

    with steal_forward(("m", module), gradients=True) as capture:
        first, second, third = module(leaf), module(leaf), module(leaf)
        (first * 2).sum().backward()
        (second * 5 + third * 7).sum().backward()

    gradients = [[capture["m", index, kind] for index in range(3)] for kind in ("GO", "GI")]
    assert [gradient.item() for gradient in gradients[0]] == [2, 5, 7]
    assert [gradient[0][0].item() for gradient in gradients[1]] == [6, 36, 36]  # sums over both calls
    assert leaf._backward_hooks in (None, {})  # noqa: SLF001  there is no public API


@pytest.mark.parametrize("leaf", [True, False])
def test_an_output_that_is_the_input_has_its_gradient(leaf):
    """An identity returns its input tensor."""
    module, x = nn.Identity(), torch.ones(1, requires_grad=True)

    with steal_forward(("m", module), gradients=True) as capture:
        (module(x if leaf else x * 1) * 4).sum().backward()

    assert capture["m", 0, "GO"].item() == capture["m", 0, "GI"][0][0].item() == 4


def test_an_in_place_module_has_separate_gradients_of_input_and_output():
    """Although both are the same tensor."""
    # Multiplies its input by three in place.
    module, x = module_of(lambda self, x: x.mul_(3)), torch.ones(1, requires_grad=True)

    with steal_forward(("m", module), gradients=True) as capture:
        (module(x * 1).mul_(10) * 2).backward()

    assert capture["m", 0, "GO"].item() == 20
    assert capture["m", 0, "GI"][0][0].item() == 60


@pytest.mark.parametrize("outside", [False, True])
def test_gradients_of_a_view_are_recorded_after_an_in_place_change(outside):
    """A linear layer returns a view for a batch of sequences, which a module or its caller changes in place."""
    torch.manual_seed(0)
    linear, x = nn.Linear(3, 3), torch.randn(2, 2, 3, requires_grad=True)
    with torch.no_grad():
        through = torch.ones(2, 2, 3) * (linear(x) > 0)
    model = nn.Sequential(linear, nn.Identity() if outside else nn.ReLU(inplace=True))

    with steal_forward(("m", model), submodules=True, gradients=True, strict=True) as capture:
        output = model(x)
        (output.relu_() if outside else output).sum().backward()

    assert torch.equal(capture["m.0", 0, "GO"], through)
    assert torch.equal(capture["m.1", 0, "GI"][0][0], through)
    assert torch.equal(capture["m.0", 0, "GI"][0][0], x.grad)


def test_an_unused_view_has_no_gradient():
    """Although its base has one."""

    class Pooled(nn.Module):
        def forward(self, x):
            y = x * 3
            return y, y[:, 0]

    module, x = Pooled(), torch.ones(2, 2, requires_grad=True)

    with steal_forward(("m", module), gradients=True, strict=True) as capture:
        module(x)[0].sum().backward()

    assert capture["m", 0, "GO"][0].tolist() == [[1, 1], [1, 1]]
    assert capture["m", 0, "GO"][1] is None


@pytest.mark.parametrize("replaced", [False, True])
def test_gradients_include_changes_by_other_hooks(replaced):
    """Inputs replaced by later pre-hooks, and gradients changed by tensor hooks."""
    module, x = scale_module(), torch.ones(1, requires_grad=True)
    x.register_hook(lambda gradient: gradient * 100)

    with steal_forward(("m", module), gradients=True) as capture:
        if replaced:
            module.register_forward_pre_hook(lambda _, args: (args[0] * 2,))
        module(x).sum().backward()

    assert capture["m", 0, "GI"][0][0].item() == (3 if replaced else 300)


@pytest.mark.parametrize("context", [torch.no_grad, torch.inference_mode])
def test_without_a_graph_there_are_no_gradients(context):
    """Neither under no_grad nor in inference mode."""
    model = nn.Linear(2, 2)

    with steal_forward(("m", model), gradients=True, strict=True) as capture, context():
        model(torch.ones(1, 2))

    assert [key.kind for key in capture] == ["I", "O"]


def test_only_the_first_backward_pass_through_a_call_is_recorded():
    """A second pass over the same graph neither adds nor replaces records."""
    module, x = scale_module(), torch.ones(1, requires_grad=True)

    with steal_forward(("m", module), gradients=True) as capture:
        output = module(x)
        (output * 2).backward(retain_graph=True)
        (output * 5).backward()

    assert capture["m", 0, "GO"].item() == 2
    assert x.grad.item() == 21


def test_double_backward_works():
    """A gradient penalty has the same value as without a capture."""

    def run(model):
        x = torch.randn(3, 4, requires_grad=True)
        (gradient,) = torch.autograd.grad(model(x).square().sum(), x, create_graph=True)
        (gradient.square().sum() + model(x).sum()).backward()
        return [gradient, *(parameter.grad for parameter in model.parameters())]

    without, captured, capture = _both(run)

    assert all(torch.equal(one, other) for one, other in zip(without, captured, strict=True))
    assert {key.iteration for key in capture if key.kind == "GI"} == {0, 1}
    assert torch.equal(capture["m", 0, "GI"][0][0], captured[0].detach())


@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpointing_records_calls_once(reentrant):
    """Calls inside reentrant checkpointing have no gradients: the first build no graph, the others are repetitions."""
    model, x = nn.Sequential(nn.Tanh(), scale_module()), torch.zeros(1, requires_grad=True)

    with steal_forward(("m", model), submodules=True, gradients=True, strict=True) as capture:
        model[1](checkpoint(model[0], x, use_reentrant=reentrant)).sum().backward()

    assert x.grad.item() == 3
    assert capture["m.1", 0, "GO"].item() == 1 and capture["m.1", 0, "GI"][0][0].item() == 3
    assert (("m.0", 0, "GO") in capture) is not reentrant
    assert {key.iteration for key in capture} == {0}
    assert capture.totals.recomputed == 1


def test_after_the_block_no_gradient_is_recorded_and_no_hook_is_left():
    """A later backward pass runs as without a capture."""
    module, x = scale_module(), torch.ones(1, requires_grad=True)

    with steal_forward(("m", module), gradients=True) as capture:
        output = module(x)
    output.backward()

    assert x.grad.item() == 3
    assert {key.kind for key in capture} == {"I", "O"}
    assert not x._backward_hooks and not output._backward_hooks  # noqa: SLF001  there is no public API


@pytest.mark.parametrize("backward", [True, False])
def test_no_graph_is_kept_alive(backward):
    """It is freed without the garbage collector, with or without a backward pass."""
    model, x = nn.Sequential(nn.Linear(4, 4), nn.Identity(), nn.Tanh()), torch.ones(1, 4, requires_grad=True)
    alive = []
    gc.collect()
    gc.disable()

    try:
        with steal_forward(("m", model), submodules=True, gradients=True):
            hidden = model[0](x)
            output = model(x) + hidden.sum()
            alive += [weakref.ref(hidden), weakref.ref(output)]
            if backward:
                output.sum().backward()
            del hidden, output
            assert [ref() for ref in alive] == [None, None]
            assert not x._backward_hooks  # noqa: SLF001  there is no public API
    finally:
        gc.enable()


def test_a_backward_pass_in_another_thread_is_recorded():
    """As on a GPU, where torch has a thread per device."""
    module, x = scale_module(), torch.ones(1, requires_grad=True)

    with steal_forward(("m", module), gradients=True, strict=True) as capture:
        outputs = [module(x) for _ in range(4)]
        threads = [threading.Thread(target=output.backward) for output in outputs]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    assert sum(key.kind == "GO" for key in capture) == 4


def test_gradients_of_a_failed_backward_pass_are_not_mixed_with_the_next():
    """Its gradient of the output stays, without one of the input; each key is recorded once."""
    module, x = scale_module(), torch.ones(1, requires_grad=True)
    inner = x * 1
    failing = inner.register_hook(lambda _: 1 / 0)

    with steal_forward(("m", module), gradients=True, strict=True) as capture:
        output = module(inner)
        with pytest.raises(ZeroDivisionError):
            (output * 5).backward(retain_graph=True)
        failing.remove()
        (output * 2).backward()

    assert capture["m", 0, "GO"].item() == 5
    assert ("m", 0, "GI") not in capture
    assert capture.totals.records == len(capture) == 3


def test_a_backward_pass_that_failed_before_a_call_is_ignored():
    """The next one is recorded."""
    module, x = scale_module(), torch.ones(1, requires_grad=True)

    with steal_forward(("m", module), gradients=True, strict=True) as capture:
        output = module(x)
        after = output * 1
        failing = after.register_hook(lambda _: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            after.backward(retain_graph=True)
        failing.remove()
        (after * 2).backward()

    assert (capture["m", 0, "GO"].item(), capture["m", 0, "GI"][0][0].item()) == (2, 6)


def test_gradients_are_recorded_before_later_changes():
    """Code that gets them afterwards may change them in place."""
    module, x = scale_module(), torch.ones(2, requires_grad=True)

    with steal_forward(("m", module), gradients=True) as capture:
        output = module(x)
        output.register_hook(lambda gradient: gradient.zero_())
        output.backward(torch.ones(2))

    assert capture["m", 0, "GO"].tolist() == [1, 1]


def test_fake_tensors_have_skipped_gradients():
    """They have a graph, but no data."""
    with FakeTensorMode():
        model, x = nn.Sequential(nn.Linear(3, 3), nn.ReLU(inplace=True)), torch.ones(2, 2, 3, requires_grad=True)
        with steal_forward(("m", model), submodules=True, gradients=True, parameters=True, strict=True) as capture:
            model(x).sum().backward()

    assert isinstance(capture["m", 0, "GO"], Skipped)


def test_gradients_of_torch_func_are_not_affected():
    """Its transformations have their own autograd."""
    module = nn.Linear(2, 1)

    with steal_forward(("m", module), gradients=True, strict=True) as capture:
        gradient = torch.func.grad(lambda x: module(x).sum())(torch.ones(2))

    assert torch.equal(gradient, module.weight[0])
    assert not any(key.kind in ("GI", "GO") for key in capture)
