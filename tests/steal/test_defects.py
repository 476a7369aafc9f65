"""Nothing is lost and nothing is wrong in a capture: D1 to D12 of the defects that a peer was found to have.

The list goes on in `test_defects_model.py` (D13 to D17), `test_defects_block.py` (D18 to D22), `test_defects_dump.py`
(D23 to D31) and `test_defects_helpers.py` (D32 to D34). Each test states the wanted behaviour, and fails on the defect.
"""

import collections
import functools
import random
import threading
from typing import NamedTuple

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint
from transformers import DynamicCache, MistralConfig
from transformers.modeling_outputs import BaseModelOutput

from filch.steal import FilchError, Skipped, restore, steal_append, steal_forward


class Passing(nn.Module):
    """Gives what it takes: its one argument, or all of them."""

    def forward(self, *args, **kwargs):
        return args[0] if len(args) == 1 and not kwargs else (args, kwargs)


def test_d01_modules_without_names_have_records_of_their_own(steal):
    """Two modules in a list give four records, with the numbers of each."""
    first, second, x = nn.Linear(2, 3), nn.Linear(3, 4), torch.ones(1, 2)

    records = steal([first, second], lambda: second(first(x)))

    assert list(records) == [("0", 0, "I"), ("0", 0, "O"), ("1", 0, "I"), ("1", 0, "O")]
    assert torch.equal(records["0", 0, "O"], first(x))
    assert torch.equal(records["1", 0, "O"], second(first(x)))


def test_d01_two_modules_of_one_name_are_refused():
    """Before anything runs, as the second one's records would take the place of the first one's."""
    with pytest.raises(FilchError, match="two modules are named 'x'"), steal_forward([
        ("x", nn.Identity()), ("x", nn.Identity()),
    ]):  # fmt: skip
        pytest.fail("the block was entered")


class Countdown(nn.Module):
    """Calls itself `left` times, doubling on the way down, adding one on the way up."""

    def forward(self, x, left):
        return self(x * 2, left - 1) + 1 if left else x


def test_d02_a_module_that_calls_itself_has_each_call_recorded(steal):
    """Four calls are four iterations, and each one's output belongs to its input."""
    module = Countdown()

    records = steal(("r", module), lambda: module(torch.ones(1), 3))

    assert [records["r", index, "I"][0][0].item() for index in range(4)] == [1, 2, 4, 8]
    assert [records["r", index, "O"].item() for index in range(4)] == [11, 10, 9, 8]
    assert len(records) == 8


