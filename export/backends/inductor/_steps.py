"""The decompositions, passes, patterns and lowerings of one compilation by Inductor, each of which can be left out."""

import contextlib
import inspect
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from functools import partial
from itertools import chain
from typing import Any
from unittest import mock

import torch

from filch.steal.private import _torch

# What torch's CompilerBisector calls them; it can turn off the passes of one kind from some number on.
_KINDS: Mapping[str, str] = {
    "decomposition": "decomposition",
    "pre_grad_passes": "pass",
    "joint_graph_passes": "pass",
    "post_grad_passes": "pass",
    "lowerings": "lowering",
}
KINDS = frozenset(_KINDS.values())
_OPERATOR = re.compile(r"op='(?P<name>[^']*)', overload='(?P<overload>[^']*)'")
_DECOMPOSES = frozenset({torch.DispatchKey.Autograd, torch.DispatchKey.CompositeImplicitAutograd})
_NUMBER = re.compile(r"_\d+$")  # of a node


class Steps:
    """Records the steps of a compilation, and leaves some out.

    Args:
        left_out: the names of the steps to leave out.

    Attributes:
        taken: the kind of each step that was not left out, by name, in the order of the compilation. Decompositions are
            called as their operators, passes by their group and name, patterns (which are passes, too) by their module
            and name, lowerings by the name of their nodes.
        met: the names of those to leave out that there are.
    """

    def __init__(self, left_out: Collection[str] = ()) -> None:
        self.taken: dict[str, str] = {}
        self.met: set[str] = set()
        self._left_out = left_out

    @contextlib.contextmanager
    def recorded(self) -> Iterator[None]:
        """Record the steps in the block, and leave out those that are."""
        asked = _torch.CompilerBisector.disable_subsystem  # a user may bisect, too

        def disable(backend: str, group: str, description: Callable[[], str] = str) -> bool:
            return self._is_left_out(group, description) or asked(backend, group, description)

        apply = _torch.PatternMatcherPass.apply

        def apply_patterns(patterns: Any, graph: Any) -> Any:
            checks = [(entry, entry.extra_check) for entry in chain.from_iterable(patterns.patterns.values())]
            try:
                for entry, check in checks:
                    entry.extra_check = partial(self._is_replaced, entry, check)
                return apply(patterns, graph)
            finally:
                for entry, check in checks:
                    entry.extra_check = check

        with (
            mock.patch.object(_torch.CompilerBisector, "disable_subsystem", disable),
            mock.patch.object(_torch.PatternMatcherPass, "apply", apply_patterns),
            self._kernels_recorded(),
        ):
            yield

    @contextlib.contextmanager
    def _kernels_recorded(self) -> Iterator[None]:
        """Do so for operators that are decomposed by kernels in Python, before the table of decompositions is used."""
        kernels = {operator: {**operator.py_kernels} for operator in _decomposed_by_kernels()}
        try:
            for operator, known in kernels.items():
                for key in _DECOMPOSES & known.keys():
                    if str(operator) in self._left_out:
                        self.met.add(str(operator))
                        del operator.py_kernels[key]
                    else:
                        operator.py_kernels[key] = partial(self._decompose, str(operator), known[key])
                operator._dispatch_cache.clear()  # noqa: SLF001  there is no public API
            yield
        finally:
            for operator, known in kernels.items():
                operator.py_kernels.update(known)
                operator._dispatch_cache.clear()  # noqa: SLF001  as above

    def _decompose(self, name: str, kernel: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Run a kernel that decomposes an operator, and record it."""
        self.taken.setdefault(name, _KINDS["decomposition"])
        return kernel(*args, **kwargs)

    def decompositions(self, settings: Mapping[str, Any]) -> dict[Any, Callable[..., Any]] | None:
        """Return the decompositions without those that are left out; None for all.

        What is decomposed by this table, may have a kernel of PyTorch in place of its decomposition.

        Args:
            settings: Inductor's settings, on which the decompositions of random functions depend.
        """
        if not self._left_out:
            return None
        with _torch.inductor_config.patch(dict(settings)):
            known: dict[Any, Callable[..., Any]] = _torch.select_decomp_table()
        kept = {operator: item for operator, item in known.items() if str(operator) not in self._left_out}
        self.met.update(map(str, known.keys() - kept.keys()))
        return kept if len(kept) < len(known) else None

    def _is_left_out(self, group: str, description: Callable[[], str]) -> bool:
        """Return whether to leave out a step; else record it."""
        if group not in _KINDS:
            return False
        name = self._name(group, description())
        if name in self._left_out:
            self.met.add(name)
            return True
        self.taken.setdefault(name, _KINDS[group])
        return False

    def _is_replaced(self, entry: Any, check: Callable[[Any], Any], match: Any) -> Any:
        """Return whether to replace what a pattern matches, by the pattern's own check; record it if so."""
        name = _pattern_name(entry, check)
        if name in self._left_out:
            self.met.add(name)
            return False
        is_replaced = check(match)
        if is_replaced is not False:  # it may depend on sizes
            self.taken.setdefault(name, "pass")
        return is_replaced

    @staticmethod
    def _name(group: str, text: str) -> str:
        if group == "decomposition":
            found = _OPERATOR.search(text)
            return text if found is None else f"{found['name']}.{found['overload']}"
        return f"{group}.{_NUMBER.sub('', text) if group == 'lowerings' else text}"


def _decomposed_by_kernels() -> Iterator[Any]:
    """Yield the operators of PyTorch with a kernel in Python that calls other operators."""
    packet_type, operator_type = _torch.OpOverloadPacket, _torch.OpOverload  # each name is looked up when it is read
    for packet in tuple(vars(torch.ops.aten).values()):
        for operator in tuple(vars(packet).values()) if isinstance(packet, packet_type) else ():
            if isinstance(operator, operator_type) and _DECOMPOSES & operator.py_kernels.keys():
                yield operator


def _pattern_name(entry: Any, check: Callable[[Any], Any]) -> str:
    """Return the name of a pattern after that of the module that registers it."""
    function = getattr(entry, "handler", None)
    if function is None:  # a traced function replaces what it matches
        function = inspect.getclosurevars(check).nonlocals.get("search_fn", entry.normalize_args)
    name = getattr(entry, "pattern_name", None) or function.__qualname__.replace(".<locals>", "")
    return f"{function.__module__.rpartition('.')[2]}.{name}"
