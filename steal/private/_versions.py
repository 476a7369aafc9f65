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


def is_newer(package: str, version: str) -> bool:
    """Return whether a version is newer than all that were tried; a development version is what it leads to."""
    return bool(tried(package)) and _release(version) > _release(tried(package)[-1])


def _release(version: str) -> tuple[int, ...]:
    """Return the numbers of a version, without what follows them: `2.14.1+cpu`, `2.15.0rc1`."""
    match = re.match(r"[\d.]*\d", version)
    return tuple(map(int, match[0].split("."))) if match else ()