def test_d03_calls_from_several_threads_at_once_are_all_recorded(steal):
    """Eight threads inside one module: eight iterations, each output with its own input."""
    barrier = threading.Barrier(8)

    class Meeting(nn.Module):
        def forward(self, x):
            barrier.wait(timeout=20)
            return x + 1

    module = Meeting()

    def run():
        threads = [threading.Thread(target=module, args=(torch.full((1,), float(index)),)) for index in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    records = steal(("m", module), run)

    pairs = [(records["m", index, "I"][0][0].item(), records["m", index, "O"].item()) for index in range(8)]
    assert sorted(pairs) == [(value, value + 1) for value in range(8)]
    assert len(records) == 16


class Fragile(nn.Module):
    """Raises on what is negative, after a submodule ran."""

    def __init__(self):
        super().__init__()
        self.inner = nn.Identity()

    def forward(self, x):
        if self.inner(x).item() < 0:
            raise ValueError("boom")
        return x


def test_d04_the_call_after_a_failed_one_does_not_write_over_its_inputs(steal):
    """Each call has an iteration of its own, and the record says which one failed, and of what."""
    module = Fragile()

    def run():
        with pytest.raises(ValueError, match="boom"):
            module(-torch.ones(1))
        module(torch.ones(1))

    records = steal(("m", module), run)

    assert list(records) == [("m", 0, "I"), ("m", 1, "I"), ("m", 1, "O")]
    assert [records["m", index, "I"][0][0].item() for index in range(2)] == [-1, 1]
    assert dict(records.failed) == {("m", 0, "O"): "ValueError: boom"}


def test_d04_a_failure_that_ends_the_block_is_in_its_dump(tmp_path):
    """Of a model and its submodule, that one alone is said to have failed which raised."""
    module, path = Fragile(), tmp_path / "dump.onnx"

    with pytest.raises(ValueError, match="boom"), steal_forward(("m", module), submodules=True, dump_file=path):
        module(-torch.ones(1))

    dump = restore(path)
    assert list(dump) == [("m", 0, "I"), ("m.inner", 0, "I"), ("m.inner", 0, "O")]
    assert dict(dump.failed) == {("m", 0, "O"): "ValueError: boom"}


ONE, SEVEN = torch.ones(1), torch.full((1,), 7.0)


@pytest.mark.parametrize(
    ("args", "kwargs"),
    [
        ((ONE, None, SEVEN), {}),
        ((ONE, None), {}),
        ((ONE,), {"a": None, "b": SEVEN}),
        ((ONE,), {"b": SEVEN, "a": None}),
        ((None, None), {"a": None}),
    ],
)
def test_d05_an_argument_of_none_keeps_its_place(steal, differ, args, kwargs):
    """Positional or by keyword, before and after tensors."""
    module = Passing()

    records = steal(("m", module), lambda: module(*args, **kwargs))

    assert differ(records["m", 0, "I"], (args, kwargs)) is None
    assert differ(records["m", 0, "O"], (args, kwargs)) is None


def _any_value(rng, depth):
    if depth == 0 or rng.random() < 0.4:
        return rng.choice([torch.full((2,), rng.random()), rng.randint(-5, 5), rng.random(), True, None, None])
    items = [_any_value(rng, depth - 1) for _ in range(rng.randint(0, 3))]
    return rng.choice([list, tuple, lambda items: {f"k{index}": item for index, item in enumerate(items)}])(items)


def test_d05_any_nesting_with_none_in_it_comes_back(steal, differ):
    """Four hundred random ones, all exact."""
    rng, module = random.Random(0), Passing()  # noqa: S311  no secrets here
    values = [_any_value(rng, 3) for _ in range(400)]

    records = steal(("m", module), lambda: [module(value) for value in values])

    wrong = [value for index, value in enumerate(values) if differ(records["m", index, "O"], value) is not None]
    assert wrong == []


def test_d06_the_output_is_what_the_caller_got_whatever_hooks_the_module_has(steal):
    """A hook of others that changes the output ran before ours."""
    module = nn.Linear(2, 2, bias=False)
    module.register_forward_hook(lambda _, __, output: output * 1000)
    outputs = []

    records = steal(("m", module), lambda: outputs.append(module(torch.ones(1, 2))))

    assert torch.equal(records["m", 0, "O"], outputs[0])
    assert torch.equal(records["m", 0, "O"], module.weight.sum(dim=1)[None] * 1000)


def test_d06_the_input_is_what_the_module_really_got(steal):
    """A hook of others that changes the input ran before ours; the numbers are those that `forward` computed with."""
    module = nn.Identity()
    module.register_forward_pre_hook(lambda _, args: (args[0] * 7,))

    records = steal(("m", module), lambda: module(torch.ones(1)))

    assert records["m", 0, "I"][0][0].item() == records["m", 0, "O"].item() == 7


def test_d07_an_appended_value_is_what_it_was_then(steal):
    """What is written into the tensor afterwards does not reach the record."""
    buffer = torch.ones(2)

    def run():
        steal_append("buf", buffer)
        buffer.mul_(100)

    records = steal(nn.Identity(), run)

    assert records["buf", 0, "V"].tolist() == [1, 1]


class Point(NamedTuple):
    x: torch.Tensor
    y: int = 3


TYPES = {
    "torch.Size": torch.Size([2, 3]),
    "named tuple": Point(ONE),
    "OrderedDict": collections.OrderedDict([("b", ONE), ("a", SEVEN)]),
    "ModelOutput": BaseModelOutput(last_hidden_state=ONE, attentions=(SEVEN,)),
}


@pytest.mark.parametrize("name", TYPES)
def test_d08_a_container_comes_back_in_its_class(steal, name):
    """As an input and as an output, with its items in their order."""
    module, value = Passing(), TYPES[name]

    records = steal(("m", module), lambda: module(value))

    for found in (records["m", 0, "I"][0][0], records["m", 0, "O"]):
        assert type(found) is type(value)
        assert list(found) == list(value)


@pytest.mark.parametrize("requires_grad", [True, False])
def test_d08_a_parameter_comes_back_as_one(steal, requires_grad):
    """Frozen or not."""
    module, value = Passing(), nn.Parameter(torch.ones(2), requires_grad=requires_grad)

    found = steal(("m", module), lambda: module(value))["m", 0, "I"][0][0]

    assert type(found) is nn.Parameter
    assert found.requires_grad == requires_grad
    assert torch.equal(found, value)


def test_d08_whether_a_gradient_is_required_comes_back(steal):
    """Of a leaf and of what was computed from one; no graph comes with it."""
    module, leaf = Passing(), torch.ones(2, requires_grad=True)
    values = [leaf, leaf * 2, torch.ones(2)]

    found = steal(("m", module), lambda: module(values))["m", 0, "O"]

    assert [tensor.requires_grad for tensor in found] == [True, True, False]
    assert [tensor.grad_fn for tensor in found] == [None] * 3
    assert [tensor.tolist() for tensor in found] == [[1, 1], [2, 2], [1, 1]]


BASE = torch.arange(2 * 3 * 4 * 5.0).reshape(2, 3, 4, 5)
LAYOUTS = {
    "channels last": (BASE.contiguous(memory_format=torch.channels_last), (60, 1, 15, 3)),
    "transposed": (BASE.transpose(1, 2), (60, 5, 20, 1)),
    "matrix transposed": (BASE[0, 0].T, (1, 5)),
    "with gaps": (BASE[:, ::2, :, 1::2], (16, 8, 2, 1)),
    "transposed, with gaps": (BASE[:, :, 0].transpose(0, 2), (1, 5, 15)),
}


@pytest.mark.parametrize("name", LAYOUTS)
def test_d08_dimensions_come_back_in_their_order_in_memory(steal, name):
    """A kernel that is chosen by the memory format is chosen again; gaps between the numbers are closed."""
    module, (value, strides) = Passing(), LAYOUTS[name]

    found = steal(("m", module), lambda: module(value))["m", 0, "O"]

    assert torch.equal(found, value)
    assert found.stride() == strides


def test_d08_the_layers_of_a_cache_come_back_in_their_class(steal):
    """A sliding window stays one."""
    config = MistralConfig(
        num_hidden_layers=1, num_attention_heads=2, num_key_value_heads=2, hidden_size=8, sliding_window=4
    )
    cache = DynamicCache(config=config)
    cache.update(torch.rand(1, 2, 3, 4), torch.rand(1, 2, 3, 4), 0)
    module = Passing()

    found = steal(("m", module), lambda: module(cache))["m", 0, "I"][0][0]

    assert [type(layer).__name__ for layer in found.layers] == ["DynamicSlidingWindowLayer"]
    assert torch.equal(found.layers[0].keys, cache.layers[0].keys)
    assert vars(found.layers[0]).keys() == vars(cache.layers[0]).keys()


@pytest.mark.parametrize("name", ["0", "a,b", "a___b", "True", "((x))", "a.b-c", "None", "1.5", "I", "a#0.I"])
def test_d09_a_name_is_a_string_whatever_is_in_it(steal, name):
    """It is not taken apart, and is no number and no tuple."""
    module = Passing()

    records = steal((name, module), lambda: module(ONE))

    assert list(records) == [(name, 0, "I"), (name, 0, "O")]
    assert all(type(key.name) is str for key in records)
    assert torch.equal(records[name, 0, "O"], ONE)


def test_d09_children_of_a_list_are_called_by_strings(steal):
    """`"0"` and `"1"`, as in their paths."""
    model = nn.Sequential(nn.Identity(), nn.Identity())

    records = steal(model, lambda: model(ONE), submodules=True)

    assert [key.name for key in records if key.kind == "O"] == ["0", "1", ""]
    assert torch.equal(records["1", 0, "O"], ONE)


class Summing(nn.Module):
    def forward(self, x):
        return x.sum()


def test_d10_the_storage_limit_holds_for_inputs(steal):
    """A large input is left out though the output is small."""
    module = Summing()

    records = steal(("m", module), lambda: module(torch.ones(1_000_000)), storage_limit=100)

    assert isinstance(records["m", 0, "I"][0][0], Skipped)
    assert records["m", 0, "O"].item() == 1_000_000


@pytest.mark.parametrize(("limit", "kept"), [(99, False), (100, True), (101, True)])
def test_d10_a_tensor_of_exactly_the_storage_limit_is_stored(steal, limit, kept):
    """As an input and as an output."""
    module = Passing()

    records = steal(("m", module), lambda: module(torch.ones(25)), storage_limit=limit)

    for value in (records["m", 0, "I"][0][0], records["m", 0, "O"]):
        assert isinstance(value, torch.Tensor if kept else Skipped)


def test_d10_what_is_left_out_leaves_its_record_with_what_it_was_and_why(steal):
    """Nobody has to have been told while it ran."""
    module = Passing()

    records = steal(("m", module), lambda: module(torch.ones(1_000_000)), storage_limit=100)

    for value in (records["m", 0, "I"][0][0], records["m", 0, "O"]):
        assert value.what == "f32[1000000]"
        assert "limit" in value.reason


def test_d10_the_total_limit_is_a_budget_for_the_whole_capture(tmp_path):
    """However many calls there are; what comes after it is spent is recorded as left out."""
    module, path = Summing(), tmp_path / "dump.onnx"

    with steal_forward(("m", module), dump_file=path, total_limit=10_000):
        for _ in range(100):
            module(torch.rand(1000))

    dump = restore(path)
    inputs = [dump["m", index, "I"][0][0] for index in range(100)]
    assert [isinstance(value, Skipped) for value in inputs] == [False] * 2 + [True] * 98
    assert sum(dump.nbytes(key) for key in dump) <= 10_000
    assert all(value.what == "f32[1000]" and "limit" in value.reason for value in inputs[2:])
    assert len(dump) == 200


@pytest.mark.parametrize("use_reentrant", [True, False])
def test_d11_what_checkpointing_computes_again_is_no_new_iteration(steal, use_reentrant):
    """One logical call is one iteration, of the checkpointed module and of those in it, at each step of a training."""
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4))

    def run():
        for _ in range(2):
            x = torch.randn(2, 4, requires_grad=True)
            checkpoint(model, x, use_reentrant=use_reentrant).sum().backward()

    records = steal(("m", model), run, submodules=True)

    names = ["m", "m.0", "m.0", "m.1", "m.1", "m.2", "m.2", "m"]
    assert [(key.name, key.iteration) for key in records] == [(name, step) for step in range(2) for name in names]
    assert torch.equal(records["m.0", 1, "O"], records["m.1", 1, "I"][0][0])
    assert not records.failed


