"""Tests of what `align` says of outputs: each way in which an output of B can be wrong, and what is right."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from onnx import TensorProto, helper, numpy_helper
from torch import Tensor, nn

from filch.compare import CompareError, align
from support.models.small import module_of

X = torch.randn(3, 5, 16, generator=torch.Generator().manual_seed(0))
INFINITE, NAN = float("inf"), float("nan")
Change = Callable[[Tensor], Any]


class Model(nn.Module):
    """Returns what a function makes of logits of the shape [3, 5, 7]."""

    def __init__(self, change=lambda y: y):
        super().__init__()
        generator = torch.Generator().manual_seed(1)
        self.first, self.last, self.change = nn.Linear(16, 12), nn.Linear(12, 7), change
        for parameter in self.parameters():
            parameter.data = torch.randn(parameter.shape, generator=generator) * 0.3

    def forward(self, x):
        return self.change(self.last(torch.tanh(self.first(x))))


def put(number):
    """Return a function that puts a number in place of some."""
    return lambda y: torch.where(torch.arange(y.shape[-1]) == 2, torch.full((), number), y)


WRONG: dict[str, Change] = {
    "all NaN": lambda y: y * NAN,
    "some NaN": put(NAN),
    "some infinite": put(INFINITE),
    "zeros": lambda y: y * 0,
    "ones, of nothing": torch.ones_like,
    "a constant": lambda y: y * 0 + y.mean(),
    "one number": lambda y: y.sum(),
    "one number of it": lambda y: y[0, 0, 0],
    "empty": lambda y: y[:0],
    "nothing": lambda _: None,
    "no tensor": lambda y: y.tolist()[0][0],
    "rows reversed": lambda y: y.flip(1),
    "rows exchanged": lambda y: y[:, [1, 0, 2, 3, 4]],
    "sequences rolled": lambda y: y.roll(1, 0),
    "classes sorted": lambda y: y.sort(-1).values,
    "the last token": lambda y: y[:, -1],
    "the last token, kept": lambda y: y[:, -1:],
    "the first sequence": lambda y: y[:1],
    "some classes": lambda y: y[..., :4],
    "every second": lambda y: y[:, ::2],
    "repeated": lambda y: y.repeat(2, 1, 1),
    "the first token in all places": lambda y: y[:, :1].expand_as(y),
    "argmax": lambda y: y.argmax(-1),
    "sign": torch.sign,
    "rounded to int8": lambda y: (y / y.abs().max() * 127).round() * y.abs().max() / 127,
    "converted to int8": lambda y: (y * 20).to(torch.int8),
    "rounded to bfloat16": lambda y: y.bfloat16().float(),
    "bfloat16": lambda y: y.bfloat16(),
    "float8": lambda y: y.to(torch.float8_e4m3fn).float(),
    "softmax": lambda y: y.softmax(-1),
    "other order of elements": lambda y: y.transpose(1, 2).reshape(y.shape),
    "another shape": lambda y: y.reshape(3, 7, 5),
    "overflow in its own dtype": lambda y: y + (y.abs() * 100).exp().log() * 0,
    "slightly larger": lambda y: y * 1.0001,
}
RIGHT: dict[str, Change] = {
    "the same": lambda y: y,
    "in a tuple": lambda y: (y,),
    "in a dictionary": lambda y: {"logits": y},
    "channels last": lambda y: y.transpose(1, 2),
    "flattened tokens": lambda y: y.flatten(0, 1),
    "another dimension": lambda y: y[None],
    "further outputs": lambda y: (y.softmax(-1), y, y.mean()),
    "in other steps": lambda y: (y.double() * 3 / 3).float(),
    "a number that is added and subtracted": lambda y: y + 1 - 1,
}


def compared(own, other):
    return align(Model(own), Model(other), X)


@pytest.mark.parametrize("way", WRONG)
def test_a_wrong_output_is_told(way):
    """Where the logits of A are expected, whole; the rest of B is right, and a sentence says what is wrong."""
    result = compared(lambda y: y, WRONG[way])
    assert result.outcome == "different", result
    assert result.wrong_outputs


@pytest.mark.parametrize("way", RIGHT)
def test_a_right_output_is_close(way):
    """In another container, shape or order, among further ones; the place is stated."""
    result = compared(lambda y: y, RIGHT[way])
    assert result.outcome == "close", str(result)
    (output,) = result.outputs
    assert output.place


PLAIN: dict[str, Change] = {  # what says little by its numbers
    "a loss": lambda y: y.square().mean(),
    "integers": lambda y: y.argmax(-1),
    "unsigned integers": lambda y: (y.abs() * 100).to(torch.int32).to(torch.uint16),
    "booleans": lambda y: y > 0,
    "zeros": lambda y: y * 0,
    "a constant": lambda y: torch.full_like(y, 2.5),
    "NaN in some places": put(NAN),
    "a mask": put(-INFINITE),
    "empty": lambda y: y[:0],
    "a Python number": lambda y: y.shape[1],
    "complex": lambda y: torch.complex(y, -y),
}


@pytest.mark.parametrize("way", PLAIN)
def test_outputs_that_say_little_are_compared_number_by_number(way):
    """Each is that of A, and the next one is not."""
    names = [*PLAIN]
    assert compared(PLAIN[way], PLAIN[way]).close
    assert not compared(PLAIN[way], PLAIN[names[names.index(way) - 1]]).close


CHANGED: dict[str, tuple[Change, Change]] = {
    "twice the loss": (lambda y: y.sum(), lambda y: 2 * y.sum()),
    "another sign of infinity": (put(INFINITE), put(-INFINITE)),
    "a number for infinity": (put(-INFINITE), put(-3.4e38)),
    "NaN for infinity": (put(INFINITE), put(NAN)),
    "NaN in further places": (put(NAN), lambda y: put(NAN)(y).where(y > 0, NAN)),
    "another index": (lambda y: y.argmax(-1), lambda y: (y.argmax(-1) + 1) % 7),
    "a negated mask": (lambda y: y > 0, lambda y: y <= 0),
    "another constant": (lambda y: y * 0 + 1, lambda y: y * 0 + 2),
    "one of two": (lambda y: (y, y.softmax(-1)), lambda y: y),
    "exchanged": (lambda y: (y, y.softmax(-1)), lambda y: (y.softmax(-1), y)),
    "exchanged names": (lambda y: {"a": y, "b": -y}, lambda y: {"a": -y, "b": y}),
    "twice the first": (lambda y: (y, -y), lambda y: (y, y)),
    "another Python number": (lambda y: (y, 3), lambda y: (y, 4)),
    "a loss beside logits": (lambda y: (y.mean(), y), lambda y: (y.mean() + 1, y)),
    "a transposed matrix": (lambda y: y[0], lambda y: y[0].T),
    "numbers for booleans": (lambda y: y > 0, lambda y: (y > 0).float()),
    "integers for booleans": (lambda y: y > 0, lambda y: (y > 0).long()),
    "booleans for integers": (lambda y: (y > 0).long(), lambda y: y > 0),
    "numbers for indices": (lambda y: y.argmax(-1), lambda y: y.argmax(-1).float()),
    "integers for numbers": (torch.round, lambda y: y.round().long()),
    "integers for no numbers": (lambda y: y[:0], lambda y: y[:0].long()),
    "another empty shape": (lambda y: y.new_zeros(0, 10), lambda y: y.new_zeros(4, 0)),
    "no rows for no columns": (lambda y: y.new_zeros(3, 0, 5), lambda y: y.new_zeros(0, 5)),
    "another string": (lambda y: (y, "a"), lambda y: (y, "b")),
    "a string for a number": (lambda y: (y, 1), lambda y: (y, "1")),
    "another large number": (lambda y: (y, 2**70), lambda y: (y, 2**70 + 1)),
}


@pytest.mark.parametrize("way", CHANGED)
def test_another_output_is_told(way):
    """Of several outputs each one counts, in its place."""
    result = compared(*CHANGED[way])
    assert result.outcome == "different", str(result)
    assert result.wrong_outputs


SAME: dict[str, tuple[Change, Change]] = {
    "named, in another order": (lambda y: {"a": y, "b": -y}, lambda y: {"b": -y, "a": y}),
    "a tuple and names": (lambda y: (y, -y), lambda y: {"x": y, "y": -y}),
    "a further one before": (lambda y: (y, -y), lambda y: (y.mean(), y, -y)),
    "the same twice": (lambda y: (y, y), lambda y: (y, y.clone())),
    "indices of fewer bits": (lambda y: y.argmax(-1), lambda y: y.argmax(-1).int()),
    "unsigned integers": (lambda y: y.argmax(-1), lambda y: y.argmax(-1).to(torch.uint8)),
    "more bits": (lambda y: y, lambda y: y.double()),
    "Python numbers": (lambda y: (y, 3, True), lambda y: (y, 3.0, 1)),
    "a number in a tensor": (lambda y: (y, 3), lambda y: (y, torch.tensor(3))),
    "the same string": (lambda y: (y, "a"), lambda y: (y, "a")),
    "no tensor": (lambda y: (y, None), lambda y: y),
    "empty channels last": (lambda y: y.new_zeros(0, 3, 5), lambda y: y.new_zeros(0, 5, 3)),
    "an empty batch": (lambda y: y.new_zeros(0, 10), lambda y: y.new_zeros(1, 0, 10)),
}


@pytest.mark.parametrize("way", SAME)
def test_several_outputs_have_their_places(way):
    """By name, or in the order of A."""
    result = compared(*SAME[way])
    assert result.outcome == "close", str(result)


@pytest.mark.parametrize(
    ("way", "text"),
    [
        ("numbers for booleans", "the output of B is a floating-point number, that of A a boolean"),
        ("another string", "the output [1] of B is 'b', that of A 'a'"),
        ("another empty shape", "the output of B has the shape [4, 0], that of A [0, 10]"),
    ],
)
def test_an_output_of_another_kind_is_described(way, text):
    """By what both are."""
    assert compared(*CHANGED[way]).wrong_outputs == (text,)


def test_an_output_that_is_right_on_these_inputs_alone_is_told():
    """Not as rounded: B has the numbers of A, but takes some of its inputs for constants."""
    given = Model()(X).detach()
    result = align(Model(), Model(lambda y: given + 0 * y), X)
    (problem,) = result.wrong_outputs
    assert problem == "the output of B is that of A on these inputs, but not on others of the same shapes"


def test_places_and_orders_are_stated():
    """In the headline and in a table."""
    result = compared(lambda y: y, lambda y: (y.mean(), y.transpose(1, 2)))
    (output,) = result.outputs
    assert (output.name, output.place) == ("output", "output [1]")
    assert output.order == "in another order, [3, 7, 5] for [3, 5, 7]"
    assert "are the same, 1 in another place or order" in result.headline
    assert "in another order, [3, 7, 5]" in " ".join(str(result.table(wide=True)).split())
    assert "B also returns output [0], which A does not: not judged" in result.remarks


def test_nothing_that_is_returned_is_nothing_that_is_judged():
    """Two implementations that return nothing are not close."""
    result = compared(lambda _: None, lambda _: None)
    assert result.outcome == "incomplete"
    assert "nothing could be judged" in str(result)


@pytest.mark.parametrize(
    ("way", "operator"),
    [("the last token", "select"), ("some classes", "slice"), ("zeros", "mul"), ("argmax", "argmax"), ("sign", "sign")],
)
def test_the_operation_that_makes_an_output_wrong_is_named(way, operator):
    """Also where its result is a part of A's."""
    result = compared(lambda y: y, WRONG[way])
    assert [departure.operator for departure in result.departures] == [operator]


