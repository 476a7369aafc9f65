"""Porting bugs as data: what an edit changes, and which places a text names."""

import pytest
import torch
from torch import nn

from faults.porting import SETS, PortingBug, read_set
from ports import PORTS, Bug
from ports._port import expanded, read_places


class Twice(nn.Module):
    def __init__(self, first, second):
        super().__init__()
        self.first, self.second = (nn.Parameter(torch.tensor(values)) for values in (first, second))
        self.factor = 2.0

    def forward(self, x):
        return self.factor * (x + self.first)


def planted(*edits):
    """Return a port that had the edits."""
    a, b = Twice([5.0, 6.0, 7.0], [8.0, 9.0, 10.0]), Twice([1.0, 2.0, 3.0], [4.0, 5.0, 6.0])
    with torch.no_grad():
        PortingBug("", "", edits, ()).plant(a, b)
    return b


@pytest.mark.parametrize(
    ("edit", "first"),
    [
        ({"change": "first", "to": "x * 2"}, [2, 4, 6]),
        ({"change": "first[1:]", "to": 0}, [1, 0, 0]),
        ({"change": "first[2]", "to": "whole[0]"}, [1, 2, 1]),
        ({"change": "first", "to": "a['second'].flip(0)"}, [10, 9, 8]),
        ({"change": "first[:1]", "to": "b['second'][:1]"}, [4, 2, 3]),
        ({"exchange": ["first", "second"]}, [4, 5, 6]),
        ({"exchange": ["first[0]", "first[2]"]}, [3, 2, 1]),
    ],
)
def test_an_edit_changes_a_tensor(edit, first):
    assert planted(edit).first.tolist() == first


def test_an_edit_exchanges_all_parameters_of_two_modules():
    b = nn.ModuleList([nn.Linear(2, 2), nn.Linear(2, 2)])
    kept = {name: value.clone() for name, value in b.state_dict().items()}
    with torch.no_grad():
        PortingBug("", "", ({"exchange": ["0", "1"]},), ()).plant(nn.Module(), b)
    torch.testing.assert_close(b[0].state_dict(), {"weight": kept["1.weight"], "bias": kept["1.bias"]}, rtol=0, atol=0)
    torch.testing.assert_close(b[1].state_dict(), {"weight": kept["0.weight"], "bias": kept["0.bias"]}, rtol=0, atol=0)


def test_an_edit_changes_an_attribute_and_code():
    """One after the other."""
    code = {"code": "forward", "old": ["x +", "self.first"], "new": ["x -", "self.second"]}
    assert planted(code, {"change": "factor", "to": 3})(torch.tensor(7.0)).tolist() == [9, 6, 3]
    with pytest.raises(ValueError, match=r"forward has 3 times 'self'"):
        planted(code | {"old": ["x +", "self"]})


def test_braces_are_those_of_a_shell_and_those_of_two_texts_go_together():
    """The second text may have fewer of them."""
    assert [text for (text,) in expanded("a{0..2}{b,c}")] == ["a0b", "a0c", "a1b", "a1c", "a2b", "a2c"]
    assert [*expanded("{q,k}_proj[{0,1}]", "w{q,kv}")] == [
        ("q_proj[0]", "wq"),
        ("q_proj[1]", "wq"),
        ("k_proj[0]", "wkv"),
        ("k_proj[1]", "wkv"),
    ]


def test_a_text_names_places():
    """Functions of modules, of the model itself and of libraries."""
    assert read_places("layers.{0,1}.attend: ATTEND mul in model.layers.1.", {"ATTEND": "bmm div"}) == [
        Bug("layers.0", "attend", "bmm div mul", "model.layers.1."),
        Bug("layers.1", "attend", "bmm div mul", "model.layers.1."),
    ]
    assert read_places("forward: add") == [Bug("", "forward", "add")]
    assert read_places("heads.library: add") == [Bug("heads", "", "add")]


@pytest.mark.parametrize("name", SETS)
def test_a_set_has_what_its_pairs_name(name):
    """And places of ports that exist, at operators by their own names."""
    bugs, pairs = read_set(name).bugs, read_set(name).pairs
    assert {bug for pair in pairs for bug in pair} <= {*bugs}
    assert {bug.port for bug in bugs.values()} <= {*PORTS}
    assert all(bug.places for bug in bugs.values())
    assert not [place for bug in bugs.values() for place in bug.places if place.operators != place.operators.lower()]
