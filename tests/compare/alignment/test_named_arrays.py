"""Tests of implementations that are known only by named arrays, captures or weights: here GPT-2 written in NumPy."""

import itertools

import numpy as np
import pytest
import torch

from filch.compare import CompareError, align
from filch.steal import steal_forward
from support.models.numpy_gpt2 import FAULTS, gpt2, numpy_gpt2, numpy_weights, tokens
from support.processes.commands import run
from support.thorough import slow


@pytest.fixture(scope="module")
def model():
    return gpt2()


@pytest.fixture(scope="module")
def weights(model):
    return numpy_weights(model)


@slow
@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.float16])
def test_a_correct_port_is_close(model, weights, dtype):
    """All arrays are found but those that GPT-2 does not compute; these don't matter, as later ones are right."""
    result = align(model, numpy_gpt2(weights, tokens().numpy(), dtype), tokens())
    assert result.close, result
    assert [array.name for array in result.arrays if not array.places] == ["b0/exp", "b1/exp", "b2/exp"]
    places = {array.name: array.places for array in result.arrays}
    assert "transformer.h.1.mlp.act" in places["b1/act"]
    assert places["b2/ln2"] == ("transformer.h.2.ln_2",)


@slow
@pytest.mark.parametrize(
    ("fault", "dtype"),
    [*zip(FAULTS, itertools.cycle([np.float64, np.float32]), strict=False), ("no scale", np.float16)],
)
def test_a_fault_is_named(model, weights, dtype, fault):
    """The first array that a fault changes is where B leaves A."""
    result = align(model, numpy_gpt2(weights, tokens().numpy(), dtype, fault), tokens())
    assert not result.close
    (departure,) = result.departures
    assert departure.module == FAULTS[fault]
    assert departure.reference_module is not None
    assert departure.reference_module.startswith("transformer.h.1" if fault != "positions" else "transformer.wte")
    assert f"{FAULTS[fault]!r} of B is the first" in result.wrong_outputs[0]


class OtherArray:
    """An array of another package, which NumPy can convert but not write to, as one of JAX."""

    def __init__(self, array):
        self.array = array

    def __array__(self, dtype=None, copy=None):
        if self.array.dtype == object:
            raise TypeError("keys can't be converted")
        shared = self.array.view()
        shared.flags.writeable = False
        return shared


def test_arrays_of_other_packages(model, weights):
    """In lists, among None, and as arguments; what has no numbers is an error."""
    ids = tokens()
    values = numpy_gpt2(weights, ids.numpy(), np.float32)
    arrays = {"nothing": None, "blocks": [{"ln1": OtherArray(values[f"b{layer}/ln1"])} for layer in range(3)]}
    named = {**arrays, "logits": OtherArray(values["logits"])}
    result = align(model, named, OtherArray(ids.numpy()), kwargs={"use_cache": False})
    assert result.close, result
    assert [array.name for array in result.arrays] == ["blocks.0.ln1", "blocks.1.ln1", "blocks.2.ln1", "logits"]
    with pytest.raises(CompareError, match=r"OtherArray .* has no numbers: keys can't be converted"):
        align(model, {"key": OtherArray(np.array([None]))}, ids)


def test_one_wrong_number_is_enough(model, weights):
    """A pair holds for all elements: one that is 2e-4 off, in float32, is a difference."""
    values = numpy_gpt2(weights, tokens().numpy(), np.float32)
    values["logits"] = values["logits"].copy()
    values["logits"][1, 3, 5] += 2e-4
    result = align(model, values, tokens())
    assert [departure.module for departure in result.departures] == ["logits"]


