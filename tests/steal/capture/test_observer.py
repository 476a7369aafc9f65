"""A capture changes neither what the model computes, nor what it raises, nor the model itself."""

import contextlib
import copy
import errno
import gc
import os
import pickle
import re
import resource
import shutil
import threading
import time
import warnings

import pytest
import torch
from torch import nn

from filch.steal import DumpError, FilchError, Key, Origin, Skipped, is_stealing, restore, steal_forward
from support.models.small import module_of


class Block(nn.Module):
    """Convolution, norm, dropout and attention: modules that draw random numbers or have fast paths."""

    def __init__(self):
        super().__init__()
        self.conv, self.norm, self.drop = nn.Conv1d(8, 8, 3, padding=1), nn.BatchNorm1d(8), nn.Dropout(0.5)
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)

    def forward(self, x):
        x = self.drop(self.norm(self.conv(x))).transpose(1, 2)
        return self.attention(x, x, x)[0]


def _hooks_on(model):
    """Return everything that a capture could leave on the modules of a model."""
    left = [name for name, module in model.named_modules() if "forward" in vars(module)]
    for module in model.modules():
        tables = (value for name, value in vars(module).items() if "_hooks" in name and isinstance(value, dict))
        left += [table for table in tables if table]
    return left


class Failing(nn.Module):
    """Runs a linear module, then raises the given exception, if any."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(2, 2)

    def forward(self, x, error=None):
        y = self.linear(x)
        if error is not None:
            raise error
        return y


class Catching(nn.Module):
    """Catches the exception of a failing module and continues."""

    def __init__(self):
        super().__init__()
        self.failing = Failing()

    def forward(self, x, error=None):
        try:
            return self.failing(x, error)
        except (ValueError, KeyboardInterrupt):
            return x


@pytest.mark.parametrize("training", [False, True])
def test_outputs_gradients_and_random_numbers_are_bitwise_equal(tmp_path, training):
    """With all modules captured, compared with a run without a capture."""
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
    """Hooks are removed and `forward` is unchanged, also after an exception."""
    model = Failing()

    try:
        with steal_forward(model, submodules=True):
            assert _hooks_on(model)
            model(torch.ones(2), ValueError() if fails else None)
    except ValueError:
        pass

    assert not _hooks_on(model)


def test_no_hook_is_left_when_a_later_module_refuses_hooks(monkeypatch):
    """The block does not begin, and hooks of earlier modules are removed."""
    model = Failing()

    def refuse(*_, **__):
        raise RuntimeError("no hooks here")

    monkeypatch.setattr(model.linear, "register_forward_hook", refuse)

    with pytest.raises(RuntimeError, match="no hooks here"), steal_forward(model, submodules=True):
        pytest.fail("the block was entered")

    monkeypatch.undo()
    assert not _hooks_on(model)


def test_an_exception_is_raised_and_earlier_records_are_kept(tmp_path):
    """The dump contains all earlier records and the exception, and no output of the failed call."""
    model, error = Failing(), ValueError("the model's own")

    stealing = steal_forward(("m", model), submodules=True, dump_file=tmp_path / "dump.onnx")
    with pytest.raises(ValueError, match="the model's own") as caught, stealing as capture:
        model(torch.ones(2), error)

    assert caught.value is error
    dump = restore(tmp_path / "dump.onnx")
    assert list(dump) == [("m", 0, "I"), ("m.linear", 0, "I"), ("m.linear", 0, "O")]
    assert torch.equal(dump["m.linear", 0, "O"], capture["m.linear", 0, "O"])
    assert dict(dump.failed) == {("m", 0, "O"): "ValueError: the model's own"}


def test_the_call_after_a_failed_one_is_the_next_iteration(steal):
    """The failed call keeps its inputs, and `failed` has its exception."""
    model = Failing()

    def run():
        with pytest.raises(ValueError, match="first"):
            model(torch.zeros(2), ValueError("first"))
        model(torch.ones(2))

    records = steal(("m", model), run, submodules=True)

    assert list(records) == [
        ("m", 0, "I"), ("m.linear", 0, "I"), ("m.linear", 0, "O"),
        ("m", 1, "I"), ("m.linear", 1, "I"), ("m.linear", 1, "O"), ("m", 1, "O"),
    ]  # fmt: skip
    assert [records["m", index, "I"][0][0].tolist() for index in range(2)] == [[0, 0], [1, 1]]
    assert [call.index for call in records.calls()] == [0, 1]
    assert records.records[Key("m", 1, "O")].origin == Origin("", 1, 0)
    assert dict(records.failed) == {("m", 0, "O"): "ValueError: first"}


@pytest.mark.parametrize("error", [ValueError(), KeyboardInterrupt()])
def test_an_exception_that_the_model_catches_does_not_confuse_calls(error):
    """The next call has its own iteration and path, also after a KeyboardInterrupt, for which torch calls no hook."""
    model = Catching()

    with steal_forward(("m", model), submodules=True) as capture:
        model(torch.zeros(2), error)
        model(torch.ones(2))

    assert ("m.failing", 0, "O") not in capture
    assert capture.records[Key("m", 0, "O")].origin == Origin("", 0, 0)
    assert capture.records[Key("m.failing", 1, "O")].origin == Origin("failing", 1, 0)
    assert capture.records[Key("m", 1, "O")].origin == Origin("", 1, 0)


def test_records_include_changes_by_earlier_hooks(steal):
    """Inputs are those of the forward, outputs those of the caller."""
    module, outputs = nn.Identity(), []
    module.register_forward_pre_hook(lambda _, args: (args[0] + 1,))
    module.register_forward_hook(lambda _, __, output: output * 10)

    records = steal(("m", module), lambda: outputs.append(module(torch.zeros(1))))

    assert records["m", 0, "I"][0][0].item() == 1
    assert records["m", 0, "O"].item() == outputs[0].item() == 10
    assert len(module._forward_hooks) == len(module._forward_pre_hooks) == 1  # noqa: SLF001


def test_hooks_registered_inside_the_block_work():
    """They run, and stay on the module afterwards."""
    module, seen = nn.Identity(), []

    with steal_forward(("m", module)) as capture:
        module.register_forward_hook(lambda _, args, output: seen.append((args, output)))
        module(torch.zeros(1))
    module(torch.ones(1))

    assert len(seen) == 2
    assert len(capture) == 2


@pytest.mark.parametrize("hook", ["register_forward_pre_hook", "register_forward_hook"])
def test_an_exception_of_another_hook_is_raised_unchanged(hook):
    """Without a warning, and the calls around it are recorded correctly."""
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


def test_captures_can_be_nested():
    """Each block has its own records and iterations, on the same modules and on others."""
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


def test_concurrent_calls_are_recorded_separately(steal):
    """Eight threads give eight calls of the model, each with the record of its own submodule."""
    model, barrier = nn.Sequential(nn.Identity()), threading.Barrier(8)

    class Meeting(nn.Module):
        def forward(self, x):
            barrier.wait(timeout=20)  # all threads are inside at once
            return x

    model.append(Meeting())

    def run():
        threads = [threading.Thread(target=model, args=(torch.full((3,), float(index)),)) for index in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    records = steal(("m", model), run, submodules=True)

    calls = records.calls()
    assert len(records) == 8 * 6
    assert [call.name for call in calls] == ["m"] * 8
    for call in calls:
        values = {records[key][0][0][0].item() if key.kind == "I" else records[key][0].item() for key in call.keys}
        assert len(call.keys) == 6
        assert len(values) == 1
    assert sorted(records["m", index, "O"][0].item() for index in range(8)) == list(range(8))


def test_a_block_may_end_while_another_thread_runs_the_model(tmp_path):
    """The thread continues, and the capture and its dump have the same records."""
    model, done, errors = nn.Sequential(nn.Identity()), threading.Event(), []

    def run_on():
        try:
            while not done.is_set():
                model(torch.ones(4))
        except Exception as error:  # noqa: BLE001  asserted below
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


def test_a_hook_that_another_thread_removes_may_be_called_without_keyword_arguments():
    """Torch lists the hooks of a call first, and looks up later whether each of them takes keyword arguments."""
    model, x = nn.Identity(), torch.ones(1)
    with steal_forward(("m", model)) as capture:
        (pre_hook,), (forward_hook,) = model._forward_pre_hooks.values(), model._forward_hooks.values()  # noqa: SLF001

    assert pre_hook(model, (x,)) is None
    assert forward_hook(model, (x,), x) is None
    assert not capture


@pytest.mark.filterwarnings("ignore:.*torch.jit.*deprecated:DeprecationWarning")
@pytest.mark.filterwarnings("ignore:.*torch.jit.*deprecated:FutureWarning")
def test_a_traced_model_contains_no_operation_of_the_capture(tmp_path):
    """torch.jit.trace records all operations."""
    model, x = nn.Linear(2, 2), torch.ones(1, 2)
    without = torch.jit.trace(model, x, check_trace=False)

    with steal_forward(("m", model), dump_file=tmp_path / "dump.onnx") as capture:
        inside = torch.jit.trace(model, x, check_trace=False)

    assert inside.code == without.code
    assert not capture


@pytest.mark.parametrize("on_disk", [False, True])
@pytest.mark.parametrize("transform", [torch.func.vmap, lambda function: torch.func.grad(lambda x: function(x).sum())])
def test_inside_torch_func_tensors_are_skipped(tmp_path, on_disk, transform):
    """Tensors of vmap and grad have no own storage; the results of the transformation are unchanged."""
    model, x = nn.Linear(2, 2), torch.ones(3, 2)
    expected = transform(model)(x)

    with steal_forward(("m", model), dump_file=tmp_path / "dump.onnx" if on_disk else None) as capture:
        found = transform(model)(x)

    assert torch.equal(found, expected)
    assert isinstance(capture["m", 0, "O"], Skipped)
    assert capture["m", 0, "O"].reason == "it is inside a transformation of torch.func"


@pytest.mark.filterwarnings("ignore:.*torch.jit.*deprecated:DeprecationWarning")
@pytest.mark.filterwarnings("ignore:.*torch.jit.*deprecated:FutureWarning")
def test_scripted_modules_are_skipped_with_one_warning(caplog):
    """Torch supports no hooks on them; a scripted module given explicitly is refused."""
    scripted = torch.jit.script(nn.ReLU())
    model = nn.Sequential(nn.Identity(), scripted)

    with steal_forward(("m", model), submodules=True) as capture:
        model(torch.ones(1))
    message = r"'m' is a scripted module, on which torch supports no hooks"
    with pytest.raises(FilchError, match=message), steal_forward(("m", scripted)):
        pytest.fail("the block was entered")

    assert [key.name for key in capture] == ["m", "m.0", "m.0", "m"]
    assert caplog.messages == ["'m.1' was not captured: torch supports no hooks on scripted modules"]


FULL = r"can't write a dump to '.*dump\.onnx': File too large"


@pytest.fixture
def full_disk():
    """Limit each file that this process writes to 64 KiB."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2**16, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, before)


