"""`lower`: which nodes change, which stay float32, and invalid arguments."""

import logging

import onnx.parser
import pytest
import torch
from torch import nn

from filch.compare import tiny_llm
from filch.export import ExportError, export, load_program, lower, optimize
from filch.export.backends import get_backend
from support.models.small import module_of


def chain():
    """Two linear layers with a product between them."""
    return module_of(
        lambda self, x: self.last(torch.relu(self.first(x)) * 3.0), first=nn.Linear(32, 64), last=nn.Linear(64, 32)
    )


@pytest.fixture(scope="module")
def inputs():
    return torch.randn(2, 4, 32, generator=torch.Generator().manual_seed(0))


@pytest.fixture(scope="module")
def program(inputs):
    torch.manual_seed(0)
    return optimize(export(chain().eval(), (inputs,)))


def run(program, inputs, backend="onnxruntime-cpu"):
    engine = get_backend(backend)
    made = engine.compile(program, optimize="compiled" in engine.stages)
    return engine.run(made, {program.graph.inputs[0]: inputs})[program.graph.outputs[0]]


def named(program, op):
    return [node.name for node in program.graph.nodes if node.op == op]


@pytest.mark.parametrize("to", ["float16", "bfloat16"])
def test_every_node_is_lowered_and_inputs_and_outputs_stay_float32(program, to):
    """The values keep their names, so that they can still be compared with their references."""
    lowered = lower(program, to).graph
    for name in program.graph.producer:
        expected = "float32" if name in program.graph.outputs else to
        assert lowered.values[name].dtype == expected, name
    assert lowered.values[lowered.inputs[0]].dtype == "float32"


def test_values_between_two_kept_nodes_are_not_rounded(program):
    """Casts stand only between kept and lowered nodes."""
    relu, product = named(program, "Relu")[0], named(program, "Mul")[0]
    graph = lower(program, "float16", keep=[relu, product]).graph
    nodes = {node.name: node for node in graph.nodes}
    assert nodes[product].inputs[0] == nodes[relu].outputs[0]
    assert graph.values[nodes[relu].outputs[0]].dtype == "float32"
    assert graph.producer[nodes[relu].inputs[0]].op == "Cast"


@pytest.mark.parametrize("simulate", [False, True])
def test_keeping_all_nodes_does_not_change_the_program(program, inputs, simulate):
    """The graph is equal, and the outputs are equal bit for bit."""
    kept = lower(program, "float16", keep=[node.name for node in program.graph.nodes], simulate=simulate)
    assert kept.graph == program.graph
    assert torch.equal(run(kept, inputs), run(program, inputs))


def test_simulation_rounds_the_inputs_and_outputs_of_each_node():
    """A simulated float16 product is the rounded product of rounded numbers, and overflows like it."""
    x, y = torch.tensor([1.0001, 300.0, 1e-8, 3.0]), torch.tensor([3.0003, 300.0, 1.0, 1e-6])
    program = export(module_of(lambda self, x, y: x * y), (x, y))
    engine = get_backend("onnxruntime-cpu")
    made = engine.compile(lower(program, "float16", simulate=True), optimize=True)
    found = engine.run(made, dict(zip(program.graph.inputs, (x, y), strict=True)))
    expected = (x.half().float() * y.half().float()).half().float()
    assert torch.equal(found[program.graph.outputs[0]], expected)
    assert expected.isinf().sum() == 1


def test_the_real_and_the_simulated_program_agree_on_a_backend_that_rounds(program, inputs):
    """onnx.reference computes in float16: the two differ only by rounding inside of nodes."""
    real = run(lower(program, "float16"), inputs, "reference")
    simulated = run(lower(program, "float16", simulate=True), inputs, "reference")
    assert float((real - simulated).abs().max()) < 16 * torch.finfo(torch.float16).eps * float(real.abs().max())
    assert not torch.equal(real, run(program, inputs, "reference"))


@pytest.mark.parametrize("simulate", [False, True])
def test_weights_beyond_the_range_are_clipped(simulate):
    """A mask of -3.4e38 becomes the lowest float16, not -inf."""
    model = module_of(
        lambda self, x: torch.relu(x + self.mask),
        mask=torch.tensor([0.0, torch.finfo(torch.float32).min, -float("inf")]),
    )
    lowered = lower(export(model.eval(), (torch.ones(3),)), "float16", simulate=simulate)
    mask = lowered.constant("mask")
    assert mask is not None
    assert mask.tolist() == [0.0, torch.finfo(torch.float16).min, -float("inf")]


@pytest.mark.parametrize("simulate", [False, True])
def test_a_weight_that_is_an_output_is_not_rounded(simulate):
    """The product reads a rounded copy of it."""
    layer = nn.Linear(4, 4)
    program = export(module_of(lambda self, x: (self.layer(x), self.layer.weight), layer=layer), (torch.ones(2, 4),))
    lowered = lower(program, "float16", simulate=simulate)
    engine = get_backend("onnxruntime-cpu")
    outputs = engine.run(engine.compile(lowered, optimize=True), {lowered.graph.inputs[0]: torch.ones(2, 4)})

    assert torch.equal(outputs[lowered.graph.outputs[1]], layer.weight)


SOURCES = {
    "random numbers": "RandomUniform <shape = [4]> ()",
    "random numbers of this dtype": "RandomNormal <shape = [4], dtype = 1> ()",
    "a window": "HannWindow(size)",
    "a diagonal": "EyeLike <dtype = 1> (square)",
}


