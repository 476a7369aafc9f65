"""`flag_scope`: whatever runs in a block of code is traced, as Jittor's flags say."""

import threading
from pathlib import Path

import pytest
import torch
from torch import nn

from filch.export import (
    TraceError,
    check_trace,
    clear_trace_data,
    dump_trace_data,
    flag_scope,
    load_trace,
    save_trace,
    trace,
)

HERE = Path(__file__)
EMPTY = {"node_data": {}, "execute_op_info": {}}


@pytest.fixture(autouse=True)
def nothing_recorded():
    """Each test begins and ends without a trace, and leaves no hook, no mode, no stance."""
    clear_trace_data()
    yield
    clear_trace_data()
    modes = torch.utils._python_dispatch._get_current_dispatch_mode_stack()  # noqa: SLF001  nothing public tells
    assert not modes and not nn.modules.module._global_forward_pre_hooks  # noqa: SLF001  likewise
    assert not nn.modules.module._global_forward_hooks  # noqa: SLF001  likewise
    assert torch._dynamo.eval_frame._stance.stance == "default"  # noqa: SLF001  likewise


class Linear(nn.Module):
    def __init__(self, inputs, outputs):
        super().__init__()
        self.w = nn.Parameter(torch.rand(inputs, outputs) - 0.5)
        self.b = nn.Parameter(torch.rand(outputs) - 0.5)

    def forward(self, x):
        return x @ self.w + self.b


class Model(nn.Module):
    """Two layers, as in Jittor's document."""

    def __init__(self, inputs):
        super().__init__()
        self.linear1 = Linear(inputs, 4)  # the first is made
        self.linear2 = Linear(4, 1)

    def forward(self, x):
        return self.linear2(torch.relu(self.linear1(x)))  # both are called


def step():
    """Everything that a training script does: its model is made, called, differentiated and updated."""
    torch.manual_seed(0)
    model = Model(2)  # the model is made
    opt = torch.optim.SGD(model.parameters(), 0.1)
    y = model(torch.rand(3, 2))  # the model is called
    loss = (y**2).sum()  # the loss
    loss.backward()
    opt.step()  # the step
    return model, loss


@pytest.fixture(scope="module")
def traced():
    """A step at each level, with numbers at level 2, and what it left."""
    found = {}
    for level in (0, 1, 2, 3):
        with flag_scope(trace_py_var=level, trace_var_data=int(level == 2)):
            left = step()
            found[level] = dump_trace_data()
            clear_trace_data()
    return found, left


def operators(data):
    return [node for node in data["node_data"].values() if node["attrs"]["is_var"] == "0"]


def variables(data):
    return [node for node in data["node_data"].values() if node["attrs"]["is_var"] == "1"]


def names(node):
    return "/".join(stack["name"] for stack in node["stacks"])


def line_of(marker):
    lines = HERE.read_text("utf-8").splitlines()
    (found,) = [number for number, line in enumerate(lines, 1) if line.endswith(f"  # {marker}")]
    return found


def by_stack(data):
    found = {}
    for node in operators(data):
        found.setdefault(names(node), []).append(node["attrs"]["name"])
    return found


@pytest.mark.parametrize("level", [0, 1, 2, 3])
def test_each_level_gives_a_sound_trace(traced, level):
    """`check_trace` finds nothing, whatever was left out."""
    assert check_trace(traced[0][level]) == []


def test_a_whole_training_script_is_recorded(traced):
    """Parameters are made in constructors, and the loss's line, gradients and the optimizer's variable are told."""
    found = by_stack(traced[0][2])
    loss = f"{HERE.name}:{line_of('the loss')}"
    assert found["Model_init/Linear_init"] == ["rand", "sub"] * 4
    assert found["model/linear1"] == ["mm", "add"] and found["model"] == ["relu", "detach"]
    assert any(name.endswith(loss) for name in found if not name.startswith("grad"))
    assert {"grad/model/linear1", "grad/model/linear2", "grad/model"} <= found.keys()
    assert found["opt"] == ["add_"] * 4