@slow
def test_weights_are_told_from_values(model, weights):
    """Weights among the arrays are found in those of A, one with another number is named, and values are compared."""
    arrays = {**weights, **numpy_gpt2(weights, tokens().numpy(), np.float32)}
    result = align(model, arrays, tokens())
    assert result.close, result
    sources = {weight.name: (weight.sources, weight.arrangement) for weight in result.weights}
    assert sources["b1/k_w"] == (("transformer.h.1.attn.c_attn.weight",), "columns 48 to 95")
    assert sources.keys() == weights.keys()
    arrays["b1/o"] = arrays["b1/o"].copy()
    arrays["b1/o"][3, 5] += 0.5
    result = align(model, arrays, tokens())
    assert result.wrong_outputs == (
        (
            "the weight 'b1/o' of B has other numbers than 'transformer.h.1.attn.c_proj.weight' of A: "
            "1 of 2304 numbers differ, by 0.5 at most"
        ),
    )


def test_arrays_in_another_order_name_no_first_one(model, weights):
    """Sorted names are no order of computation: what is wrong is listed, and nothing is called the first."""
    values = dict(sorted(numpy_gpt2(weights, tokens().numpy(), np.float64, "erf").items()))
    result = align(model, values, tokens())
    assert not result.close
    assert result.departures == ()
    assert "not in the order of the run" in result.wrong_outputs[0]


@slow
def test_arrays_can_be_the_reference(model, weights):
    """The port is A and the module is B: the first array of A that the module does not compute is missing."""
    ids = tokens()
    result = align(numpy_gpt2(weights, ids.numpy(), np.float32), model, actual_args=ids)
    assert result.close, result
    result = align(numpy_gpt2(weights, ids.numpy(), np.float32, "eps"), model, actual_args=ids)
    assert not result.close
    assert [departure.module for departure in result.missing] == ["b1/ln1"]


@slow
def test_two_sets_of_arrays(weights):
    """Without any graph, rounding is assumed, and the order of the arrays decides."""
    ids = tokens().numpy()
    exact = numpy_gpt2(weights, ids)
    assert align(exact, numpy_gpt2(weights, ids, np.float32), weights_only=False).close
    result = align(exact, numpy_gpt2(weights, ids, np.float32, "erf"), weights_only=False)
    assert [departure.module for departure in result.departures] == ["b1/act"]


@slow
def test_captures_and_dumps(model, weights, tmp_path):
    """A dump is compared by what modules returned; so is a capture, and one that has parameters by these, too."""
    path = tmp_path / "a.onnx"
    with steal_forward(model, submodules=True, dump_file=path), torch.no_grad():
        model(tokens(), use_cache=False)
    assert align(model, path, tokens(), kwargs={"use_cache": False}).close
    assert align(model, path, tokens()).outcome == "incomplete"  # the dump has no cache
    with torch.no_grad(), steal_forward(model, submodules=True, parameters=True, operators="aten.mm.*") as capture:
        eps, model.transformer.h[1].ln_1.eps = model.transformer.h[1].ln_1.eps, 1e-3
        model(tokens(), use_cache=False)
    model.transformer.h[1].ln_1.eps = eps
    result = align(model, capture, tokens())
    assert "transformer.h.1.ln_1" in result.departures[0].module
    assert result.weights
    assert all(weight.complete for weight in result.weights)
    result = align(numpy_gpt2(weights, tokens().numpy()), capture)
    assert not result.close


def test_checkpoints(model, weights, tmp_path):
    """A conversion is right if all weights are found, arranged alike in all layers; else the wrong ones are named."""
    np.savez(tmp_path / "b.npz", **weights)
    torch.save({"model": model.state_dict(), "step": 3}, tmp_path / "a.pt")
    result = align(tmp_path / "a.pt", tmp_path / "b.npz")
    assert result.close, result
    assert result.compared == "weights"
    changed = {**weights, "b1/o": weights["b1/o"].T, "b2/q_w": weights["b2/k_w"], "b0/up": weights["b0/up"] * 1.0}
    changed["b0/up"][0, 0] += 1e-3
    del changed["b2/down"]
    result = align(model, changed)
    assert not result.close
    assert [text.partition(":")[0] for text in result.wrong_outputs] == [
        "the weight 'b0/up' of B has other numbers than 'transformer.h.0.mlp.c_fc.weight' of A",
        "the weight 'transformer.h.2.mlp.c_proj.weight' of A is not in B",
        (
            "the weight 'b1/o' of B is made of transformer.h.1.attn.c_proj.weight (transposed), but in 2 of 3 layers "
            "it is made of transformer.h.#.attn.c_proj.weight (same)"
        ),
        (
            "the weight 'b2/q_w' of B is made of transformer.h.2.attn.c_attn.weight (columns 48 to 95), but in 2 of 3 "
            "layers it is made of transformer.h.#.attn.c_attn.weight (columns 0 to 47)"
        ),
    ]


