"""Models of `transformers` and re-implementations of them: what is found, and which operations planted bugs name."""

import re
from dataclasses import replace

import pytest

from faults.porting import make, read_set
from filch.compare import align
from filch.compare.results._alignment import AlignedValue, Departure
from ports import FIRST_PORTS, Bug, Port
from support.thorough import kept, slow

UNKNOWN_WEIGHTS = {"qwen2": "cos|sin"}  # tables of what the model computes
INSIDE = {name: {"output encoder_last_hidden_state"} for name in ("t5", "whisper")}  # which ports do not return
# One bug of each port, so that the tests stay short; `benchmarks/aligning.py` judges all of them.
BUGS = [(name, [*port.bugs][index % len(port.bugs)]) for index, (name, port) in enumerate(FIRST_PORTS.items())]
# Those that once were not; `benchmarks/porting_bugs.py` judges all of them.
NAMED_ALONE = (
    "gpt_neox: norms exchanged in layer 1",
    "gemma: scale in layer 0",
    "mixtral: w1 and w3 of one expert exchanged in layer 2",
)


@slow
@pytest.mark.parametrize("name", FIRST_PORTS)
def test_values_of_a_correct_port_are_found_where_they_are(name):
    """Each output of a module that the port computes is found, in its place, and none that it does not compute."""
    port = FIRST_PORTS[name]
    result = align(*port.make(None))
    assert {gap.name for gap in result.proof.gaps} == INSIDE.get(name, set()), str(result)
    assert replace(result, accepted=dict.fromkeys(INSIDE.get(name, ()), "the port returns logits alone")).passes
    assert result.departures == ()
    assert [value for value in result.values if port.is_false(value)] == []
    assert [value for value in result.values if port.places(value) and not port.is_paired(value)] == []
    unknown = re.compile(UNKNOWN_WEIGHTS.get(name, "$"))
    assert [weight for weight in result.weights if weight.complete == bool(unknown.fullmatch(weight.name))] == []


@slow
@pytest.mark.parametrize(("name", "bug"), BUGS)
def test_a_bug_of_a_port_is_named_in_its_module(name, bug):
    """The first departure is an operation of the module that has the bug."""
    port = FIRST_PORTS[name]
    result = align(*port.make(bug))
    assert result.outcome == "different"
    assert port.bugs[bug].found(next(iter(result.departures), None)) != "elsewhere", str(result)


@pytest.mark.parametrize("name", kept(NAMED_ALONE, NAMED_ALONE[1]))
def test_a_bug_in_one_layer_is_named_and_nothing_else(name):
    """What is unlike the other layers is named where it is: not where it is read, and not with what all layers do."""
    bug = read_set("first").bugs[name]
    result = align(*make((bug,), bug.port, "fresh"))
    assert result.departures, str(result)
    assert [str(item) for item in result.departures if bug.found(item) != "operation"] == []


def test_a_value_in_a_wrong_place_is_false():
    """The truth of layer 1 does not hold for layer 0, nor for a value that the port does not compute."""
    truth = {"layers.#.q": ("blocks.#.qkv",), "layers.#.norm": (), "head": ("/mm",)}
    port = Port(FIRST_PORTS["llama"].make, truth, {})
    right = AlignedValue("layers.1.q", "", "", "proved", ("blocks.1.qkv",))
    swapped = AlignedValue("layers.1.q", "", "", "by value", ("blocks.1.qkv", "blocks.0.qkv"))
    invented = AlignedValue("layers.0.norm", "", "", "by value", ("blocks.0.norm",))
    unnamed = AlignedValue("head", "", "", "proved", ("mm at llama.py:3",))
    assert [port.is_false(value) for value in (right, swapped, invented, unnamed)] == [False, True, True, False]
    assert [port.is_paired(value) for value in (right, swapped, invented, unnamed)] == [True, False, False, True]
    with pytest.raises(LookupError, match=r"no entry for 'layers\.0\.k'"):
        port.places(AlignedValue("layers.0.k", "", "", "uncovered"))


def test_a_departure_elsewhere_does_not_find_a_bug():
    """The module decides, then the function and the operator."""
    bug = Bug("blocks.0", "places", "add mul")
    source = f"_port.py:{Port.places.__code__.co_firstlineno + 1}"
    found = [
        bug.found(item)
        for item in (
            None,
            Departure("blocks.1", "add", source, "x"),
            Departure("blocks.0", "sub", source, "x"),
            Departure("blocks.0", "add", "_port.py:1", "x"),
            Departure("blocks.0", "add", source, "x"),
        )
    ]
    assert found == ["elsewhere", "elsewhere", "module", "module", "operation"]