def test_a_convolution_that_computes_a_part_is_named_with_its_setting():
    """The activation after it has a part of A's numbers as well."""

    def make(stride):
        torch.manual_seed(0)
        return nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 8, 3, stride, 1), nn.ReLU())

    result = align(make(1), make(2), torch.randn(2, 3, 8, 8))
    (departure,) = result.departures
    assert (departure.module, departure.note) == ("2", "stride is [2, 2], [1, 1] in A")


def changing(argument=0.0, view=0.0, buffer=0.0, replaced=0.0):
    """Changes an argument, or a view of it, a buffer that it has, or one that it replaces."""

    def forward(self, x):
        y = x.square()
        argument, view, buffer, replaced = self.by
        if argument:
            x.mul_(argument)
        if view:
            x[:, 1].add_(view)
        if buffer:
            self.state.lerp_(x.mean((0, 1)), buffer)
        if replaced:
            self.other = y[0, 0, :3] * replaced
        return y

    return module_of(forward, state=torch.arange(16.0), other=torch.arange(3.0), by=(argument, view, buffer, replaced))


STATES = [{"argument": 2.0}, {"view": 2.0}, {"buffer": 0.1}, {"replaced": 2.0}]


@pytest.mark.parametrize("state", STATES)
def test_what_a_call_changes_is_compared_after_it(state):
    """Arguments and buffers; wrongly, not at all, and right."""
    (name,) = state
    for other in ({}, {name: state[name] / 2}):
        result = align(changing(**state), changing(**other), X)
        assert result.outcome == "different", str(result)
        assert "after the call" in result.wrong_outputs[0]
    assert align(changing(**state), changing(**state), X).outcome == "close"
    result = align(changing(), changing(**state), X)
    assert result.close == (name in ("buffer", "replaced"))
    assert result.close or result.wrong_outputs == ("B changes the argument x, which A does not",)