def test_each_call_stands_where_it_is_written(traced):
    """Constructors, calls and the optimizer's step have the file and line that they were called at."""
    stacks = {names(node): node["stacks"] for node in operators(traced[0][2])}
    lines = {
        "Model_init/Linear_init": [("Model", "the model is made"), ("Linear", "the first is made")],
        "model/linear1": [("Model", "the model is called"), ("Linear", "both are called")],
        "opt": [("SGD", "the step")],
    }
    first = next(node["stacks"] for node in operators(traced[0][2]) if node["attrs"]["name"] == "rand")
    for name, expected in lines.items():
        found = first if name.startswith("Model_init") else stacks[name]
        told = [(stack["type"], stack["file_path"], stack["lineno"]) for stack in found]
        assert told == [(kind, str(HERE), line_of(marker)) for kind, marker in expected]


def test_a_parameter_is_one_variable_from_its_making_to_its_update(traced):
    """Its states have its path as their name: the result of the constructor's operation, and the optimizer's."""
    nodes = traced[0][2]["node_data"]
    states = [node for node in variables(traced[0][2]) if node["attrs"]["name"] == "linear1.w"]
    assert [nodes[node["inputs"][0]]["attrs"]["name"] for node in states] == ["sub", "add_"]
    assert {"mm", "add_"} <= {nodes[number]["attrs"]["name"] for number in states[0]["outputs"]}


def test_gradients_say_whose_they_are(traced):
    """Of all but what hands a gradient over to its parameter; the loss's own derivative belongs to the loss."""
    nodes = traced[0][2]["node_data"]
    backward = [node for node in operators(traced[0][2]) if names(node).startswith("grad")]
    alone = [node for node in backward if "grad_op_id" not in node["attrs"]]
    assert {node["attrs"]["name"] for node in alone} == {"detach"} and len(alone) == 4
    (seed,) = [node for node in backward if node["attrs"]["name"] == "ones_like"]
    assert nodes[int(seed["attrs"]["grad_op_id"])]["attrs"]["name"] == "sum"


def test_tracing_changes_no_bit(traced):
    """Weights after the step and the loss are those of an untraced run."""
    model, loss = traced[1]
    plain, expected = step()
    assert torch.equal(loss, expected)
    assert all(map(torch.equal, model.parameters(), plain.parameters()))


def test_stored_numbers_are_exact(traced):
    """The text of the last state of each weight gives the weight back, bit for bit; without the flag there is none."""
    last = {node["attrs"]["name"]: node["attrs"]["data"] for node in variables(traced[0][2])}
    for name, weight in traced[1][0].named_parameters():
        stored = torch.tensor([float(number) for number in last[name].split(",")])
        assert torch.equal(stored, weight.detach().reshape(-1))
    assert not any("data" in node["attrs"] for node in variables(traced[0][3]))


@pytest.mark.parametrize(
    ("tensor", "text"),
    [
        (torch.tensor([True, False]), "1,0"),
        (torch.tensor([[1], [2**62 + 1]]), f"1,{2**62 + 1}"),
        (torch.tensor([0.1], dtype=torch.float64), "0.1"),
        (torch.tensor([float("nan"), float("inf"), -0.0]), "nan,inf,-0.0"),
        (torch.tensor([1.5], dtype=torch.bfloat16), "1.5"),
        (torch.zeros(0), ""),
        (torch.eye(2).to_sparse(), None),
    ],
)
def test_numbers_of_every_type_are_stored(tensor, text):
    """Truth values as 0 and 1; what torch can't list has no text."""
    with flag_scope(trace_py_var=2, trace_var_data=1):
        tensor.clone()
    stored = [node["attrs"].get("data") for node in variables(dump_trace_data())]
    assert stored == [text, text]


