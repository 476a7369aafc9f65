"""Sphinx configuration: `make docs` builds the site into build/docs."""

import inspect
import re
from importlib import import_module, metadata
from typing import Any

from docutils import nodes
from sphinx.addnodes import pending_xref
from sphinx.application import Sphinx
from sphinx.domains.python import PyObject
from sphinx.environment import BuildEnvironment
from sphinx.util import logging

PACKAGES = (
    "filch.steal",
    "filch.export",
    "filch.export.backends",
    "filch.export.backends.testing",
    "filch.export.passes",
    "filch.export.views",
    "filch.compare",
)
# Files outside of docs/ that have a page of their own on the site.
PAGES = {
    "CHANGELOG.md": "/changelog.md",
    "CONTRIBUTING.md": "/contributing.md",
    "SECURITY.md": "/reporting.md",
    "benchmarks/RESULTS.md": "/results.md",
}

project = "Filch"
copyright = "The Filch authors"  # noqa: A001  Sphinx's name
release = version = metadata.version("filch")

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx.ext.viewcode"]
exclude_patterns = ["stories/*"]
html_theme = "furo"
html_title = f"Filch {version}"
html_copy_source = False

myst_heading_anchors = 4
default_role = "py:obj"  # `Graph` in a docstring links to the class; what is no public name is shown as code

autodoc_default_options = {"members": True, "show-inheritance": True}
autodoc_member_order = "groupwise"
autodoc_typehints_format = "short"
autodoc_preserve_defaults = True
napoleon_use_ivar = True


def _public_names() -> dict[str, str]:
    """Where a class is documented, by where it is defined: the private module that type annotations name."""
    public = {}
    for package in PACKAGES:
        module = import_module(package)
        for name in module.__all__:
            found = getattr(module, name)
            if inspect.isclass(found) or inspect.isroutine(found):
                public[f"{found.__module__}.{found.__qualname__}"] = f"{package}.{name}"
    return public


PUBLIC = _public_names()
log = logging.getLogger(__name__)


def link_to_public(
    app: Sphinx, env: BuildEnvironment, node: pending_xref, content: nodes.TextElement
) -> nodes.Element | None:
    """Resolve a reference to a private module's class where the class is documented."""
    public = PUBLIC.get(node.get("reftarget", ""))
    if public is None:
        return None
    return env.domains.python_domain.resolve_xref(
        env, node["refdoc"], app.builder, node["reftype"], public, node, content
    )


def link_to_pages(source: list[str]) -> None:
    """Point links at files of the repository to their pages on the site."""
    for file, page in PAGES.items():
        source[0] = re.sub(rf"\]\((\.\./)*{re.escape(file)}", f"]({page}", source[0])


def plain_signature(*event: Any) -> tuple[str, str | None] | None:
    """Write defaults that are not Python as `...`, as Sphinx then links the types; leave out a protocol's signature."""
    _app, _what, _name, found, _options, signature, returns = event
    if signature is None:
        return None
    return "" if getattr(found, "_is_protocol", False) else re.sub(r"<[^<>]+>", "...", signature), returns


def short_types(_app: Sphinx, _what: str, _name: str, _found: Any, _options: Any, lines: list[str]) -> None:
    """Show the types of attributes without their modules."""
    for number, line in enumerate(lines):
        if line.startswith(":vartype"):
            lines[number] = re.sub(r"(?<![\w.~:])[a-z]\w*(\.\w+)+", r"~\g<0>", line)


def without_object(_app: Sphinx, document: nodes.document) -> None:
    """Leave out `Bases: object`."""
    for paragraph in list(document.findall(nodes.paragraph)):
        if paragraph.astext() == "Bases: object":
            paragraph.parent.remove(paragraph)


def all_is_documented(_app: Sphinx, env: BuildEnvironment) -> None:
    """Warn of public names that the API reference leaves out, as it does with data that has no directive of its own."""
    for package in PACKAGES:
        for name in import_module(package).__all__:
            if f"{package}.{name}" not in env.domains.python_domain.objects:
                log.warning("%s.%s is public and not in the API reference", package, name)


def setup(app: Sphinx) -> None:
    """Register the handlers."""
    app.connect("missing-reference", link_to_public)
    app.connect("source-read", lambda _app, _name, source: link_to_pages(source))
    app.connect("include-read", lambda _app, _path, _name, source: link_to_pages(source))
    app.connect("autodoc-process-signature", plain_signature)
    app.connect("autodoc-process-docstring", short_types, priority=501)  # after napoleon
    app.connect("doctree-read", without_object)
    app.connect("env-check-consistency", all_is_documented)
    for field in PyObject.doc_field_types:
        if field.name == "variable":
            field.label = "Attributes"
