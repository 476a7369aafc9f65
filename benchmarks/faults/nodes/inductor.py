"""Plants faults in the code that Inductor generates, in the kernels that it calls and in its lowerings."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from itertools import count
from random import Random
from typing import Any
from unittest import mock

import torch
from torch._inductor import lowering
from torch._inductor.graph import GraphLowering

from filch.export import BackendError, Program
from filch.export.backends import Compiled, get_backend

from .compiled import CompiledPlant, handing_out
from .plants import is_off, is_tolerated

KERNEL = re.compile(r"^(\w+) = async_compile\.cpp_pybinding\(.*?^'''\)$", re.MULTILINE | re.DOTALL)
CALL = re.compile(r"\[Provenance debug handles\] (\S+\.\S+:\d+)\n\s+(\w+ = )?(?P<function>[\w.]+)\(")
ACTS = re.compile(r"auto tmp\d+ = tmp\d+ (?P<sign>[-+*/]) tmp\d+;")
NUMBER = re.compile(r"static_cast<float>\((?P<number>-?\d+\.\d+(e-?\d+)?)\)")
OTHER_SIGN = {"+": "-", "-": "+", "*": "+", "/": "*"}
NAMES = ("add", "mul", "div", "exp", "erf", "tanh", "rsqrt", "sigmoid", "relu")
LOWERED = [op for op in lowering.lowerings if str(op).removeprefix("aten.").partition(".")[0] in NAMES]
Change = tuple[str, str]  # which kernel, and the code with it


class TooLarge:
    """Wraps a library and returns results that are 1 % too large; changed code calls it."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function

    def __getattr__(self, name: str) -> Callable[..., Any]:
        def wrong(*args: Any, **kwargs: Any) -> Any:
            made = self._function(*args, **kwargs)
            changed = [item for item in (made if isinstance(made, tuple) else (made,)) if item is not None]
            changed[0].mul_(1.01)
            return made

        return wrong


def change_kernel(code: str, random: Random) -> Change:
    """Change a sign or a number in the source of a kernel, at each occurrence of the same line."""
    kernel = random.choice([item for item in KERNEL.finditer(code) if ACTS.search(item[0]) or NUMBER.search(item[0])])
    found = random.choice([*ACTS.finditer(kernel[0]), *NUMBER.finditer(kernel[0])])
    if "sign" in found.groupdict():
        new = found[0].replace(f" {found['sign']} ", f" {OTHER_SIGN[found['sign']]} ")
    else:
        new = f"static_cast<float>({float(found['number']) * random.choice((0.5, 0.99, 1.01)) or 0.01})"
    return kernel[1], code.replace(kernel[0], kernel[0].replace(found[0], new))


def change_call(code: str, random: Random) -> Change:
    """Make one call of a library's kernel return 1 % too much."""
    call = random.choice(list(CALL.finditer(code)))
    function = call["function"]
    start, end = call.span("function")
    wrong = f"inductor_faults.TooLarge({function}).{function.rpartition('.')[2]}"
    changed = f"{code[:start]}{wrong}{code[end:]}"
    return call[1], changed.replace(
        "import torch\n", "import torch\nfrom faults.nodes import inductor as inductor_faults\n", 1
    )


SOURCES: Mapping[str, Callable[[str, Random], Change]] = {"kernel source": change_kernel, "library call": change_call}


class InductorPlants:
    """Plants faults in a program's kernels of Inductor; one counts if it changes a buffer that its kernel writes."""

    kinds = (*SOURCES, "lowering")

    def __init__(self, program: Program, inputs: Mapping[str, torch.Tensor]) -> None:
        self._program, self._inputs = program, inputs
        self._backend = get_backend("inductor")
        self._lowered = 0
        with self._code(str) as codes, self._lowering(None):
            self._made = self._backend.compile(program, optimize=True)
        (self._sound,) = codes
        self.clean = handing_out(self._backend, self._made)

    def plant(self, kind: str, random: Random) -> CompiledPlant | None:
        """Return a fault of a kind; None if none was found."""
        for _ in range(10):
            try:
                name, text, made = self._planted(kind, random)
            except (BackendError, IndexError):  # the C++ compiler refuses it; there is no such place
                continue
            node = next((node for node in made.graph.nodes if name in (node.name, node.op)), None)
            if node is None:
                continue
            right, wrong = (self._backend.run(one, self._inputs, node.outputs) for one in (self._made, made))
            pairs = [(right[name].numpy(), wrong[name].numpy()) for name in node.outputs if name in right]
            if any(is_off(*pair) or not is_tolerated(*pair) for pair in pairs):
                return CompiledPlant(kind, node.name, text, handing_out(self._backend, made))
        return None

    def _planted(self, kind: str, random: Random) -> tuple[str, str, Compiled]:
        """Return the name of the wrong kernel, the operations in its code, and the compiled program."""
        named: list[str] = []

        def change(code: str) -> str:
            name, code = SOURCES[kind](code, random)
            named.append(name)
            return code

        place = None if kind in SOURCES else random.randrange(self._lowered)
        with self._code(change if kind in SOURCES else str) as codes, self._lowering(place):
            made = self._backend.compile(self._program, optimize=True)
        sound = _kernels(self._sound)
        named += [name for name, text in _kernels(codes[0]).items() if sound.get(name) != text]
        return named[0], _difference(self._sound, codes[0]), made

    @contextmanager
    def _code(self, change: Callable[[str], str]) -> Iterator[list[str]]:
        """Change the code that Inductor generates within the block, and append it to the list."""
        codes: list[str] = []
        load = GraphLowering._compile_to_module_lines  # noqa: SLF001  where the code becomes a module

        def changed(graph: GraphLowering, wrapper_code: Any) -> Any:
            wrapper_code.value = change(wrapper_code.value)
            codes.append(wrapper_code.value)
            return load(graph, wrapper_code)

        with mock.patch.object(GraphLowering, "_compile_to_module_lines", changed):
            yield codes

    @contextmanager
    def _lowering(self, place: int | None) -> Iterator[None]:
        """Within the block, lower the operation with this number to a result that is 1 % too large."""
        numbers = count()

        def wrong(right: Callable[..., Any]) -> Callable[..., Any]:
            def lowered(*args: Any, **kwargs: Any) -> Any:
                made = right(*args, **kwargs)
                self._lowered = next(numbers) + 1
                chosen = self._lowered - 1 == place and made.get_dtype().is_floating_point
                return lowering.mul(made, 1.01) if chosen else made

            return lowered

        with mock.patch.dict(lowering.lowerings, {op: wrong(lowering.lowerings[op]) for op in LOWERED}):
            yield


def _kernels(code: str) -> dict[str, str]:
    return {found[1]: found[0] for found in KERNEL.finditer(code)}


def _difference(before: str, after: str) -> str:
    """Return the first line that differs."""
    lines = zip(before.splitlines(), after.splitlines(), strict=False)
    changed = (f"{old.strip()} -> {new.strip()}" for old, new in lines if old != new and not old.startswith("# AOT ID"))
    return next(changed, "")