def named():
    """Takes an argument whose value is stored in the model of a dump, not in its data file."""
    return module_of(lambda self, x, name: x)


@pytest.mark.usefixtures("full_disk")
@pytest.mark.parametrize("size", [2**16, 2**20])
def test_a_full_disk_does_not_stop_the_run(tmp_path, caplog, size):
    """A warning is logged at once and a summary at the end; the records before it make a complete dump."""
    module = nn.Identity()

    with steal_forward(("m", module), dump_file=tmp_path / "dump.onnx") as capture:
        module(torch.ones(4))
        outputs = [module(torch.full((size,), float(index))) for index in range(4)]
        capture.flush()
        assert re.fullmatch(FULL, str(capture.error))
        module(torch.ones(1))

    assert [output[0] for output in outputs] == [0, 1, 2, 3]
    assert [path.name for path in tmp_path.iterdir()] == ["dump.onnx"]
    dump = restore(tmp_path / "dump.onnx")
    assert list(dump) == list(capture) == [("m", 0, "I"), ("m", 0, "O")]
    assert dump["m", 0, "O"].tolist() == [1] * 4
    told, summary = caplog.messages
    assert re.fullmatch(f"{FULL}; the model runs on, and nothing more is recorded", told)
    assert summary == str(capture.error)
    assert re.search(rf"{FULL}.*after 16 bytes; the first 2 records are complete", summary)
    assert not _hooks_on(module)


