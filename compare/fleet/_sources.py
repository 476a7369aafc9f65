"""The source files that a factory imports from the user's own tree, found without running any of them."""

import ast
import hashlib
import sys
import sysconfig
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.metadata import PackageNotFoundError, entry_points, packages_distributions, version
from pathlib import Path

_STACK = (
    *("filch", "ml_dtypes", "numpy", "onnx", "onnx-ir", "onnxruntime", "onnxruntime-gpu", "onnxscript", "openvino"),
    "torch",
)
_INSTALLED = {"site-packages", "dist-packages"}


@dataclass(frozen=True)
class Sources:
    """What a factory's code consists of.

    Attributes:
        hashes: the SHA-256 of each of the user's own files, by the name under which it is imported; `""` is the file of
            the factory.
        versions: the versions of the installed packages that these files import, and of those that compare.
    """

    hashes: dict[str, str]
    versions: dict[str, str]


@cache
def find_sources(factory: str, folder: str) -> Sources:
    """Return the sources of a factory.

    Args:
        factory: `path.py:factory` or `package.module:factory`.
        folder: the folder to which the path is relative, and in which modules are looked up first.
    """
    place = factory.rpartition(":")[0]
    base = Path(folder)
    folders = [base, *_own_folders()]
    if place.endswith(".py"):
        file = base / place
        waiting, folders = [("", file)], [file.parent, *folders]
    else:
        waiting = [*_files(place, folders)]
    hashes: dict[str, str] = {}
    # The top-level modules that no folder of the user has: that of the factory, or imported ones.
    external = {place.partition(".")[0]} if not waiting else set[str]()
    while waiting:
        name, file = waiting.pop()
        if name in hashes or not file.is_file():
            continue
        source = file.read_bytes()
        hashes[name] = hashlib.sha256(source).hexdigest()
        for imported in _imports(source, name, is_package=file.name == "__init__.py"):
            found = [*_files(imported, folders)]
            waiting += found
            external |= set() if found else {imported.partition(".")[0]}
    return Sources(dict(sorted(hashes.items())), installed_versions(external))


def backend_versions(backend: str) -> dict[str, str]:
    """Return the version of the package that provides a backend, if it is not Filch."""
    entries = entry_points(group="filch.backends", name=backend)
    return {entry.dist.name: entry.dist.version for entry in entries if entry.dist is not None}


def _own_folders() -> list[Path]:
    """Return the folders of `sys.path` that are neither Python's nor those of installed packages."""
    python = tuple(Path(sysconfig.get_path(name)) for name in ("stdlib", "platstdlib"))
    folders = [Path(entry).absolute() for entry in sys.path if entry]
    return [
        folder
        for folder in folders
        if folder.is_dir() and not _INSTALLED & {*folder.parts} and not any(map(folder.is_relative_to, python))
    ]


def _files(name: str, folders: Sequence[Path]) -> Iterator[tuple[str, Path]]:
    """Yield the files that importing `name` runs: of each package above it, and its own."""
    parts = name.split(".")
    if parts[0] == "filch":  # its version says what it is
        return
    for folder in folders:
        found = [
            (".".join(parts[:length]), file)
            for length in range(1, len(parts) + 1)
            for file in (
                folder.joinpath(*parts[:length], "__init__.py"),
                folder.joinpath(*parts[:length]).with_suffix(".py"),
            )
            if file.is_file()
        ]
        if found:
            yield from found
            return


def _imports(source: bytes, module: str, *, is_package: bool) -> Iterator[str]:
    """Yield the absolute names of what a file imports, also inside of functions; `from a import b` may be `a.b`."""
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError):  # its import fails, too
        return
    package = module.split(".") if is_package else module.split(".")[:-1]
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else []
            base = ".".join([*above, *([node.module] if node.module else [])])
            yield from (f"{base}.{alias.name}" if base else alias.name for alias in node.names)


def installed_versions(modules: Collection[str] = ()) -> dict[str, str]:
    """Return the versions of the packages that provide modules, and of those that every comparison uses."""
    distributions = _distributions()
    names = {*_STACK, *(owner for module in modules for owner in distributions.get(module, ()))}
    versions = {"python": sys.version.split()[0]}
    for name in sorted(names):
        try:
            versions[name] = version(name)
        except PackageNotFoundError:
            continue
    return versions


_distributions = cache(packages_distributions)