@pytest.mark.parametrize("momentum", [0.1, 0.2])
def test_statistics_of_a_batch_norm_are_compared(momentum):
    """As training changes them."""

    class Norm(nn.Module):
        def __init__(self, momentum):
            super().__init__()
            self.inner = nn.BatchNorm1d(5, momentum=momentum)

        def forward(self, x):
            return self.inner(x)

    result = align(nn.BatchNorm1d(5).train(), Norm(momentum).train(), X)
    assert result.close == (momentum == 0.1)
    assert {output.name for output in result.outputs} == {
        "output",
        *(f"buffer {name} after the call" for name in ("running_mean", "running_var", "num_batches_tracked")),
    }


def test_a_cache_that_is_returned_may_be_one_that_is_changed():
    """What B returns may be what A changes, and the reverse."""

    class InPlace(nn.Module):
        def forward(self, x, cache):
            cache[:, 1] = x[:, 0]
            return x + 1

    class Returned(nn.Module):
        def forward(self, x, cache):
            return x + 1, torch.cat([cache[:, :1], x[:, :1], cache[:, 2:]], 1)

    args = X, torch.zeros(3, 4, 16)
    assert align(InPlace(), Returned(), args).close
    assert align(Returned(), InPlace(), args).outputs[1].place == "argument cache after the call"


