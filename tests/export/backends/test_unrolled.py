"""Branches, loops and functions are replaced by the nodes that they run; what comes out stays the same."""

import onnx
import onnx_ir as ir
import pytest
import torch
from onnx import parser

from filch.export import Program
from filch.export.backends import _unrolled, get_backend, unrolled

HELD = "<float half = {0.5}, float most = {4.0}, int64 one = {1}, int64 two = {2}, bool yes = {1}>"
# Both branches have the same names, which are theirs alone, and weights of the same name.
IF = """
    a, b = If(flag) <
        then_branch = t () => (float[4,3] p, float[4,3] q) <float k = {3.0}> { m = Mul(x, k)  p = Sin(m)  q = Neg(x) },
        else_branch = e () => (float[4,3] r, float[4,3] s) <float k = {2.0}> { m = Div(x, k)  r = Cos(m)  s = Abs(x) }
    >
    y = Add(a, b)
"""
NESTED = """
    a = If(flag) <
        then_branch = t () => (float[4,3] p) {
            s = Sin(x)
            top = ReduceMax <keepdims = 0> (s)
            low = Less(top, half)
            p = If(low) <
                then_branch = tt () => (float[4,3] u) { u = Mul(s, half) },
                else_branch = te () => (float[4,3] v) { v = Sub(s, x) }
            >
        },
        else_branch = e () => (float[4,3] q) { q = Identity(x) }
    >
    y = Exp(a)
"""
# It ends before its six iterations are over; one state stays as it is, the other one is the result of the last one.
LOOP = """
    last, kept, rows = Loop(count, yes, x, half) <body = step
        (int64 i, bool on, float[4,3] state, float same) => (bool go, float[4,3] next, float kept, float[4,3] row) {
            n = Cast <to = 1> (i)
            next = Add(state, n)
            top = ReduceMax <keepdims = 0> (next)
            go = Less(top, most)
            kept = Identity(same)
            row = Tanh(next)
        }>
    z = ReduceSum <keepdims = 0> (rows)
    w = Mul(last, kept)
    y = Add(w, z)
"""
IF_IN_LOOP = """
    y, rows = Loop(count, , x) <body = step
        (int64 i, bool on, float[4,3] state) => (bool go, float[4,3] r, float[4,3] c) {
        rest = Mod(i, two)
        odd = Cast <to = 9> (rest)
        r = If(odd) <
            then_branch = t () => (float[4,3] u) { u = Mul(state, half) },
            else_branch = e () => (float[4,3] v) { v = Add(state, x) }
        >
        c = Cos(r)
        go = Identity(on)
    }>
"""
LOOP_IN_LOOP = """
    y = Loop(count, , x) <body = outer (int64 i, bool on, float[4,3] state) => (bool go, float[4,3] next) {
        times = Add(i, one)
        step = Sin(state)
        next = Loop(times, , state) <body = inner (int64 j, bool in, float[4,3] q) => (bool out, float[4,3] r) {
            r = Add(q, step)
            out = Identity(in)
        }>
        go = Identity(on)
    }>
"""
SCAN = """
    first = Constant <value_floats = [0.5, 1.0, 1.5, 2.0]> ()
    start = Constant <value = float {1.0}> ()
    last, other, columns, rows = Scan <
        num_scan_inputs = 2, scan_input_axes = [1, -2], scan_input_directions = [0, 1],
        scan_output_axes = [-1, 0], scan_output_directions = [1, 0],
        body = step (float[4] s, float t, float[4] a, float[4] b)
            => (float[4] next, float u, float[4] column, float[4] row) <float k = {0.3}> {
            sum = Add(s, a)
            next = Mul(sum, k)
            u = Mul(t, half)
            column = Exp(next)
            row = Mul(b, t)
        }> (first, start, x, turned)
    y = Add(columns, x)
"""
CALLS = """
    h = own.Pick <slope = 0.25> (x, flag)
    y = own.Pick(h, flag)
"""
PICK = """
<domain: "own", opset_import: ["": 18]>
Pick <slope: float = 0.5> (v, flag) => (r) {
    two = Constant <value = float {2.0}> ()
    r = If(flag) <
        then_branch = t () => (p) { p = LeakyRelu <alpha: float = @slope> (v) },
        else_branch = e () => (q) { q = Mul(v, two) }
    >
}
"""
KINDS = {
    "If": IF, "nested Ifs": NESTED, "Loop": LOOP, "an If in a Loop": IF_IN_LOOP, "nested Loops": LOOP_IN_LOOP,
    "Scan": f"turned = Transpose(x)\n{SCAN}", "functions": CALLS,
}  # fmt: skip


