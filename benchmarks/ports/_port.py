"""`Port`: a model and a re-implementation of it, with what corresponds and the bugs that it can have.

A file of TOML beside each port says where the outputs of the modules of the model are in the port, and where its bugs
are. Braces stand for several texts, as in a shell. The first braces of both sides take the same choice, then the second
ones: `"{q,k}_proj" = "w{q,k}"` says that `q_proj` is `wq` and `k_proj` is `wk`.
"""

import ast
import re
import tomllib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from itertools import product
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
from torch import nn

from filch.compare.results._alignment import AlignedValue, Departure

Pair = tuple[nn.Module, nn.Module, tuple[Any, ...], tuple[Any, ...]]
EAGER = {"attn_implementation": "eager"}
BATCH, LENGTH, VOCABULARY = 2, 7, 96
BRACES = re.compile(r"\{(.*?)\}")


@dataclass(frozen=True)
class Bug:
    """Where a port with a bug first computes something else than the model.

    Attributes:
        module: the path of the module of the port.
        function: the function in whose code the operation is; `""` for code that is not the port's own.
        operators: the operators that may be named, separated by spaces.
        reference: the start of the path of the module of A, where one module of the port does the work of several.
    """

    module: str
    function: str
    operators: str
    reference: str = ""

    def found(self, departure: Departure | None) -> str:
        """Return `"operation"`, `"module"` or `"elsewhere"`: how precisely a departure names the place of the bug."""
        if departure is None or departure.module != self.module:
            return "elsewhere"
        if departure.reference_module is not None and not departure.reference_module.startswith(self.reference):
            return "elsewhere"
        return "operation" if self.is_at(departure) else "module"

    def is_at(self, departure: Departure) -> bool:
        """Whether a departure is an operation with the bug, in this module or in another one."""
        operator = departure.operator.removesuffix("_")  # also in place
        return operator in self.operators.split() and _function_at(departure.source) == self.function


@dataclass(frozen=True)
class Port:
    """A model A of `transformers` and a re-implementation B with the same weights in another tree of modules.

    Attributes:
        make: returns A, B and their positional arguments; takes the name of a bug of B, or None.
        truth: where the outputs of the modules of A are in B. A key is the path of a module with the path of the tensor
            in its output; `#` stands for a number. A value has the paths of modules of B, or `module/operator`; `#`
            stands for the same number. It is empty if B does not compute the output. Written before the first run.
        bugs: bugs that B can have, in all layers, by name.
    """

    make: Callable[[str | None], Pair]
    truth: Mapping[str, tuple[str, ...]]
    bugs: Mapping[str, Bug]

    def places(self, value: AlignedValue) -> tuple[str, ...]:
        """Return the names that a value of A may have in B; empty if B does not compute it.

        Raises:
            LookupError: the truth does not say where it is.
        """
        name = value.module + value.path
        for key, places in self.truth.items():
            match = re.fullmatch(re.escape(key).replace(r"\#", r"(\d+)"), name)
            if match is not None:
                return tuple(_numbered(place, match.groups()) for place in places)
        raise LookupError(f"the truth has no entry for {name!r}")

    def is_false(self, value: AlignedValue) -> bool:
        """Whether a value of A is said to be in B where it is not."""
        places = self.places(value)
        return value.evidence != "ambiguous" and any(_bare(place) not in places for place in value.places)

    def is_paired(self, value: AlignedValue) -> bool:
        """Whether a value of A is found where it is in B."""
        return not self.is_false(value) and any(_bare(place) in self.places(value) for place in value.places)


def read_port(name: str, make: Callable[[str | None], Pair]) -> Port:
    """Return a port, given the name of its file and the function that makes it."""
    data = tomllib.loads((Path(__file__).parent / f"{name}.toml").read_text(encoding="utf-8"))
    truth = {
        key: tuple(items)
        for keys, places in data["truth"].items()
        for key, *items in expanded(keys, *([places] if isinstance(places, str) else places))
    }
    return Port(make, truth, {bug: read_places(text)[0] for bug, text in data.get("bugs", {}).items()})


def expanded(*texts: str) -> Iterator[tuple[str, ...]]:
    """Yield what the braces in texts stand for: `a0b`, `0` and `a1b`, `1` for `a{0..1}b`, `{0..1}`."""
    counts = [len(_choices(match)) for match in BRACES.finditer(texts[0])]
    for numbers in product(*map(range, counts)):
        yield tuple(_chosen(text, iter(numbers)) for text in texts)


def _chosen(text: str, numbers: Iterator[int]) -> str:
    return BRACES.sub(lambda match: _choices(match)[next(numbers)], text)


def _choices(match: re.Match[str]) -> list[str]:
    first, dots, last = match[1].partition("..")
    return [str(number) for number in range(int(first), int(last) + 1)] if dots else match[1].split(",")


def read_places(text: str, operators: Mapping[str, str] = MappingProxyType({})) -> list[Bug]:
    """Read places: `"blocks.{0,1}.forward: PRODUCT mul"`, where `operators` says what `PRODUCT` stands for.

    The function `library` is code that is not the port's own. At the end, ` in path` is the start of the path of the
    module of A.
    """
    paths, _, rest = text.partition(": ")
    names, _, reference = rest.partition(" in ")
    names = " ".join(operators.get(name, name) for name in names.split())
    split = [path.rpartition(".") for (path,) in expanded(paths)]
    return [Bug(module, "" if name == "library" else name, names, reference) for module, _, name in split]


def _numbered(place: str, numbers: tuple[str, ...]) -> str:
    for number in numbers:
        place = place.replace("#", number, 1)
    return place


def _bare(place: str) -> str:
    """Return the name of a value without its line: an operator of the model itself as `/operator`."""
    name, _, line = place.partition(" at ")
    return f"/{name}" if line and "/" not in name else name


def _function_at(source: str | None) -> str:
    """Return the function of a line such as `llama.py:12` of this folder or one in it; `""` if there is none."""
    name, _, line = (source or "").rpartition(":")
    file = next(Path(__file__).parent.rglob(name), None) if name else None
    if file is None:
        return ""
    spans = [span for span in _functions(file) if span[0] <= int(line) <= span[1]]
    return max(spans)[2] if spans else ""


@cache
def _functions(file: Path) -> list[tuple[int, int, str]]:
    nodes = ast.walk(ast.parse(file.read_text(encoding="utf-8")))
    return [(node.lineno, node.end_lineno or 0, node.name) for node in nodes if isinstance(node, ast.FunctionDef)]


def token_ids(length: int = LENGTH, seed: int = 1) -> torch.Tensor:
    """Return token ids, int64[BATCH, length]."""
    return torch.randint(3, VOCABULARY, (BATCH, length), generator=torch.Generator().manual_seed(seed))


def copy(target: nn.Module, *sources: nn.Module) -> None:
    """Copy the weights of linear layers, joined along their outputs, or of one module with the same parameters."""
    for name, parameter in target.named_parameters():
        parameter.data.copy_(torch.cat([source.get_parameter(name) for source in sources]))


def copy_parts(target: nn.Module, source: nn.Module, **parts: str) -> None:
    """Copy the weights of parts of a module, given the paths of the same parts in the model."""
    for name, path in parts.items():
        copy(target.get_submodule(name), source.get_submodule(path))


def padded(*rows: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Return token ids, the mask of a batch whose second text is shorter, and what else a model takes."""
    mask = torch.ones(rows[0].shape, dtype=torch.int64)
    mask[1, -2:] = 0
    return rows[0], mask, *rows[1:]
