"""What a user may set about Inductor, by hidet's names and by Inductor's own."""

import contextlib
import difflib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from ..._errors import BackendError
from .._option_text import flag, literal, number, table

_SEARCH: Mapping[int, Mapping[str, Any]] = {
    0: {},
    1: {"max_autotune": True, "max_autotune_gemm_search_space": "DEFAULT"},
    2: {"max_autotune": True, "max_autotune_gemm_search_space": "EXHAUSTIVE", "coordinate_descent_tuning": True},
}


@dataclass(frozen=True)
class InductorOptions:
    """How Inductor compiles; what is None is left as Inductor has it.

    Attributes:
        mode: one of torch.compile's (`"max-autotune"`, …).
        search_space: where the schedules of kernels are searched: 0 nowhere, 1 in the default space of max-autotune, 2
            in the exhaustive one.
        use_cuda_graph: whether kernels are recorded once and replayed.
        use_fp16: compute in float16: what is given is cast, what is returned is cast back.
        use_fp16_reduction: with `use_fp16`, whether matrix products on a CUDA device may add up in float16.
        config: any setting of `torch._inductor.config`, by its name.

    Raises:
        BackendError: a value or a name that Inductor does not know.
    """

    mode: str | None = None
    search_space: int | None = None
    use_cuda_graph: bool | None = None
    use_fp16: bool = False
    use_fp16_reduction: bool | None = None
    config: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in ("use_cuda_graph", "use_fp16", "use_fp16_reduction", "search_space"):
            if getattr(self, name) is not None:
                object.__setattr__(self, name, _read(name, getattr(self, name)))
        if isinstance(self.config, str):
            object.__setattr__(self, "config", _of_text(self.config))
        if self.search_space not in (None, *_SEARCH):
            raise BackendError(f"search_space is 0 (none), 1 (default) or 2 (exhaustive), not {self.search_space!r}")
        if self.use_fp16_reduction is not None and not self.use_fp16:
            raise BackendError("use_fp16_reduction says how float16 is added up, and needs use_fp16=True")

    def settings(self) -> dict[str, Any]:
        """All of it by Inductor's names.

        Raises:
            BackendError: a mode or a setting that Inductor does not know.
        """
        found = {**self._of_mode(), **_SEARCH[self.search_space or 0]}
        if self.use_cuda_graph is not None:
            found["triton.cudagraphs"] = self.use_cuda_graph
        return {**found, **self._checked()}

    @contextlib.contextmanager
    def reductions(self) -> Iterator[None]:
        """What is no setting of Inductor's but of torch as a whole, inside of the block."""
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

    def _of_mode(self) -> dict[str, Any]:
        if self.mode is None:
            return {}
        modes: dict[str, dict[str, Any]] = torch._inductor.list_mode_options()  # noqa: SLF001  torch documents it
        if self.mode not in modes:
            raise BackendError(f"there is no mode {self.mode!r} of Inductor; there are {', '.join(modes)}")
        return dict(modes[self.mode])

    def _checked(self) -> dict[str, Any]:
        known: list[str] = torch._inductor.list_options()  # noqa: SLF001  torch documents it
        for name in self.config:
            if name not in known:
                close = difflib.get_close_matches(name, known, n=1)
                hint = f"; did you mean {close[0]!r}?" if close else ""
                raise BackendError(f"Inductor has no setting {name!r}{hint}")
        return dict(self.config)


def _of_text(config: str) -> dict[str, Any]:
    try:
        return {name: literal(text) for name, text in table(config).items()}
    except ValueError as error:
        raise BackendError(f"config: {error}") from None


def _read(name: str, value: Any) -> bool | int:
    """A value that may be text."""
    try:
        return number(value) if name == "search_space" else flag(value)
    except ValueError as error:
        raise BackendError(f"{name}: {error}") from None
