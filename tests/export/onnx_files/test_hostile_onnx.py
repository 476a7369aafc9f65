"""Untrusted ONNX files: each is refused with a one-line error, or loads; none reads, writes or runs anything else."""

import os
import resource
import signal
from dataclasses import replace

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

from filch.export import BackendError, ProgramError, load_program, read_graph
from filch.export.backends import get_backend
from filch.export.onnx_files._known_shapes import KnownShapes
from filch.export.onnx_files._ranks import check_ranks
from filch.export.views import draw
from support.hostile.onnx_files import DIMENSIONS, LARGE, LOADED, NOTES, OUTSIDE, REFUSED, SECRET, write
from support.models.small import onnx_model
from support.thorough import slow

_MEMORY = 500 * 2**10  # KiB, as `ru_maxrss` counts
_HANG = 100  # seconds: ten times the promised limit, because the machine may be busy


@pytest.fixture
def limits(tmp_path, monkeypatch):
    """End a test that hangs, and fail if it takes too much memory or creates a file."""

    def end(*_):
        raise TimeoutError

    monkeypatch.chdir(tmp_path)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    former = signal.signal(signal.SIGALRM, end)
    signal.alarm(_HANG)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, former)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < _MEMORY
    assert {path.name for path in tmp_path.iterdir()} <= {"in", "secret"}
    assert {path.name for path in (tmp_path / "in").iterdir()} <= {
        "inside", "model.onnx", "link", "sub", "hard", "fifo", "zero",
    }  # fmt: skip


@slow
@pytest.mark.usefixtures("limits")
@pytest.mark.parametrize("case", REFUSED)
def test_a_hostile_program_is_refused_with_one_sentence(case, tmp_path):
    """The message has the path and the reason; nothing of the program runs."""
    make, reason = REFUSED[case]
    path = write(make, tmp_path / "in")

    with pytest.raises(ProgramError, match=reason) as caught:
        load_program(path)

    if case.removeprefix("notes: ") not in NOTES:
        with pytest.raises(ProgramError) as again:
            read_graph(path)
        assert str(again.value) == str(caught.value)
    message = str(caught.value)
    assert message.startswith(("Filch's metadata in", repr(str(path))))
    assert message.isprintable()
    assert len(message) < 700
    assert SECRET.decode() not in message


@pytest.mark.usefixtures("limits")
@pytest.mark.parametrize("case", LOADED)
def test_an_odd_program_is_shown(case, tmp_path):
    """It loads, and its metadata are shown as text."""
    path = write(LOADED[case], tmp_path / "in")

    graph = load_program(path).graph

    assert read_graph(path) == replace(graph, name=read_graph(path).name)
    for view in ("text", "html"):
        assert draw(graph, view).content


@pytest.mark.usefixtures("limits")
@pytest.mark.parametrize(
    ("case", "backend"),
    [
        *((case, backend) for case in LARGE for backend in ("onnxruntime-cpu", "reference")),
        *((case, backend) for case in DIMENSIONS for backend in ("onnxruntime-cpu", "openvino", "reference")),
    ],
)
def test_a_value_of_terabytes_or_billions_of_dimensions_is_refused_before_anything_runs(case, backend, tmp_path):
    """No backend folds it into a constant, computes it or infers its shape."""
    program = load_program(write((LARGE | DIMENSIONS)[case], tmp_path / "in"))

    reason = "take .* GiB, more than 64 times all" if case in LARGE else "have (more than 1,000|millions of) dimensions"
    with pytest.raises(BackendError, match=f"would {reason}"):
        get_backend(backend).compile(program, optimize=True)


def test_dimensions_that_are_added_and_removed_do_not_add_up():
    """Models that are unrolled step by step do that."""
    step = """u%d = Unsqueeze(v%d, zero) s%d = Shape(u%d) c%d = Slice(s%d, zero, zero) j%d = Concat<axis = 0>(c%d, s%d)
        r%d = Reshape(u%d, j%d) q%d = Squeeze(r%d, zero)"""
    nodes = "".join(
        step.replace("%d", str(place)) + f" v{place + 1} = ReduceSum<keepdims = 0>(u{place}, zero) "
        for place in range(2000)
    )

    assert check_ranks(onnx_model(f"(float[2, 8] v0) => (float v2000) <int64[1] zero = {{0}}> {{ {nodes} }}").graph)


