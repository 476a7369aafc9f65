"""The values of the exported program: computed as far as they are asked for, and held as long as they are needed."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import pytest
import torch

from filch.compare.references._decomposition_replay import DecompositionGroup
from filch.compare.references._resolver import EagerReplay, Reference
from filch.export import ExportError

X = torch.arange(1.0, 5.0)
LARGE = 2**20


@dataclass
class Walked:
    """Stands for the exported program: its values are `x` plus 1, 2 and so on.

    Attributes:
        names: its values.
        ends: how many of them it can compute.
        computed: those that were computed.
        wanted: those that it was asked to yield.
    """

    names: list[str] = field(default_factory=lambda: [*"abcd"])
    ends: int = 4
    computed: list[str] = field(default_factory=list)
    wanted: frozenset[str] = frozenset()

    def walk(self, inputs, *, known, wanted):
        self.wanted = frozenset(wanted)

        def values():
            for place, name in enumerate(self.names[: self.ends]):
                self.computed.append(name)
                if name in wanted:
                    yield name, known.get(name, inputs["x"] + place + 1)

        return values()


@dataclass
class Derived:
    """Fake decompositions: one group computes `p` and `q` from `a` and `c`."""

    group: DecompositionGroup = field(default_factory=lambda: DecompositionGroup((), frozenset("pq"), frozenset("ac")))
    runs: list[Mapping[str, torch.Tensor]] = field(default_factory=list)

    def group_of(self, name):
        return self.group if name in self.group.inside else None

    def run(self, group, known):
        self.runs.append(dict(known))
        return {"p": X * 10, "q": X * 20} if group.needs <= known.keys() else {}


def replay(walked, wanted, *, derived=None, buffer=0, captured=None):
    return EagerReplay({}, walked, derived or Derived(), {"x": X}, captured or {}, {}, wanted, buffer, print)


def test_the_program_runs_only_as_far_as_it_is_asked():
    """It yields only values that may be requested."""
    walked = Walked()
    eager = replay(walked, "bd")
    found = eager.get("b")
    assert torch.equal(found.tensor, X + 2)
    assert (found.evidence, walked.computed, walked.wanted) == ("eager", ["a", "b"], {"b", "d"})
    assert eager.get("unknown") is None


def test_a_captured_tensor_is_not_computed_again():
    """The program continues with the captured value."""
    found = replay(Walked(), "b", captured={"b": X * 7}).get("b")
    assert torch.equal(found.tensor, X * 7)


@pytest.mark.parametrize(("buffer", "held"), [(0, False), (LARGE, True)])
def test_a_released_value_is_held_only_if_all_fits_the_buffer(buffer, held):
    """Then all values can be requested again."""
    eager = replay(Walked(), "ab", buffer=buffer)
    assert eager.get("b") is not None
    assert eager.get("a") is not None  # it was passed, and nobody has released it
    eager.release("a")
    assert (eager.get("a") is not None) is held
    assert eager.fully_cached is held


def test_a_translation_runs_once_on_the_inputs_and_the_values_that_it_needs():
    """All of its wanted values are derived in that run."""
    derived = Derived()
    eager = replay(Walked(), "pq", derived=derived)
    found = {name: eager.get(name) for name in "pq"}
    assert {name: one.evidence for name, one in found.items()} == {"p": "derived", "q": "derived"}
    assert torch.equal(found["q"].tensor, X * 20)
    (known,) = derived.runs
    assert known.keys() == {"x", "a", "c"}
    assert eager.get("a") is None  # it was dropped after its last use
    assert eager.get("d") is None  # it was not wanted


def test_a_derived_value_that_is_not_wanted_is_not_held():
    """It is computed together with a wanted one."""
    eager = replay(Walked(), "p")
    assert eager.get("p") is not None
    assert eager.get("q") is None


def test_a_translation_whose_values_are_not_wanted_does_not_run():
    """Its inputs are not computed either."""
    walked, derived = Walked(), Derived()
    eager = replay(walked, "b", derived=derived)
    assert eager.get("p") is None
    assert (walked.computed, derived.runs) == ([], [])


def test_values_after_the_end_of_a_run_are_unknown():
    """A program that stops early does not run again, and values that a decomposition lacks are None."""
    walked = Walked(ends=2)
    eager = replay(walked, "bdp")
    assert eager.get("d") is None
    assert eager.get("p") is None
    assert eager.get("b") is not None
    assert walked.computed == ["a", "b"]


def test_an_error_is_noted_once_and_nothing_is_computed_after_it():
    """The fallback still has its values."""

    class Failing(Walked):
        def walk(self, inputs, *, known, wanted):
            yield "a", X
            raise ExportError("it needs a GPU")

    notes = []
    eager = EagerReplay({}, Failing(), Derived(), {"x": X}, {}, {}, "abc", 0, notes.append)
    eager.set_fallback({"b": Reference(X, "derived")})
    assert eager.get("a").evidence == "eager"
    assert not eager.fully_cached
    assert [eager.get("b").evidence, eager.get("c")] == ["derived", None]
    assert notes == ["it needs a GPU"]
    assert eager.fully_cached
