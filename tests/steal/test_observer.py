"""A capture changes nothing: not what the model computes, not what it raises, not what it is afterwards."""

import resource
import threading
import warnings

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from filch.steal import DumpError, FilchError, Key, Origin, Skipped, restore, steal_forward


class Block(nn.Module):
    """A convolution, a norm, dropout and an attention: what draws random numbers and what takes fast paths."""

    def __init__(self):
        super().__init__()
        self.conv, self.norm, self.drop = nn.Conv1d(8, 8, 3, padding=1), nn.BatchNorm1d(8), nn.Dropout(0.5)
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)

    def forward(self, x):
        x = self.drop(self.norm(self.conv(x))).transpose(1, 2)
        return self.attention(x, x, x)[0]


def _hooks_on(model):
    """All that a capture could leave on the modules of a model."""
    left = [name for name, module in model.named_modules() if "forward" in vars(module)]
    for module in model.modules():
        tables = (value for name, value in vars(module).items() if "_hooks" in name and isinstance(value, dict))
        left += [table for table in tables if table]
    return left


class Failing(nn.Module):
    """Runs a linear module, then raises what it is told to, if anything."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(2, 2)

    def forward(self, x, error=None):
        y = self.linear(x)
        if error is not None:
            raise error
        return y


class Catching(nn.Module):
    """Runs a failing module and goes on without it."""

    def __init__(self):
        super().__init__()
        self.failing = Failing()

    def forward(self, x, error=None):
        try:
            return self.failing(x, error)
        except (ValueError, KeyboardInterrupt):
            return x


@pytest.mark.parametrize("training", [False, True])
def test_outputs_gradients_and_random_numbers_are_the_same_to_the_bit(tmp_path, training):
    """With every module stolen, a model gives what it gives without, drawing the same random numbers."""
    torch.manual_seed(0)
    model, x = Block().train(training), torch.randn(4, 8, 16)
    state = {name: value.clone() for name, value in model.state_dict().items()}

    def run():
        model.load_state_dict(state)
        model.zero_grad()
        torch.manual_seed(1)
        output = model(x)
        output.sum().backward()
        return [output, torch.rand(1), *(parameter.grad for parameter in model.parameters())]

    without = run()
    with steal_forward(model, submodules=True, dump_file=tmp_path / "dump.onnx") as capture:
        captured = run()

    assert len(capture) == 10
    assert all(torch.equal(one, other) for one, other in zip(captured, without, strict=True))


@pytest.mark.parametrize("fails", [False, True])
def test_nothing_is_left_on_the_model(fails):
    """Hooks are gone and `forward` is where it was, after an exception too."""
    model = Failing()

    try:
        with steal_forward(model, submodules=True):
            assert _hooks_on(model)
            model(torch.ones(2), ValueError() if fails else None)
    except ValueError:
        pass

    assert not _hooks_on(model)


def test_nothing_is_left_on_the_model_when_a_later_module_takes_no_hooks(monkeypatch):
    """A module that refuses hooks ends the block before it begins, and those before it are as they were."""
    model = Failing()

    def refuse(*_, **__):
        raise RuntimeError("no hooks here")

    monkeypatch.setattr(model.linear, "register_forward_hook", refuse)

    with pytest.raises(RuntimeError, match="no hooks here"), steal_forward(model, submodules=True):
        pytest.fail("the block was entered")

    monkeypatch.undo()
    assert not _hooks_on(model)


def test_an_exception_travels_on_and_what_came_before_it_is_kept(tmp_path):
    """The dump holds all records until then, and no output of the call that failed."""
    model, error = Failing(), ValueError("the model's own")

    stealing = steal_forward(("m", model), submodules=True, dump_file=tmp_path / "dump.onnx")
    with pytest.raises(ValueError, match="the model's own") as caught, stealing as capture:
        model(torch.ones(2), error)

    assert caught.value is error
    dump = restore(tmp_path / "dump.onnx")
    assert list(dump) == [("m", 0, "I"), ("m.linear", 0, "I"), ("m.linear", 0, "O")]
    assert torch.equal(dump["m.linear", 0, "O"], capture["m.linear", 0, "O"])


def test_the_call_after_a_failed_one_is_the_next_iteration():
    """A failed call keeps its inputs; the next one does not write over them, and is a call of its own."""
    model = Failing()

    with steal_forward(("m", model), submodules=True) as capture:
        with pytest.raises(ValueError, match="first"):
            model(torch.zeros(2), ValueError("first"))
        model(torch.ones(2))

    assert list(capture) == [
        ("m", 0, "I"), ("m.linear", 0, "I"), ("m.linear", 0, "O"),
        ("m", 1, "I"), ("m.linear", 1, "I"), ("m.linear", 1, "O"), ("m", 1, "O"),
    ]  # fmt: skip
    assert capture["m", 0, "I"][0][0].tolist() == [0, 0]
    assert [call.index for call in capture.calls()] == [0, 1]
    assert capture.records[Key("m", 1, "O")].origin == Origin("", 1, 0)


@pytest.mark.parametrize("error", [ValueError(), KeyboardInterrupt()])
def test_a_failure_that_the_model_catches_does_not_mix_up_the_calls(error):
    """Even one of which torch tells no hook (a KeyboardInterrupt) leaves the next call its own number and paths."""
    model = Catching()

    with steal_forward(("m", model), submodules=True) as capture:
        model(torch.zeros(2), error)
        model(torch.ones(2))

    assert ("m.failing", 0, "O") not in capture
    assert capture.records[Key("m", 0, "O")].origin == Origin("", 0, 0)
    assert capture.records[Key("m.failing", 1, "O")].origin == Origin("failing", 1, 0)
    assert capture.records[Key("m", 1, "O")].origin == Origin("", 1, 0)


def test_hooks_that_were_there_before_are_seen_through():
    """Inputs are what the module really got, outputs what its caller really got."""
    module = nn.Identity()
    module.register_forward_pre_hook(lambda _, args: (args[0] + 1,))
    module.register_forward_hook(lambda _, __, output: output * 10)

    with steal_forward(("m", module)) as capture:
        output = module(torch.zeros(1))

    assert capture["m", 0, "I"][0][0].item() == 1
    assert capture["m", 0, "O"].item() == output.item() == 10
    assert len(module._forward_hooks) == len(module._forward_pre_hooks) == 1  # noqa: SLF001


def test_hooks_that_come_during_the_block_keep_working():
    """They run, and stay on the module afterwards."""
    module, seen = nn.Identity(), []

    with steal_forward(("m", module)) as capture:
        module.register_forward_hook(lambda _, args, output: seen.append((args, output)))
        module(torch.zeros(1))
    module(torch.ones(1))

    assert len(seen) == 2
    assert len(capture) == 2


@pytest.mark.parametrize("hook", ["register_forward_pre_hook", "register_forward_hook"])
def test_a_failing_hook_of_others_fails_as_it_would_without_us(hook):
    """Its exception arrives alone, without a warning, and the calls around it are told apart."""
    model = nn.Sequential(nn.Identity())
    handle = getattr(model[0], hook)(lambda *_: 1 / 0)

    with warnings.catch_warnings(), steal_forward(("m", model), submodules=True) as capture:
        warnings.simplefilter("error")
        with pytest.raises(ZeroDivisionError):
            model(torch.zeros(1))
        handle.remove()
        model(torch.ones(1))

    assert ("m", 0, "O") not in capture
    assert capture.records[Key("m", 1, "O")].origin == Origin("", 1, 0)


def test_captures_nest_on_the_same_modules_and_on_others():
    """Each block has its own records and its own counts."""
    model = nn.Sequential(nn.Identity(), nn.ReLU())

    with steal_forward(("outer", model), submodules=True) as outer:
        model(torch.ones(1))
        with steal_forward(("inner", model)) as inner, steal_forward(("relu", model[1])) as relu:
            model(torch.ones(1))
        model(torch.ones(1))

    assert [key.iteration for key in outer if key.name == "outer" and key.kind == "O"] == [0, 1, 2]
    assert list(inner) == [("inner", 0, "I"), ("inner", 0, "O")]
    assert list(relu) == [("relu", 0, "I"), ("relu", 0, "O")]
    assert relu.records[Key("relu", 0, "O")].origin == Origin("", 0, 0)
    assert not _hooks_on(model)


def test_concurrent_calls_are_all_recorded_and_kept_apart(tmp_path):
    """Eight threads at once: eight calls of the model, each with its own submodule's record."""
    model, barrier = nn.Sequential(nn.Identity()), threading.Barrier(8)

    class Meeting(nn.Module):
        def forward(self, x):
            barrier.wait(timeout=20)  # all are inside at once
            return x

    model.append(Meeting())

    with steal_forward(("m", model), submodules=True, dump_file=tmp_path / "dump.onnx"):
        threads = [threading.Thread(target=model, args=(torch.full((3,), float(index)),)) for index in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    dump = restore(tmp_path / "dump.onnx")
    calls = dump.calls()
    assert len(dump) == 8 * 6
    assert [call.name for call in calls] == ["m"] * 8
    for call in calls:
        values = {dump[key][0][0][0].item() if key.kind == "I" else dump[key][0].item() for key in call.keys}
        assert len(call.keys) == 6
        assert len(values) == 1
    assert sorted(dump["m", index, "O"][0].item() for index in range(8)) == list(range(8))


def test_a_block_may_end_while_another_thread_runs_the_model(tmp_path):
    """The thread goes on undisturbed, and the capture and its dump hold the same records."""
    model, done, errors = nn.Sequential(nn.Identity()), threading.Event(), []

    def run_on():
        try:
            while not done.is_set():
                model(torch.ones(4))
        except Exception as error:  # noqa: BLE001  looked at below
            errors.append(error)

    thread = threading.Thread(target=run_on)
    thread.start()
    try:
        for _ in range(20):
            with steal_forward(("m", model), submodules=True, dump_file=tmp_path / "dump.onnx") as capture:
                done.wait(0.002)
            dump = restore(tmp_path / "dump.onnx")
            assert list(dump) == list(capture)
            assert all(value is not None for value in capture.values())
    finally:
        done.set()
        thread.join()

    assert not errors


def test_a_recomputed_forward_is_another_iteration():
    """Checkpointing runs a module again in the backward pass, and stops it early by an exception of its own."""
    model, x = nn.Sequential(nn.Linear(2, 2), nn.ReLU(), nn.Linear(2, 2)), torch.ones(1, 2, requires_grad=True)

    with steal_forward(("m", model), submodules=True) as capture:
        checkpoint(model, x, use_reentrant=False).sum().backward()

    assert [key for key in capture if key.name == "m.0"] == [
        (("m.0", index, kind)) for index in range(2) for kind in "IO"
    ]
    assert torch.equal(capture["m.0", 0, "O"], capture["m.0", 1, "O"])
    assert {record.origin.call for record in capture.records.values()} == {0, 1}


def test_a_compiled_model_runs_undisturbed():
    """What torch compiles is not listened to: our copies would be in the compiled graph."""
    model = nn.Sequential(nn.Linear(2, 2), nn.ReLU())
    graphs = []

    def backend(graph, _):
        graphs.append([node.name for node in graph.graph.nodes if node.op != "placeholder"])
        return graph.forward

    with torch.no_grad():
        torch.compile(model, backend=backend)(torch.ones(1, 2))
        torch.compiler.reset()
        with steal_forward(("m", model), submodules=True) as capture:
            torch.compile(model, backend=backend)(torch.ones(1, 2))

    assert graphs[0] == graphs[1]
    assert len(graphs) == 2
    assert not capture


def test_exporting_inside_a_block_writes_down_the_model_alone():
    """torch.export runs the model on tensors without numbers, and sees none of our copies."""
    model, x = nn.Sequential(nn.Linear(2, 2)), torch.ones(1, 2)
    without = torch.export.export(model, (x,))

    with steal_forward(("m", model), submodules=True) as capture:
        inside = torch.export.export(model, (x,))

    assert inside.graph_module.code == without.graph_module.code
    assert not capture


@pytest.mark.filterwarnings("ignore:.*torch.jit.*deprecated:DeprecationWarning")
@pytest.mark.filterwarnings("ignore:.*torch.jit.*deprecated:FutureWarning")
def test_tracing_inside_a_block_writes_down_the_model_alone(tmp_path):
    """torch.jit.trace sees none of our copies either."""
    model, x = nn.Linear(2, 2), torch.ones(1, 2)
    without = torch.jit.trace(model, x, check_trace=False)

    with steal_forward(("m", model), dump_file=tmp_path / "dump.onnx") as capture:
        inside = torch.jit.trace(model, x, check_trace=False)

    assert inside.code == without.code
    assert not capture


@pytest.mark.parametrize("on_disk", [False, True])
@pytest.mark.parametrize("transform", [torch.func.vmap, lambda function: torch.func.grad(lambda x: function(x).sum())])
def test_inside_torch_func_tensors_are_skipped(tmp_path, on_disk, transform):
    """What vmap and grad hand to a module has no storage of its own; the transformation gives what it gives without."""
    model, x = nn.Linear(2, 2), torch.ones(3, 2)
    expected = transform(model)(x)

    with steal_forward(("m", model), dump_file=tmp_path / "dump.onnx" if on_disk else None) as capture:
        found = transform(model)(x)

    assert torch.equal(found, expected)
    assert isinstance(capture["m", 0, "O"], Skipped)
    assert capture["m", 0, "O"].reason == "it is inside a transformation of torch.func"


@pytest.mark.filterwarnings("ignore:.*torch.jit.*deprecated:DeprecationWarning")
@pytest.mark.filterwarnings("ignore:.*torch.jit.*deprecated:FutureWarning")
def test_a_scripted_module_is_refused_by_name():
    """PyTorch gives it no hooks, so nothing could be stolen; excluded, the others are."""
    model = nn.Sequential(nn.Identity(), torch.jit.script(nn.ReLU()))

    message = r"'m\.1' is a scripted module, and torch gives these no hooks; exclude it by its name"
    with pytest.raises(FilchError, match=message), steal_forward(("m", model), submodules=True):
        pytest.fail("the block was entered")
    with steal_forward(("m", model), submodules=True, exclude="m.1") as capture:
        model(torch.ones(1))

    assert [key.name for key in capture] == ["m", "m.0", "m.0", "m"]
    assert not _hooks_on(model[0])


FULL = r"can't write a dump to '.*dump\.onnx': File too large"


@pytest.fixture
def full_disk():
    """A limit of 64 KiB on every file that this process writes."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2**16, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.usefixtures("full_disk")
def test_a_disk_that_fills_during_the_run_is_one_error_and_leaves_what_was_stored_before(tmp_path):
    """The records until then make a whole dump."""
    module = nn.Identity()

    with steal_forward(("m", module), dump_file=tmp_path / "dump.onnx"):
        module(torch.ones(4))
        with pytest.raises(DumpError, match=FULL):
            module(torch.ones(2**16))

    assert [path.name for path in tmp_path.iterdir()] == ["dump.onnx"]
    assert restore(tmp_path / "dump.onnx")["m", 0, "O"].tolist() == [1] * 4
    assert not _hooks_on(module)


@pytest.mark.parametrize("limit", [0, 2**30])
@pytest.mark.usefixtures("full_disk")
def test_a_disk_that_fills_at_the_end_is_one_error_and_leaves_no_file(tmp_path, monkeypatch, limit):
    """The tensors fit, the model around them does not: with the bytes in the model, and with the bytes beside it."""
    monkeypatch.setattr("filch.steal._format.INLINE_LIMIT", limit)
    module = nn.Identity()

    with pytest.raises(DumpError, match=FULL), steal_forward(("m", module), dump_file=tmp_path / "dump.onnx"):
        module(torch.ones(2**13), name="x" * 2**17)

    assert list(tmp_path.iterdir()) == []
    assert not _hooks_on(module)