def test_shapes_that_exporters_compute_are_known():
    """This includes `expand` with sizes of -1; a shape of a computed length is reported as unknown."""
    ends = "(float[2, 8] x, float[n] z) => (float y)"
    known = """<int64[1] one = {1}, int64 less = {-1}> {
        s = Shape(x) wanted = Concat<axis = 0>(one, s) length = Shape(wanted) ones = ConstantOfShape(length)
        unknown = Mul(ones, less) keep = Equal(wanted, unknown) sizes = Where(keep, ones, wanted) y = Expand(x, sizes)
    }"""
    assert check_ranks(onnx_model(f"{ends} {known}").graph)
    assert not check_ranks(onnx_model(f"{ends} {{ places = NonZero(z) y = Reshape(x, places) }}").graph)


@pytest.mark.parametrize("operator", ["Shape", "Cast", "Gather", "Concat", "Expand", "Squeeze", "Range", "Unsqueeze"])
@pytest.mark.parametrize("inputs", [[], [""], ["", "x"], ["one", "one"]], ids=str)
@pytest.mark.parametrize("outputs", [[], ["y"]], ids=str)
def test_nodes_with_missing_inputs_are_not_refused(operator, inputs, outputs):
    given = [helper.make_tensor_value_info("x", TensorProto.FLOAT, [2, 8])]
    held = [numpy_helper.from_array(np.array([1]), "one")]
    check_ranks(helper.make_graph([helper.make_node(operator, inputs, outputs)], "g", given, [], held))


@pytest.mark.parametrize("case", ["up", "link", "FIFO"])
def test_a_path_without_a_folder_is_equally_safe(case, tmp_path, monkeypatch):
    """The path is relative to the file's own folder."""
    make, reason = OUTSIDE[case]
    monkeypatch.chdir(write(make, tmp_path / "in").parent)

    with pytest.raises(ProgramError, match=reason):
        load_program("model.onnx")


@pytest.mark.usefixtures("limits")
def test_fifos_devices_and_folders_are_refused(tmp_path):
    """They are refused without being read."""
    (tmp_path / "in").mkdir()
    os.mkfifo(tmp_path / "in" / "fifo")
    (tmp_path / "in" / "link").symlink_to("/dev/zero")

    for name, reason in (("fifo", "it is a FIFO"), ("link", "it is a device"), (".", "Is a directory")):
        with pytest.raises(ProgramError, match=f"can't read .*: {reason}"):
            load_program(tmp_path / "in" / name)


def test_there_are_forty():
    """The corpus does not shrink unnoticed."""
    assert len(REFUSED) + len(LOADED) >= 40


node = helper.make_node
SIZE = 1500  # its square exceeds the elements that all joined shapes may have
INDICES = {
    "a vector": np.arange(SIZE),
    "a grid": np.zeros((SIZE, 2), np.int64),
    "a large grid": np.zeros((SIZE, 700), np.int64),
    "a place": np.zeros((1, 1), np.int64),
    "its shape": np.array([SIZE, 2]),
    "twice": np.array([1, 2]),
    "the first axis": np.array([0]),
    "margins": np.array([0, 0, 0, SIZE]),
    "one": np.array(1),
    "last": np.array([-1]),
}
# What exporters compute from indices: each ends with `made`, which is then joined with itself.
COMPUTED = {
    "expanded to its own shape": [node("Shape", ["a vector"], ["s"]), node("Expand", ["a vector", "s"], ["made"])],
    "expanded to a larger shape": [node("Expand", ["a grid", "its shape"], ["made"])],
    "the largest of several": [
        node("Max", ["a grid", "one"], ["m"]),
        node("Shape", ["m"], ["s"]),
        node("Expand", ["a grid", "s"], ["made"]),
    ],
    "gathered rows": [node("Gather", ["a grid", "a vector"], ["made"])],
    "gathered elements": [node("GatherElements", ["a grid", "a grid"], ["made"], axis=0)],
    "gathered places": [node("GatherND", ["a grid", "a place"], ["made"])],
    "scattered": [
        node("Gather", ["a grid", "the first axis"], ["row"]),
        node("ScatterND", ["a grid", "a place", "row"], ["made"]),
    ],
    "tiled": [node("Tile", ["a grid", "twice"], ["made"])],
    "padded": [node("Pad", ["a grid", "margins"], ["made"])],
    "compared and chosen": [
        node("Less", ["a vector", "one"], ["c"]),
        node("Where", ["c", "a vector", "one"], ["w"]),
        node("Shape", ["w"], ["s"]),
        node("Expand", ["w", "s"], ["made"]),
    ],
    "a large grid": [node("Identity", ["a large grid"], ["made"])],
}


