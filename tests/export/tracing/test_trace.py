"""Traces: what ran, in which module's call, of what it is a derivative, and in which generated code."""

import copy
import gc
import json
import pickle
import random
import resource
import weakref
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from filch.export import TraceError, check_trace, load_trace, save_trace, trace, trace_graph
from filch.export.views import draw
from filch.export.views._trace import serialize
from filch.steal.private._names import PrivateNameError
from support.models.small import module_of
from support.processes.compilers import needs_compiler
from support.thorough import slow

DATA = Path(__file__).parents[2] / "data"
HERE = Path(__file__)
VIEWS = {"t", "view", "expand", "squeeze", "unsqueeze", "permute", "detach", "alias", "as_strided", "select", "slice"}


def line_of(marker):
    """The number of the line that ends in a comment."""
    lines = HERE.read_text("utf-8").splitlines()
    (found,) = [number for number, line in enumerate(lines, 1) if line.endswith(f"  # {marker}")]
    return found


def matmul(a, b):
    (n, m), k = a.shape, b.shape[-1]
    return (a[:, :, None].expand(n, m, k) * b[None].expand(n, m, k)).sum(dim=1)


class Linear(nn.Module):
    def __init__(self, inputs, outputs):
        super().__init__()
        self.w = nn.Parameter((torch.rand(inputs, outputs) - 0.5) / inputs**0.5)
        self.b = nn.Parameter(torch.rand(outputs) - 0.5)

    def forward(self, x):
        return matmul(x, self.w) + self.b


class Model(nn.Module):
    """The two layers of Jittor's document."""

    def __init__(self, inputs=1):
        super().__init__()
        self.linear1 = Linear(inputs, 10)
        self.relu1 = module_of(lambda self, x: torch.maximum(x, torch.zeros(())))
        self.linear2 = Linear(10, 1)

    def forward(self, x):
        x = self.linear1(x)  # the first call
        x = self.relu1(x)
        return self.linear2(x)  # the last call


class Net(nn.Module):
    """Buffers that change, a module that is called twice, one inside of torch's own, and what a library computes."""

    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm1d(4)
        self.shared = nn.Linear(4, 4)
        self.layers = nn.Sequential(nn.Tanh(), Linear(4, 4))

    def forward(self, x):
        x = self.shared(self.norm(x)).relu()
        return self.layers(self.shared(x))  # the second time


class Kept:
    """A loss that can be looked at afterwards."""

    def __init__(self):
        self.seen = []

    def __call__(self, result):
        value = (result**2).sum()  # the loss
        self.seen.append(value.detach())
        return value


class Keeping(torch.optim.SGD):
    """An optimizer whose gradients can be."""

    def __init__(self, parameters):
        super().__init__(parameters, 0.1)
        self.seen = []

    @torch.compiler.disable
    def step(self, closure=None):
        self.seen += [parameter.grad.clone() for group in self.param_groups for parameter in group["params"]]
        return super().step(closure)


def seeded(kind):
    torch.manual_seed(0)
    return kind()


X = torch.linspace(-1, 1, 24).reshape(6, 4)


@pytest.fixture(scope="module")
def eager():
    """A step of training, as eager PyTorch runs it."""
    return trace_graph(seeded(Net), X, train=True, backend="eager")


@pytest.fixture(scope="module")
def compiled():
    """The same, compiled."""
    return trace_graph(seeded(Net), X, train=True)


@pytest.fixture(scope="module")
def pair():
    """The two-layer model, in one call and in one step of training."""
    x = torch.rand(10, 1)
    return [trace(Model(), x, train=train, backend="eager") for train in (False, True)]


def trace_of(graph):
    return pickle.loads(draw(graph, "trace").content)  # noqa: S301  ours, made just now


def operators(data):
    return [node for node in data["node_data"].values() if node["attrs"]["is_var"] == "0"]


def names(node):
    return "/".join(stack["name"] for stack in node["stacks"])


def test_a_trace_has_nothing_that_is_wrong(eager, pair):
    """Whatever was traced: the validator has nothing to say."""
    assert [check_trace(data) for data in (*pair, trace_of(eager), trace_of(eager.source_graph or eager))] == [[]] * 4


@slow
@needs_compiler
def test_a_compiled_trace_has_nothing_that_is_wrong(compiled):
    """Kernels as executions, or the joint graph by itself."""
    assert check_trace(trace_of(compiled)) == []
    assert check_trace(trace_of(compiled.source_graph)) == []


