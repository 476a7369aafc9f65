"""A capture leaves the model, its results, its graphs and its memory unchanged."""

import gc
import inspect
import sys
import time
import weakref

import pytest
import torch
import transformers
from torch import nn

from filch.steal import FilchError, Skipped, is_stealing, restore, steal_forward
from support.models.small import module_of


def test_no_hook_is_left_on_a_module_listed_twice(capfd):
    """After the block, calls are neither recorded nor printed."""
    module = nn.Linear(2, 2)
    before = {name: dict(value) if isinstance(value, dict) else value for name, value in vars(module).items()}

    with steal_forward([("a", module), ("b", module)], verbose=1) as capture:
        module(torch.ones(1, 2))
    count = len(capture)
    capfd.readouterr()
    module(torch.ones(1, 2))

    assert count == len(capture) == 4
    assert capfd.readouterr() == ("", "")
    assert vars(module).keys() == before.keys()
    assert not module._forward_hooks  # noqa: SLF001
    assert not module._forward_pre_hooks  # noqa: SLF001


def test_forward_is_never_replaced_on_the_module():
    """A later change of the class therefore takes effect."""

    class Doubling(nn.Module):
        def forward(self, x):
            return x * 2

    module = Doubling()
    with steal_forward(module):
        module(torch.ones(1))
        inside = "forward" in vars(module)
    Doubling.forward = lambda _, x: x * 3

    assert not inside
    assert "forward" not in vars(module)
    assert module(torch.ones(1)).item() == 3


def test_a_replica_runs_its_own_forward():
    """DataParallel copies the attributes of a module; none may refer to the original."""
    module = nn.Linear(2, 2)

    with steal_forward(module):
        module(torch.ones(1, 2))
        inside = module._replicate_for_data_parallel()  # noqa: SLF001
    after = module._replicate_for_data_parallel()  # noqa: SLF001

    assert inside.forward.__self__ is inside
    assert after.forward.__self__ is after


def test_the_signature_of_forward_is_unchanged():
    """Libraries inspect the signature to choose arguments."""
    module = module_of(lambda self, input_ids, position_ids=None, *, use_cache=True: input_ids)

    with steal_forward(module):
        found = list(inspect.signature(module.forward).parameters)

    assert found == ["input_ids", "position_ids", "use_cache"]


class Marker:
    """An object that lives as long as the graph node that references it."""


class Step(torch.autograd.Function):
    """Doubles its input, and adds a marker to the autograd graph."""

    alive = weakref.WeakSet()  # noqa: RUF012  shared by all instances

    @staticmethod
    def forward(ctx, x):
        ctx.marker = Marker()
        Step.alive.add(ctx.marker)
        return x * 2

    @staticmethod
    def backward(ctx, gradient):
        return gradient * 2


