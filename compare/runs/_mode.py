"""Run PyTorch code in float64 beside its own dtypes, operation by operation."""

import contextlib
import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from typing import Any, Literal
from weakref import ref

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.weak import WeakIdKeyDictionary

from filch.export import Graph
from filch.export.evaluation._float64 import call_in_float64
from filch.export.evaluation._unpredictable import draws_random, returns_uninitialized
from filch.export.graph._arguments import leaves_of, written_arguments
from filch.export.operators._in_float64 import float64_dtype, in_float64
from filch.export.operators._operator import Operator
from filch.export.operators._registry import operator_of
from filch.steal.private._torch import TorchDispatchMode, native_batch_norm, neg_view, no_dispatch
from filch.steal.values._tensors import is_dense

from ..common._complex import complex_as_real
from ..common._errors import reason_of
from ..float64._decision_values import decided, is_decision
from ..float64._noise import unit_of, with_noise
from ..float64._values import Float64Values, RecordedValues
from ..float64._verdict import Float64Value

_LARGE = 2**22  # bytes, from which on the float64 counterpart of what is only read is computed at each read
_Read = Callable[[torch.Tensor], torch.Tensor]
Way = Literal["exact", "noisy"]
TensorFunction = Callable[[], Mapping[str, torch.Tensor]]  # returns tensors by name


def float64_values(
    run: TensorFunction,
    *graphs: Graph,
    with_decisions: Callable[[Mapping[str, torch.Tensor]], TensorFunction] | None = None,
) -> Float64Values:
    """Run a function in float64 without and with noise, and return the float64 values of the tensors that it returns.

    The random number state is restored at the end. If noise changes a decision (see `Decisions`), there is another run
    from the same state, in which the changed decisions are used.

    Args:
        run: runs PyTorch code in eager mode, on the same inputs each time, and returns tensors by name.
        *graphs: tell which values are computed from which; without them, a changed decision may affect each value that
            the code computes from it, in whatever way.
        with_decisions: returns a function that runs the same code, but goes on with other decisions than it computes;
            they are given by name.
    """
    # Without an exact way beside it, noise changes the decisions of the second one.
    mode, own = Float64Mode("exact", "noisy"), Float64Mode("noisy")
    values, changed = dict[str, Float64Value](), dict[str, Float64Value]()
    affected, problem = set[str](), ""
    try:
        for name, tensor in _results(run, mode):
            values[name] = mode.float64(tensor)
            if mode.is_affected(tensor):
                affected.add(name)
    except Exception as error:  # noqa: BLE001  operators that a mode can't run raise errors of all types
        values, affected, problem = {}, set(), reason_of(error)
    with contextlib.suppress(Exception):
        for name, tensor in _results(run, own) if affected else ():
            changed[name] = replace(values[name], noisy=own.value(tensor, "noisy"))
    return RecordedValues(
        values,
        problem or mode.problem,
        {name: node.reads for graph in graphs for name, node in graph.producer.items()},
        affected=affected,
        changed=changed,
        steps=(name for graph in graphs for name, node in graph.producer.items() if node.operator.jumps),
        compute=None if with_decisions is None else lambda decisions: float64_values(with_decisions(decisions)),
    )


def _results(run: TensorFunction, mode: "Float64Mode") -> Iterator[tuple[str, torch.Tensor]]:
    """Run a function in a mode, and yield the tensors that it returns; the float64 counterpart is freed with each."""
    with mode.running():
        tensors = {**run()}
    while tensors:
        yield tensors.popitem()


