"""Check that a language model computes the same however it is called: with a cache, in batches, with padding."""

import contextlib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Literal

import torch
from torch import nn

from filch.export import Node
from filch.export.backends import Backend
from filch.export.common._memory import release_memory
from filch.steal import phase
from filch.steal.text._visible import short_line

from ._compare import resolve_backend
from ._decode_relation import decode_on, relation_on
from ._quantized_relation import Caches, check_quantized, quantized_caches
from .alignment._counterparts import first_wrong_operations
from .common._errors import CompareError
from .decoding._decoder import Decoder
from .decoding._implementations import implementation
from .decoding._plan import Plan
from .decoding._positions import RESULT, Mismatches, PositionedRun, mismatches, module_of
from .decoding._relations import Relation, relations
from .decoding._tokens import given_tokens
from .layouts._closeness import RELATIVE
from .layouts._numbers import TensorNumbers
from .models._subject import Subject
from .results._invariance import Invariance, InvarianceBreak, InvarianceRow, InvarianceVerdict
from .runs._execution import Execution, line_of, run_model

_Check = Callable[[], InvarianceRow]
_LENGTH, _SEQUENCES = 24, 3  # of the given tokens
_REASON = 120  # characters
_PARTS: tuple[Literal["attn", "experts"], ...] = ("attn", "experts")  # that transformers has implementations of