def model_of(text, version=18):
    """Return a model with this text as its nodes, in a version of ONNX's operators."""
    head = f'<ir_version: 8, opset_import: ["": {version}, "own": 1]>'
    graph = f"main (float[4,3] x, bool flag, int64 count) => (float[4,3] y) {HELD} {{{text}}}"
    return parser.parse_model(head + graph + (PICK if "own." in text else "").replace("18", str(version)))


def inputs_of(*, flag=True, count=6):
    x = torch.randn(4, 3, generator=torch.Generator().manual_seed(0))
    return {"x": x, "flag": torch.tensor(flag), "count": torch.tensor(count)}


def program_of(model):
    return Program(ir.from_proto(model))


def results_of(program, inputs):
    backend = get_backend("onnxruntime-cpu")
    return backend.run(backend.compile(program, optimize=False), inputs)["y"]


@pytest.mark.parametrize("flag", [True, False])
@pytest.mark.parametrize("kind", KINDS)
def test_the_nodes_that_run_compute_the_same(kind, flag):
    program, inputs = program_of(model_of(KINDS[kind])), inputs_of(flag=flag)

    found, notes = unrolled(program, get_backend("onnxruntime-cpu"), [inputs])

    assert not notes
    assert not {"If", "Loop", "Scan", "own::Pick"} & {node.op for node in found.graph.nodes}
    assert torch.equal(results_of(found, inputs), results_of(program, inputs))
    assert all(found.graph.values[name].dtype for name in found.graph.producer)
    onnx.checker.check_model(ir.to_proto(found.model), full_check=True)


@pytest.mark.parametrize("version", [11, 13, 16])
def test_older_versions_of_operators_are_unrolled(version):
    """They have other forms of what puts the results of iterations together."""
    text, inputs = (
        LOOP.replace("z = ReduceSum <keepdims = 0> (rows)", "z = ReduceMax <keepdims = 0> (rows)"),
        inputs_of(),
    )
    program = program_of(model_of(text, version))

    found, _ = unrolled(program, get_backend("onnxruntime-cpu"), [inputs])

    assert "Loop" not in {node.op for node in found.graph.nodes}
    assert torch.equal(results_of(found, inputs), results_of(program, inputs))


def test_nodes_and_values_are_named_after_where_they_run():
    """A value that is a result has the name of the output; iterations have numbers and share weights."""
    backend, inputs = get_backend("onnxruntime-cpu"), inputs_of(count=2)

    branch, _ = unrolled(program_of(model_of(IF)), backend, [inputs])
    loop, _ = unrolled(program_of(model_of(IF_IN_LOOP)), backend, [inputs])

    assert {node.name: node.outputs for node in branch.graph.nodes} == {
        "If_0/then_branch/Mul_0": ("a/then_branch/m",),
        "If_0/then_branch/Sin_1": ("a",),
        "If_0/then_branch/Neg_2": ("b",),
        "Add_1": ("y",),
    }
    assert [node.name for node in loop.graph.nodes if node.op in ("Mul", "Add")] == [
        "Loop_0/body[0]/If_2/else_branch/Add_0",
        "Loop_0/body[1]/If_2/then_branch/Mul_0",
    ]