@dataclass
class _Shadow:
    """The float64 counterpart of a storage.

    Attributes:
        flats: an element for each real number of the storage, in each way to compute; integers keep their dtype. Only
            the first of them if the others are the same, apart from noise.
        dtype: the real dtype of the storage.
        unit: the coarsest unit among the values and what they are computed from.
        pending: the unit of the noise that the numbers get before they are read; 0 is none.
        affected: whether they depend on a decision that noise changed.
        noise: the unit of the noise of those that are left out of `flats`.
        seed: selects it.
        source: returns the storage, from which `flats` are computed at each read; None if they are kept.
    """

    flats: list[torch.Tensor]
    dtype: torch.dtype
    unit: float = 0.0
    pending: float = 0.0
    affected: bool = False
    noise: float = 0.0
    seed: int = 0
    source: Callable[[], torch.UntypedStorage | None] | None = None

    @property
    def is_leaf(self) -> bool:
        """Whether the run did not compute it, and nothing but casts to a finer dtype has read it."""
        return self.unit < self.pending

    def fits(self, tensor: torch.Tensor) -> bool:
        """Whether a tensor of this storage has its dtype, and its size is that of the storage."""
        size = tensor.untyped_storage().nbytes()
        has_size = not self.flats or size == self.flats[0].numel() * self.dtype.itemsize
        return _real_dtype(tensor) == self.dtype and has_size

    def flat(self, way: int) -> torch.Tensor:
        """Return the numbers of a way to compute."""
        if way < len(self.flats):
            return self.flats[way]
        first = self.flats[0] if self.flats else self._converted()
        return with_noise(first, self.noise, seed=self.seed) if way and self.noise else first

    def _converted(self) -> torch.Tensor:
        """Return the numbers of the storage in float64."""
        storage: Any = None if self.source is None else self.source()  # not None: it is the key of this object
        whole = _whole(storage, self.dtype)
        return torch.empty_like(whole, dtype=float64_dtype(self.dtype)).copy_(whole)

    def keep(self) -> None:
        """Keep the numbers as they are, because something writes to the storage."""
        self.flats = self.flats or [self._converted()]

    def separate(self, count: int) -> None:
        """Keep the numbers of each way to compute, so that they can be written to."""
        self.flats += [self.flat(way).clone() for way in range(len(self.flats), count)]

    def view(self, like: torch.Tensor, way: int) -> torch.Tensor:
        """Return the part that corresponds to a tensor."""
        flat = self.flat(way)
        flat = torch.view_as_complex(flat.view(-1, 2)) if like.is_complex() else flat
        part = flat.as_strided(like.shape, like.stride(), like.storage_offset())
        part = part.conj() if like.is_conj() else part
        return neg_view(part) if like.is_neg() else part  # there is no other way to set this bit