def _call_for_long(module):
    for _ in range(1000):
        module(torch.ones(2**16))
        time.sleep(0.005)


@pytest.mark.usefixtures("full_disk")
def test_a_full_disk_stops_the_run_with_on_error_raise(tmp_path):
    """In the next forward; the records before it make a dump."""
    module = nn.Identity()

    stealing = steal_forward(module, dump_file=tmp_path / "dump.onnx", on_error="raise")
    with pytest.raises(DumpError, match=FULL), stealing:
        _call_for_long(module)

    assert "dump.onnx" in [path.name for path in tmp_path.iterdir()]
    assert not _hooks_on(module)


@pytest.mark.parametrize("limit", [0, 2**30])
@pytest.mark.usefixtures("full_disk")
def test_records_are_dropped_until_the_model_fits_on_the_disk(tmp_path, monkeypatch, limit):
    """The tensors fit, but not the model, with the data in the model or beside it."""
    monkeypatch.setattr("filch.steal.dump._format.INLINE_LIMIT", limit)
    module = named()

    with steal_forward(("m", module), dump_file=tmp_path / "dump.onnx") as capture:
        for _ in range(20):
            module(torch.ones(2**7), name="x" * 2**12)

    assert re.search(FULL, str(capture.error))
    assert 0 < len(restore(tmp_path / "dump.onnx")) < 40
    assert list(restore(tmp_path / "dump.onnx")) == list(capture)


