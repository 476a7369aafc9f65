"""Eager PyTorch: runs the exported program node by node, optionally with another dtype, device or attention kernel."""

import contextlib
import copy
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch.export import ExportedProgram
from torch.nn.attention import SDPBackend, sdpa_kernel

from filch.steal._tf32 import tf32_products

from .._errors import BackendError, reason
from ..common._suggestions import hint
from ..evaluation._devices import program_on
from ..evaluation._eager import Replace, walk_eager
from ..program._program import Program
from ._backend import Compiled, ReferenceLookup, Stage, Values
from ._forms import fitting_reference

T = TypeVar("T")
_ATTENTION = {
    "math": SDPBackend.MATH,
    "flash": SDPBackend.FLASH_ATTENTION,
    "efficient": SDPBackend.EFFICIENT_ATTENTION,
    "cudnn": SDPBackend.CUDNN_ATTENTION,
}


@dataclass(frozen=True)
class EagerBackend:
    """Runs the torch program behind the ONNX graph; there is no compiled graph.

    Attributes:
        dtype: floating-point weights and inputs are cast to it; None keeps their dtypes. Casts in the program stay.
        device: the device to run on; None is the CPU.
        autocast: the dtype of `torch.autocast`; None disables it.
        attention: the implementation of `scaled_dot_product_attention`; None is PyTorch's choice.
        deterministic: whether to use deterministic algorithms only.
    """

    dtype: torch.dtype | None = None
    device: torch.device | None = None
    autocast: torch.dtype | None = None
    attention: str | None = None
    deterministic: bool = False
    name: str = "eager"
    stages: tuple[Stage, ...] = ("exported",)

    def compile(self, program: Program, *, optimize: bool) -> Compiled:  # noqa: ARG002  it never does
        """See `Backend.compile`."""
        exported = unchanged_export(program, self.name)
        self._refuse_options_without_effect(exported)
        return Compiled(program.graph, self._moved_program(exported), tf32=tf32_products(self.device))

    def run(self, compiled: Compiled, inputs: Values, watch: Collection[str] = ()) -> Values:
        """See `Backend.run`."""
        return self._run(compiled, inputs, {*compiled.graph.outputs, *watch})

    def isolate(
        self,
        compiled: Compiled,
        inputs: Values,
        references: ReferenceLookup,
        *,
        nodes: Collection[str] | None = None,  # noqa: ARG002  it runs all
        buffer: int,  # noqa: ARG002  the whole run is inside of `_settings`, which must not apply to the caller's code
    ) -> Iterator[tuple[str, torch.Tensor]]:
        """See `Isolates.isolate`."""

        def replace(name: str, value: torch.Tensor) -> torch.Tensor:
            reference = fitting_reference(references, name, value)
            # The layout may decide which kernel runs, so the reference gets that of the value.
            return value if reference is None else torch.empty_like(value).copy_(reference)

        return iter(self._run(compiled, inputs, compiled.graph.producer, replace).items())

    def _run(
        self, compiled: Compiled, inputs: Values, wanted: Collection[str], replace: Replace | None = None
    ) -> dict[str, torch.Tensor]:
        """Run the program and return the wanted values by name, on the CPU; those that it does not have are left out.

        Args:
            compiled: the result of `compile`.
            inputs: see `Backend.run`.
            wanted: the names of the values.
            replace: see `walk_eager`.
        """
        values: dict[str, torch.Tensor] = {}
        dtypes: set[torch.dtype] = set()  # of all values

        try:
            feeds = {name: self._move(value) for name, value in inputs.items()}
            # An output of the model may be one of its inputs or weights.
            known = {**compiled.handle.state_dict, **compiled.handle.constants, **feeds}
            values |= {name: known[name].detach().cpu() for name in wanted if isinstance(known.get(name), torch.Tensor)}
            with self._settings():
                for name, value in walk_eager(compiled.handle, feeds, replace=replace):
                    dtypes.add(value.dtype)
                    if name in wanted:
                        values[name] = value.detach().cpu()
        except Exception as error:
            advice = f"; casts to float32 inside the program stay: export model.to({self.dtype}) instead"
            raise BackendError(
                f"the exported program can't run in eager PyTorch: {reason(error)}{advice if self.dtype else ''}"
            ) from error
        if self.autocast is not None and self.autocast not in dtypes:
            raise BackendError(f"backend 'eager': autocast={str(self.autocast)!r} has no effect on this program")
        return values

    @contextlib.contextmanager
    def _settings(self) -> Iterator[None]:
        """Apply the options of the run inside of the block."""
        with contextlib.ExitStack() as stack:
            if self.autocast is not None:
                device = "cpu" if self.device is None else self.device.type
                stack.enter_context(torch.autocast(device, dtype=self.autocast))
            if self.attention is not None:
                stack.enter_context(sdpa_kernel(_ATTENTION[self.attention]))
            if self.deterministic:
                enabled = torch.are_deterministic_algorithms_enabled()
                warn_only = torch.is_deterministic_algorithms_warn_only_enabled()
                stack.callback(torch.use_deterministic_algorithms, enabled, warn_only=warn_only)
                torch.use_deterministic_algorithms(mode=True)
            yield

    def _refuse_options_without_effect(self, program: ExportedProgram) -> None:
        """Raise an error for `attention` if the program has none, and for `dtype` if it has integers alone."""
        targets = {str(node.target) for node in program.graph.nodes if node.op == "call_function"}
        if self.attention is not None and not any("scaled_dot_product_attention" in target for target in targets):
            raise BackendError(
                f"backend 'eager': attention={self.attention!r} has no effect on this program, which has no "
                "scaled_dot_product_attention"
            )
        tensors = [*program.state_dict.values(), *program.constants.values()]
        tensors += [node.meta.get("val") for node in program.graph.nodes if node.op == "placeholder"]
        if self.dtype is not None and not any(isinstance(t, torch.Tensor) and t.is_floating_point() for t in tensors):
            raise BackendError(f"backend 'eager': dtype={str(self.dtype)!r} has no effect on a program of integers")

    def _moved_program(self, program: ExportedProgram) -> ExportedProgram:
        """Return the program with weights of the backend's dtype and on its device."""
        if self.dtype is None and self.device is None:
            return program
        moved = copy.copy(program if self.device is None else program_on(program, self.device))
        moved._state_dict = {name: self._move(tensor) for name, tensor in moved.state_dict.items()}  # noqa: SLF001  it has no setter
        moved._constants = {name: self._move(value) for name, value in moved.constants.items()}  # noqa: SLF001  nor has this
        return moved

    def _move(self, value: Any) -> Any:
        """Return a tensor on the backend's device, with its dtype if it is floating-point; another value as it is.

        A dtype or device that is None stays the tensor's own.
        """
        if not isinstance(value, torch.Tensor):
            return value
        dtype = self.dtype if value.is_floating_point() else None
        return value.detach().to(device=self.device, dtype=dtype)