def check_invariance(
    model: nn.Module,
    args: Any = None,
    kwargs: Mapping[str, Any] | None = None,
    *,
    only: Collection[str] | None = None,
    attentions: Sequence[str] = ("sdpa",),
    backends: Sequence[str | Backend] = (),
    quantized: Caches = (),
    bitwise: bool = False,
) -> Invariance:
    """Check that a language model computes the same however it is called; no reference is needed.

    Each sequence is computed in one call without a cache, with eager attention. All other ways must give the same
    numbers: prefill with a cache, one token at a time, chunks, a static cache, a static cache that is reset and used
    again, sequences alone or in a batch, another order of rows, padding on either side, other attention
    implementations, and the model's program on a backend. Tokens are given, not sampled, so that a difference does not
    change what follows.

    The model runs in its own dtypes, and each operation a second time in float64. What differs in float64 is not
    rounding: the model computes something else. All values are then compared by sequence and position, and the first
    operation is named whose result differs although what it reads is the same.

    Args:
        model: a language model with the interface of transformers, in eval mode: it takes `input_ids` (or
            `decoder_input_ids`), `attention_mask`, `position_ids` and a cache, as far as it has them. The argument for
            the cache may have any name if its annotation or a result says that it is a `Cache` of transformers. It
            returns an object or a dict with `logits`, a tuple that begins with them, or the logits.
        args: the tokens, int64 in the shape [sequences, length], or a tuple with them; None if they are in `kwargs`. Of
            one sequence, others are made by rotating it. At most 24 tokens are used.
        kwargs: the keyword arguments of a call. Masks, positions and caches among them are replaced; of other tensors
            that have a row for each sequence, such as the inputs of an encoder, each call gets its rows.
        only: names of relations to check; None for all.
        attentions: attention implementations to compare with `"eager"`.
        backends: names or instances of backends: the model is exported with a cache, and the relation
            `decode on NAME` is whether they compute, step by step, what the model computes in one call; see
            `compare_decode`.
        quantized: quantized caches: names of transformers' quantizers (`"fp8"`, `"hqq"`, `"quanto"`), or functions that
            return an empty cache by names. The relation `quantized cache NAME` is whether the keys and values in the
            cache, while the model decodes with it, are those that it was given up to half a step of the quantizer's own
            scale, or the same bit for bit if they are not quantized. Differences of logits do not break it.
        bitwise: whether also the bits have to be the same in the model's own dtypes, as of batch-invariant kernels.

    Returns:
        an `Invariance`: `close` if all relations hold that the model supports.

    Raises:
        CompareError: there are no tokens, or no relation has a name of `only`, or no quantizer one of `quantized`.
        BackendError: there is no such backend.
        TraceError: the model fails in one call without a cache.
    """
    subject = Subject.of(model, () if args is None else args, kwargs)
    tokens, others = given_tokens(subject, _SEQUENCES)
    tokens = tokens[:, :_LENGTH]
    count, length = tokens.shape
    first = max(1, length // 4)
    other_attentions = attentions if hasattr(model, "set_attn_implementation") else ()
    given = relations(tokens, first=first, filler=_filler(model), attentions=other_attentions)
    on_backends: dict[str, _Check] = {
        relation_on(item): partial(decode_on, model, args, kwargs, item, tokens=length, bitwise=bitwise)
        for item in (resolve_backend(backend, None) for backend in backends)
    }
    caches = quantized_caches(model, quantized)
    known = [*(item.name for item in given), *on_backends, *caches]
    if unknown := {*(only or ())} - {*known}:
        raise CompareError(f"there is no relation {min(unknown)!r}; there are {', '.join(known)}")
    checker = _RelationChecker(model, others, count, bitwise=bitwise)
    checks: dict[str, _Check] = {item.name: partial(checker.check, item) for item in given}
    for name, make in caches.items():
        checks[name] = partial(check_quantized, name, make, model, tokens, others, first)
    with _with_visible_operations(model):
        rows = [*_rows(checks, only)]
    rows += _rows(on_backends, only)
    return Invariance(type(model).__name__, count, length, bitwise, tuple(rows))


def _rows(checks: Mapping[str, _Check], only: Collection[str] | None) -> Iterator[InvarianceRow]:
    """Check relations, and yield the verdict on each.

    Args:
        checks: by the names of the relations.
        only: the names of those to check; None for all.
    """
    for name, check in checks.items():
        if only is None or name in only:
            with phase(f"checking {name}"):
                yield check()


def _sizes(model: nn.Module) -> set[int]:
    """Return the sizes of a model. Axes of values of these sizes may be taken for axes of as many tokens."""
    config = getattr(model, "config", None)
    settings = [item for item in vars(config).values() if type(item) is int] if config is not None else []
    sizes = {size for parameter in model.parameters() for size in parameter.shape} | {*settings}
    return sizes | {size // heads for size in settings for heads in settings if heads > 0 and size % heads == 0}


def _filler(model: nn.Module) -> int:
    """Return the token to pad sequences with: that of the model's settings, else 0."""
    padding = getattr(getattr(model, "config", None), "pad_token_id", None)
    return padding if isinstance(padding, int) and padding >= 0 else 0


@contextlib.contextmanager
def _with_visible_operations(model: nn.Module) -> Iterator[None]:
    """Let a model use implementations that are made of operations which exist for float64."""
    with contextlib.ExitStack() as stack:
        for part in _PARTS:
            with contextlib.suppress(CompareError):  # it has no such implementation
                stack.enter_context(implementation(model, part, "eager"))
        yield


def _attention(model: nn.Module, name: str) -> contextlib.AbstractContextManager[None]:
    """Let a model use an attention implementation; `""` for the one that it has."""
    return implementation(model, "attn", name) if name else contextlib.nullcontext()


def _unsupported_attention(model: nn.Module, name: str) -> str:
    """Return why a model can't use an attention implementation; `""` if it can or if no name is given."""
    try:
        with _attention(model, name):
            return ""
    except CompareError as error:
        return str(error)


@dataclass
class _RelationChecker:
    """Runs plans and compares them; reference runs are kept for the next relation.

    Attributes:
        model: the language model.
        others: its arguments besides tokens, masks, positions and caches.
        count: the number of sequences.
        bitwise: see `check_invariance`.
    """

    model: nn.Module
    others: Mapping[str, Any]
    count: int
    bitwise: bool
    _references: dict[tuple[int, bool], PositionedRun] = field(default_factory=dict)  # by `id` of the plan, and native

    def check(self, relation: Relation) -> InvarianceRow:
        """Return the verdict on a relation.

        Raises:
            TraceError: the model fails without a cache.
        """
        # Both are "" if the model can do it.
        reason = self._decoder(relation.plan).unsupported or _unsupported_attention(self.model, relation.attention)
        if reason:
            return InvarianceRow(relation.name, "not run", note=reason)
        reference = self._reference(relation, native=False)
        try:
            return self._checked(relation, reference)
        except Exception as error:  # noqa: BLE001  models and kernels raise errors of all types
            cause = error.__cause__ or error
            text = short_line(f"{type(cause).__name__}: {next(iter(str(cause).splitlines()), '')}", _REASON)
            return InvarianceRow(relation.name, "fails", note=text)
        finally:
            release_memory()

    def _checked(self, relation: Relation, reference: PositionedRun) -> InvarianceRow:
        """Return the verdict on a relation that the model supports; see `check`."""
        run = self._run(relation.plan, relation.attention)
        found = mismatches(reference, run, RELATIVE)  # None for each value that is the same
        if any(name not in found for name in run.judged_logits):
            raise CompareError("the logits have another shape, or are no numbers in float64")
        difference = self._native_difference(relation)
        if any(found[name] is not None for name in run.judged_logits):
            return self._row(relation, run, found, difference)
        if self.bitwise:
            native = self._run(relation.plan, relation.attention, native=True)
            bits = mismatches(self._reference(relation, native=True), native, 0.0)
            if any(bits[name] is not None for name in native.judged_logits):
                return self._row(relation, native, bits, difference, verdict="rounding")
        return InvarianceRow(relation.name, "holds", difference, compared=len(found))

    def _decoder(self, plan: Plan) -> Decoder:
        """Return what calls the model as a plan says."""
        return Decoder(self.model, plan, self.others, self.count)

    def _run(self, plan: Plan, attention: str = "", *, native: bool = False) -> PositionedRun:
        """Run a plan in float64, or in the model's own dtypes, with an attention implementation; `""` for the usual."""
        with _attention(self.model, attention):
            return PositionedRun(run_model(self._decoder(plan), (), {}, native=native), plan)

    def _reference(self, relation: Relation, *, native: bool) -> PositionedRun:
        """Return the run of a relation's reference, which others may share; see `_run`."""
        key = id(relation.reference), native
        if key not in self._references:
            self._references[key] = self._run(relation.reference, native=native)
            self._references[key].shorter = self._shorter(relation.reference)
        return self._references[key]

    def _shorter(self, plan: Plan) -> PositionedRun | None:
        """Return a run with one token less in each call; None if sizes tell which axes have a row for each token."""
        if (_sizes(self.model) | {self.count}).isdisjoint(call.tokens.shape[1] for call in plan.calls):
            return None
        calls = (
            replace(call, tokens=call.tokens[:, :-1], positions=call.positions[:, :-1], keys=call.keys[:, :-1])
            for call in plan.calls
        )
        return self._run(replace(plan, calls=tuple(calls)), native=True)

    def _native_difference(self, relation: Relation) -> float:
        """Return the largest difference of logits in the model's own dtypes; see `InvarianceRow`."""
        expected = self._native_logits(relation.reference, "")
        actual = self._native_logits(relation.plan, relation.attention)
        sizes = TensorNumbers(torch.stack([*expected.values()])).closeness(RELATIVE)
        distances = (((actual[key] - item).abs() / sizes.sizes(item)).max() for key, item in expected.items())
        return float(torch.stack([*distances]).nan_to_num(nan=torch.inf).max())

    def _native_logits(self, plan: Plan, attention: str) -> dict[tuple[int, int], torch.Tensor]:
        """Return the logits by sequence and position: float64 in the shape [words]."""
        with torch.no_grad(), _attention(self.model, attention):
            results = self._decoder(plan)()
        return {
            (sequence, int(call.positions[row, column])): logits[row, column].double()
            for call, logits in zip(plan.calls, results, strict=True)
            for row, sequence in enumerate(call.sequences)
            for column in (call.positions[row] >= 0).nonzero()[:, 0].tolist()  # the tokens, without padding
            if call.is_judged
        }

    def _row(
        self,
        relation: Relation,
        run: PositionedRun,
        found: Mismatches,
        difference: float,
        verdict: InvarianceVerdict = "breaks",
    ) -> InvarianceRow:
        """Return the row of a relation of which some logits differ."""
        right = {name for name, mismatch in found.items() if mismatch is None}
        wrong = {*run.judged_logits} - right
        suspects = first_wrong_operations(run.execution, wrong, judged=found.keys(), found=right)
        breaks = [item for node in suspects if (item := _break_at(run.execution, node, found)) is not None]
        first = breaks[0] if breaks else None
        return InvarianceRow(relation.name, verdict, difference, first, max(len(breaks) - 1, 0), len(found))


def _break_at(execution: Execution, node: Node, found: Mismatches) -> InvarianceBreak | None:
    """Return where a relation breaks at a node; None if no result of it was compared, or all are right."""
    mismatch = next((item for name in node.outputs if (item := found.get(name)) is not None), None)
    if mismatch is None:
        return None
    place = module_of(node), node.operator.name, line_of(node)
    if place[0] == RESULT:  # the logits that are moved to be returned are right
        place = "", "returned logits", None
    size = mismatch.sequence, mismatch.position, mismatch.difference
    return InvarianceBreak(*place, *size, _before(execution, node, found))


def _before(execution: Execution, node: Node, found: Mismatches) -> tuple[str, ...]:
    """Return the other modules with the operations between a node and the values before it that were compared."""
    numbers = execution.values
    compared = {name for name, root in execution.roots.items() if root in found}
    modules = dict.fromkeys(
        module_of(item)
        for item in execution.graph.cone(node.outputs, compared)
        if any(name in numbers and numbers[name].is_floating_point() for name in item.outputs)
    )
    return tuple(module for module in modules if module != module_of(node))
