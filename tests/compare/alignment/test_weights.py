"""Tests of matching the weights of two implementations."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from transformers.pytorch_utils import Conv1D

from filch.compare import align
from filch.compare.pairing._folded import folded_weights
from filch.compare.pairing._weight_map import match_weights
from filch.compare.runs._execution import run_model
from filch.compare.runs._program_run import ProgramSource
from filch.export import export
from support.models.small import module_of

GENERATOR = torch.Generator().manual_seed(0)


def numbers(*shape):
    return torch.randn(*shape, generator=GENERATOR)


def parts_of(reference, other):
    match = match_weights(reference, {"other": other}).by_weight["other"]
    return [(part.weight, part.arrangement, part.factor) for part in match.parts]


A = {"q": numbers(64, 48), "k": numbers(32, 48), "v": numbers(32, 48), "gain": numbers(48) + 1, "bias": numbers(64)}
EXPERTS = {"experts": numbers(4, 32, 24)}


def test_weights_are_found_joined_split_and_moved():
    """The arrangement says which is a part of which."""
    assert parts_of(A, A["q"].T.contiguous()) == [("q", "moved", "")]
    joined = parts_of(A, torch.cat([A["q"], A["k"], A["v"]]))
    assert joined == [("q", "holds", ""), ("k", "holds", ""), ("v", "holds", "")]
    assert parts_of(EXPERTS, EXPERTS["experts"][2].T.contiguous()) == [("experts", "part", "")]
    assert parts_of(A, torch.cat([A["bias"], A["gain"]])) == [("bias", "holds", ""), ("gain", "holds", "")]


def test_factors_are_named():
    """A scale, the gain of a norm, and a norm that stores its gain without 1."""
    assert parts_of(A, A["q"] * 0.125) == [("q", "same", "times 0.125")]
    assert parts_of(A, A["q"] * A["gain"]) == [("q", "same", "times gain, along dimension 1")]
    assert parts_of(A, (A["q"] * A["gain"]).T.contiguous()) == [("q", "moved", "times gain, along dimension 0")]
    assert parts_of(A, A["gain"] - 1) == [("gain", "same", "plus -1")]
    joined = torch.cat([A["q"], A["k"]]) * (1 + A["gain"])
    folded = [(name, "holds", "times 1 + gain, along dimension 1") for name in ("q", "k")]
    assert parts_of(A, joined) == folded
    assert parts_of(A, joined.T.contiguous())[0] == ("q", "holds", "times 1 + gain, along dimension 0")
    assert match_weights(A, {"other": joined}).unused == ("v", "bias")


def test_factors_are_known_without_rounding():
    """A product with a gain, and a gain with 1, are computed again in float64; what is only moved has no rounding."""
    joined = torch.cat([A["q"], A["k"]]) * A["gain"]
    exact = match_weights(A, {"folded": A["v"] * A["gain"], "joined": joined, "moved": A["bias"].clone()}).exact
    gain = A["gain"].double()
    assert exact.keys() == {"folded", "joined"}
    assert torch.equal(exact["folded"], A["v"].double() * gain)
    assert torch.equal(exact["joined"], torch.cat([A["q"], A["k"]]).double() * gain)
    assert torch.equal(match_weights(A, {"shifted": A["gain"] - 1}).exact["shifted"], gain - 1)


def test_other_numbers_are_not_found():
    """One wrong element, one wrong row and unrelated numbers are all missing; what they replace is unused."""
    wrong = A["q"].clone()
    wrong[3, 5] += 1e-3
    row = A["q"].clone()
    row[3] = row[4]
    for other in (wrong, row, numbers(64, 48), numbers(7)):
        result = match_weights(A, {"other": other})
        assert result.missing == ("other",)
        assert "q" in result.unused


def test_a_joined_weight_with_a_foreign_part_is_incomplete():
    """The part that is found does not hide the one that is not."""
    match = match_weights(A, {"other": torch.cat([A["q"], numbers(32, 48)])}).by_weight["other"]
    assert [part.weight for part in match.parts] == ["q"]
    assert not match.complete
    joined = torch.cat([A["q"], A["k"]]) * A["gain"]
    joined[-1, -1] += 1e-3
    match = match_weights(A, {"other": joined}).by_weight["other"]
    assert [part.weight for part in match.parts] == ["q"]
    assert not match.complete


def test_zeros_take_the_place_of_a_missing_bias():
    """A layer without bias that was joined with others is complete; zeros in place of another number are not."""
    zeros = torch.zeros(32)
    assert match_weights(A, {"other": torch.cat([zeros, A["bias"]])}).matches[0].complete
    assert match_weights(A, {"other": torch.cat([zeros, A["bias"][:32]])}).missing == ("other",)


def test_weights_of_another_dtype_are_compared_in_the_coarser_one():
    """A checkpoint in bfloat16 has the numbers of one in float32, rounded."""
    result = match_weights(A, {"other": A["q"].T.bfloat16()})
    assert result.missing == ()
    assert match_weights(A, {"other": (A["q"] + 0.1).bfloat16()}).missing == ("other",)


def test_rows_in_no_regular_order_are_the_same_in_all_layers():
    """As of heads that are rotated in part; a layer with another order is named."""
    order, other = [0, 2, 1, 3, 4, 5, 6, 8, 7, 9, 10, 11], [0, 1, 3, 2, 4, 5, 6, 8, 7, 9, 10, 11]
    reference = {f"{layer}.q": numbers(12, 8) for layer in range(3)}
    moved = {f"{layer}.wq": reference[f"{layer}.q"][order] for layer in range(3)}

    result = align(reference, moved, weights_only=True)
    assert result.close
    (remark,) = result.remarks
    assert remark.startswith("3 weights of B, such as '0.wq', have rows of A in no regular order")

    result = align(reference, {**moved, "1.wq": reference["1.q"][other]}, weights_only=True)
    (wrong,) = result.wrong_outputs
    assert wrong.startswith("the weight '1.wq' of B is made of 1.q (rows in the order 0, 1, 3, 2, 4, 5, ")


def test_the_bias_of_a_norm_is_found_in_the_layer_after_it():
    """Folded by head, with the gain, as TransformerLens has them; with another gain it is not found."""
    model = torch.nn.Sequential(torch.nn.LayerNorm(8), torch.nn.Linear(8, 12))
    norm, linear = model[0], model[1]
    norm.weight.data, norm.bias.data = numbers(8).exp(), numbers(8)
    names = {"0.weight": norm.weight, "0.bias": norm.bias, "1.weight": linear.weight, "1.bias": linear.bias}
    reference = {name: parameter.detach() for name, parameter in names.items()}
    folded = folded_weights(run_model(model, (numbers(5, 8),), {}))
    weight = (linear.weight * norm.weight).detach().view(3, 4, 8).transpose(1, 2).contiguous()
    bias = (linear.bias + linear.weight @ norm.bias).detach().view(3, 4)

    found = match_weights(reference, {"W": weight, "b": bias}, folded)
    assert found.missing == ()
    assert found.by_weight["W"].parts[0].factor == "times 0.weight, along dimension 0"
    assert match_weights(reference, {"W": weight, "b": bias + 0.01}, folded).missing == ("b",)


@pytest.mark.parametrize("layer", [torch.nn.Linear(8, 8), Conv1D(8, 8)], ids=lambda item: type(item).__name__)
def test_the_bias_of_a_norm_is_found_in_a_layer_with_a_square_weight(layer):
    """The weight is [outputs, inputs] or [inputs, outputs], which only the operation that reads it shows."""
    norm = torch.nn.LayerNorm(8)
    norm.bias.data, layer.bias.data = numbers(8), numbers(8)

    folded = folded_weights(run_model(torch.nn.Sequential(norm, layer), (numbers(5, 8),), {}))

    (name,) = folded
    torch.testing.assert_close(folded[name].tensor.float(), layer(norm.bias[None])[0])


READS = {
    "copied": lambda x, weight: x @ weight.clone(),
    "cast": lambda x, weight: x @ weight.double().float(),
    "viewed": lambda x, weight: x @ weight.view(8, -1),
    "of a batch": lambda x, weight: torch.bmm(x[None], weight[None])[0],
    "of einsum": lambda x, weight: torch.einsum("bi,io->bo", x, weight),
    "of einsum, transposed": lambda x, weight: torch.einsum("bi,oi->bo", x, weight.T),
    "of einsum, stored transposed": lambda x, weight: torch.einsum("bi,oi->bo", x, weight.mT.contiguous()),
}


@pytest.mark.parametrize("size", [8, 12])
@pytest.mark.parametrize("read", READS)
def test_the_bias_of_a_norm_is_found_however_the_weight_is_read(read, size):
    """A weight that is [inputs, outputs] stays so if it is copied, cast or viewed before the product."""
    norm, weight = torch.nn.LayerNorm(8), torch.nn.Parameter(numbers(8, size))
    norm.bias.data = numbers(8)
    model = module_of(lambda self, x: READS[read](self.norm(x), self.weight), norm=norm, weight=weight)

    (summand,) = folded_weights(run_model(model, (numbers(5, 8),), {})).values()

    torch.testing.assert_close(summand.tensor.float(), norm.bias @ weight)


def test_a_grouped_convolution_of_an_onnx_program_is_no_matrix():
    """ONNX calls the number of groups `group`, PyTorch `groups`."""
    layers = [torch.nn.Conv1d(8, 8, 1, groups=groups) for groups in (1, 2, 1)]
    x = numbers(2, 8, 5)
    program = export(torch.nn.Sequential(*layers), (x,))
    (name,) = program.inputs
    source = ProgramSource("program", program, {name: x})

    assert folded_weights(source.run()) == {}
    assert folded_weights(run_model(torch.nn.Sequential(*layers), (x,), {})) == {}


def test_layers_without_a_function_in_between_are_found_in_one():
    """As where two branches are joined, and a batch norm follows; with a weight of another layer they are not found."""

    class Head(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.branches = torch.nn.ModuleList(torch.nn.Linear(size, 6) for size in (4, 5))
            self.fuse = torch.nn.Conv1d(12, 8, 1, bias=False)
            self.norm = torch.nn.BatchNorm1d(8).eval()

        def forward(self, *xs):
            parts = [branch(x).transpose(1, 2) for branch, x in zip(self.branches, xs, strict=True)]
            return self.norm(self.fuse(torch.cat(parts, 1)))

    torch.manual_seed(0)
    model = Head().eval()
    model.norm.running_mean, model.norm.running_var = numbers(8), numbers(8).exp()
    names = dict(model.named_parameters()) | dict(model.named_buffers())
    reference = {name: tensor.detach() for name, tensor in names.items() if tensor.dim()}
    folded = folded_weights(run_model(model, (numbers(2, 3, 4), numbers(2, 3, 5)), {}))
    first, second = model.branches
    factor = (model.norm.weight / (model.norm.running_var + model.norm.eps).sqrt())[:, None]
    parts = [factor * part for part in model.fuse.weight[:, :, 0].split(6, 1)]
    joined = {"first": parts[0] @ first.weight, "second": parts[1] @ second.weight}
    bias = parts[0] @ first.bias + parts[1] @ second.bias + model.norm.bias - factor[:, 0] * model.norm.running_mean
    joined = {name: tensor.detach() for name, tensor in {**joined, "bias": bias}.items()}

    found = match_weights(reference, joined, folded)
    assert found.missing == ()
    (part,) = found.by_weight["second"].parts
    assert part.weight == "fuse.weight of branches.1.weight"
    assert part.factor == "times norm (factor), along dimension 0"
    wrong = {"first": (parts[1] @ first.weight).detach(), "bias": joined["bias"] + 0.01}
    assert match_weights(reference, {**joined, **wrong}, folded).missing == ("first", "bias")


def test_what_is_between_two_layers_may_be_long_and_have_biases_of_another_size():
    """Graphs of files from elsewhere have any of these."""

    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.last = torch.nn.Linear(4, 6), torch.nn.Linear(6, 3)
            self.other, self.one = torch.nn.Parameter(numbers(5)), torch.nn.Parameter(numbers(1))

        def forward(self, x):
            x = (self.first(x).transpose(1, 2) + self.other).transpose(1, 2) + self.one
            for _ in range(600):
                x = x.reshape(10, 6).reshape(2, 5, 6)
            return self.last(x)

    model = Net()
    product = folded_weights(run_model(model, (numbers(2, 5, 4),), {}))["last.weight of first.weight"]
    assert torch.equal(product.tensor, model.last.weight.double() @ model.first.weight.double())


def layers(count=5):
    """Return a checkpoint: a class token, positions, layers with two norms each, a fused weight, a scale and a head."""
    generator = torch.Generator().manual_seed(0)

    def made(*shape):
        return torch.randn(shape, generator=generator)

    shapes = {"norm1.weight": (24,), "norm2.weight": (24,), "fc.weight": (24, 18), "qkv.weight": (36, 24)}
    found = {f"blocks.{layer}.{name}": made(*shape) for layer in range(count) for name, shape in shapes.items()}
    return found | {"cls": made(1, 1, 24), "pos": made(1, 9, 24), "scale": made(), "head.weight": made(10, 24)}


def converted(weights):
    """Return them under other names, with the fused ones in parts."""
    found: dict[str, torch.Tensor] = {}
    for name, tensor in weights.items():
        other = name.replace("blocks", "layers").replace("norm1", "before").replace("norm2", "after")
        parts = tensor.chunk(3) if "qkv" in name else [tensor]
        found |= {
            other.replace("qkv", kind) if len(parts) > 1 else other: part
            for kind, part in zip("qkv", parts, strict=False)
        }
    return found


@pytest.mark.parametrize("count", [1, 2, 3, 4, 12])
def test_a_right_conversion_is_close_however_many_layers_it_has(count):
    """The numbers in `norm1` and `norm2` are those of no layer."""
    result = align(layers(count), converted(layers(count)), weights_only=True)
    assert result.outcome == "close", str(result)


WRONG = {
    "NaN": lambda weight: weight * float("nan"),
    "one infinite": lambda weight: torch.where(weight == weight.max(), float("inf"), weight),
    "zeros": torch.zeros_like,
    "a constant": torch.ones_like,
    "other numbers": lambda weight: torch.randn(weight.shape, generator=torch.Generator().manual_seed(9)),
    "one number": lambda weight: weight.sum(),
    "empty": lambda weight: weight[:0],
    "rounded to int8": lambda weight: (weight * 40).round() / 40,
    "rounded to bfloat16": lambda weight: weight.bfloat16().float(),
    "negated in part": lambda weight: weight * (1 - 2 * (torch.arange(weight.numel()).view(weight.shape) % 2)),
}
OF_A_MATRIX = {
    "a part": lambda weight: weight[:7],
    "repeated": lambda weight: weight.repeat(2, 1),
    "rows reversed": lambda weight: weight.flip(0),
    "transposed": lambda weight: weight.T.contiguous(),
    "plus 1": lambda weight: weight + 1,
    "rows times random": lambda weight: weight * torch.rand(len(weight), 1, generator=torch.Generator().manual_seed(9)),
    "times 1.1": lambda weight: weight * 1.1,
    "interleaved": lambda weight: weight.view(2, -1, weight.shape[1]).transpose(0, 1).reshape(weight.shape),
}
CASES = [
    *((name, way) for way in WRONG for name in ("cls", "pos", "head.weight", "layers.1.before.weight")),
    *(("layers.2.fc.weight", way) for way in OF_A_MATRIX),
    *(("layers.2.q.weight", way) for way in ("a part", "repeated", "plus 1", "times 1.1")),
    *(("head.weight", way) for way in ("a part", "rows times random")),
    *(("scale", way) for way in ("NaN", "zeros", "a constant", "other numbers")),
]


@pytest.mark.parametrize(("name", "way"), CASES)
def test_a_wrong_weight_is_told(name, way):
    """Wherever it is: in one layer of five, in a dimension of 1, or a single number."""
    other = converted(layers())
    other[name] = (WRONG | OF_A_MATRIX)[way](other[name])
    result = align(layers(), other, weights_only=True)
    assert result.outcome == "different", str(result)
    assert result.wrong_outputs


def test_the_same_nan_is_the_same_weight():
    """A file that was damaged before it was converted is converted right; NaN in one of the two is told."""
    own = {"a.w": numbers(12, 8), "b.w": numbers(6, 12)}
    own["a.w"][3, 4] = float("nan")
    assert align(own, {"x": own["a.w"].clone(), "y": own["b.w"]}, weights_only=True).close
    elsewhere = own["a.w"].nan_to_num()
    elsewhere[3, 5] = float("nan")
    assert align(own, {"a.w": elsewhere, "b.w": own["b.w"]}, weights_only=True).outcome == "different"


def test_weights_of_one_number_are_found_where_they_are_joined():
    """Biases of 0, as many models begin with, in one of B; another number, or more of them than A has, are not."""
    zeros = {name: torch.zeros(24) for name in "abc"}
    for joined, others in ((torch.zeros(72), {}), (torch.cat([torch.zeros(72), numbers(8)]), {"d": numbers(0)})):
        own = {**zeros, "w": numbers(6, 5), **({} if len(joined) == 72 else {"d": joined[72:]})}
        assert align(own, {"w": own["w"], "joined": joined}, weights_only=True).close, others
        wrong = torch.cat([joined[:71], joined.new_ones(1), joined[72:]])
        assert not align(own, {"w": own["w"], "joined": wrong}, weights_only=True).close
    assert not align({**zeros, "w": A["q"]}, {"w": A["q"], "joined": torch.zeros(80)}, weights_only=True).close


def test_layers_that_are_made_in_two_ways_are_told_apart_in_two_layers():
    """One of two must be wrong, as both are of the same place in A."""
    own = {f"a.{layer}.w": numbers(12, 8) for layer in range(2)}
    other = {"b.0.w": own["a.0.w"], "b.1.w": own["a.1.w"] * 2}
    assert align(own, {name: tensor * 2 for name, tensor in own.items()}, weights_only=True).close
    assert align(own, other, weights_only=True).outcome == "different"


@pytest.mark.parametrize("change", [lambda w: -w, lambda w: w * 2, lambda w: w.transpose(-1, -2)])
@pytest.mark.parametrize("shape", [(6, 6), (4, 2, 3, 3)])
def test_a_change_that_no_other_weight_has_is_not_judged_without_a_run(shape, change):
    """What reads the weight may expect it, or not. If another weight has the change, too, it is a convention."""
    own = {"stem": numbers(*shape), "head": numbers(*shape), "norm": numbers(12)}
    result = align(own, {**own, "stem": change(own["stem"]).contiguous()}, weights_only=True)
    assert (result.outcome, [gap.name for gap in result.proof.gaps]) == ("incomplete", ["stem"])
    assert "weights that were judged are the same" in result.headline
    assert replace(result, accepted={"stem": "the model reads it like this"}).passes

    both = {"stem": change(own["stem"]).contiguous(), "head": change(own["head"]).contiguous(), "norm": own["norm"]}
    assert align(own, both, weights_only=True).close
