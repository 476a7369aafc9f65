"""What the page says of each metric."""

import re
from pathlib import Path

import pytest

from filch.compare.metrics._metrics import MEASURES, Difference
from filch.steal import Statistics

SOURCE = Path(__file__).parents[3] / "page" / "src" / "metrics.js"
STATISTICS = ("what", "minimum", "maximum", "mean", "std", "nan", "inf")


@pytest.mark.parametrize(
    ("of", "name"), [*((Difference, name) for name in MEASURES), *((Statistics, name) for name in STATISTICS)]
)
def test_each_metric_is_explained_in_the_words_of_its_docstring(of, name):
    """What the page says is a part of the attribute's description, word by word."""
    described = dict(
        re.findall(r"^        (\w+): (.*?)(?=^        \w+: |\Z)", of.__doc__ or "", re.MULTILINE | re.DOTALL)
    )
    (told,) = re.findall(rf'\[\s*"{name}",\s*\[\s*"(.*?)"', SOURCE.read_text())

    assert told.partition(":")[0] in " ".join(described[name].replace("`", "").split())