@pytest.mark.parametrize("name", ["simple_model", "simple_model_train"])
def test_ours_is_built_like_jittors(pair, name):
    """For the same model, each kind of node has the same keys, of the same types, as what genuine Jittor wrote."""
    theirs, ours = load_trace(DATA / f"jittor_{name}.pkl"), pair[name.endswith("train")]

    assert shapes(ours) == shapes(theirs)


def shapes(data):
    """All keys and types of a trace, by kind of node."""
    found = {
        (node["attrs"]["is_var"], "grad_op_id" in node["attrs"], *keys(node), *keys(node["attrs"]))
        for node in data["node_data"].values()
    }
    found |= {keys(stack) for node in data["node_data"].values() for stack in node["stacks"]}
    found |= {keys(execution) for execution in data["execute_op_info"].values()}
    return found


def keys(item):
    return tuple(sorted((key, type(value).__name__) for key, value in item.items()))


def test_what_jittor_gets_wrong_itself_is_found():
    """Three operators and what they make point to one that is gone; nothing else is said, and nothing of the other."""
    told = check_trace(load_trace(DATA / "jittor_simple_model_train.pkl"))
    assert sorted(told) == [
        f"node_data[{number}].attrs['grad_op_id'] is '214', which is not a node" for number in range(221, 227)
    ]
    assert check_trace(load_trace(DATA / "jittor_simple_model.pkl")) == []


def edge(data):
    variable = next(node for node in data["node_data"].values() if node["attrs"]["is_var"] == "1" and node["inputs"])
    return variable, data["node_data"][variable["inputs"][0]]


def lose_an_end(data):
    variable, operator = edge(data)
    operator["outputs"].remove(variable["id"])


def point_nowhere(data):
    edge(data)[0]["inputs"][0] = 9999


def join_operators(data):
    first, second = operators(data)[:2]
    first["outputs"].append(second["id"])
    second["inputs"].append(first["id"])


def add_a_producer(data):
    variable, operator = edge(data)
    other = next(node for node in operators(data) if node is not operator)
    other["outputs"].append(variable["id"])
    variable["inputs"].append(other["id"])


def a_gradient(data):
    return next(node for node in operators(data) if "grad_op_id" in node["attrs"])


def variable_of(data):
    return edge(data)[0]


FAULTS = [
    (lambda data: data.pop("node_data"), "the trace has no 'node_data'"),
    (lambda data: data.update(more={}), "the trace has 'more', which means nothing"),
    (lambda data: data.update(node_data=[]), "the trace.node_data is [], and has to be of type dict"),
    (lambda data: data["node_data"].update({"a": dict(data["node_data"][0])}), "the key is 'a', and has to be an int"),
    (lambda data: data["node_data"][0].update(id=7), ".id is 7, and has to be its key"),
    (lambda data: data["node_data"][0].update(id=False), ".id is False, and has to be of type int"),
    (lambda data: data["node_data"][0].pop("stacks"), "node_data[0] has no 'stacks'"),
    (lambda data: data["node_data"].update({0: None}), "node_data[0] is None, and has to be a dict"),
    (lambda data: variable_of(data)["inputs"].__setitem__(0, "3"), ".inputs[0] is '3', and has to be of type int"),
    (lambda data: variable_of(data)["stacks"].append("model"), "is 'model', and has to be a dict"),
    (lambda data: a_gradient(data)["stacks"][0].update(lineno="0"), ".lineno is '0', and has to be of type int"),
    (lambda data: a_gradient(data)["stacks"].pop(0), ".stacks begins with [{'name': '"),
    (lambda data: variable_of(data)["attrs"].update(ndim=3), "['ndim'] is 3: keys and values of attributes are text"),
    (lambda data: variable_of(data)["attrs"].update(ndim="7"), "['ndim'] is '7', and the shape is '["),
    (lambda data: variable_of(data)["attrs"].update(dsize="four"), "['dsize'] is 'four', and has to be a number"),
    (lambda data: variable_of(data)["attrs"].update(shape="[10,1]"), "is '[10,1]', and has to be like '[10,1,]'"),
    (lambda data: variable_of(data)["attrs"].pop("dtype"), ".attrs has no 'dtype'"),
    (lambda data: variable_of(data)["attrs"].update(is_var="yes"), "['is_var'] is 'yes', and has to be '0'"),
    (lambda data: a_gradient(data)["attrs"].update(grad_op_id="9999"), "is '9999', which is not a node"),
    (lambda data: a_gradient(data)["attrs"].update(grad_op_id="0"), "is '0', which is a variable, and has to be an op"),
    (lambda data: a_gradient(data)["attrs"].update(grad_op_id=str(a_gradient(data)["id"])), "which is itself"),
    (lose_an_end, "times"),
    (point_nowhere, ".inputs has 9999, which is not a node"),
    (join_operators, "which is an operator, too: operators and variables alternate"),
    (add_a_producer, ": a variable has one producer at most"),
    (lambda data: data["execute_op_info"][0].pop("jit_key"), "execute_op_info[0] has no 'jit_key'"),
    (lambda data: data["execute_op_info"][0].update(file_path=None), ".file_path is None, and has to be of type str"),
    (lambda data: data["execute_op_info"][0]["attrs"].update(time=1.5), "attrs['time'] is 1.5: keys and values"),
    (lambda data: data["execute_op_info"][0]["fused_ops"].append(9999), ".fused_ops has 9999, which is not a node"),
    (lambda data: data["execute_op_info"][0]["fused_ops"].append(0), ".fused_ops has 0, which is a variable"),
    (
        lambda data: data["execute_op_info"].update({"0": {}}),
        "execute_op_info['0']: the key is '0', and has to be an int",
    ),
]