PRECISION = {"rounded to bfloat16", "bfloat16", "overflow in its own dtype"}  # of arrays, which may have any


def saved(change):
    """Return what an implementation that was run elsewhere has saved: a value on the way, and what it returned."""
    model = Model()
    with torch.no_grad():
        hidden = torch.tanh(model.first(X))
        made = change(model.last(hidden))
    return {"hidden": hidden, **({"logits": made} if isinstance(made, Tensor) else {})}


@pytest.mark.parametrize("way", [way for way in WRONG if way not in PRECISION])
def test_a_wrong_array_is_told(way):
    """Whatever else of the arrays is right; an output that was not saved was not judged."""
    arrays = saved(WRONG[way])
    result = align(Model(), arrays, X)
    assert result.outcome == ("different" if "logits" in arrays else "incomplete"), str(result)


@pytest.mark.parametrize("way", [way for way in RIGHT if isinstance(RIGHT[way](X), Tensor)])
def test_a_right_array_is_close(way):
    """In another shape or order, which is stated."""
    result = align(Model(), saved(RIGHT[way]), X)
    assert result.outcome == "close", str(result)


@pytest.mark.parametrize("way", PLAIN)
def test_arrays_that_say_little_are_compared_number_by_number(way):
    """A loss, integers, a mask: the same are close, others are not."""
    own = Model(PLAIN[way])
    arrays = saved(PLAIN[way])
    assert align(own, arrays, X).close == ("logits" in arrays)
    if "logits" in arrays and arrays["logits"].numel():
        arrays["logits"] = ~arrays["logits"] if arrays["logits"].dtype == torch.bool else arrays["logits"] + 1.5
        assert align(own, arrays, X).outcome == "different"