@pytest.mark.parametrize("use_reentrant", [True, False])
def test_d11_checkpoints_inside_of_a_model_are_no_new_iterations(steal, use_reentrant):
    """Two blocks, each called through a checkpoint, and a gradient that is what it is without us."""

    class Blocks(nn.Module):
        def __init__(self):
            super().__init__()
            self.blocks = nn.ModuleList([nn.Linear(4, 4), nn.Linear(4, 4)])

        def forward(self, x):
            return functools.reduce(lambda x, block: checkpoint(block, x, use_reentrant=use_reentrant), self.blocks, x)

    model, x = Blocks(), torch.randn(2, 4, requires_grad=True)

    def run():
        x.grad = None
        model(x).sum().backward()

    run()
    expected = x.grad
    records = steal(("m", model), run, submodules=True)

    assert list(records) == [
        ("m", 0, "I"), ("m.blocks.0", 0, "I"), ("m.blocks.0", 0, "O"), ("m.blocks.1", 0, "I"), ("m.blocks.1", 0, "O"),
        ("m", 0, "O"),
    ]  # fmt: skip
    assert torch.equal(x.grad, expected)


class Tied(nn.Module):
    """One module under two names."""

    def __init__(self):
        super().__init__()
        self.a = self.b = nn.Linear(2, 2)

    def forward(self, x):
        return self.b(self.a(x))


def test_d12_a_module_that_is_listed_under_two_names_has_its_records_under_both(steal):
    """Both calls, under each name."""
    model, x = Tied(), torch.ones(1, 2)

    records = steal([("a", model.a), ("b", model.b)], lambda: model(x))

    assert len(records) == 8
    for name in "ab":
        assert torch.equal(records[name, 0, "I"][0][0], x)
        assert torch.equal(records[name, 0, "O"], records[name, 1, "I"][0][0])
        assert torch.equal(records[name, 1, "O"], model(x))


def test_d12_a_shared_submodule_can_be_asked_for_by_its_second_name(steal):
    """It is not only its first path that leads to it."""
    model, x = Tied(), torch.ones(1, 2)

    records = steal(model, lambda: model(x), include="b")

    assert [key.name for key in records if key.kind == "O"] == ["b", "b", ""]
    assert torch.equal(records["b", 1, "O"], model(x))