def test_level_0_records_nothing_and_level_1_what_is_alive(traced):
    """Level 1 forgets what was let go, and tells no execution: in Jittor it serves the profiler."""
    assert traced[0][0] == EMPTY
    with flag_scope(trace_py_var=1):
        kept = (torch.ones(2) * 2).exp()
        data = dump_trace_data()
    assert [node["attrs"]["name"] for node in operators(data)] == ["exp"] and kept.shape == (2,)
    assert data["execute_op_info"] == {}


def test_level_3_has_all_calls_of_python(traced):
    """From the function that opens the block on, by line, with the functions as types."""
    (node, *_) = [node for node in operators(traced[0][3]) if node["attrs"]["name"] == "relu"]
    told = [(stack["type"], stack["file_path"]) for stack in node["stacks"]]
    assert told[:2] == [("traced", str(HERE)), ("step", str(HERE))] and told[-1] == ("forward", str(HERE))
    assert any(file == nn.modules.module.__file__ for _, file in told)
    assert node["stacks"][1]["name"] == f"{HERE.name}:{line_of('the model is called')}"


def test_several_models_are_told_apart():
    """By the variables that hold them; a part that is called by itself belongs to its model."""
    one, other = nn.Linear(2, 2), nn.Sequential(nn.Linear(2, 2), nn.Tanh())
    with flag_scope(trace_py_var=2):
        other[1](other(one(torch.ones(1, 2))))
    data = dump_trace_data()
    assert list(by_stack(data))[1:] == ["one", "other/0", "other/1", "1"]
    assert [node["attrs"]["name"] for node in variables(data) if node["attrs"]["name"]] == [
        *("weight", "bias"),
        *("0.weight", "0.bias"),
    ]


class Trainer:
    def __init__(self):
        self.net = nn.Linear(2, 1)
        self.updates = torch.optim.SGD(self.net.parameters(), 0.1)

    def fit(self):
        self.net(torch.ones(1, 2)).sum().backward()
        self.updates.step()


def test_attributes_are_variables_too():
    """A model and an optimizer that an object has are called by the names of its attributes."""
    trainer = Trainer()
    with flag_scope(trace_py_var=2):
        trainer.fit()
    assert {"net", "grad/net", "updates"} <= by_stack(dump_trace_data()).keys()


def test_blocks_nest():
    """An inner block changes what it is told, until its end; its derivatives then belong to nothing that was seen."""
    x = torch.ones(2, requires_grad=True)
    with flag_scope(trace_py_var=2):
        y = x.exp()
        with flag_scope(trace_py_var=0):
            y = y.sin()
        with flag_scope(trace_var_data=1):
            y = y.cos()
        y.sum().backward()
    data = dump_trace_data()
    nodes = data["node_data"]
    forward = [node["attrs"]["name"] for node in operators(data) if not names(node).startswith("grad")]
    assert [name for name in forward if name != "detach"] == ["exp", "cos", "sum"]
    assert sum("data" in node["attrs"] for node in variables(data)) == 2  # what `cos` takes and gives
    of = [node["attrs"].get("grad_op_id") for node in operators(data) if names(node).startswith("grad")]
    assert {nodes[int(number)]["attrs"]["name"] for number in of if number} == {"exp", "cos", "sum"}
    assert of.count(None) == 3  # two of `sin`, one of what hands the gradient over
    assert check_trace(data) == []


def test_a_second_block_adds_to_the_first():
    """Until the trace is cleared, behind the block, too."""
    for _ in range(2):
        with flag_scope(trace_py_var=2):
            torch.ones(1)
    torch.zeros(1)
    assert [node["attrs"]["name"] for node in operators(dump_trace_data())] == ["ones", "ones"]
    clear_trace_data()
    assert dump_trace_data() == EMPTY


def test_what_was_cleared_owns_no_derivative():
    """A backward pass of operations that are forgotten points to none that came later."""
    x = torch.ones(2, requires_grad=True)
    with flag_scope(trace_py_var=2):
        y = x.exp().sum()
        clear_trace_data()
        torch.ones(2).exp()
        y.backward()
    assert not any("grad_op_id" in node["attrs"] for node in operators(dump_trace_data()))