def program(tail, *outputs):
    """Return the model as an ONNX program whose last nodes compute outputs from `y`."""
    model = Model()
    tensors = {
        "w1": model.first.weight.T,
        "b1": model.first.bias,
        "w2": model.last.weight.T,
        "b2": model.last.bias,
        "index": torch.tensor([1]),
        "start": torch.tensor([0]),
        "end": torch.tensor([4]),
        "axis": torch.tensor([2]),
        "shape": torch.tensor([3, 5, 7]),
        "nan": torch.tensor(NAN),
        "zero": torch.tensor(0.0),
        "twice": torch.tensor([2, 1, 1]),
    }
    nodes = [
        helper.make_node("MatMul", ["x", "w1"], ["m1"]),
        helper.make_node("Add", ["m1", "b1"], ["a1"]),
        helper.make_node("Tanh", ["a1"], ["h"]),
        helper.make_node("MatMul", ["h", "w2"], ["m2"]),
        helper.make_node("Add", ["m2", "b2"], ["y"]),
    ]
    graph = helper.make_graph(
        [*nodes, *tail],
        "model",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, X.shape)],
        [helper.make_empty_tensor_value_info(name) for name in outputs],
        [numpy_helper.from_array(tensor.detach().contiguous().numpy(), name) for name, tensor in tensors.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)


def node(op, *reads, **attributes):
    return helper.make_node(op, reads, ["z"], **attributes)


PROGRAMS = {
    "NaN": [node("Mul", "y", "nan")],
    "zeros": [node("Mul", "y", "zero")],
    "one number": [node("ReduceSum", "y", keepdims=0)],
    "a part": [node("Slice", "y", "start", "end", "axis")],
    "one token": [node("Gather", "y", "index", axis=1)],
    "repeated": [node("Tile", "y", "twice")],
    "argmax": [node("ArgMax", "y", axis=2)],
    "sign": [node("Sign", "y")],
    "rounded": [node("Round", "y")],
    "other order": [helper.make_node("Transpose", ["y"], ["t"], perm=[0, 2, 1]), node("Reshape", "t", "shape")],
    "softmax": [node("Softmax", "y", axis=2)],
}


@pytest.mark.parametrize("way", PROGRAMS)
def test_a_wrong_output_of_a_program_is_told(way):
    """As one of a module is."""
    result = align(Model(), program(PROGRAMS[way], "z"), X)
    assert result.outcome == "different", str(result)


def test_right_outputs_of_a_program_are_close():
    """The same, further ones, and channels last; another order of two is told, and one that is missing."""
    moved, soft = node("Transpose", "y", perm=[0, 2, 1]), node("Softmax", "y", axis=2)
    assert align(Model(), program([], "y"), X).close
    assert align(Model(), program([], "h", "y"), X).close
    assert align(Model(), program([moved], "z"), X).close
    both = Model(lambda y: (y, y.softmax(-1)))
    assert align(both, program([soft], "y", "z"), X).close
    assert "they are in another order" in align(both, program([soft], "z", "y"), X).wrong_outputs[0]
    assert align(both, program([], "y"), X).wrong_outputs == ("the output [1] of A is no output of B",)


LAST = {"": "[:, -1]"}


def test_outputs_that_share_memory_are_compared_each_from_its_beginning():
    """As those of a split are."""
    split = program([helper.make_node("Split", ["y"], ["a", "b", "c"], num_outputs=3)], "a", "b", "c")
    assert align(split, split, X).outcome == "close"


SEQUENCES = {
    "as it is": ([], ["a", "b", "c"]),
    "shorter": ([], ["a", "b"]),
    "in another order": ([], ["a", "c", "b"]),
    "another element": ([helper.make_node("Neg", ["b"], ["d"])], ["a", "d", "c"]),
}


