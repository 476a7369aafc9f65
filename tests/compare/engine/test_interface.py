"""The inputs and outputs of a program against those of the model: their order, number and names."""

import json
from collections.abc import Callable
from dataclasses import replace

import onnx
import onnx_ir as ir
import pytest
import torch
from onnx import ModelProto, TensorProto, helper
from torch import nn

from filch.compare import compare, load_report
from filch.compare.testing._artifacts import ArtifactStore
from filch.compare.testing._checks import Checks
from filch.export import Program, export, load_program
from filch.steal import steal_forward
from support.faults.fakes import PlantedBackend, WrongBackend
from support.models.small import capture_of, module_of
from support.processes.commands import run

Change = Callable[[ModelProto], None]


def pair():
    """A model with two inputs and two outputs of one shape; for equal inputs the outputs are equal."""
    return module_of(
        lambda self, x, y: {"a": (x * self.scale).relu(), "b": (y * self.scale).relu()},
        scale=nn.Parameter(torch.tensor([2.0, 3.0])),
    )


def captured(model, *args, **kwargs):
    with torch.no_grad(), steal_forward(model, submodules=True) as capture:
        model(*args, **kwargs)
    return capture


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """Return a dump of a call with equal inputs, for which exchanged outputs can't be found by their values."""
    x = torch.ones(1, 2)
    path = tmp_path_factory.mktemp("pair") / "pair.onnx"
    model = pair().eval()
    export(model, (x, x.clone())).save(path)
    return captured(model, x, x.clone()), path, onnx.load(path)


def changed(saved, change):
    capture, path, model = saved
    copied = ModelProto.FromString(model.SerializeToString())
    change(copied)
    target = path.with_name("changed.onnx")
    onnx.save(copied, target)
    return capture, target


def exchange(side):
    def change(model):
        listed = getattr(model.graph, side)
        items = [*listed]
        del listed[:]
        listed.extend(reversed(items))

    return change


def twice(model):
    model.graph.output[1].CopyFrom(model.graph.output[0])


def one_less(model):
    del model.graph.output[1]


def one_more(model):
    model.graph.output.append(helper.make_tensor_value_info("mul", TensorProto.FLOAT, None))


def unread(model):
    model.graph.input.append(helper.make_tensor_value_info("mask", TensorProto.FLOAT, [3]))


def another_name(model):
    old = model.graph.output[0].name
    next(node for node in model.graph.node if old in node.output).output[0] = "probabilities"
    model.graph.output[0].name = "probabilities"


def fixed(model):
    """Replace an input by the tensor that it was exported with."""
    given = model.graph.input.pop()
    model.graph.initializer.append(helper.make_tensor(given.name, TensorProto.FLOAT, [1, 2], [1.0, 1.0]))


WRONG: list[tuple[Change, str]] = [
    (exchange("output"), "lists its outputs in another order than the model: output 0 is 'relu_1' (['b']) instead of"),
    (exchange("input"), "lists its inputs in another order than the model: input 0 is 'y' instead of 'x'"),
    (twice, "outputs: 'relu_1' (['b']) is missing; 'relu' (['a']) is listed twice, not once"),
    (one_less, "does not have the model's outputs: 'relu_1' (['b']) is missing"),
    (one_more, "does not have the model's outputs: 'mul' is not one of the model's"),
    (unread, "does not have the model's inputs: 'mask' is not one of the model's"),
    (another_name, "outputs: 'relu' is missing; 'probabilities' is not one of the model's"),
    (fixed, "does not have the model's inputs: 'y' is missing"),
]


@pytest.mark.parametrize(("change", "problem"), WRONG)
def test_a_changed_interface_is_found_though_every_value_is_right(saved, change, problem):
    """The report has one sentence about it, and is not close."""
    report = compare(*changed(saved, change))

    assert not report.close
    assert not report.diverged
    (found,) = report.interface
    assert found.startswith("the program ")
    assert problem in found
    assert found in report.headline
    assert found.partition(":")[0] in " ".join(str(report).split())
    with pytest.raises(AssertionError, match="WRONG INTERFACE: the program "):
        report.assert_close()


def test_float64_does_not_excuse_an_interface(saved):
    """All values are right by float64 too, and the report is not close."""
    report = compare(*changed(saved, exchange("output")), every_node=True)

    assert len(report.interface) == 1
    assert not report.close
    assert "Nothing differs" not in str(report)


def dressed(self, x, unused=None, *, b, a):
    """A model that returns one result twice, an input, a weight, a buffer and None, and has an unread input."""
    self.count.add_(1)
    y = x - a + b
    return y, None, {"again": y, "input": x}, [self.weight, self.count], torch.full((2,), 3.0), y.view(-1)


def test_an_interface_that_only_looks_odd_is_right(tmp_path):
    """It has nested results, one result twice, inputs and weights as outputs, and reordered keyword arguments."""
    model, x = module_of(dressed, weight=nn.Parameter(torch.ones(2)), count=torch.zeros(2)).eval(), torch.randn(3, 2)
    program = export(model, (x, x + 3), {"a": x + 1, "b": x + 2})
    program.save(tmp_path / "m.onnx")
    model.count.zero_()
    capture = captured(model, x, x + 3, b=x + 2, a=x + 1)

    for report in (compare(capture, program), compare(capture, load_program(tmp_path / "m.onnx"))):
        assert report.interface == ()
        assert report.close, report