@pytest.mark.parametrize("options", [{}, {"gradients": True}], ids=["", "gradients"])
def test_the_graph_of_a_training_step_is_freed_inside_the_block(steal, options):
    """Captures hold no reference to autograd graphs, with or without gradients."""
    model = nn.Sequential(nn.Linear(8, 8), module_of(lambda self, x: Step.apply(x)), nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    counts = []

    def train():
        for _ in range(5):
            optimizer.zero_grad()
            loss = model(torch.randn(4, 8)).mean()
            counts.append(len(Step.alive))
            loss.backward()
            optimizer.step()
            del loss
        gc.collect()
        counts.append(len(Step.alive))

    steal(("m", model), train, submodules=True, **options)

    assert counts[0] == 1
    assert counts[-1] == 0


@pytest.mark.parametrize("wrong", ["not a module", 5, [("m", 5)], []])
def test_a_refused_capture_does_not_affect_the_next_one(wrong):
    """Invalid modules leave no state behind."""
    module = nn.Identity()

    with pytest.raises(FilchError), steal_forward(wrong):
        pytest.fail("the block was entered")

    assert not is_stealing()
    with steal_forward(("m", module)) as capture:
        module(torch.ones(1))
    assert len(capture) == 2


@pytest.mark.skipif(sys.gettrace() is not None, reason="a debugger or coverage slows down Python code")
@torch.no_grad()
def test_a_capture_takes_at_most_five_times_as_long_as_hooks_that_clone(steal):
    """Compared with the simplest hooks, on a model of small layers.

    The benchmarks measure it; this is to notice what is slower by an order of magnitude. The best of many runs counts,
    and the best of five trials.
    """
    model, x = nn.Sequential(*[nn.Linear(64, 64) for _ in range(20)]).eval(), torch.randn(1, 64)

    def best(runs=60):
        times = []
        for _ in range(runs):
            start = time.perf_counter()
            model(x)
            times.append(time.perf_counter() - start)
        return min(times)

    def cloning():
        kept = []
        handles = [
            module.register_forward_hook(lambda _, args, output: kept.append((args[0].clone(), output.clone())))
            for module in model.modules()
        ]
        found = best()
        for handle in handles:
            handle.remove()
        return found

    def stealing():
        found = []
        steal(model, lambda: found.append(best()), submodules=True)
        return found[0]

    assert any(stealing() < 5 * cloning() for _ in range(5))


def test_exporting_inside_a_block_gives_the_same_program(tmp_path):
    """The dump contains only real tensors."""
    model, x, path = nn.Sequential(nn.Linear(2, 2)), torch.ones(1, 2), tmp_path / "dump.onnx"
    without = torch.export.export(model, (x,))

    with steal_forward(("m", model), submodules=True, dump_file=path):
        inside = torch.export.export(model, (x,))
        model(x)

    dump = restore(path)
    assert inside.graph_module.code == without.graph_module.code
    assert len(dump) == 4
    assert [key for key in dump if not isinstance(dump[key], Skipped)] == list(dump)
    assert torch.equal([value for key, value in dump.items() if key.kind == "O"][-1], model(x))


def _llama():
    config = transformers.LlamaConfig(
        vocab_size=64, hidden_size=16, intermediate_size=32, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=1,
    )  # fmt: skip
    return transformers.LlamaForCausalLM(config)


def _t5():
    config = transformers.T5Config(
        vocab_size=64, d_model=16, d_ff=32, num_layers=2, num_heads=2, d_kv=8, decoder_start_token_id=0
    )
    return transformers.T5ForConditionalGeneration(config)


def _mamba():
    config = transformers.MambaConfig(vocab_size=64, hidden_size=16, num_hidden_layers=2, state_size=4)
    return transformers.MambaForCausalLM(config)


@pytest.mark.parametrize("make", [_llama, _t5, _mamba])
def test_generate_gives_the_same_tokens_and_each_step_is_recorded(steal, make):
    """With the caches of a decoder, an encoder-decoder and a state space model."""
    torch.manual_seed(0)
    model, ids = make().eval(), torch.randint(3, 64, (1, 6))
    model.generation_config.eos_token_id = None  # generate all four tokens
    options = {"max_new_tokens": 4, "do_sample": False, "pad_token_id": 0}
    expected = model.generate(ids, **options)
    found = []

    records = steal(("m", model), lambda: found.append(model.generate(ids, **options)))

    assert torch.equal(found[0], expected)
    tokens = [records["m", step, "O"].logits[:, -1].argmax(-1) for step in range(1, 4)]
    assert torch.equal(torch.stack(tokens, dim=1), expected[:, -3:])
    assert len(records) == 8
    assert "skipped" not in records.describe()


def _doubling(graphs):
    """Return a backend that records the size of each graph, and doubles its results once per graph."""

    def backend(graph, _):
        graphs.append(sum(node.op == "call_function" for node in graph.graph.nodes))
        return lambda *args: tuple(2 * result for result in graph.forward(*args))

    return backend


def compiled_module():
    return module_of(lambda self, x: self.b(torch.relu(self.a(x))), a=nn.Linear(4, 4), b=nn.Linear(4, 4))


@pytest.mark.parametrize("before", [True, False], ids=["compiled before", "compiled inside"])
@pytest.mark.parametrize("fullgraph", [True, False])
@torch.no_grad()
def test_a_compiled_model_keeps_its_graph_and_results(steal, before, fullgraph):
    """One graph before, inside and after the block, whose compiled results are used; nothing of it is recorded."""
    torch.compiler.reset()
    model, x, graphs, outputs = compiled_module().eval(), torch.randn(2, 4), [], []
    compiled = torch.compile(model, backend=_doubling(graphs), fullgraph=fullgraph)
    if before:
        compiled(x)

    records = steal(("m", model), lambda: outputs.append(compiled(x)), submodules=True)
    inside = list(graphs)
    outputs.append(compiled(x))

    assert not records
    assert inside == [3]
    assert set(graphs) == {3}
    assert all(torch.equal(output, 2 * model(x)) for output in outputs)