def test_an_exception_ends_the_block():
    """In a module's call, in a nested block: hooks and modes are gone, and the trace up to there is kept."""

    class Broken(nn.Module):
        def forward(self, x):
            raise ValueError(x.sum())

    model = nn.Sequential(nn.Tanh(), Broken())
    with pytest.raises(ValueError, match="2"), flag_scope(trace_py_var=2), flag_scope(trace_py_var=3):
        model(torch.ones(2))
    torch.zeros(1)
    with flag_scope(trace_py_var=2):
        torch.ones(1)
    found = [(node["attrs"]["name"], names(node)) for node in operators(dump_trace_data())]
    assert [name for name, _ in found][1:4] == ["tanh", "sum", "ones"]
    assert "model" not in found[-1][1]


def test_each_thread_has_its_own_trace():
    """What another thread runs meanwhile, with or without a block, is not in it, nor are its modules."""
    ready, done, model = threading.Barrier(2), threading.Barrier(2), nn.Tanh()
    found = {}

    def other():
        with flag_scope(trace_py_var=2):
            ready.wait(60)
            model(torch.zeros(1)).cos()
            done.wait(60)
            found["other"] = [node["attrs"]["name"] for node in operators(dump_trace_data())]

    thread = threading.Thread(target=other)
    with flag_scope(trace_py_var=2):
        thread.start()
        ready.wait(60)
        torch.ones(1)
        done.wait(60)
        torch.ones(1)
    thread.join(60)
    assert [node["attrs"]["name"] for node in operators(dump_trace_data())] == ["ones", "ones"]
    assert found["other"] == ["zeros", "tanh", "cos"]


def test_what_was_compiled_is_recorded_as_it_is_written():
    """Its kernels would hide the operations; nothing is compiled for it."""

    def refuse(graph, inputs):
        raise AssertionError("it is compiled")

    compiled = torch.compile(lambda x: x.sin().cos(), backend=refuse)
    with flag_scope(trace_py_var=2):
        compiled(torch.ones(1))
    assert [node["attrs"]["name"] for node in operators(dump_trace_data())] == ["ones", "sin", "cos"]


class Questioning(nn.Module):
    """Asks for a number and makes nothing, beside what it makes."""

    def forward(self, x):
        torch._assert_async(x.sum() < 100)  # noqa: SLF001  an operator without a result
        return torch.tanh(x) if x.sum().item() > 0 else x


@pytest.mark.parametrize("traced_by", ["trace", "flag_scope"])
def test_an_operator_that_makes_no_tensor_has_a_variable(traced_by):
    """A number that Python gets, or nothing: JittorVis takes the type of every operator from its variables."""
    model = Questioning()
    if traced_by == "trace":
        data = trace(model, torch.ones(2), backend="eager")
    else:
        with flag_scope(trace_py_var=2):
            model(torch.ones(2))
        data = dump_trace_data()
    made = {
        node["attrs"]["name"]: [data["node_data"][number]["attrs"] for number in node["outputs"]]
        for node in operators(data)
    }
    assert all("dtype" in variable for found in made.values() for variable in found) and all(made.values())
    assert (made["_local_scalar_dense"][0]["dtype"], made["_local_scalar_dense"][0]["shape"]) == ("float64", "[1,]")
    assert (made["_assert_async"][0]["dtype"], made["_assert_async"][0]["shape"]) == ("", "[]")
    assert check_trace(data) == []


def test_a_block_is_saved_like_any_trace(traced, tmp_path):
    """`save_trace` and `load_trace` give it back."""
    for path in save_trace(traced[0][2], tmp_path / "step.pkl"):
        assert load_trace(path) == traced[0][2]


@pytest.mark.parametrize("flags", [{"trace_py_var": 4}, {"trace_py_var": "2"}, {"trace_var_data": 7}])
def test_a_flag_of_no_meaning_is_refused(flags):
    """With what it may be."""
    ((name, value),) = flags.items()
    with pytest.raises(TraceError, match=rf"{name} is {value!r}, and has to be one of: 0 "), flag_scope(**flags):
        pass