def test_weights_of_another_layer_are_named(model, weights):
    """Two that were exchanged, without most layers to compare with; norms that were all moved by a layer are right."""
    state = {name: weights[name] for name in weights if name.startswith("b") and "q_" not in name}
    swapped = {**state, "b1/up": state["b2/up"], "b2/up": state["b1/up"]}
    result = align(state, swapped)
    assert [text.partition(",")[0] for text in result.wrong_outputs] == [
        "the weight 'b1/up' of B is made of b2/up",
        "the weight 'b2/up' of B is made of b1/up",
    ]
    numbers = np.random.default_rng(0).normal
    names = [
        (f"{kind}{layer}.{name}", f"features.{3 * layer + (kind == 'bn')}.{name}")
        for kind, layer, name in itertools.product(("conv", "bn"), (1, 2, 3), ("weight", "bias"))
    ]
    flat = {name: numbers(size=8) for _, name in names}
    assert align(flat, {name: flat[source] for name, source in names}).close  # no layers
    names = [name for name in state if "ln1" in name]
    moved = {name: state[name.replace(name[:2], f"b{(int(name[1]) + 1) % 3}")] for name in names}
    other = {name: array for name, array in {**state, **moved}.items() if name not in names or name[1] != "2"}
    own = {name: array for name, array in state.items() if name not in names or name[1] != "0"}
    assert align(own, other).close, align(own, other)


def test_the_command_reads_files(model, weights, tmp_path, capsys):
    """`filch align` takes files of arrays, and exits with 1 if weights differ."""
    safetensors = pytest.importorskip("safetensors.numpy")
    np.savez(tmp_path / "a.npz", **weights)
    safetensors.save_file(
        {name: np.ascontiguousarray(array) for name, array in weights.items()}, tmp_path / "b.safetensors"
    )
    assert run("align", str(tmp_path / "a.npz"), str(tmp_path / "b.safetensors"), "--quiet") == 0
    del weights["wpe"]
    np.savez(tmp_path / "b.npz", **weights)
    assert run("align", str(tmp_path / "a.npz"), str(tmp_path / "b.npz")) == 1
    assert "the weight 'wpe' of A is not in B" in capsys.readouterr().out


def test_other_things_are_refused(tmp_path):
    """What is no array, no file of arrays or no dump is an error that says so."""
    with pytest.raises(CompareError, match="'x' is a str, not an array"):
        align({"x": "text"}, {"x": np.ones(3)})
    with pytest.raises(CompareError, match="has no arrays"):
        align({}, {"x": np.ones(3)})
    with pytest.raises(CompareError, match=r"no file of arrays: give one of .*\.npz"):
        align(tmp_path / "a.txt", {"x": np.ones(3)})
    with pytest.raises(CompareError, match="not a int"):
        align(3, {"x": np.ones(3)})
    (tmp_path / "a.pt").write_bytes(b"no checkpoint")
    with pytest.raises(CompareError, match="can't be read as arrays"):
        align(tmp_path / "a.pt", {"x": np.ones(3)})


def test_arrays_that_say_nothing_do_not_pass():
    """Arrays whose numbers are all equal are no evidence that the implementations are the same."""
    result = align({"x": np.ones(3)}, {"x": np.ones(3)}, weights_only=False)
    assert not result.close
    assert "no array has enough different numbers" in result.wrong_outputs[0]