class Float64Mode(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Run each operation within the block a second time in float64.

    The code runs in its own dtypes, so that it takes the same branches and draws the same random numbers. Beside each
    storage there is one in float64 of the same layout, so that views and in-place operations, also those of autograd,
    have the same effect on both. An operation that float64 has no kernel for results in NaN.

    Args:
        *ways: how operations are computed: as they are, or with everything that an operation reads changed by half a
            unit in the last place of its dtype. In both ways, the decisions (see `Decisions`) are those without noise.

    Attributes:
        problem: which operation could not run in float64, and why; or `""`.
    """

    def __init__(self, *ways: Way) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.problem = ""
        self._ways = ways
        # torch keeps the Python object of a storage alive.
        self._shadows: Any = WeakIdKeyDictionary(ref_type=ref)  # pyright: ignore[reportArgumentType]  it takes any
        self._patterns = 0  # of noise so far

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """Run the code of the block in this mode, with kernels that exist for float64; restore the random numbers."""
        with torch.random.fork_rng(devices=range(torch.cuda.device_count())), native_kernels(), self:
            yield

    def value(self, tensor: torch.Tensor, way: Way = "exact") -> torch.Tensor:
        """Return a copy of the float64 counterpart of a tensor, complex numbers as pairs; integers in their dtype."""
        if (shadow := self._shadow(tensor)) is None:
            return complex_as_real(tensor.detach()).clone()
        with no_dispatch():  # this mode would follow the copy, where another mode within it asks
            return complex_as_real(shadow.view(tensor, self._ways.index(way))).clone()

    def float64(self, tensor: torch.Tensor) -> Float64Value:
        """Return the float64 value of a tensor, without and with noise."""
        return Float64Value(self.value(tensor), self.value(tensor, "noisy"), self.unit(tensor))

    def unit(self, tensor: torch.Tensor) -> float:
        """Return half a unit in the last place of the coarsest dtype on the way to a tensor, relative."""
        shadow = self._shadow(tensor)
        return unit_of(tensor.dtype) if shadow is None else max(shadow.unit, unit_of(tensor.dtype))

    def is_affected(self, tensor: torch.Tensor) -> bool:
        """Return whether a tensor depends on a decision that noise changed."""
        shadow = self._shadow(tensor)
        return shadow is not None and shadow.affected

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Run one operation, and compute in float64 what it has computed or written."""
        if func is torch.ops.aten.native_batch_norm.default and args[0].dtype == torch.float32:
            with self:  # the rounding of its sums, which it hides, shifts all results of a channel alike
                return native_batch_norm(*args, **(kwargs or {}))
        call = _ModeCall(func, args, kwargs or {})
        for tensor in call.read:
            if _is_float(tensor) and is_dense(tensor) and self._shadow(tensor) is None:
                self._add_leaf(tensor)
        reads_float64 = any(self._shadow(tensor) is not None for tensor in call.read)
        for tensor in call.written if reads_float64 else ():
            if self._shadow(tensor) is None:
                self._add_leaf(tensor)
        for tensor in call.written:
            if (shadow := self._shadow(tensor)) is not None:
                shadow.keep()
        result = func(*args, **call.kwargs)
        results = _tensors(result)
        if not all(map(is_dense, (*results, *call.written))):
            self.problem = self.problem or f"{call.func} in float64: it computes a sparse tensor"
        elif not _returns_views(func) and (reads_float64 or any(map(_is_float, results))):
            self._follow(call, results)
        return result

    def _follow(self, call: "_ModeCall", results: Sequence[torch.Tensor]) -> None:
        """Compute in float64 what an operation has computed or written."""
        new = [item for item in results if self._shadow(item) is None]  # not arguments that it returns
        if not new and not call.written:
            return
        read = [shadow for item in call.read if (shadow := self._shadow(item)) is not None]
        taken = {flat.data_ptr() for shadow in read for flat in shadow.flats}  # an operation may return what it reads
        # A leaf is copied, or cast to a finer dtype: nothing is rounded yet, so that the result is a leaf, too.
        if call.copies and new and read and read[0].is_leaf and unit_of(new[0].dtype) <= read[0].pending:
            self._add(new[0], [self._read(call.read[0], 0)], taken, pending=unit_of(new[0].dtype))
            return
        for shadow in read:
            self._add_noise(shadow)
        written = [shadow for item in call.written if (shadow := self._shadow(item)) is not None]
        for shadow in written:
            shadow.separate(len(self._ways))
        computed = [self._computed(call, results, way) for way in range(len(self._ways))]
        unit = max((shadow.unit for shadow in read), default=0.0)
        affected = any(shadow.affected for shadow in read)
        for item, *values in zip(results, *computed, strict=True):
            if values[0] is not None and any(item is other for other in new):
                known = [item if value is None else value for value in values]
                rounding = call.rounding(item, values[0])
                self._add(item, known, taken, unit=max(unit, unit_of(item.dtype)), pending=rounding)
        for item in call.written:
            if (shadow := self._shadow(item)) is not None:
                shadow.pending = call.rounding(item, shadow.view(item, 0))
                shadow.unit = max(unit, shadow.unit, unit_of(item.dtype))
        self._follow_decisions(call, (*new, *call.written), is_affected=affected)

    def _follow_decisions(self, call: "_ModeCall", items: Sequence[torch.Tensor], *, is_affected: bool) -> None:
        """Make the same decisions with noise as without, and mark what depends on those that noise changed."""
        for item in items:
            if (shadow := self._shadow(item)) is not None:
                decides = is_decision(item) or (item.is_floating_point() and call.operator.jumps)
                changed = decides and len(self._ways) > 1 and _keeps_decision(shadow, item)
                shadow.affected = shadow.affected or is_affected or changed

    def _computed(self, call: "_ModeCall", results: Sequence[torch.Tensor], way: int) -> list[torch.Tensor | None]:
        """Return the results in float64, and write them to the float64 counterparts of the written arguments.

        If the operation can't be computed, floating-point and complex ones are NaN, and in place of others is None.
        """
        written = [shadow.view(item, way) for item in call.written if (shadow := self._shadow(item)) is not None]
        read = partial(self._read, way=way)

        if call.name == "native_dropout" and call.is_random:
            mask, kept = results[1], 1 - call.args[1]
            return [read(call.args[0]) * mask / (kept or 1), mask]
        if call.is_random:
            for part, item in zip(written, call.written, strict=False):
                part.copy_(item)
            return [in_float64(item) for item in results]
        if returns_uninitialized(call.func):
            return [torch.zeros_like(in_float64(item)) for item in results]
        try:
            computed = [*map(_with_memory, _tensors(call.in_float64(read)))]
            if self._ways[way] == "noisy" and _is_float(results[0]):
                self._add_noise_within(call, computed, unit_of(results[0].dtype), read)
            if [item.shape for item in computed] == [item.shape for item in results]:
                return [*computed]
            problem = "another shape, which depends on rounding"
        except Exception as error:  # noqa: BLE001  operators raise errors of all types
            problem = reason_of(error)
        self.problem = self.problem or f"{call.func} in float64: {problem}"
        for part in written:
            if part.is_floating_point() or part.is_complex():
                part.fill_(math.nan)
        return [torch.full_like(in_float64(item), math.nan) if _is_float(item) else None for item in results]

    def _add_noise_within(self, call: "_ModeCall", results: Sequence[torch.Tensor], unit: float, read: _Read) -> None:
        """Add to results the rounding of what the kernel computes on the way to them.

        Args:
            call: the call.
            results: its results in float64, which are changed in place.
            unit: half a unit in the last place of the results' dtype, relative.
            read: returns the float64 value of an argument.
        """
        if call.name in ("mean", "sum", "var_mean"):
            self._add_noise_of_sums(call, results, read)
        if call.operator.cancelled is not None:
            args = (read(item) if isinstance(item, torch.Tensor) else item for item in call.args)
            # The kernel subtracts numbers that may be far larger than the result, so their rounding is added to it.
            magnitude = call.operator.cancelled(*args)
            self._patterns += 1
            results[0].add_(with_noise(magnitude, unit, seed=self._patterns) - magnitude)

    def _add_noise_of_sums(self, call: "_ModeCall", results: Sequence[torch.Tensor], read: _Read) -> None:
        """Add to sums the rounding of their partial sums, as if all terms were added one by one."""
        terms = read(call.read[0]).to(results[0].dtype)
        if not terms.numel():
            return
        given = call.args[1] if len(call.args) > 1 else None
        dims = sorted(dim % terms.dim() for dim in given or range(terms.dim())) if terms.dim() else []
        others = [dim for dim in range(terms.dim()) if dim not in dims]
        count = math.prod(terms.shape[dim] for dim in dims)
        rows = terms.permute([*others, *dims]).reshape([*(terms.shape[dim] for dim in others), count])
        unit = min(unit_of(call.read[0].dtype), unit_of(torch.float32))  # float16 is summed in float32
        summed = [(rows - rows.mean(-1, keepdim=True)).abs().square(), rows] if call.name == "var_mean" else [rows]
        for result, item in zip(results, summed if count > 1 else (), strict=False):
            typical = item.cumsum(-1).abs().square_().mean(-1).sqrt_().mul_(1.0 if call.name == "sum" else 1 / count)
            self._patterns += 1
            noise = with_noise(torch.ones_like(typical), math.sqrt(count) * unit, seed=self._patterns).sub_(1)
            result.add_(typical.mul_(noise).reshape(result.shape))

    def _read(self, tensor: torch.Tensor, way: int) -> torch.Tensor:
        """Return the float64 counterpart of a tensor in one way to compute; the tensor itself if it has none."""
        shadow = self._shadow(tensor)
        value: torch.Tensor = tensor if is_dense(tensor) else in_float64(tensor)
        return value if shadow is None else shadow.view(tensor, way)

    def _shadow(self, tensor: torch.Tensor) -> _Shadow | None:
        """Return the float64 counterpart of a tensor's storage; None if there is none or its bits are reinterpreted."""
        shadow = self._shadows.get(tensor.untyped_storage()) if is_dense(tensor) else None
        return shadow if shadow is not None and shadow.fits(tensor) else None

    def _add(
        self,
        tensor: torch.Tensor,
        values: Sequence[torch.Tensor],
        taken: Collection[int] = (),
        *,
        unit: float = 0.0,
        pending: float = 0.0,
    ) -> None:
        """Add the float64 counterpart of a tensor's storage.

        Args:
            tensor: the tensor.
            values: its float64 value in each way to compute, or one for all.
            taken: the addresses of the storages of float64 counterparts that a value may share.
            unit: the coarsest unit of what it is computed from.
            pending: see `_Shadow`.
        """
        flats = [_in_storage(value, tensor, taken) for value in values]
        self._shadows[tensor.untyped_storage()] = _Shadow(flats, _real_dtype(tensor), unit, pending)

    def _add_leaf(self, tensor: torch.Tensor) -> None:
        """Add the float64 counterpart of a storage that the run has not computed; other tensors may share it."""
        real, storage = _real_dtype(tensor), tensor.untyped_storage()
        shadow = _Shadow([], real, pending=unit_of(real), source=ref(storage))
        if len(self._ways) == 1 or storage.nbytes() < _LARGE:
            shadow.keep()
        self._shadows[storage] = shadow

    def _add_noise(self, shadow: _Shadow) -> None:
        """Add the pending noise."""
        if shadow.pending and "noisy" in self._ways:
            self._patterns += 1
            if len(shadow.flats) < len(self._ways):  # one for both ways: `_Shadow.flat` adds the noise at each read
                shadow.noise, shadow.seed = shadow.pending, self._patterns
            else:
                noisy = shadow.flats[self._ways.index("noisy")]
                with_noise(noisy, shadow.pending, seed=self._patterns, out=noisy)
        shadow.unit, shadow.pending = max(shadow.unit, shadow.pending), 0.0


def _in_storage(value: torch.Tensor, like: torch.Tensor, taken: Collection[int]) -> torch.Tensor:
    """Return the float64 counterpart of a whole storage, in which a value has the places of the tensor `like`.

    It is the memory of the value itself where that has the same layout, as there may be no room for a copy of both.
    """
    real, storage = _real_dtype(like), value.untyped_storage()
    wide = float64_dtype(real)
    size = _whole(like.untyped_storage(), real).numel() * wide.itemsize
    is_converted = like.dtype != float64_dtype(like.dtype) == value.dtype  # else it may be a tensor of the code itself
    has_layout = _layout(value) == _layout(like) and storage.nbytes() == size
    if is_converted and has_layout and value.device == like.device and storage.data_ptr() not in taken:
        return _whole(storage, wide)
    flat = torch.zeros(size // wide.itemsize, dtype=wide, device=like.device)
    _Shadow([flat], real).view(like, 0).copy_(value)
    return flat


def _layout(tensor: torch.Tensor) -> tuple[Any, ...]:
    """Return how a tensor views its storage."""
    return tensor.shape, tensor.stride(), tensor.storage_offset(), tensor.is_conj(), tensor.is_neg()


def _whole(storage: torch.UntypedStorage, dtype: torch.dtype) -> torch.Tensor:
    """Return all numbers of a storage."""
    whole = torch.empty(0, dtype=dtype, device=storage.device)
    return whole.set_(storage, 0, (storage.nbytes() // dtype.itemsize,), (1,))


def _keeps_decision(shadow: _Shadow, item: torch.Tensor) -> bool:
    """Replace the decisions that were made with noise by those without; return whether that changes them."""
    is_float = item.is_floating_point()
    exact, noisy = (shadow.view(item, way) if is_float else shadow.flat(way) for way in (0, 1))
    other = decided(noisy, exact, unit_of(item.dtype))
    is_changed = not torch.equal(other, noisy)
    noisy.copy_(other)
    return is_changed


class _ModeCall:
    """One call of an operator.

    Attributes:
        func: the operator.
        args: the positional arguments.
        kwargs: the keyword arguments.
        operator: what is known of the operator.
        name: the name of the operator without an underscore at its end.
        read: the tensors among the arguments.
        written: those that it writes to.
        is_random: whether it draws random numbers.
    """

    def __init__(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        self.func, self.args, self.kwargs = func, args, kwargs
        self.operator = _operator(func)
        self.name = self.operator.name
        self.read = _tensors((*args, *kwargs.values()))
        self.written = _tensors(written_arguments(func, args, kwargs))
        self.is_random = draws_random(func, args, kwargs)

    @property
    def copies(self) -> bool:
        """Whether it returns the numbers of its first argument, as they are or rounded to another dtype."""
        return self.operator.movement in ("copy", "cast") and not self.operator.source

    @property
    def _accumulates(self) -> bool:
        """Whether it adds to numbers, although others of its name only move them."""
        accumulate = self.args[3] if len(self.args) > 3 else self.kwargs.get("accumulate")
        is_put = self.name in ("index_put", "_index_put_impl", "_unsafe_index_put")
        return bool(is_put and accumulate) or "reduce" in self.func._overloadname  # noqa: SLF001  it has no other access

    def in_float64(self, read: Callable[[torch.Tensor], torch.Tensor]) -> Any:
        """Call the operator in float64, with what `read` returns for each tensor."""

        def converted(item: Any) -> Any:
            return read(item) if isinstance(item, torch.Tensor) else item

        return call_in_float64(self.func, self.args, self.kwargs, converted)

    def rounding(self, result: torch.Tensor, value: torch.Tensor) -> float:
        """Return half a unit in the last place of a result, relative; 0 if no number of it was rounded.

        Args:
            result: the result.
            value: its float64 value.
        """
        own = unit_of(result.dtype)
        if self.name == "native_dropout":  # it draws, but also scales what it keeps, which rounds
            return own
        if not own or self.is_random or returns_uninitialized(self.func):
            return 0.0
        read = [unit_of(item.dtype) for item in self.read if _is_float(item)]
        if not read:  # made of integers or of nothing: the numbers may be exact
            return 0.0 if torch.equal(value, in_float64(result)) else own
        return 0.0 if self.operator.is_exact and not self._accumulates and own <= min(read) else own


@lru_cache(maxsize=4096)  # torch makes new objects each time that a schema is read
def _operator(func: Any) -> Operator:
    """Return what is known of an overload of an ATen operator."""
    return operator_of(f"aten.{func._opname}.{func._overloadname}")  # noqa: SLF001  it has no other access


@lru_cache(maxsize=4096)  # as above
def _returns_views(func: Any) -> bool:
    """Return whether an operator computes nothing: it returns views, or changes how arguments view their storage."""
    returns = [item.alias_info for item in func._schema.returns]  # noqa: SLF001  as above
    is_view = bool(returns) and all(info is not None and not info.is_write for info in returns)
    return is_view or torch.Tag.inplace_view in func.tags


@contextlib.contextmanager
def native_kernels() -> Iterator[None]:
    """Let PyTorch choose kernels that exist for float64: those of oneDNN and cuDNN for LSTMs do not."""
    with (
        torch.backends.mkldnn.flags(enabled=False, allow_tf32=None),  # pyright: ignore[reportArgumentType]  None keeps it
        torch.backends.cudnn.flags(enabled=False),
        sdpa_kernel(SDPBackend.MATH),
    ):
        yield


def _tensors(values: Any) -> list[torch.Tensor]:
    """Return the tensors in nested lists, tuples and dictionaries."""
    return [item for item in leaves_of(values) if isinstance(item, torch.Tensor)]


def _is_float(tensor: torch.Tensor) -> bool:
    """Return whether a tensor has floating-point or complex numbers."""
    return tensor.is_floating_point() or tensor.is_complex()


def _with_memory(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor with memory: zero gradients of forward-mode AD have none, and torch reads it within a mode."""
    return torch.zeros_like(tensor) if tensor._is_zerotensor() else tensor  # noqa: SLF001  it has no other access


def _real_dtype(tensor: torch.Tensor) -> torch.dtype:
    """Return the dtype of a tensor, or of the real and imaginary parts of a complex one."""
    return tensor.dtype.to_real() if tensor.is_complex() else tensor.dtype