@pytest.mark.parametrize("way", SEQUENCES)
def test_sequences_are_compared_by_their_elements(way):
    """One of tensors is a list of a module."""

    def sequence(way):
        further, names = SEQUENCES[way]
        split = helper.make_node("Split", ["y"], ["a", "b", "c"], num_outputs=3)
        return program([split, *further, helper.make_node("SequenceConstruct", names, ["q"])], "q")

    expected = "close" if way == "as it is" else "different"
    assert align(sequence("as it is"), sequence(way), X).outcome == expected
    assert align(Model(lambda y: [*y.split(1)]), sequence(way), X).outcome == expected


@pytest.mark.parametrize("kind", ["module", "arrays"])
def test_a_part_is_accepted_where_it_is_declared(kind):
    """The headline says it; another part is wrong, and a part has to be one of an output."""

    def made(change):
        return saved(change) if kind == "arrays" else Model(change)

    result = align(Model(), made(WRONG["the last token"]), X, parts=LAST)
    assert result.outcome == "close", str(result)
    assert result.headline.endswith("B was declared to have only [:, -1] of the output")
    assert align(Model(), made(lambda y: y[:, 0]), X, parts=LAST).outcome == "different"
    with pytest.raises(CompareError, match="has no part"):
        align(Model(), made(lambda y: y), X, parts={"": "[:, 9]"})
    with pytest.raises(CompareError, match="a part is an index such as"):
        align(Model(), made(lambda y: y), X, parts={"": "[__import__('os')]"})
    with pytest.raises(CompareError, match="A returns no 'logits': give one of ''"):
        align(Model(), made(lambda y: y), X, parts={"logits": "none"})


def test_an_output_that_b_lacks_is_declared():
    """Of two, one is enough then; if all are declared, nothing was judged."""
    both = Model(lambda y: (y, y.softmax(-1)))
    assert align(both, Model(), X, parts={"[1]": "none"}).outcome == "close"
    assert align(both, Model(), X, parts={"[0]": "none", "[1]": "none"}).outcome == "incomplete"
    with pytest.raises(CompareError, match="parts are those of what A returns"):
        align(saved(lambda y: y), Model(), actual_args=X, parts=LAST)


def test_a_value_that_b_has_inside_is_stated():
    """Models of transformers return values on the way by name, where a port returns one tensor: it is not returned."""

    class Named(Model):
        def forward(self, x):
            hidden = torch.tanh(self.first(x))
            return {"logits": self.last(hidden), "hidden": hidden, "past_key_values": hidden.square()}

    result = align(Named(), Model(), X)
    assert result.outcome == "incomplete", str(result)
    assert [output.name for output in result.outputs] == ["output logits", "output hidden"]
    assert result.outputs[1].place.startswith("(inside) tanh")
    assert [gap.name for gap in result.proof.gaps] == ["output hidden", "output past_key_values"]
    assert replace(result, accepted={gap.name: "only logits are used" for gap in result.proof.gaps}).passes
    declared = align(Named(), Model(), X, parts={"hidden": "none", "past_key_values": "none"})
    assert declared.outcome == "close", str(declared)
    assert align(Named(), Model(lambda y: (y,)), X).outcome == "different"  # a tuple might have it


KINDS: dict[str, Change] = {
    "sparse": lambda y: y[0].to_sparse(),
    "sparse inside": lambda y: y[0].relu().to_sparse() @ torch.eye(7),
    "quantized": lambda y: torch.quantize_per_tensor(y, 0.01, 0, torch.qint8),
    "float8": lambda y: y.to(torch.float8_e4m3fn),
}


@pytest.mark.filterwarnings("ignore::UserWarning")  # of quantized and sparse tensors, which may change
@pytest.mark.parametrize("kind", KINDS)
def test_outputs_of_other_kinds_are_compared(kind):
    """By the numbers that they stand for."""
    change = KINDS[kind]
    assert compared(change, change).close
    assert compared(change, lambda y: change(y * 1.5)).outcome == "different"


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")  # of torch.ao
def test_what_float64_can_not_compute_is_not_said_to_be_nan():
    """The numbers of a quantized layer are as finite as those of the layer."""
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU()).eval()
    quantized = torch.ao.quantization.quantize_dynamic(model, {nn.Linear})

    result = align(model, quantized, (torch.randn(2, 4),))

    assert result.outcome == "different"
    assert "the output of B is not that of A" in str(result)
    assert "NaN" not in str(result)
