"""Check that ONNX Runtime is installed in a usable way, when it is first needed.

Several distributions contain the package `onnxruntime`: onnxruntime, onnxruntime-gpu, others such as
onnxruntime-openvino, and nightly builds. Installed into one folder, they overwrite each other's files, and uninstalling
one removes files of the others. Filch requires none of them, so that it never replaces the one to be tested.
"""

from functools import cache
from importlib import import_module
from importlib.metadata import distributions
from importlib.util import find_spec
from pathlib import Path

from filch.steal import FilchError

from .._errors import reason

# The first two numbers of the version. The extras of pyproject.toml ask for 1.23: 1.22 has no layout level, opset 23 or
# int8 blocks, and replaces a provider that is missing by another one, but what it has can be compared.
OLDEST = (1, 22)
_FILE = "onnxruntime/__init__.py"
_INSTALL = "pip install 'filch[onnxruntime-gpu]' or pip install 'filch[onnxruntime]'"


def require_onnxruntime(user: str, error: type[FilchError]) -> None:
    """Return if a supported ONNX Runtime can be imported, and does not consist of files of several distributions.

    Args:
        user: what needs ONNX Runtime, for the message (`"backend 'onnxruntime-cpu'"`).
        error: the exception to raise. Its message says which commands repair the installation.
    """
    try:
        check_installation()
    except ImportError as problem:
        raise error(f"{user} needs ONNX Runtime, {problem}") from problem.__cause__


@cache  # an exception is not cached, so the next call notices that ONNX Runtime was installed
def check_installation() -> None:
    """Raise an ImportError if ONNX Runtime is unusable; its message continues "needs ONNX Runtime, "."""
    spec = find_spec("onnxruntime")
    if spec is None:
        raise ImportError(f"which is not installed: {_INSTALL}")
    locations = [*(spec.submodule_search_locations or ())]
    folder = Path(*locations[:1])
    names = _distributions_in(folder.parent)
    uninstall = f"pip uninstall -y {' '.join(names)}, then " if names else ""
    if spec.origin is None:  # Python imports a folder without `__init__.py` as an empty package
        raise ImportError(f"which is incomplete: {folder} has no __init__.py: {uninstall}{_INSTALL}")
    if len(names) > 1:
        install = " or ".join(f"pip install {name}" for name in names)
        shared = f"{' and '.join(names)} overwrite each other in {folder}"
        raise ImportError(f"which is installed more than once: {shared}: {uninstall}{install}")
    try:
        version = str(import_module("onnxruntime").__version__)
    except Exception as error:
        raise ImportError(f"which can't be imported ({reason(error)}): {uninstall}{_INSTALL}") from error
    if tuple(map(int, version.split(".")[:2])) < OLDEST:
        upgrade = f": pip install --upgrade {names[0]}" if names else ""
        oldest = ".".join(map(str, OLDEST))
        raise ImportError(f"which is too old ({version}; at least {oldest} is needed){upgrade}")


def _distributions_in(site: Path) -> list[str]:
    """Return the names of the distributions that installed the package into a folder; a source build has none."""
    found = distributions(path=[str(site)])
    # In a RECORD, each line is the path of a file, its hash and its size.
    return sorted({one.name for one in found if f"\n{_FILE}," in f"\n{one.read_text('RECORD')}"})