def test_the_given_model_is_not_changed():
    """Neither are the names of its weights, which belong to the file that the user has read."""
    model = model_of(IF)
    before = model.SerializeToString()

    found, _ = unrolled(program_of(model), get_backend("onnxruntime-cpu"), [inputs_of()])

    assert "a/then_branch/k" in ir.to_proto(found.model).graph.initializer[-1].name
    assert model.SerializeToString() == before


@pytest.mark.parametrize("kind", ["If", "Loop", "functions"])
def test_what_runs_otherwise_in_another_call_stays(kind):
    calls = inputs_of(flag=True, count=1), inputs_of(flag=False, count=2)
    program = program_of(model_of(KINDS[kind]))

    found, notes = unrolled(program, get_backend("onnxruntime-cpu"), calls)

    assert all(note.endswith("was judged as a whole: it runs otherwise in another call") for note in notes) and notes
    assert {"If", "Loop"} & {node.op for node in found.graph.nodes}


def test_a_loop_of_too_many_nodes_stays_and_a_branch_does_not(monkeypatch):
    """Each node of the file has room once, however many it has."""
    monkeypatch.setattr(_unrolled, "_MOST_NODES", 0)
    backend, inputs = get_backend("onnxruntime-cpu"), inputs_of(count=50)

    loop, notes = unrolled(program_of(model_of(IF_IN_LOOP)), backend, [inputs])
    branch, none = unrolled(program_of(model_of(IF)), backend, [inputs])

    assert [node.op for node in loop.graph.nodes] == ["Loop"]
    assert notes == ("Loop_0 (Loop) was judged as a whole: it runs too many nodes to judge each",)
    assert "If" not in {node.op for node in branch.graph.nodes} and not none


LONG = """
    many = Loop(, yes, x) <body = step (int64 i, bool on, float[4,3] s) => (bool go, float[4,3] n) {
        n = Mul(s, half)
        go = Less(i, count)
    }>
    tiny = Constant <value = float {1e-20}> ()
    top = ReduceMax <keepdims = 0> (many)
    low = Less(top, tiny)
    y = If(low) <
        then_branch = t () => (float[4,3] p) { p = Sin(x) },
        else_branch = e () => (float[4,3] q) { q = Cos(x) }
    >
"""


def test_a_loop_is_not_counted_to_its_end(monkeypatch):
    """It may have none. What depends on what it computes is decided by all of its iterations."""
    monkeypatch.setattr(_unrolled, "_MOST_NODES", 2)

    found, notes = unrolled(program_of(model_of(LONG)), get_backend("onnxruntime-cpu"), [inputs_of(count=200)])

    assert [node.op for node in found.graph.nodes] == ["Loop", "Constant", "ReduceMax", "Less", "Sin"]
    assert notes == ("Loop_0 (Loop) was judged as a whole: it runs too many nodes to judge each",)


def test_iterations_that_need_too_much_memory_are_judged_as_a_whole(monkeypatch):
    monkeypatch.setattr(_unrolled, "_MOST_BYTES", 1000)

    found, notes = unrolled(program_of(model_of(IF_IN_LOOP)), get_backend("onnxruntime-cpu"), [inputs_of(count=50)])

    assert [node.op for node in found.graph.nodes] == ["Loop"]
    assert len(notes) == 1


def test_loops_that_do_not_run_and_random_bodies_stay():
    """The shape of what a loop without iterations returns is known to the runtime alone."""
    backend = get_backend("onnxruntime-cpu")
    noisy = program_of(model_of(IF.replace("Neg(x)", "RandomNormalLike(x)")))
    idle = program_of(model_of(LOOP_IN_LOOP))

    assert unrolled(noisy, backend, [inputs_of()]) == (noisy, ())
    assert unrolled(idle, backend, [inputs_of(count=0)]) == (idle, ())


def test_a_backend_that_runs_no_onnx_leaves_the_program():
    """So does an input that is missing."""
    program = program_of(model_of(IF))

    assert unrolled(program, get_backend("eager"), [inputs_of()])[0] is program
    assert unrolled(program, get_backend("onnxruntime-cpu"), [{}])[0] is program