def eager(
    *,
    dtype: torch.dtype | str | None = None,
    device: torch.device | str | None = None,
    autocast: torch.dtype | str | None = None,
    attention: str | None = None,
    deterministic: bool | str = False,
) -> EagerBackend:
    """Return a backend of eager PyTorch; see `EagerBackend` for the options, each of which may be a string.

    Raises:
        BackendError: the value of an option is unknown, or the device is missing.
    """
    if attention is not None:
        attention = _choice("attention", attention, {name: name for name in _ATTENTION})
    return EagerBackend(
        dtype=_dtype("dtype", dtype),
        device=checked_device(device, "eager"),
        autocast=_dtype("autocast", autocast),
        attention=attention,
        deterministic=_choice("deterministic", str(deterministic).lower(), {"true": True, "false": False}),
    )


def unchanged_export(program: Program, backend: str) -> ExportedProgram:
    """Return the exported program, for backends that run it instead of the ONNX model.

    Raises:
        BackendError: there is none, or the ONNX model was changed since the export.
    """
    if program.exported_program is None:
        raise BackendError(
            f"backend {backend!r} needs the exported program: use what export() returned, "
            "or a file saved by Program.save with its .pt2 beside it"
        )
    if program.is_changed():
        raise BackendError(
            f"backend {backend!r} runs the exported program, and this graph was changed since the export"
        )
    return program.exported_program


_FLOATS = {
    name: dtype
    for name, dtype in vars(torch).items()
    if isinstance(dtype, torch.dtype) and dtype.is_floating_point and dtype.itemsize > 1
}


def _dtype(option: str, value: torch.dtype | str | None) -> torch.dtype | None:
    """Return the floating-point dtype that an option names; None if it is not given."""
    return None if value is None else _choice(option, str(value).removeprefix("torch."), _FLOATS)


def checked_device(device: torch.device | str | None, backend: str) -> torch.device | None:
    """Return a device of torch, for the backend of this name; None if none is given.

    Raises:
        BackendError: the machine does not have it.
    """
    if device is None:
        return None
    try:
        found = torch.device(device)
        torch.empty(0, device=found)  # `torch.device` accepts devices that the machine lacks
    except Exception as error:
        raise BackendError(
            f"backend {backend!r}: torch has no device {str(device)!r}: {reason(error).partition('. ')[0]}"
        ) from error
    return found


def _choice(option: str, name: str, choices: Mapping[str, T]) -> T:
    """Return the choice with this name for an option of the backend, or raise an error."""
    if name in choices:
        return choices[name]
    raise BackendError(f"backend 'eager' has no {option} {name!r}; {hint(name, [*choices])}")
