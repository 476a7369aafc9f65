"""Tests of `align`: a correct port, planted bugs, and inputs that say little."""

import copy
import re
from functools import cache

import pytest
import torch
from torch import nn

from filch.compare import CompareError, MappedValue, ValueMap, align, diff, load_value_map
from filch.compare.alignment._notes import _same_place
from filch.compare.layouts._described import described
from filch.compare.layouts._numbers import TensorNumbers
from filch.compare.layouts._solve import solve
from filch.export import TraceError
from filch.steal import FilchError, steal_forward
from support.models.small import capture_of, module_of
from support.thorough import slow

from ...support.models.port import BUGS, LAYERS, port

# Where module outputs of the decoder are in the port.
PLACES = {
    r"embed": r"tokens",
    r"layers\.(\d)\.norm_1": r"blocks\.\1\.ln1",
    r"layers\.(\d)\.norm_2": r"blocks\.\1\.ln2",
    r"layers\.(\d)\.attention\.(query|key|value)": r"blocks\.\1\.qkv",
    r"layers\.(\d)\.attention(\.output)?": r"blocks\.\1\.proj",
    r"layers\.(\d)\.up": r"blocks\.\1/add at port\.py:\d+",
    r"layers\.(\d)\.down": r"blocks\.\1/add at port\.py:\d+",
    r"layers\.(\d)": r"blocks\.\1",
    r"norm": r"final",
    r"head|": r"\(the model\)",
}


def expected_place(module):
    (pattern,) = (pattern for pattern in PLACES if re.fullmatch(pattern, module))
    match = re.fullmatch(pattern, module)
    assert match is not None
    return PLACES[pattern].replace(r"\1", match[1] if match.re.groups else "")


@cache
def aligned():
    """Return the alignment of the correct port."""
    return align(*port())


def test_a_correct_port_is_aligned_completely():
    """All weights and module outputs are found in their places, and nothing is said to differ."""
    result = aligned()
    assert result.close
    assert not (result.departures or result.missing or result.wrong_outputs or result.unused_weights)
    assert all(weight.complete for weight in result.weights)
    for value in result.values:
        assert value.evidence in ("proved", "anchored", "by value"), value
        assert all(re.fullmatch(expected_place(value.module), place) for place in value.places), value


def test_weights_say_how_they_are_arranged():
    """Joined and transposed weights are named as such."""
    weights = {weight.name: weight for weight in aligned().weights}
    assert weights["blocks.1.w1"].arrangement == "transposed"
    assert weights["blocks.1.ln1.weight"].arrangement == "same"
    joined = weights["blocks.1.qkv.weight"]
    assert set(joined.sources) == {f"layers.1.attention.{name}.weight" for name in ("query", "key", "value")}


@slow
@pytest.mark.parametrize(("bug", "block"), [(bug, index % LAYERS) for index, bug in enumerate(BUGS)])
def test_a_bug_is_named_with_its_module(bug, block):
    """The first departure is in the module that has the bug, and no other module is blamed."""
    a, b, args = port({block: bug})
    result = align(a, b, args)
    module = f"blocks.{block}.{BUGS[bug]}".rstrip(".")
    assert not result.close
    assert result.departures[0].module == module
    assert {departure.module.partition("@")[0] for departure in result.departures} == {module}


def test_two_bugs_are_both_named():
    """What is behind the first bug is judged with the numbers of A."""
    a, b, args = port({0: "epsilon", 2: "gelu"})
    assert [departure.module for departure in align(a, b, args).departures] == ["blocks.0.ln1", "blocks.2"]


class Residual(nn.Module):
    """Layers between which norms have no weights, with bugs in the embedding and in the last layer but one."""

    def __init__(self, *, has_bugs):
        super().__init__()
        self.embed = nn.Embedding(32, 16)
        self.up, self.down = (nn.ModuleList(nn.Linear(16, 16) for _ in range(4)) for _ in range(2))
        self.has_bugs = has_bugs

    def forward(self, tokens):
        x = self.embed(tokens)
        x = x * 1.5 if self.has_bugs else x
        for index, (up, down) in enumerate(zip(self.up, self.down, strict=True)):
            normal = x if self.has_bugs and index == 2 else x / (x.square().mean(-1, keepdim=True) + 1e-5).sqrt()
            x = x + down(torch.tanh(up(normal)))
        return x / x.std(-1, keepdim=True)