def _no_links(*_, **__):
    raise PermissionError(errno.EPERM, "Operation not permitted")


@pytest.mark.usefixtures("full_disk")
def test_a_full_disk_without_hard_links_loses_no_more_records(tmp_path, monkeypatch):
    """The data file is renamed, and renamed back if the model doesn't fit."""
    monkeypatch.setattr("filch.steal.dump._format.INLINE_LIMIT", 0)
    monkeypatch.setattr(os, "link", _no_links)
    module = named()

    with steal_forward(("m", module), dump_file=tmp_path / "dump.onnx") as capture:
        for _ in range(20):
            module(torch.ones(2**7), name="x" * 2**12)

    assert 0 < len(restore(tmp_path / "dump.onnx")) == len(capture) < 40
    assert sorted(os.listdir(tmp_path)) == ["dump.onnx", "dump.onnx.data"]


def test_a_removed_folder_does_not_stop_the_run(tmp_path, caplog):
    """The dump can't be written, and the error contains its path."""
    folder = tmp_path / "folder"
    folder.mkdir()
    module = nn.Identity()

    with steal_forward(module, dump_file=folder / "dump.onnx") as capture:
        module(torch.ones(4))
        shutil.rmtree(folder)
        module(torch.ones(4))

    assert re.search(r"can't write a dump to '.*folder/dump.onnx': No such file", str(capture.error))
    assert caplog.messages == [str(capture.error)]


