"""Published files and pairs: what the questions of `benchmarks/corpus` declare, and one of them asked."""

import re
from collections import Counter
from importlib.util import find_spec

import pytest

from corpus._files import DIFFERENT, TOOLS, WAYS, published
from corpus._pairs import answer, published_bugs
from corpus.pairs import PAIRS
from support.thorough import slow

PINNED = re.compile(r"[\w.-]+==[\w.]+")


def test_each_file_is_of_a_package_whose_version_is_given():
    files = [*published()]

    assert len({path for _, path, _ in files}) == len(files)
    assert all(PINNED.fullmatch(package) and path.endswith(".onnx") for package, path, _ in files)
    assert {(path, way) for _, path, _ in files for way in WAYS} >= DIFFERENT.keys()
    assert all(tool is None or PINNED.fullmatch(tool) for tool in TOOLS.values())


def test_each_pair_has_a_mapping_of_weights_and_bugs_with_places():
    bugs = [*published_bugs()]
    counts = Counter(bug.pair for bug in bugs)

    assert len(PAIRS) >= 8
    assert len(bugs) >= 50
    assert counts.keys() == PAIRS.keys()
    assert min(counts.values()) >= 5
    assert len({(bug.pair, bug.name) for bug in bugs}) == len(bugs)
    assert all(callable(pair.weights) and pair.packages for pair in PAIRS.values())
    assert all(bug.places and all(operators for _, operators in bug.places) for bug in bugs)


@slow
@pytest.mark.skipif(
    find_spec("mambapy") is None, reason="mambapy is not installed: `make corpus` installs it elsewhere"
)
def test_a_clean_pair_is_close_and_a_bug_is_named():
    bug = next(bug for bug in published_bugs() if (bug.pair, bug.edit.kind) == ("mambapy", "bias"))

    assert answer("mambapy", "fresh")["outcome"] == "close"
    assert answer("mambapy", "fresh", bug)["place"] == "operation"