def test_a_bug_is_named_behind_one_that_no_layer_recovers_from():
    """The sums that go from layer to layer get the numbers of A, as A has no result in place of the first wrong one."""
    torch.manual_seed(0)
    a, b = Residual(has_bugs=False).eval(), Residual(has_bugs=True).eval()
    b.load_state_dict(a.state_dict())
    found = align(a, b, torch.randperm(32)[:14].view(2, 7)).departures
    assert [(departure.operator, departure.module) for departure in found] == [("mul", ""), ("view", "up.2")]


class Experts(nn.Module):
    """Layers that send each token to one of three experts, so that an expert has as many rows as tokens choose it."""

    def __init__(self):
        super().__init__()
        self.embed, self.route = nn.Embedding(64, 16), nn.ModuleList(nn.Linear(16, 3) for _ in range(3))
        self.experts = nn.ModuleList(nn.ModuleList(nn.Linear(16, 16) for _ in range(3)) for _ in range(3))

    def forward(self, tokens):
        x = self.embed(tokens)
        for route, experts in zip(self.route, self.experts, strict=True):
            chosen, out = route(x).argmax(-1), torch.zeros_like(x)
            for number, expert in enumerate(experts):
                rows = (chosen == number).nonzero()[:, 0]
                out = out.index_add(0, rows, torch.tanh(expert(x[rows])))
            x = x + out
        return x


def test_values_whose_size_depends_on_other_values_may_change_it():
    """With the numbers of A, tokens of B choose other experts than before."""
    torch.manual_seed(3)
    a, b = Experts().eval(), Experts().eval()
    b.load_state_dict(a.state_dict())
    with torch.no_grad():
        b.embed.weight[:, 3].mul_(1.5)
        b.experts[1][1].weight.mul_(1.2)
    result = align(a, b, torch.randperm(64)[:24])
    assert [departure.module for departure in result.departures] == ["embed", "experts.1.1"]


def test_differing_settings_are_in_the_note():
    """The epsilon of both is said."""
    a, b, args = port({1: "epsilon"})
    (departure,) = align(a, b, args).departures
    assert departure.note == "eps is 0.001, 1e-05 in A"
    assert departure.reference_module == "layers.1.norm_1"


@slow
def test_a_missing_weight_is_reported():
    """A weight that was not copied is in no weight of A, and that of A is unused."""
    a, b, args = port()
    with torch.no_grad():
        b.blocks[1].proj.weight.normal_()
    result = align(a, b, args)
    assert [weight.name for weight in result.weights if not weight.complete] == ["blocks.1.proj.weight"]
    assert result.unused_weights == ("layers.1.attention.output.weight",)
    assert result.departures[0].module == "blocks.1.proj"


def step_module(step):
    """Multiplies or adds a weight."""
    return module_of(lambda self, x: self.step(x, self.weight), weight=nn.Parameter(torch.randn(12)), step=step)


@pytest.mark.parametrize(("step", "number"), [(torch.mul, 1.0), (torch.add, 0.0)])
def test_a_weight_that_was_not_loaded_is_named_where_it_is_used(step, number):
    """Not where its result is read: a gain of ones, or a bias of zeros, leaves the numbers of A as they are."""
    torch.manual_seed(0)
    a = nn.Sequential(nn.Linear(8, 12), nn.Tanh(), step_module(step), nn.Linear(12, 8))
    b = copy.deepcopy(a)
    b.get_parameter("2.weight").data.fill_(number)
    (departure,) = align(a, b, torch.randn(3, 8)).departures
    assert (departure.module, departure.operator) == ("2", step.__name__)
    assert departure.note == "reads 2.weight, whose numbers are not all in weights of A"


@pytest.mark.parametrize("wrong", [False, True])
def test_folded_batch_norms_are_recognized(wrong):
    """The weight has a factor for each channel, the bias is the summand; a wrong epsilon is a missing weight."""
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU()).eval()
    ported = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU()).eval()
    with torch.no_grad():
        norm = model[1]
        for tensor in (*norm.parameters(), norm.running_mean, norm.running_var):
            tensor.uniform_(0.5, 1.5)
        factor = norm.weight / (norm.running_var + (1e-2 if wrong else norm.eps)).sqrt()
        ported[0].weight.copy_(model[0].weight * factor[:, None, None, None])
        ported[0].bias.copy_((model[0].bias - norm.running_mean) * factor + norm.bias)
    result = align(model, ported, torch.randn(2, 3, 6, 6))
    assert result.close is not wrong
    weights = {weight.name: weight for weight in result.weights}
    assert weights["0.bias"].sources == (() if wrong else ("1 (summand)",))
    named = "times 1 (factor), along dimension 0" in weights["0.weight"].arrangement
    assert named is not wrong
    assert bool(result.unused_weights) is wrong


