"""The decompositions, passes and lowerings of one compilation by Inductor, each of which can be left out."""

import contextlib
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any
from unittest import mock

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
_NUMBER = re.compile(r"_\d+$")  # of a node


class Steps:
    """Records the steps of a compilation, and leaves some out.

    Args:
        left_out: the names of the steps to leave out.

    Attributes:
        taken: the kind of each step that was not left out, by name, in the order of the compilation. Decompositions are
            called as their operators, passes by their group and name, lowerings by the name of their nodes.
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

        with mock.patch.object(_torch.CompilerBisector, "disable_subsystem", disable):
            yield

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

    @staticmethod
    def _name(group: str, text: str) -> str:
        if group == "decomposition":
            found = _OPERATOR.search(text)
            return text if found is None else f"{found['name']}.{found['overload']}"
        return f"{group}.{_NUMBER.sub('', text) if group == 'lowerings' else text}"