@pytest.mark.parametrize("source", SOURCES.values(), ids=SOURCES)
def test_what_is_computed_from_no_number_stays_float32(source, tmp_path):
    """Runtimes have no kernel that computes it in a lower precision."""
    nodes = f"{{ size = Constant <value_int = 4> () square = Cast <to = 7> (x) r = {source} y = Add(x, r) }}"
    header = '<ir_version: 10, opset_import: ["" : 20]>'
    onnx.save(onnx.parser.parse_model(f"{header} g (float[4, 4] x) => (float[4, 4] y) {nodes}"), tmp_path / "m.onnx")

    lowered = lower(load_program(tmp_path / "m.onnx"), "float16")

    graph = lowered.graph
    added = next(node for node in graph.nodes if node.op == "Add")
    assert [graph.values[name].dtype for name in ("r", *added.outputs)] == ["float32", "float16"]
    engine = get_backend("onnxruntime-cpu")
    assert engine.run(engine.compile(lowered, optimize=True), {"x": torch.ones(4, 4)})["y"].dtype == torch.float32


def test_branches_stay_float32():
    """The nodes in an If, and the outer values that they read, keep their dtype."""

    class Branches(nn.Module):
        def forward(self, x):
            y = x * 2
            return torch.cond(x.sum() > 0, lambda y: y + 1.0, lambda y: y - 1.0, (y,)) * 3.0

    x = torch.ones(3)
    program = export(Branches(), (x,))
    for simulate in (False, True):
        assert run(lower(program, "float16", simulate=simulate), x).tolist() == [9.0, 9.0, 9.0]


@pytest.mark.parametrize("to", ["float16", "bfloat16"])
def test_sequences_stay_float32(inputs, to):
    """The exporter makes one of `split` where a size is dynamic, and no cast takes it."""

    class Halves(nn.Module):
        def forward(self, x):
            first, second = (x * 2).split([x.shape[1] - 2, 2], 1)
            return first.sum(1) * second.sum(1)

    exported = export(Halves(), (inputs,), dynamic_shapes={"x": {1: torch.export.Dim.DYNAMIC}})
    assert named(exported, "SplitToSequence")
    expected = run(exported, inputs)
    torch.testing.assert_close(
        run(lower(exported, to, simulate=to == "bfloat16"), inputs), expected, rtol=0.1, atol=0.1
    )


@pytest.mark.parametrize("to", ["float16", "bfloat16"])
def test_a_language_model_is_lowered_completely(to):
    """Gather, masks, slices and softmax are lowered; the reference evaluator runs the result."""
    model, args = tiny_llm()
    program = optimize(export(model, args))
    exact, lowered = (run(item, args[0], "reference") for item in (program, lower(program, to)))
    assert 0 < float((exact - lowered).abs().max()) < 0.1


def test_int8_quantizes_the_inputs_of_all_nodes_except_kept_ones(program, inputs):
    """A kept node reads the original values, not dequantized ones."""
    first, last = named(program, "MatMul")
    calibration = [{program.graph.inputs[0]: inputs}]
    graph = lower(program, "int8", keep=[first], calibration=calibration).graph
    nodes = {node.name: node for node in graph.nodes}
    assert nodes[first].inputs == next(node for node in program.graph.nodes if node.name == first).inputs
    assert all(graph.producer[name].op == "DequantizeLinear" for name in nodes[last].inputs)


def test_int4_packs_the_weights_of_all_products_except_kept_ones(program, inputs):
    """MatMul with a weight becomes MatMulNBits."""
    first, _ = named(program, "MatMul")
    ops = [node.op for node in lower(program, "int4", keep=[first]).graph.nodes]
    assert (ops.count("com.microsoft::MatMulNBits"), ops.count("MatMul")) == (1, 1)


def test_the_tools_of_onnx_runtime_do_not_change_the_logging(program, inputs, capsys, caplog):
    """They give the root logger a handler and a level, and write to it; all of that is undone."""
    root = logging.getLogger()
    before = (list(root.handlers), root.level, root.manager.disable)
    lower(program, "int4")
    lower(program, "int8", calibration=[{program.graph.inputs[0]: inputs}])
    assert (list(root.handlers), root.level, root.manager.disable) == before
    assert (caplog.records, capsys.readouterr()) == ([], ("", ""))


def test_module_calls_and_the_original_survive(program):
    """A lowered program still has the values of its module calls."""
    lowered = lower(program, "float16", simulate=True)
    assert lowered.original is program.original
    assert all(
        port.value in lowered.graph.known
        for call in lowered.module_calls.values()
        for port in call.outputs
        if port.value
    )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"to": "float12"}, r"there is no precision 'float12'; there are float16, bfloat16, int8, int4"),
        ({"to": "float16", "keep": ["node_MatMul_0"]}, r"no node 'node_MatMul_0' to keep in float32; did you mean 'n"),
        ({"to": "int8"}, r"int8 needs the ranges of the program's values: give calibration="),
        ({"to": "int4", "simulate": True}, r"only float16 and bfloat16 are simulated"),
    ],
)
def test_invalid_arguments_are_errors(program, options, message):
    """The message says what to write instead."""
    with pytest.raises(ExportError, match=message):
        lower(program, **options)


def test_an_unoptimized_program_has_nothing_to_quantize(inputs):
    """Without optimization, a Transpose stands between each weight and the node that uses it."""
    with pytest.raises(
        ExportError, match=r"no node of the program can be lowered to int4; .* optimize\(program\) first"
    ):
        lower(export(chain().eval(), (inputs,)), "int4")
