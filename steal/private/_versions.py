"""Which versions of other packages are installed, and which were tried."""

import json
import platform
import re
from functools import cache
from importlib import metadata
from pathlib import Path

# Packages by name, with the distributions that contain them: several have an ONNX Runtime.
_PACKAGES = {
    "torch": ("torch",),
    "onnx": ("onnx",),
    "onnx-ir": ("onnx-ir",),
    "onnxscript": ("onnxscript",),
    "onnxruntime": ("onnxruntime", "onnxruntime-gpu", "onnxruntime-openvino", "onnxruntime-directml"),
    "openvino": ("openvino",),
    "numpy": ("numpy",),
    "ml_dtypes": ("ml_dtypes",),
    "transformers": ("transformers",),
    "gguf": ("gguf",),
    "networkx": ("networkx",),
    "jinja2": ("jinja2",),
    "rich": ("rich",),
    "typer": ("typer",),
}


def installed() -> dict[str, str]:
    """Return the versions of Python and of the packages that Filch uses and that are installed, importing none."""
    versions = {"Python": ".".join(platform.python_version_tuple()[:2])}
    for package, distributions in _PACKAGES.items():
        for name in distributions:
            try:
                versions[package] = metadata.version(name)
            except metadata.PackageNotFoundError:
                continue
            break
    return versions


@cache
def _runs() -> list[dict[str, str]]:
    """Return the packages of each run of the tests; `make test-versions` writes the file."""
    text = Path(__file__).with_name("versions.json").read_text("utf-8")
    return [run["packages"] for run in json.loads(text).values()]


def tried(package: str) -> list[str]:
    """Return the versions of a package with which the tests have run, from the lowest to the highest."""
    versions = {packages[package] for packages in _runs() if package in packages}
    return sorted(versions, key=_release)


def newest_tried(package: str, version: str) -> str | None:
    """Return the newest version of a package that was tried if this one is newer, else None.

    A development version counts as the version that it leads to. A package that was never tried has no newest version.
    """
    versions = tried(package)
    return versions[-1] if versions and _release(version) > _release(versions[-1]) else None


def _release(version: str) -> tuple[int, ...]:
    """Return the numbers of a version, without what follows them: `2.14.1+cpu`, `2.15.0rc1`."""
    match = re.match(r"[\d.]*\d", version)
    return tuple(map(int, match[0].split("."))) if match else ()