@pytest.mark.parametrize(("fault", "message"), FAULTS)
def test_a_planted_fault_is_found(pair, fault, message):
    """Each in a sentence with its place and value; nothing falls over."""
    data = copy.deepcopy(pair[1])
    fault(data)
    assert any(message in problem for problem in check_trace(data)), check_trace(data)


def test_what_is_no_trace_is_none():
    """Not even a dictionary."""
    assert check_trace([1, 2]) == ["a trace is a dict, not [1, 2]"]


def test_each_call_stands_where_it_is_written(pair):
    """The stacks name module, class and the line of the call, the model's own being ours to make: this file's."""
    found = {names(node): node["stacks"][-1] for node in operators(pair[0])}
    first, last = found["model/linear1"], found["model/linear2"]
    assert (first["type"], first["file_path"], first["lineno"]) == ("Linear", str(HERE), line_of("the first call"))
    assert (last["type"], last["file_path"], last["lineno"]) == ("Linear", str(HERE), line_of("the last call"))
    root = operators(pair[0])[0]["stacks"][0]
    assert (root["type"], root["file_path"]) == ("Model", str(HERE))


def test_a_module_that_is_called_twice_has_two_call_sites(eager):
    """Once in front of relu, once behind; the line says which, and the graph's label does."""
    calls = {node.module: node.stack[-1].source for node in eager.nodes if node.op == "addmm"}
    second = line_of("the second time")
    assert calls == {"shared": f"{HERE}:{second - 1}", "shared@1": f"{HERE}:{second}"}


def test_each_operation_of_a_backward_pass_says_whose_derivative_it_is(eager):
    """Only those that hand a gradient over to its parameter have none; their stack is the parameter's module's."""
    backward = [node for node in eager.nodes if node.stack[0].path == "grad"]
    alone = [node for node in backward if node.gradient_of is None]
    assert {node.op for node in alone} == {"detach"}
    assert {node.module for node in alone} == {"norm", "shared", "layers.1"}
    assert len(alone) == len([*Net().parameters()])
    producers = {node.name: node for node in eager.nodes}
    for node in (node for node in backward if node.gradient_of is not None):
        assert node.stack[1:] == producers[node.gradient_of].stack
    of = {node.op: producers[node.gradient_of].op for node in backward if node.gradient_of}
    assert (of["tanh_backward"], of["native_batch_norm_backward"]) == ("tanh", "native_batch_norm")


def test_a_loss_and_an_optimizer_have_stacks_too():
    """The loss's lines, as Jittor has them; the optimizer by its class."""
    data = trace(seeded(Model), torch.rand(10, 1), train=True, backend="eager", loss=Kept())
    of = {node["attrs"]["name"]: node["stacks"] for node in operators(data)}
    line = line_of("the loss")
    assert of["add_"][0]["name"] == "optimizer" and of["add_"][0]["type"] == "SGD"
    losses = [node["stacks"] for node in operators(data) if node["attrs"]["name"] == "pow"]
    assert losses[0] == [{"name": f"{HERE.name}:{line}", "type": "", "file_path": str(HERE), "lineno": line}]