def graph_of(nodes, inputs=()):
    made = [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)]
    held = [numpy_helper.from_array(numbers, name) for name, numbers in INDICES.items()]
    return helper.make_graph(nodes, "g", [*inputs], made, held)


@pytest.mark.parametrize("case", COMPUTED)
def test_indices_of_a_known_shape_are_not_taken_for_long_shapes(case):
    """They are joined, and select from a table, as advanced indexing is exported."""
    table = [helper.make_tensor_value_info("table", TensorProto.FLOAT, [None, 3])]
    nodes = [
        node("Unsqueeze", ["made", "last"], ["u"]),
        node("Concat", ["u", "u"], ["indices"], axis=-1),
        node("GatherND", ["table", "indices"], ["y"]),
    ]

    assert check_ranks(graph_of([*COMPUTED[case], *nodes], table))


def test_dimensions_that_indices_replace_do_not_add_up():
    """An unrolled model selects from what it has selected a thousand times."""
    nodes = [node("GatherND", [f"v{step}", "a grid"], [f"v{step + 1}"]) for step in range(1000)]
    given = [helper.make_tensor_value_info("v0", TensorProto.FLOAT, [None, None, 3])]

    assert check_ranks(graph_of(nodes, given))


@pytest.mark.parametrize("indices", ["a vector", "a grid"])
def test_a_shape_of_known_length_is_refused_if_it_is_long(indices):
    """The values that describe it are not many, but the dimensions are."""
    nodes = [node("Reshape", [indices, "last"], ["s"]), node("Reshape", ["x", "s"], ["y"])]
    given = [helper.make_tensor_value_info("x", TensorProto.FLOAT, [2, 8])]

    with pytest.raises(ValueError, match="'y' would have more than 1,000 dimensions"):
        check_ranks(graph_of(nodes, given))


@pytest.mark.parametrize("flat", [False, True])
def test_joined_vectors_are_counted(flat):
    """A matrix that becomes a vector again may be a shape."""
    nodes = [node("Concat", ["a large grid"] * 2, ["joined"], axis=0)]
    nodes += [node("Reshape", ["joined", "last"], ["y"])] if flat else []

    if not flat:
        assert check_ranks(graph_of(nodes))
        return
    with pytest.raises(ValueError, match="its values would have millions of dimensions"):
        check_ranks(graph_of(nodes))


def test_a_shape_is_forgotten_if_another_graph_has_a_value_of_its_name():
    """Two branches may compute values of the same name."""
    known = KnownShapes({"": 17})
    known.add_constant("s", numpy_helper.from_array(np.array([2, 3])))

    known.add_outputs(node("Identity", ["s"], ["a"]))
    assert known.shape("a") == (2,)
    known.add_outputs(node("NonZero", ["unknown"], ["a"]))
    assert known.shape("a") is None


@pytest.mark.parametrize(
    ("made", "shape"),
    [
        (node("Shape", ["x"], ["s"]), (3,)),
        (node("Shape", ["x"], ["s"], start=1), (2,)),
        (node("Shape", ["x"], ["s"], start=-1, end=3), (1,)),
        (node("Concat", ["n", "n"], ["s"], axis=0), (4,)),
        (node("Concat", ["n", "x"], ["s"], axis=0), None),  # of numbers that are no integers
        (node("Concat", ["n"], ["s"]), None),  # without the axis that it needs
        (node("Invented", ["n"], ["s"]), None),
        (node("Invented", ["n"], ["s"], domain="elsewhere"), None),
    ],
)
def test_shapes_are_those_that_onnx_infers(made, shape):
    """Nodes that are not valid have none."""
    known = KnownShapes({"": 17})
    known.add_input(helper.make_tensor_value_info("x", TensorProto.FLOAT, [4, 5, 6]))
    known.add_constant("n", numpy_helper.from_array(np.array([2, 3])))

    known.add_outputs(made)

    assert known.shape("s") == shape