def test_what_a_file_does_not_say_is_not_judged(saved):
    """A file of another exporter does not list the model's outputs; the report says so."""
    capture, path = changed(saved, exchange("output"))
    foreign = ir.load(path)
    foreign.metadata_props.clear()

    report = compare(capture, Program(foreign))

    assert report.interface == ()
    assert any("outputs were judged by their numbers" in note for note in report.notes)


@pytest.mark.parametrize("side", ["input", "output"])
def test_a_backend_that_exchanges_them_is_found(saved, side):
    """The program is right, and the compiled graph is not."""
    capture, path, _ = saved

    class Exchanging(PlantedBackend):
        def compile(self, program, *, optimize):
            made = super().compile(program, optimize=optimize)
            names = getattr(made.graph, f"{side}s")
            return replace(made, graph=replace(made.graph, **{f"{side}s": names[::-1]})) if optimize else made

    report = compare(capture, path, backend=Exchanging(lambda _: None))

    assert not report.close
    assert report.interface[0].startswith(f"the compiled graph lists its {side}s in another order than the model:")


@pytest.fixture(scope="module")
def report(saved):
    """Return the report on exchanged outputs."""
    return compare(*changed(saved, exchange("output")))


def test_it_stands_in_the_json(report, tmp_path):
    """It is read back from JSON, too."""
    report.to_json(tmp_path / "report.json")

    assert load_report(tmp_path / "report.json").interface == report.interface
    assert json.loads((tmp_path / "report.json").read_text())["close"] is False


def test_the_command_line_and_the_fixture_say_it(saved, tmp_path, capsys):
    """The exit code is that of a difference, and the test fails."""
    _, path = changed(saved, exchange("output"))
    reference = tmp_path / "reference.onnx"
    x = torch.ones(1, 2)
    model = pair().eval()
    capture_of(model, x, x.clone(), submodules=True, dump_file=reference)

    assert run("compare", str(reference), str(path)) == 1
    assert "lists its outputs in another order than the model" in " ".join(capsys.readouterr().out.split())

    said: dict[str, str] = {}
    place = ArtifactStore(tmp_path, None, lambda: tmp_path / "scratch", said.__setitem__, update=False, stored=set())
    with pytest.raises(AssertionError, match="lists its outputs in another order than the model"):
        Checks(place).check(model, (x, x.clone()), program=path)
    assert "in another order" in said["first_divergence"]


@pytest.mark.parametrize("order", [(1, 0), (1, 1), (0, 1)])
def test_the_outputs_of_a_foreign_file_are_judged_by_position(tmp_path, order):
    """They are matched by numbers; a value that is off by more than rounding matches none."""
    model, x, y = pair(), torch.tensor([1.0, 2.0]), torch.tensor([3.0, 4.0])
    capture = captured(model, x, y)
    proto = ir.to_proto(export(model, (x, y)).model)
    del proto.metadata_props[:]
    outputs = [ModelProto.FromString(proto.SerializeToString()).graph.output[place] for place in order]
    if order == (1, 1):  # under a name of its own
        proto.graph.node.append(helper.make_node("Identity", [outputs[0].name], ["again"]))
        outputs[0].name = "again"
    del proto.graph.output[:]
    proto.graph.output.extend(outputs)
    onnx.save(proto, tmp_path / "foreign.onnx")
    report = compare(capture, tmp_path / "foreign.onnx")
    assert report.close == (order == (0, 1))
    problems = [] if report.close else [f"the program gives the model's result 1 as output 0, {outputs[0].name!r}"]
    assert list(report.interface) == problems


def test_an_output_that_is_wrong_is_no_other_result(tmp_path):
    model, x, y = pair(), torch.tensor([1.0, 2.0]), torch.tensor([3.0, 4.0])
    capture = captured(model, x, y)
    proto = ir.to_proto(export(model, (x, y)).model)
    del proto.metadata_props[:]
    next(node for node in proto.graph.node if node.op_type == "Mul").op_type = "Sub"
    onnx.save(proto, tmp_path / "foreign.onnx")
    report = compare(capture, tmp_path / "foreign.onnx")
    assert not report.close
    assert not report.interface


def test_a_random_output_of_a_foreign_file_is_no_other_result(tmp_path):
    """This holds even if it draws the numbers of another output by chance."""
    # A model that returns random numbers beside its input.
    model, x = module_of(lambda self, x: (torch.rand_like(x), x * 1)), torch.tensor([0.25, 0.5])
    capture = capture_of(model, x)
    proto = ir.to_proto(export(model, (x,)).model)
    del proto.metadata_props[:]
    onnx.save(proto, tmp_path / "foreign.onnx")
    drawn = proto.graph.output[0].name
    report = compare(capture, tmp_path / "foreign.onnx", backend=WrongBackend({drawn: lambda _: x}))
    assert not report.interface