@pytest.mark.parametrize("how", ["wrapped", "in place", "a part"])
def test_uncaptured_modules_inside_a_compiled_one_are_warned_about_once(caplog, how):
    """By the name of the first; a compiled module that is captured as a whole is not mentioned."""
    torch._dynamo.reset()  # noqa: SLF001  remove what earlier tests compiled
    model, x = nn.Sequential(nn.Linear(2, 2), nn.Sequential(nn.ReLU())), torch.ones(1, 2)
    called = model
    if how == "wrapped":
        called = torch.compile(model, backend="eager")
    elif how == "in place":
        model.compile(backend="eager")
    else:
        model[1] = torch.compile(model[1], backend="eager")

    with torch.no_grad(), steal_forward(called, submodules=True):
        called(x)
        called(x)

    first = {
        "wrapped": "'_orig_mod' and 3 more",
        "in place": "the model and 3 more",
        "a part": "'1._orig_mod' and 1 more",
    }
    assert [message.partition(" were not captured: torch.compile")[0] for message in caplog.messages] == [first[how]]


@pytest.mark.parametrize("call", [lambda _: None, lambda module: module.forward(torch.ones(1))])
def test_a_block_without_any_call_logs_a_warning(caplog, call):
    """Otherwise the capture would be empty without a reason."""
    module = nn.Identity()

    with steal_forward(("m", module)) as capture:
        call(module)

    assert not capture
    assert caplog.messages == ["'m' was never called; neither `.forward()` nor torch.compile calls hooks"]


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda model: pickle.loads(pickle.dumps(model))])  # noqa: S301  trusted
def test_a_copy_made_in_the_block_is_not_captured(copied):
    """Copying works, and the copy has no active hooks and no reference to the capture."""
    model = nn.Sequential(nn.Linear(2, 2), nn.ReLU())

    with steal_forward(model, submodules=True) as capture:
        other = copied(model)
        expected = model(torch.ones(1, 2))
        assert torch.equal(other(torch.ones(1, 2)), expected)

    assert [key.iteration for key in capture] == [0] * 6
    assert b"filch" not in pickle.dumps(copied(model))


def test_a_call_ended_by_an_interrupt_is_not_running(recwarn):
    """Torch calls no hook for a KeyboardInterrupt; the next call is an outermost one."""

    class Stops(nn.Module):
        def forward(self, x):
            if x.sum() < 0:
                raise KeyboardInterrupt
            return x

    model = nn.Sequential(nn.Identity(), Stops())
    with steal_forward(model, submodules=True) as capture:
        for number in (1.0, -1.0, 2.0):
            with contextlib.suppress(KeyboardInterrupt):
                model(torch.full((1,), number))

    assert [record.origin.call for key, record in capture.records.items() if key.name == ""] == [0, 0, 1, 2, 2]
    assert capture["1", 2, "O"].tolist() == [2]
    assert not recwarn.list


def test_a_block_may_end_in_another_thread_than_it_began_in(tmp_path):
    """As fixtures and servers do; blocks may also end in another order than they began in."""
    module, other = nn.Identity(), nn.Identity()
    stealing, second = steal_forward(("m", module), dump_file=tmp_path / "dump.onnx"), steal_forward(other)
    stealing.__enter__()
    second.__enter__()
    module(torch.ones(2))

    ends = threading.Thread(target=stealing.__exit__, args=(None, None, None))
    ends.start()
    ends.join()
    assert restore(tmp_path / "dump.onnx")["m", 0, "O"].tolist() == [1, 1]
    assert is_stealing()
    second.__exit__(None, None, None)
    assert not is_stealing()


def test_the_data_file_is_closed_with_the_capture(tmp_path):
    """Nothing else refers to the file, so no garbage collection is needed."""
    module = nn.Identity()
    gc.collect()
    gc.disable()
    try:
        before = len(os.listdir("/proc/self/fd"))
        for _ in range(5):
            with steal_forward(module, dump_file=tmp_path / "dump.onnx") as capture:
                module(torch.ones(2))
            del capture
        assert len(os.listdir("/proc/self/fd")) <= before
    finally:
        gc.enable()