def test_equal_weights_are_told_apart_by_their_order():
    """Freshly initialized norms are all ones: the map is usable, and says that their numbers do not decide."""
    a, b, args = port()
    with torch.no_grad():
        for model in (a, b):
            for name, parameter in model.named_parameters():
                if re.search(r"norm|ln|final", name):
                    parameter.fill_(float(name.endswith("weight")))
    result = align(a, b, args)
    assert result.close
    weights = {weight.name: weight for weight in result.weights}
    assert weights["blocks.1.ln1.weight"].others
    assert all(value.places for value in result.values)


@slow
def test_another_output_is_a_difference():
    """A port that returns another value of A is no port, although each of its values is one of A."""
    a, b, args = port()

    class Hidden(nn.Module):
        def __init__(self):
            super().__init__()
            self.port = b

        def forward(self, tokens):
            self.port(tokens)
            return self.port.tokens(tokens)

    result = align(a, Hidden(), args)
    assert not result.close
    assert result.wrong_outputs == ("the output of B has the shape [2, 7, 24], that of A [2, 7, 50]",)


def test_inputs_with_equal_numbers_are_remarked_on():
    """Nothing can be told apart then."""
    a, b, _ = port()
    result = align(a, b, torch.zeros(2, 7, dtype=torch.int64))
    assert any("use other inputs" in remark for remark in result.remarks)


@slow
def test_inputs_with_other_numbers_are_remarked_on():
    """The models are not to blame then."""
    a, b, (tokens,) = port()
    result = align(a, b, tokens, tokens.flip(1))
    assert not result.close
    assert "the input 'tokens' of B has numbers that no input of A has" in result.remarks[0]


def test_a_model_that_fails_is_named():
    """The error is that of the model."""
    a, b, args = port()
    with pytest.raises(TraceError, match="Decoder itself fails"):
        align(a, b, torch.full((1, 2), 1000), args)


def test_neither_implementation_is_changed():
    """Weights, buffers and the state of random numbers are as before."""
    a, b, args = port()
    before = [parameter.clone() for model in (a, b) for parameter in model.parameters()]
    state = torch.random.get_rng_state()
    align(a, b, args)
    after = [parameter for model in (a, b) for parameter in model.parameters()]
    assert all(map(torch.equal, before, after))
    assert torch.equal(state, torch.random.get_rng_state())


@slow
def test_a_mapping_is_written_checked_and_corrected(tmp_path):
    """The rows of a file are confirmed, and a wrong one is reported."""
    a, b, args = port()
    path = tmp_path / "map.toml"
    ValueMap.of(aligned()).save(path)
    values = load_value_map(path).values
    assert values["norm"] == MappedValue("final")
    assert values["layers.0.attention.query"].place == "blocks.0.qkv"
    assert values["layers.0.attention.query"].layout is not None
    again = align(a, b, args, mapping=path)
    assert again.close
    assert {value.evidence for value in again.values if value.module in values} == {"given"}
    wrong = align(a, b, args, mapping=ValueMap({"norm": MappedValue("blocks.1.ln1")}))
    assert not wrong.close
    assert [value.module for value in wrong.contradicted] == ["norm"]


def test_a_mapping_with_unknown_modules_is_refused():
    """The message names a similar module."""
    a, b, args = port()
    with pytest.raises(CompareError, match=r"'finl', which no module of B returned; did you mean 'final'"):
        align(a, b, args, mapping=ValueMap({"norm": MappedValue("finl")}))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[values", "is not a TOML file"),
        (f"values = {'[' * 100_000}", "nested too deeply"),
        ("", "has one table"),
        ("[other]\n", "has one table"),
        ("[values]\nnorm = 1\n", "a module of B or a table"),
        ('[values]\nnorm = { in = "a", layout = "x" }\n', "invalid literal"),
        ('[values]\nnorm = { in = "a", layout = "1+2" }\n', "a layout is written as"),
    ],
)
def test_other_files_are_no_mappings(tmp_path, text, message):
    """The error says what the file is expected to have."""
    path = tmp_path / "map.toml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(FilchError, match=message):
        load_value_map(path)


@pytest.mark.parametrize("bug", ["", "gelu"])
def test_dumps_of_two_implementations_are_compared_by_a_mapping(tmp_path, bug):
    """In their own dtype; a bug shows in the first module output behind it."""
    a, b, args = port({1: bug})
    mapping = ValueMap.of(aligned())
    capture_of(a, *args, submodules=True, dump_file=tmp_path / "a.onnx")
    capture_of(b, *args, submodules=True, dump_file=tmp_path / "b.onnx")
    result = diff(tmp_path / "a.onnx", tmp_path / "b.onnx", mapping=mapping)
    assert len(result.rows) == len(mapping.values)
    assert result.close == (not bug)
    assert bug == "" or result.first_divergence.key.name == "layers.1"


