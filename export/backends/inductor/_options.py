"""Options of the Inductor backend, by hidet's and by Inductor's names."""

import contextlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from filch.steal.private import _torch

from ..._errors import BackendError
from ...common._suggestions import suggestion
from .._option_text import boolean, integer, literal, mapping

_SEARCH: Mapping[int, Mapping[str, Any]] = {
    0: {},
    1: {"max_autotune": True, "max_autotune_gemm_search_space": "DEFAULT"},
    2: {"max_autotune": True, "max_autotune_gemm_search_space": "EXHAUSTIVE", "coordinate_descent_tuning": True},
}


def _parse_config(value: Any) -> Any:
    """Parse settings of Inductor, which are `name=value,…` on the command line."""
    return {name: literal(text) for name, text in mapping(value).items()} if isinstance(value, str) else value


def _parse_names(value: Any) -> tuple[str, ...]:
    """Parse names, which are separated by commas on the command line."""
    return tuple(value.split(",") if isinstance(value, str) else value)


_PARSERS: Mapping[str, Callable[[Any], Any]] = {
    **dict.fromkeys(("use_cuda_graph", "use_fp16", "use_fp16_reduction"), boolean),
    "search_space": integer,
    "config": _parse_config,
    "without": _parse_names,
}


@dataclass(frozen=True)
class InductorOptions:
    """How Inductor compiles; None is Inductor's default.

    Attributes:
        mode: the mode of torch.compile (`"max-autotune"`, …).
        search_space: the search for kernel schedules: 0 (none), 1 (the default space of max-autotune) or 2 (the
            exhaustive one).
        use_cuda_graph: whether to use CUDA graphs, which record the kernels once and replay them.
        use_fp16: compute in float16; inputs and outputs keep their dtypes.
        use_fp16_reduction: with `use_fp16`, whether matrix products on a CUDA device may accumulate in float16.
        config: settings of `torch._inductor.config`, by name.
        without: the names of decompositions, passes, patterns and lowerings to leave out, as `bisect` names them.

    Raises:
        BackendError: Inductor does not know a name or a value.
    """

    mode: str | None = None
    search_space: int | None = None
    use_cuda_graph: bool | None = None
    use_fp16: bool = False
    use_fp16_reduction: bool | None = None
    config: Mapping[str, Any] = field(default_factory=dict)
    without: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for name, parse in _PARSERS.items():
            try:
                if getattr(self, name) is not None:
                    object.__setattr__(self, name, parse(getattr(self, name)))
            except ValueError as error:
                raise BackendError(f"{name}: {error}") from None
        if self.search_space not in (None, *_SEARCH):
            raise BackendError(f"search_space is 0 (none), 1 (default) or 2 (exhaustive), not {self.search_space!r}")
        if self.use_fp16_reduction is not None and not self.use_fp16:
            raise BackendError("use_fp16_reduction needs use_fp16=True: it sets how float16 accumulates")

    def settings(self) -> dict[str, Any]:
        """Return the options by Inductor's names; `config` overrides the other options, and these override `mode`.

        Raises:
            BackendError: Inductor does not know the mode or a setting.
        """
        modes: dict[str, dict[str, Any]] = _torch.list_mode_options()
        if self.mode is not None and self.mode not in modes:
            raise BackendError(f"Inductor has no mode {self.mode!r}; there are {', '.join(modes)}")
        known: list[str] = _torch.list_options()
        for name in self.config:
            if name not in known:
                raise BackendError(f"Inductor has no setting {name!r}{suggestion(name, known)}")
        cuda_graph = {} if self.use_cuda_graph is None else {"triton.cudagraphs": self.use_cuda_graph}
        return {**modes.get(self.mode or "", {}), **_SEARCH[self.search_space or 0], **cuda_graph, **self.config}

    @contextlib.contextmanager
    def reductions(self) -> Iterator[None]:
        """Set, inside of the block, how torch's matrix products accumulate; Inductor has no setting for it."""
        matmul = torch.backends.cuda.matmul
        names = ("allow_fp16_reduced_precision_reduction", "allow_fp16_accumulation")
        before = {name: getattr(matmul, name) for name in names}
        try:
            for name in names if self.use_fp16_reduction is not None else ():
                setattr(matmul, name, self.use_fp16_reduction)
            yield
        finally:
            for name, value in before.items():
                setattr(matmul, name, value)
