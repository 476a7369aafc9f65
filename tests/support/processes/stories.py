"""The stories of docs/stories.md: their commands, and the versions of the packages whose bugs they tell."""

import re
from pathlib import Path

import pytest

from .documents import blocks, console, unmet

STORIES = Path(__file__).resolve().parents[3] / "docs" / "stories.md"


def story(model):
    """Return the commands of the story of a model, each with what is shown of its output, but for the installation."""
    return [item for item in _commands(model) if not item[0].startswith("pip install ")]


def installs(model):
    """Return the packages that the story of a model installs, which have its bug, such as `torch==2.13.0`."""
    (install,) = (command for command, _ in _commands(model) if command.startswith("pip install "))
    return install.split()[2:]


def skip_if_mended(model):
    """Skip the test, whose bug does not show, unless the packages have the versions that the story installs."""
    others = [why for name in installs(model) if (why := unmet(name))]
    if others:
        pytest.skip(f"this bug of {model} does not show: {'; '.join(others)}")


def _commands(model):
    sections = re.split("^## ", STORIES.read_text("utf-8"), flags=re.MULTILINE)
    (section,) = (text for text in sections if f"`{model}`" in text)
    (block,) = (block for block in blocks(section) if block.language == "console")
    return list(console(block.text))
