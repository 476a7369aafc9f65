"""Values that a program computes in a lower precision than the model, which a report names."""

import onnx
import pytest
import torch
from onnx import TensorProto, helper
from torch import nn

from filch.compare import compare, compare_programs, load_report
from filch.compare.engine._coarser_dtypes import exact_dtype
from filch.compare.metrics._metrics import compare_tensors
from filch.export import export, load_program, lower
from support.faults.fakes import WrongBackend
from support.models.small import capture_of, module_of


def recorded(model, x):
    capture = capture_of(model, x, submodules=True)
    return capture, export(model, (x,))


@pytest.fixture(scope="module")
def subject(tmp_path_factory):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 16), nn.GELU(), nn.Linear(16, 16), nn.GELU()).eval()
    capture, program = recorded(model, torch.randn(4, 16))
    file = tmp_path_factory.mktemp("subject") / "model.onnx"
    program.save(file)
    return capture, file


def in_dtype(file, nodes, dtype):
    """Write a copy of a program in which each of some nodes is between casts to a dtype and back to float32."""
    model, changed = onnx.load(file), []
    for node in model.graph.node:
        if node.name not in nodes:
            changed.append(node)
            continue
        for index, name in enumerate(node.input):
            node.input[index] = f"{name}_{node.name}"
            changed.append(helper.make_node("Cast", [name], [node.input[index]], node.input[index], to=dtype))
        output, node.output[0] = node.output[0], f"{node.output[0]}_lower"
        back = helper.make_node("Cast", [node.output[0]], [output], f"{output}_back", to=TensorProto.FLOAT)
        changed += [node, back]
    del model.graph.node[:]
    model.graph.node.extend(changed)
    onnx.save(model, file)
    return file


def copy_of(file, folder):
    for source in file.parent.glob(f"{file.name}*"):
        (folder / source.name).write_bytes(source.read_bytes())
    return folder / file.name


def words(report):
    return " ".join(str(report).split())


@pytest.mark.parametrize(
    ("nodes", "dtype", "backend"),
    [
        (["node_linear_1"], "float16", "onnxruntime-cpu"),
        (["node_linear_1", "node_gelu_1"], "float16", "onnxruntime-cpu"),
        (["node_linear_1"], "bfloat16", "reference"),
    ],
    ids=["one node", "a layer", "bfloat16"],
)
def test_a_node_between_casts_is_computed_in_their_dtype(subject, tmp_path, nodes, dtype, backend):
    """The explanation, the facts in JSON, the report that is read from it, and a judgement by tolerance have it."""
    capture, file = subject
    program = in_dtype(copy_of(file, tmp_path), nodes, getattr(TensorProto, dtype.upper()))

    report = compare(capture, program, backend=backend)
    report.to_json(tmp_path / "report.json")

    assert report.first_divergence is not None
    assert report.first_divergence.value == "linear_1"
    assert f"it is computed in {dtype}, unlike in the model; with correct inputs" in words(report)
    assert load_report(tmp_path / "report.json").explanation == report.explanation
    assert f"computed in {dtype}" in words(compare(capture, program, backend=backend, tolerance=1e-5))


def test_a_lowered_program_is_computed_in_its_dtype(subject):
    """Its values have the names of the model's; if lower precision is allowed, nothing is said."""
    capture, file = subject
    program = lower(load_program(file), "float16")

    assert "it is computed in float16, unlike in the model" in words(compare(capture, program))
    assert "computed in" not in words(compare(capture, program, lower_precision=True))


def test_the_option_of_a_backend_is_seen_in_the_values(subject):
    """Eager PyTorch in bfloat16 returns bfloat16."""
    report = compare(*subject, backend="eager", options={"dtype": "bfloat16"})

    assert "it is computed in bfloat16, unlike in the model" in words(report)


def test_another_fault_has_no_coarser_dtype(subject, tmp_path):
    """Neither has a right program."""
    capture, file = subject
    program = onnx.load(copy_of(file, tmp_path))
    gelu = next(node for node in program.graph.node if node.op_type == "Gelu")
    gelu.attribute.append(helper.make_attribute("approximate", "tanh"))
    onnx.save(program, tmp_path / file.name)
    wrong = compare(capture, tmp_path / file.name)

    assert wrong.first_divergence is not None
    assert wrong.first_divergence.op == "Gelu"
    for report in (wrong, compare(capture, file)):
        assert report.coarser_dtype == ""
        assert "computed in" not in words(report)


def test_the_precision_of_the_model_itself_is_not_coarser():
    """A node that the model computes in float16 may have another fault."""
    torch.manual_seed(0)
    # A model that itself computes one layer in float16.
    model = module_of(
        lambda self, x: torch.tanh(self.second(self.first(x).half()).float()),
        first=nn.Linear(16, 16),
        second=nn.Linear(16, 16).half(),
    )
    capture, program = recorded(model.eval(), torch.randn(4, 16))
    faults = {"linear_1": lambda tensor: tensor * 2, "_to_copy_1": lambda tensor: tensor * 2}

    assert "computed in" not in words(compare(capture, program))
    for name, fault in faults.items():
        report = compare(capture, program, backend=WrongBackend({name: fault}))
        assert report.first_divergence is not None
        assert report.first_divergence.value == name
        assert "computed in" not in words(report)


def test_a_whole_model_in_float16_has_no_coarser_dtype():
    """Its values are float16 in the model, too."""
    torch.manual_seed(0)
    capture, program = recorded(nn.Sequential(nn.Linear(16, 16), nn.ReLU()).half(), torch.randn(4, 16).half())
    wrong = compare(capture, program, backend=WrongBackend({"linear": lambda tensor: tensor + 0.5}))

    assert compare(capture, program).close
    assert not wrong.close
    assert "computed in" not in words(wrong)


def test_two_programs_are_compared_with_the_reference(subject, tmp_path):
    """A reference that computes the node in float16, too, gives no reason."""
    _, file = subject
    lowered = in_dtype(copy_of(file, tmp_path), ["node_linear_1"], TensorProto.FLOAT16)

    assert "it is computed in float16, unlike in the reference" in words(compare_programs(file, lowered))
    assert "computed in" not in words(compare_programs(lowered, lowered))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=["float16", "bfloat16"])
def test_rounded_numbers_are_told_where_the_graph_does_not_show_it(subject, dtype):
    """A kernel that computes in a lower precision returns float32 numbers that the lower precision holds exactly."""
    name = str(dtype).removeprefix("torch.")

    report = compare(*subject, backend=WrongBackend({"linear_1": lambda tensor: tensor.to(dtype).float()}))

    assert report.coarser_dtype == ""
    assert f"all its numbers are exact in {name}, as if it were computed in {name}; with correct" in words(report)


def test_numbers_that_are_simple_are_not_rounded():
    """Zeros and a few numbers are exact in every dtype; so is the reference, or the difference is not rounding."""
    x = torch.randn(64, generator=torch.Generator().manual_seed(0))
    half = x.half().float()
    pairs = {
        "rounded": (x, half),
        "zeros": (x, torch.zeros(64)),
        "few": (torch.ones(64) + 1e-4, torch.ones(64)),
        "reference": (half, (half * 2)),
        "far": (x, half * 2),
        "one other": (x, torch.cat([half[1:], x[:1] * 1.001])),
    }

    found = {name: exact_dtype(wrong, right, compare_tensors(wrong, right)) for name, (right, wrong) in pairs.items()}

    assert found == dict.fromkeys(pairs, "") | {"rounded": "float16"}
