"""Faults planted in what a backend made of a sound program: the compiled node that is wrong is named first."""

import copy
from functools import cache
from random import Random

import onnx
import pytest
import torch
from onnx import numpy_helper
from torch import nn

from faults.nodes.compiled import OrtPlants, WrongOnnxRuntime
from filch.compare import compare
from filch.export import export, lower, optimize
from filch.export.backends import get_backend
from filch.steal import ModuleInfo, steal_forward
from filch.steal.values._arguments import argument_tensors
from support.models.small import module_of
from support.models.zoo import exported
from support.processes.compilers import needs_compiler
from support.thorough import slow


def small():
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        # A model that Inductor compiles to two kernels of its own and a library call between them.
        model = module_of(
            lambda self, x: torch.tanh(self.linear(self.norm(x))) + x * 0.5,
            norm=nn.LayerNorm(16),
            linear=nn.Linear(16, 16),
        )
        return model.eval(), (torch.randn(4, 16),), {}


class Subject:
    """A model with its program and a capture of it."""

    def __init__(self, model, args, kwargs, program=None):
        with torch.no_grad(), steal_forward(model, submodules=True) as self.capture:
            model(*args, **kwargs)
        self.program = program or export(model, args, kwargs)
        taken = argument_tensors(ModuleInfo.of(model).parameters, args, kwargs)
        self.inputs = {value: taken[path] for value, path in self.program.inputs.items()}

    def compare(self, backend, program=None):
        return compare(self.capture, program or self.program, backend=backend, stages=("compiled",))


@cache
def subject(name):
    return Subject(*(small() if name == "small" else exported(name)))


def check(one, planter, kinds, program=None):
    """Check that a clean run has no divergence, and that each planted node's row is the first divergence."""
    assert one.compare(planter.clean, program).close
    for kind in kinds:
        plant = planter.plant(kind, Random(0))  # noqa: S311  no secret
        report = one.compare(plant.backend, program)
        assert report.first_divergence is not None, plant.text
        assert report.first_divergence.node == plant.node, f"{plant.text}\n{report.first_divergence}"
        assert report.undisturbed


@slow
@pytest.mark.parametrize(
    ("name", "level", "kinds"),
    [
        ("resnet", "all", ("weight bit", "dropped input", "activation", "attribute")),
        ("resnet", "extended", ("weight bit", "dropped input", "attribute")),
        ("vit", "all", ("epsilon", "weight bit", "swapped inputs", "dropped input", "attribute")),
    ],
)
def test_a_wrong_node_of_the_graph_that_onnx_runtime_optimized_is_named_first(name, level, kinds):
    """One node of the optimized file is changed; the plain and the instrumented run both use that file."""
    one = subject(name)
    program = optimize(one.program)
    check(one, OrtPlants(program, one.inputs, get_backend("onnxruntime-cpu", level=level)), kinds, program)


@slow
def test_a_wrong_layer_of_the_model_that_openvino_read_is_named_first():
    """OpenVINO compiles a model with one wrong operation."""
    pytest.importorskip("openvino", reason="backend 'openvino' needs pip install 'filch[openvino]'")
    from faults.nodes.openvino import OpenVinoPlants

    one = subject("resnet")
    check(one, OpenVinoPlants(one.program, one.inputs), ("weight bit", "attribute"))


@slow
@needs_compiler
def test_a_wrong_kernel_of_inductor_is_named_first():
    """Its source, the library function that it calls, or the lowering that generates it is wrong."""
    from faults.nodes.inductor import InductorPlants

    one = subject("small")
    check(one, InductorPlants(one.program, one.inputs), InductorPlants.kinds)


@cache
def quantized():
    """Return a model with the int8 program that ONNX Runtime's tool quantized from it."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model, x = (
            nn.Sequential(nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 16), nn.Sigmoid()).eval(),
            torch.randn(8, 16),
        )
    one = Subject(model, (x,), {})
    return one, lower(optimize(one.program), "int8", calibration=[one.inputs])


def with_scale(model, index, position, factor):
    """Return the program with another scale in one node."""
    wrong = copy.deepcopy(model)
    node = wrong.graph.node[index]
    scale = next(held for held in wrong.graph.initializer if held.name == node.input[position])
    wrong.graph.initializer.append(numpy_helper.from_array(numpy_helper.to_array(scale) * factor, "planted"))
    node.input[position] = "planted"
    return wrong


@pytest.mark.parametrize("level", ["basic", "all"])
def test_a_wrong_scale_of_a_quantized_graph_is_named(level):
    """Each node with a scale is the first to differ, or is named as a node before it that was not judged."""
    one, program = quantized()
    backend = get_backend("onnxruntime-cpu", level=level)
    made = backend.compile(program, optimize=True)
    model = onnx.load(made.handle.path)
    how = {"stages": ("compiled",), "lower_precision": True}
    assert compare(one.capture, program, backend=backend, **how).close

    scales = {held.name for held in model.graph.initializer if "scale" in held.name and not held.dims}
    plants = [
        (index, position)
        for index, node in enumerate(model.graph.node)
        for position, name in enumerate(node.input)
        if name in scales
    ]
    for index, position in plants:
        wrong = WrongOnnxRuntime(**vars(backend), wrong=with_scale(model, index, position, 3).SerializeToString())
        first = compare(one.capture, program, backend=wrong, **how).first_divergence
        assert first is not None, model.graph.node[index]
        assert made.graph.nodes[index].name in (first.node, *first.behind), (model.graph.node[index], first)
    assert len(plants) >= 4