def test_what_is_written_in_place_is_a_new_variable_of_the_same_name(eager):
    """Weights after the step, and the statistics of a BatchNorm, which the operator's schema conceals."""
    written = {name for node in eager.nodes for name in node.outputs if "@" in name}
    assert {name.partition("@")[0] for name in written} == {
        *(name for name, _ in Net().named_parameters()),
        *(name for name, _ in Net().named_buffers()),
    }
    (batch_norm,) = [node for node in eager.nodes if node.op == "native_batch_norm"]
    assert batch_norm.outputs[-2:] == ("norm.running_mean@1", "norm.running_var@1")


class InPlace(nn.Module):
    def forward(self, x):
        y = x * 2
        y[0].add_(1)
        return y + 1


def test_what_is_written_through_a_view_reaches_who_reads_the_whole():
    """Nothing hands the result of `add_` on, and yet the sum depends on it."""
    graph = trace_graph(InPlace(), torch.ones(2, 2), backend="eager")
    (total,) = [node for node in graph.nodes if node.op == "add"]
    assert total.inputs == ("mul", "add_")


def test_a_derivative_of_a_derivative_leads_back_to_both():
    """A loss that has a gradient in it: its derivative points to derivatives, which point to the model."""

    def penalty(result):
        (slope,) = torch.autograd.grad(result.sum(), seen[-1], create_graph=True)
        return (slope**2).sum()

    class Seen(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(4, 4)

        def forward(self, x):
            seen.append(x.requires_grad_())
            return self.linear(x).tanh()

    seen = []
    graph = trace_graph(Seen(), X, train=True, backend="eager", loss=penalty)

    of = {node.name: node.gradient_of for node in graph.nodes}
    orders = {}
    for node in graph.nodes:
        orders[node.name] = 0 if of[node.name] is None else orders[of[node.name]] + 1
    assert max(orders.values()) == 2
    twice = next(
        node for node in graph.nodes if orders[node.name] == 2 and node.stack[2:3] and node.stack[2].path == ""
    )
    assert [frame.path for frame in twice.stack[:2]] == ["grad", "grad"]
    assert check_trace(trace_of(graph)) == []


def overwriting(self, x):
    """Divides in place by what it is divided by, and writes to a part of what it made."""
    x = self.linear(x).sigmoid() + 1
    x /= x.sum(-1, keepdim=True)
    y = x.clone()
    y[0] *= 3
    return y


def test_what_changes_in_place_has_its_derivatives():
    """Autograd notes some of it before a copy, and some behind the change."""
    graph = trace_graph(module_of(overwriting, linear=nn.Linear(4, 4)), X, train=True, backend="eager")
    backward = [node for node in graph.nodes if node.stack[0].path == "grad" and node.module != "linear"]
    assert all(node.gradient_of for node in backward if node.op != "detach")
    assert "div_" in {node.gradient_of for node in backward if node.op == "div"}
    assert "copy_" in {node.gradient_of for node in backward}


def test_what_the_user_has_compiled_is_traced_as_it_is_written():
    """In eager PyTorch: the kernels of a compiled part would not be dispatched, and its operations be missing."""
    model = nn.Sequential(torch.compile(seeded(Model)), nn.Tanh())
    graph = trace_graph(model, torch.rand(10, 1), backend="eager")
    assert [node.op for node in graph.nodes].count("add") == 2


@pytest.mark.parametrize(
    "options", [{"train": True, "backend": "eager"}, pytest.param({}, marks=needs_compiler, id="compiled")]
)
def test_a_traced_model_is_let_go(options):
    """Nothing that traced it holds it, nor what it computed; neither does Dynamo, nor what was compiled."""
    model = seeded(Model)
    graph = trace_graph(model, torch.rand(10, 1), **options)
    held = weakref.ref(model)
    del model
    gc.collect()
    assert graph.nodes and held() is None


def test_what_a_checkpoint_computes_again_is_recorded_again():
    """The recomputation is part of the backward pass."""
    model = module_of(
        lambda self, x: checkpoint(lambda y: self.linear(y).tanh(), x, use_reentrant=False), linear=nn.Linear(4, 4)
    )
    graph = trace_graph(model, X, train=True, backend="eager")
    assert [node.stack[0].path for node in graph.nodes if node.op == "tanh"] == ["", "grad"]
    assert check_trace(trace_of(graph)) == []


def untraced(model, loss, run):
    """Loss and gradients of a step that nobody looks at."""
    value = run(lambda x: loss(model(x)))(X)
    value.backward()
    return value.detach(), [parameter.grad for parameter in model.parameters()]


@slow
@pytest.mark.parametrize("backend", ["eager", pytest.param("inductor", marks=needs_compiler)])
def test_tracing_changes_no_bit_and_leaves_no_trace(backend):
    """Loss and gradients are those of an untraced step; what the model holds, and random numbers, what they were."""
    model, loss = seeded(Net), Kept()
    optimizer = Keeping(model.parameters())
    marker = torch.ones_like(model.shared.bias)
    model.shared.bias.grad = marker
    before = copy.deepcopy(model.state_dict())
    drawn = torch.get_rng_state()

    trace(model, X, train=True, backend=backend, loss=loss, optimizer=optimizer)

    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    assert [name for name, held in model.named_parameters() if held.grad is not None] == ["shared.bias"]
    assert model.shared.bias.grad is marker
    assert torch.equal(torch.get_rng_state(), drawn)
    assert not optimizer.state and not any(module._forward_hooks for module in model.modules())  # noqa: SLF001
    fresh = Kept()
    expected, gradients = untraced(seeded(Net), fresh, torch.compile if backend == "inductor" else lambda run: run)
    assert torch.equal(loss.seen[-1], expected)
    assert len(optimizer.seen) == len(gradients)
    assert all(torch.equal(one, other) for one, other in zip(optimizer.seen, gradients, strict=True))


def worn():
    """Holds a buffer that is expanded, makes one when it is called, and draws numbers from everywhere."""

    def forward(self, x):
        self.register_buffer("cache", x.detach().clone())
        return self.linear(x) + self.places * sum(drawn())

    return module_of(forward, linear=nn.Linear(4, 4), places=torch.arange(4.0).expand(3, 4))


def drawn():
    """A number of each of the generators that are everybody's."""
    return random.random(), np.random.rand(), torch.rand(()).item()  # noqa: NPY002, S311  libraries draw from these


@pytest.mark.parametrize("train", [False, True])
def test_a_backward_pass_that_is_still_to_run_is_the_users(train):
    """Nothing that it needs counts as changed, no buffer is new, and all random numbers go on as they would have."""
    model, x = seeded(worn), torch.ones(3, 4)
    pending = (model(x) ** 2).sum()
    del model.cache
    seeds = random.getstate(), np.random.get_state(), torch.get_rng_state()  # noqa: NPY002
    expected = drawn()
    random.setstate(seeds[0])
    np.random.set_state(seeds[1])  # noqa: NPY002
    torch.set_rng_state(seeds[2])

    trace(model, x, train=train, backend="eager")

    assert drawn() == expected
    assert [name for name, _ in model.named_buffers()] == ["places"]
    pending.backward()
    assert model.linear.weight.grad is not None


def test_what_was_made_in_inference_mode_is_traced():
    """Torch refuses to write to it elsewhere, if only what it holds."""
    with torch.inference_mode():
        model, x = nn.Linear(2, 2), torch.ones(1, 2)

    assert check_trace(trace(model, x, backend="eager")) == []


@pytest.mark.parametrize("train", [False, True])
def test_what_was_computed_with_gradients_is_an_input_like_others(train):
    """`copy.deepcopy` refuses it; its own past is not traced."""
    x = torch.ones(1, 4, requires_grad=True) * 2

    found = trace(seeded(lambda: nn.Linear(4, 4)), x, train=train, backend="eager")

    assert check_trace(found) == []
    assert x.grad_fn is not None


def test_what_an_optimizer_remembers_is_left_as_it_was():
    """Moments and settings, after a step that changed them."""
    model = seeded(Net)
    optimizer = torch.optim.Adam(model.parameters())
    model(X).sum().backward()
    optimizer.step()
    before = copy.deepcopy(optimizer.state_dict())

    graph = trace_graph(model, X, train=True, backend="eager", optimizer=optimizer)

    after = optimizer.state_dict()
    assert any(node.stack[0].type.endswith("Adam") for node in graph.nodes)
    assert after["param_groups"] == before["param_groups"]
    for number, state in before["state"].items():
        assert all(torch.equal(tensor, after["state"][number][name]) for name, tensor in state.items())


@slow
@needs_compiler
def test_every_kernel_has_its_generated_file(compiled):
    """The file is there; a library's has the code that calls it; C++ of its own stands in that code, under its name."""
    kernels = [execution for execution in trace_of(compiled)["execute_op_info"].values() if execution["file_path"]]
    fused = [execution for execution in kernels if execution["jit_key"].startswith("cpp_fused")]
    assert fused and len(fused) < len(kernels)
    for execution in kernels:
        wrapper = Path(execution["attrs"]["wrapper"].rpartition(":")[0]).read_text("utf-8")
        name, _, file = execution["jit_key"].partition("/")
        assert name.rpartition(".")[2] in wrapper and file in execution["attrs"]["wrapper"]
        own = Path(execution["file_path"])
        assert own.is_file()
        assert own.suffix == (".cpp" if execution in fused else ".py")
        if execution in fused:
            body = own.read_text("utf-8").partition("kernel(")[2].partition("\n}\n")[0]
            assert body in wrapper


@needs_compiler
def test_what_was_executed_is_all_that_was_to_be_computed(compiled):
    """Each operation but views is in a kernel, or was dispatched by itself; each kernel computes something."""
    data = trace_of(compiled)
    done = {number for execution in data["execute_op_info"].values() for number in execution["fused_ops"]}
    left = [node["attrs"]["name"] for node in operators(data) if node["id"] not in done]
    assert set(left) <= VIEWS
    assert all(execution["fused_ops"] for execution in data["execute_op_info"].values())
    assert len(data["execute_op_info"]) < len(operators(data))


@needs_compiler
def test_a_compiled_backward_pass_is_tied_to_its_forward_one(compiled):
    """But for what hands gradients over, and what adds those of a shared module up."""
    backward = [node for node in compiled.source_graph.nodes if node.stack[:1] and node.stack[0].path == "grad"]
    alone = [node for node in backward if node.gradient_of is None]
    assert {node.op for node in alone} == {"detach", "add"}
    assert len([node for node in alone if node.op == "add"]) == 2  # weight and bias of what is called twice
    forward = {node.name: node for node in compiled.source_graph.nodes}
    tied = {(node.op, forward[node.gradient_of].op) for node in backward if node.gradient_of}
    assert {("mm", "addmm"), ("le", "relu"), ("expand", "sum")} <= tied
    assert all(node.stack[1:] == forward[node.gradient_of].stack for node in backward if node.gradient_of)


@needs_compiler
def test_compiled_operations_have_the_call_sites_of_eager_ones(eager, compiled):
    """Dynamo does not tell them; a run in eager PyTorch does, and so they are the same."""
    sites = {
        frame for node in eager.nodes for frame in node.stack if frame.path.startswith(("norm", "shared", "layers"))
    }
    found = {frame for node in compiled.source_graph.nodes for frame in node.stack}
    assert {(frame.path, frame.source) for frame in sites} <= {(frame.path, frame.source) for frame in found}


@needs_compiler
def test_a_compiled_step_hands_its_values_on(compiled):
    """What a kernel reads, another one has written, or the model holds; the optimizer's writes the weights."""
    known = {*compiled.inputs, *compiled.constants, *compiled.producer}
    assert {name for node in compiled.nodes for name in node.reads} <= known
    (optimizer,) = [node for node in compiled.nodes if node.stack[:1] and node.stack[0].path == "optimizer"]
    assert set(optimizer.outputs) == {f"{name}@1" for name, _ in Net().named_parameters()}


@needs_compiler
def test_a_call_without_gradients_is_compiled_as_one():
    """No derivative, no loss, no optimizer, and Jittor's shape of it."""
    data = trace(seeded(Model).eval(), torch.rand(10, 1))
    assert check_trace(data) == []
    assert {names(node) for node in operators(data)} == {"model/linear1", "model/relu1", "model/linear2"}
    assert not any("grad_op_id" in node["attrs"] for node in data["node_data"].values())
    assert all(execution["file_path"].endswith(".cpp") for execution in data["execute_op_info"].values())


class Broken(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x):
        x = self.linear(x)
        torch._dynamo.graph_break()  # noqa: SLF001  torch documents it
        return x.tanh()


@needs_compiler
def test_where_dynamo_breaks_the_graph_the_parts_are_joined():
    """What one part returns, another one takes."""
    graph = trace_graph(Broken(), X, train=True)
    assert check_trace(trace_of(graph)) == []
    (tanh,) = [node for node in graph.source_graph.nodes if node.op == "tanh" and not node.gradient_of]
    assert graph.source_graph.producer[tanh.inputs[0]].op == "addmm"


@slow
@needs_compiler
def test_a_model_can_be_traced_as_often_as_one_likes():
    """Dynamo's limit is for one program that compiles again and again; there, it gives up compiling without a word."""
    with torch._dynamo.config.patch(recompile_limit=1):  # noqa: SLF001  torch documents it
        graphs = [trace_graph(seeded(Broken), X) for _ in range(3)]
    assert [[node.code is not None for node in graph.nodes] for graph in graphs] == [[True, True]] * 3


@slow
@needs_compiler
def test_an_optimizer_that_cant_be_compiled_is_recorded_as_it_is(monkeypatch):
    """One execution for each of its operations, and no file; what was recorded until then is not there twice."""
    from torch._inductor.graph import GraphLowering

    def refuse(graph, *args):
        if any("param_groups" in str(node.meta.get("desc")) for node in graph.module.graph.nodes):
            raise RuntimeError("not with me")
        return right(graph, *args)

    right = GraphLowering.run
    monkeypatch.setattr(GraphLowering, "run", refuse)
    data = trace(seeded(Model), torch.rand(10, 1), train=True)

    nodes = data["node_data"]
    done = [(nodes[item["fused_ops"][0]], item) for item in data["execute_op_info"].values()]
    stepped = [(item["file_path"], len(item["fused_ops"])) for node, item in done if names(node) == "optimizer"]
    assert stepped == [("", 1)] * 4
    assert sum(item["file_path"].endswith(".cpp") for item in data["execute_op_info"].values()) == 2
    assert check_trace(data) == []


def test_a_trace_is_written_and_read_without_pickle(pair, tmp_path):
    """The JSON beside the pickle says the same; either is read without anything being called."""
    written = save_trace(pair[1], tmp_path / "deep" / "step.pkl")
    assert [path.name for path in written] == ["step.pkl", "step.json"]
    assert [load_trace(path) for path in written] == [pair[1], pair[1]]
    assert json.loads(written[1].read_text())["node_data"]["0"]["id"] == 0


class Evil:
    def __reduce__(self):
        return (Path("touched").write_text, ("ran",))


@pytest.mark.parametrize("planted", [Evil(), Path("here"), torch.float32, {1}, {"node_data": Evil()}])
def test_a_pickle_that_would_call_something_is_refused(planted, tmp_path, monkeypatch):
    """Before it does."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "bad.pkl").write_bytes(pickle.dumps(planted, 2))
    with pytest.raises(TraceError, match=r"'bad\.pkl' asks for .*, which may run anything; a trace needs plain values"):
        load_trace("bad.pkl")
    assert not (tmp_path / "touched").exists()


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("trace.txt", b"", r"a trace is written to a \.pkl or a \.json, not to '.*trace\.txt'"),
        ("trace.pkl", None, r"can't read '.*trace\.pkl': No such file"),
        ("trace.pkl", b"\x80\x04nonsense", r"'.*trace\.pkl' is damaged: byte 2 is not an opcode"),
        ("trace.json", b"{", r"'.*trace\.json' is not a valid \.json file: JSONDecodeError: "),
        ("trace.json", b"[]", r"'.*trace\.json' contains a list, not a trace, which is a dict"),
    ],
)
def test_a_file_that_is_no_trace_is_refused(name, content, message, tmp_path):
    """In one sentence, with its name."""
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(TraceError, match=message):
        load_trace(tmp_path / name)


def test_a_trace_that_cant_be_written_is_told(pair, tmp_path):
    """By the system's own reason."""
    (tmp_path / "file").write_text("")
    with pytest.raises(TraceError, match=r"can't write '.*step\.pkl': (Not a directory|File exists)"):
        save_trace(pair[0], tmp_path / "file" / "step.pkl")


def test_of_a_trace_that_does_not_fit_nothing_is_left(pair, tmp_path):
    """Neither of its two files."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (len(serialize(pair[0], ".pkl")), before[1]))
    try:
        with pytest.raises(TraceError, match=r"can't write '.*step\.pkl': File too large"):
            save_trace(pair[0], tmp_path / "new" / "step.pkl")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)

    assert not list(tmp_path.iterdir())


class Words(nn.Module):
    def forward(self, x):
        return "no tensor at all"


FROZEN = nn.Linear(4, 4).requires_grad_(requires_grad=False)


@pytest.mark.parametrize(
    ("model", "options", "message"),
    [
        (42, {}, r"the model comes first: a torch\.nn\.Module, not a int"),
        (nn.Tanh(), {"backend": "indutcor"}, r"there is no backend 'indutcor' that traces; .*inductor"),
        (nn.Tanh(), {"loss": torch.sum}, r"loss and optimizer belong to a training step: add train=True"),
        (FROZEN, {"train": True}, r"Linear has no parameter that takes a gradient: trace it with train=False"),
        (nn.Linear(5, 5), {}, r"Linear itself fails on these inputs: RuntimeError: mat1 and mat2"),
        (
            nn.Linear(4, 4),
            {"train": True, "loss": lambda y: y},
            r"the loss has to be one number .*, not float32\[6, 4\]",
        ),
        (nn.Linear(4, 4), {"train": True, "loss": lambda y: 1.0}, r"the loss has to be one number .*, not float"),
        (nn.Sequential(nn.Linear(4, 4), Words()), {"train": True}, r"it returns no floating-point tensor: give a loss"),
    ],
)
def test_what_cant_be_traced_is_refused(model, options, message):
    """In one sentence: what, with what, and what to do."""
    with pytest.raises(TraceError, match=message):
        trace(model, X, **{"backend": "eager", **options})


def test_a_torch_that_does_not_tell_is_refused(monkeypatch):
    """What says which operation a derivative is of has no public name."""
    monkeypatch.delattr(torch.autograd, "_get_sequence_nr")
    with pytest.raises(PrivateNameError, match=r"torch .* has no torch\.autograd\._get_sequence_nr, which Filch uses"):
        trace(nn.Tanh(), X, backend="eager")


@needs_compiler
@needs_compiler
def test_a_branch_is_one_operation_with_the_kernels_of_both_graphs():
    """Which of them runs is decided by the numbers."""
    model = module_of(lambda self, x: torch.cond(x.sum() > 0, lambda x: x.sin(), lambda x: x.cos(), (x,)))
    found = trace(model, torch.ones(3))

    (branch,) = (number for number, node in found["node_data"].items() if node["attrs"]["name"] == "cond")
    kernels = [item["jit_key"] for item in found["execute_op_info"].values() if branch in item["fused_ops"]]
    assert sorted("sin" in key for key in kernels) == [False, True]


def test_what_is_not_compiled_is_no_compiled_trace():
    """Where torch.compile is switched off, nothing is passed off as its work."""
    with (
        torch.compiler.set_stance("force_eager"),
        pytest.raises(
            TraceError, match=r"torch\.compile compiled nothing of Tanh: .* backend='eager' traces what runs"
        ),
    ):
        trace(nn.Tanh(), X)


def test_a_graph_that_was_not_traced_has_a_trace_too():
    """An exported program's: operators in modules, and what is not known is not made up."""
    from filch.export import export

    graph = export(seeded(Model).eval(), (torch.rand(10, 1),)).graph
    data = trace_of(graph)
    assert check_trace(data) == []
    assert {names(node) for node in operators(data)} >= {"model/linear1", "model/linear2"}
    assert len(data["execute_op_info"]) == len(graph.nodes)


@pytest.mark.gpu
def test_triton_kernels_have_their_files_too():
    """On a CUDA device, where the backward pass runs in a thread of its own."""
    model, x = seeded(Net).cuda(), X.cuda()
    graph = trace_graph(model, x, train=True)
    files = {execution["file_path"] for execution in trace_of(graph)["execute_op_info"].values()} - {""}
    triton = [file for file in files if "@triton" in Path(file).read_text("utf-8")]
    assert triton and check_trace(trace_of(graph)) == []
    eager = trace_graph(model, x, train=True, backend="eager")
    assert {node.gradient_of is None for node in eager.nodes if node.op.endswith("_backward")} == {False}