def test_an_output_without_a_place_in_a_mapping_is_not_judged():
    """The values before it are close, and say nothing of what computes it from them."""
    a, b, args = port()
    mapping = ValueMap.of(aligned())
    first = capture_of(a, *args, submodules=True)
    second = capture_of(b, *args, submodules=True)
    inner = ValueMap({name: place for name, place in mapping.values.items() if name})

    assert diff(first, second, mapping=mapping).close
    result = diff(first, second, mapping=inner)
    assert (result.outcome, [gap.name for gap in result.proof.gaps]) == ("incomplete", ["(root)#0.O"])


def test_a_mapped_module_that_is_not_there_is_a_difference(tmp_path):
    """A value that can't be compared never counts as close."""
    a, b, args = port()
    with torch.no_grad():
        first = capture_of(a, *args, submodules=True)
        with steal_forward(b.final) as second:
            b(*args)
    mapping = ValueMap({"norm": MappedValue("other"), "head": MappedValue("(root)")})
    result = diff(first, second, mapping=mapping)
    assert not result.close
    assert "does not have 'other'" in result.rows[0].reason


@pytest.mark.parametrize(
    ("part", "text"),
    [
        (lambda matrix: matrix, "same"),
        (lambda matrix: matrix.T, "transposed"),
        (lambda matrix: matrix[8:16], "rows 8 to 15"),
        (lambda matrix: matrix[:, 8:16], "columns 8 to 15"),
        (lambda matrix: matrix[8:16].T, "rows 8 to 15, transposed"),
        (lambda matrix: matrix[:, 8:16].T, "columns 8 to 15, transposed"),
        (lambda matrix: matrix[8:16, 8:16].T, "elements 520+8:1·8:64"),
    ],
)
def test_parts_of_a_matrix_are_described(part, text):
    """In words, also if they are transposed, where they are whole rows or columns."""
    matrix = torch.randn(48, 64, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    layout = solve(TensorNumbers(part(matrix)), TensorNumbers(matrix))
    assert layout is not None
    assert described(layout, tuple(part(matrix).shape), tuple(matrix.shape)) == text


class Rounded(nn.Module):
    """A norm between linear layers, with values in a coarser dtype before the norm or at the end."""

    def __init__(self, hidden=torch.float32, result=torch.float32):
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(8, 16), nn.LayerNorm(16), nn.Linear(16, 8)
        self.hidden, self.result = hidden, result

    def forward(self, x):
        x = self.first(x).to(self.hidden).to(self.first.weight.dtype)
        return self.last(self.norm(x)).to(self.result)


@pytest.mark.parametrize(
    ("dtypes", "coarser"),
    [
        ({"hidden": torch.bfloat16}, "bfloat16"),
        ({"result": torch.float16}, "float16"),
        ({"hidden": torch.float64}, ""),
        ({}, ""),
    ],
)
def test_rounding_to_a_coarser_dtype_is_named_where_it_happens(dtypes, coarser):
    """Although both are the same in float64; rounding that only A does is nothing that B has to do."""
    torch.manual_seed(0)
    a, b, x = Rounded(), Rounded(**dtypes), torch.randn(3, 8)
    b.load_state_dict(a.state_dict())

    result = align(a, b, x)
    assert result.close == (coarser == "")
    assert [item.operator for item in result.departures] == ["_to_copy"] * bool(coarser)
    assert all(item.note == f"rounds to {coarser}, where A has float32" for item in result.departures)
    assert align(b, a, x).close
    assert align(a.bfloat16(), b.bfloat16(), x.bfloat16()).close  # where all is as coarse


def test_layers_are_ordered_by_their_numbers():
    """However long the numbers of a file are."""
    names = [f"h.{number}.w" for number in ("2", "10", "0", "9" * 5000)]
    assert _same_place("h.2.w", names) == ["h.0.w", "h.2.w", "h.10.w", names[-1]]


class Patches(nn.Module):
    """Patches of an image, whose order its parent moves, or a module of its own."""

    def __init__(self, *, moves):
        super().__init__()
        self.projection, self.moves = nn.Conv2d(3, 8, 4, 4), moves

    def forward(self, x):
        y = self.projection(x)
        return y.flatten(2).transpose(1, 2) if self.moves else y


class Moved(nn.Module):
    """Moves patches itself, or has a module that does; may share one activation in all layers."""

    def __init__(self, *, inside, shared):
        super().__init__()
        self.patches, self.norm, self.head = Patches(moves=inside), nn.Identity(), nn.Linear(8, 5)
        activation = nn.Tanh()
        self.layers = nn.ModuleList(
            nn.Sequential(nn.Linear(8, 8), activation if shared else nn.Tanh()) for _ in range(3)
        )
        self.inside = inside

    def forward(self, x):
        y = self.patches(x)
        y = self.norm(y if self.inside else y.flatten(2).transpose(1, 2))
        for layer in self.layers:
            y = layer(y)
        return self.head(y)


@pytest.mark.parametrize("inside", [False, True])
def test_a_written_mapping_is_that_of_what_modules_returned(inside):
    """In their own order and shape; and modules that layers share have the names that a capture gives them."""
    torch.manual_seed(0)
    a, b = Moved(inside=inside, shared=inside).eval(), Moved(inside=not inside, shared=not inside).eval()
    b.load_state_dict(a.state_dict())
    x = torch.randn(2, 3, 16, 16)
    result = align(a, b, x)
    mapping = ValueMap.of(result)
    assert {"norm", "layers.0.1@1" if inside else "layers.1.1"} <= mapping.values.keys()
    first = capture_of(a, x, submodules=True)
    second = capture_of(b, x, submodules=True)
    compared = diff(first, second, mapping=mapping)
    assert compared.close, str(compared)
    assert len(compared.rows) == len(mapping.values)
    again = align(a, b, x, mapping=mapping)
    assert again.close
    assert {value.evidence for value in again.values} == {"given"}


class Rotated(nn.Module):
    """Attention with rotated queries and keys, which reads a longer table of angles than A computes."""

    def __init__(self, *, has_table, has_norm=True):
        super().__init__()
        self.embed, self.joined, self.out = nn.Embedding(50, 64), nn.Linear(64, 192, bias=False), nn.Linear(64, 64)
        self.norm_q = nn.RMSNorm(16, eps=1e-6)
        self.norm_k = nn.RMSNorm(16, eps=1e-6) if has_norm else nn.Identity()
        if has_table:
            self.register_buffer("cos", self.angles(64).cos(), persistent=False)
            self.register_buffer("sin", self.angles(64).sin(), persistent=False)

    @staticmethod
    def angles(count):
        speeds = 1e4 ** (-torch.arange(0, 16, 2).float() / 16)
        return torch.outer(torch.arange(count).float(), speeds).repeat(1, 2)

    def forward(self, tokens):
        heads = self.joined(self.embed(tokens)).chunk(3, -1)
        query, key, value = (x.unflatten(-1, (4, 16)).transpose(1, 2) for x in heads)
        count = tokens.shape[1]
        angles = self.angles(count)
        cos, sin = (self.cos[:count], self.sin[:count]) if hasattr(self, "cos") else (angles.cos(), angles.sin())
        query, key = (self.rotate(x, cos, sin) for x in (self.norm_q(query), self.norm_k(key)))
        attended = nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        return self.out(attended.transpose(1, 2).flatten(2))

    @staticmethod
    def rotate(x, cos, sin):
        return x * cos + torch.cat([-x[..., 8:], x[..., :8]], -1) * sin


@slow
def test_a_table_that_a_right_port_has_is_no_reason():
    """What is wrong is said to read keys without a norm, once; not to read a table that A computes as well."""
    torch.manual_seed(0)
    a = Rotated(has_table=False).eval()
    tokens = torch.stack([torch.randperm(50)[:12] for _ in range(2)])
    for has_norm in (True, False):
        b = Rotated(has_table=True, has_norm=has_norm).eval()
        b.load_state_dict(a.state_dict(), strict=False)
        result = align(a, b, tokens)
        assert result.close is has_norm
        assert len(result.departures) == 1 - has_norm
        assert all("where A goes on with norm_k" in item.note for item in result.departures), str(result)
    wrong = Rotated(has_table=True).eval()
    wrong.load_state_dict(a.state_dict(), strict=False)
    wrong.cos.mul_(0.9)
    assert "reads cos, whose numbers are not all in weights of A" in align(a, wrong, tokens).departures[0].note


@slow
def test_what_explains_all_departures_comes_first():
    """Other inputs are said before the operations that compute something else because of them."""
    a, b, (tokens,) = port()
    lines = str(align(a, b, tokens, tokens.flip(1))).splitlines()
    first = next(index for index, line in enumerate(lines) if "has numbers that no input of A has" in line)
    assert first < next((index for index, line in enumerate(lines) if line.startswith("B leaves A")), len(lines))
