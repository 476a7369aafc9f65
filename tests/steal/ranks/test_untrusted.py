"""Layouts come from dumps and files of unknown origin: they must not make a reader use all memory or time."""

import re
from itertools import product

import pytest
import torch

from filch.steal import DumpError, FilchError, Mesh, Placement, Sharding, load_layouts
from filch.steal.ranks._join import join
from filch.steal.ranks._layouts import _expression

_LINE = Mesh((2,), (0, 1))
_LAYOUT = Sharding(_LINE, (Placement("shard"),), (4, 3)).to_json()


def test_a_layout_is_read_as_it_was_written():
    """Through JSON, which has lists for tuples."""
    layout = Sharding(
        Mesh((2, 2), (3, 1, 2, 0), ("dp", "tp")), tuple(map(Placement.parse, ("S(0, 2)", "P(avg)"))), (8, 3)
    )
    assert Sharding.from_json(layout.to_json()) == layout
    assert str(layout) == "S(0, 2), P(avg) on dp=2, tp=2"


@pytest.mark.parametrize(
    "change",
    [
        {"shape": [2**40, 3]},
        {"shape": [-1, 3]},
        {"shape": "4"},
        {"placements": ["S(2)"]},
        {"placements": ["S(0)", "R"]},
        {"placements": ["X(0)"]},
        {"placements": ["S(0, 9999999)"]},
        {"mesh": [3]},
        {"mesh": [0], "ranks": []},
        {"ranks": [0, 0]},
        {"names": ["dp", "tp"]},
        {"source": 1},
    ],
)
def test_a_damaged_layout_is_refused(change):
    """Sizes, placements and ranks that do not fit each other."""
    with pytest.raises(ValueError, match="is not"):
        Sharding.from_json(_LAYOUT | change)


def test_a_global_tensor_that_is_hardly_stored_is_refused():
    """Two shards of 4 bytes are no tensor of 16 GiB."""
    layout = Sharding(_LINE, (Placement("shard"),), (2**16, 2**16))
    with pytest.raises(DumpError, match="asks for a tensor of 17179869184 bytes"):
        join({0: torch.ones(1), 1: torch.ones(1)}, layout)


HOSTILE = {
    "dots": ("a." * 50_000 + "b = 1", "its dotted keys take more than 20,000,000 steps to read"),
    "dots below a header": (f"[{'a.' * 999}a]\n" + "b.c.d = 1\n" * 9000, "its dotted keys take more than"),
    "a long integer": ("[mesh]\ntp = 0x" + "f" * 500_000, "an integer in it has more than 64 bits"),
    "a longer integer": ("[mesh]\ntp = " + "9" * 5000, "is not a TOML file: a number in it has too many digits"),
    "many lists": ("a = [" + "[]," * 3_000_000 + "]", "it would take about .* MB of memory"),
    "many tables": ("".join(f"[a{index}.b]\n" for index in range(700_000)), "it would take about .* MB of memory"),
    "deep lists": ("a = " + "[" * 200_000, "is nested too deeply"),
    "nested": ("a = " + "[" * 50 + "]" * 50, "it is nested more than 2 deep"),
    "many patterns": ("[dims]\n" + "".join(f'{index} = "d"\n' for index in range(10_001)), "has 10,001 patterns"),
    "no string": ("[dims]\n" + '"a" = "' + "x " * 9 + 'b["', "does not name dimensions as"),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_a_hostile_file_of_layouts_is_refused(tmp_path, case):
    """In one short sentence, before it takes much time or memory."""
    text, message = HOSTILE[case]
    (tmp_path / "a.toml").write_text(text)
    with pytest.raises(FilchError, match=message) as caught:
        load_layouts(tmp_path / "a.toml")
    assert len(str(caught.value)) < 500


def test_dots_and_brackets_in_text_are_not_counted(tmp_path):
    """Only keys and values have a meaning: names of layers have dots, comments may have anything."""
    text = "[dims]\n# " + "a." * 9_000 + '\n"' + "a." * 9_000 + 'b" = "d"  # [[[\n'
    (tmp_path / "a.toml").write_text(text)
    assert load_layouts(tmp_path / "a.toml").dims == {"a." * 9_000 + "b": "d"}


def test_patterns_match_what_they_say():
    """As the regular expression does that tries all ways."""
    patterns, texts = (
        ["".join(word) for size in range(6) for word in product(of, repeat=size)] for of in ("a*.", "a.")
    )
    for pattern in patterns:
        tried = re.compile(".*".join(re.escape(part).replace(r"\*", "[^.]*") for part in pattern.split("**")))
        fits = [[bool(expression.fullmatch(text)) for text in texts] for expression in (_expression(pattern), tried)]
        assert fits[0] == fits[1], pattern


@pytest.mark.parametrize("pattern", ["*a" * 14 + "*b", "**a" * 14 + "**b", "**a*" * 14 + "b", "*a**" * 14 + "b"])
def test_no_pattern_takes_long(pattern):
    """With many stars, on a text that nearly matches."""
    assert _expression(pattern).fullmatch("a" * 300) is None
