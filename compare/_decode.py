"""Compare what a program with a cache computes step by step with what the model computes."""

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import nn

from filch.export import CacheKind, Precision, Program, cached_call, export, has_recurrent_states, lower
from filch.export.backends import Backend, Stage
from filch.export.exporting._cached import stepwise_call, window_sizes
from filch.export.exporting._model_cache import logits_of
from filch.steal import phase, steal_forward
from filch.steal.text._visible import short_line

from ._compare import BUFFER, compare, resolve_backend
from .common._errors import CompareError
from .decoding._axes import Steps
from .decoding._decoded import decoding_result
from .decoding._decoder import Decoder
from .decoding._implementations import EXPORTED_EXPERTS, implementation
from .decoding._plan import Plan, masked, together
from .decoding._stepwise import LOGITS, MASK, PAST, PRESENT, TOKENS, Stepwise, is_of_encoder
from .decoding._tokens import given_tokens
from .layouts._closeness import RELATIVE
from .layouts._numbers import TensorNumbers
from .metrics._metrics import compare_tensors
from .models._subject import Subject
from .results._decoding import Decoding
from .runs._mode import Float64Mode

_TOKENS, _LEAST, _SEQUENCES = 32, 6, 2  # tokens of each sequence by default, and at least; sequences
_EXTRA_SLOTS = 8  # of a static cache, which stay empty
_LAST = 2  # tokens of the last step
_REASON = 120  # characters
_IN_STEPS = "numbers count from the last key: steps of one token were compared with those of the model, none masked"
_COUNTING = "GroupQueryAttention"  # the operator that takes the number of tokens in place of a mask
_NOT_MASKED = f"{_COUNTING} takes no mask: no token was masked, and no call had several tokens and a cache"
_MASKED = 1  # the position of masked tokens: they attend to the one before, and those behind to themselves


def compare_decode(
    model: nn.Module,
    args: Any = None,
    kwargs: Mapping[str, Any] | None = None,
    *,
    program: Program | None = None,
    backend: str | Backend = "onnxruntime-cpu",
    options: Mapping[str, Any] | None = None,
    tokens: int = _TOKENS,
    prefill: int | None = None,
    cache: CacheKind = "dynamic",
    to: Precision | None = None,
    stages: Sequence[Stage] | None = None,
    buffer: int = BUFFER,
) -> Decoding:
    """Run a program with a cache step by step, and compare each of its values with the model's, by position.

    The first step has several tokens (prefill), each further one a single token (decode), and the last one two tokens,
    as when a conversation goes on. Tokens are given, not sampled, so that a difference does not change what follows.
    The program's own cache goes from step to step. The values of all steps are put together by position, and compared
    with those of the model, which computes all tokens in one call: in the same way as `compare`, by their distance from
    float64. Values without tokens, such as sizes, are not judged.

    In all sequences but the first, the token at position 1 is masked, as padding is, so that a program has to read its
    mask. It attends to the token before, so that all of its values are defined. A program with GroupQueryAttention, as
    ONNX Runtime GenAI makes it, takes no such mask, and one token in the last step as well.

    The program of a model with recurrent states takes one token in each step, none of them masked, and continues the
    model's own state: rounding errors add up in a state. Its values are compared with those of all steps of the model.
    A program whose cache drops keys behind a window is run in the same way, so that each state of its cache has a
    reference.

    A program with a dynamic cache is also judged in this way if values are wrong before the first wrong output, and the
    only nodes to blame are slices: a bias that counts positions from the last key (MPT) has other numbers in each step,
    also in the model. `Decoding.notes` says so.

    Whether the model itself computes the same step by step as in one call is checked in eager PyTorch by its logits.
    An integer, a router or the next token that differs because rounding decides it is a decision and not wrong.

    Args:
        model: a language model of transformers, in eval mode.
        args: the tokens, int64 in the shape [sequences, length], or a tuple with them; None if they are in `kwargs`.
            Of one sequence, a second one is made by rotating it, and those shorter than `tokens` are repeated.
        kwargs: keyword arguments of a call: `input_ids`; or `decoder_input_ids` and the inputs of an encoder.
        program: the result of `export(..., cache=...)`, optimized or changed since, or such a file; None exports the
            model. Its inputs and outputs have the names that `export` gives them.
        backend: see `compare`.
        options: see `compare`.
        tokens: the number of tokens of each sequence, at least 6.
        prefill: the number of tokens of the first step, from 2 to `tokens - 3`; None is a quarter of `tokens`, or 1
            with recurrent states or windows.
        cache: the kind of the cache, if the model is exported here; of a program with windows, `"window"` or
            `"static-window"`.
        to: lowers the program to this precision: `"float16"` or `"bfloat16"`.
        stages: see `compare`; None is the last stage that the backend has: the graph that it optimized.
        buffer: see `compare`.

    Returns:
        a `Decoding`; its `first_break` is the first position and the node at which the program goes wrong.

    Raises:
        FilchError: the tokens are invalid, or the model can't be exported, or the backend fails.
    """
    if tokens < _LEAST:
        raise CompareError(f"decoding is compared for at least {_LEAST} tokens, not {tokens}")
    has_encoder = bool(getattr(getattr(model, "config", None), "is_encoder_decoder", False))
    is_recurrent = has_recurrent_states(model)
    has_windows = cache.endswith("window")
    in_steps = is_recurrent or has_windows
    first_tokens = 1 if in_steps else max(2, tokens // 4) if prefill is None else prefill
    if in_steps and prefill not in (None, 1):
        what = "recurrent states" if is_recurrent else "windows of keys"
        raise CompareError(f"a program with {what} takes one token in each step, also in the first one")
    if not in_steps and not 2 <= first_tokens <= tokens - _LAST - 1:
        raise CompareError(f"the first step has 2 to {tokens - _LAST - 1} tokens, not {first_tokens}")
    given, others = given_tokens(Subject.of(model, () if args is None else args, kwargs), _SEQUENCES)
    device = next((parameter.device for parameter in model.parameters()), given.device)
    given = given.repeat(1, -(-tokens // given.shape[1]))[:, :tokens].to(device)
    others = {
        name: item.to(device) if isinstance(item, torch.Tensor) else item
        for name, item in (others.items() if has_encoder else ())
    }
    if program is None:
        slots = tokens + _EXTRA_SLOTS if cache.startswith("static") else 0
        names = {"decoder_input_ids": given} if has_encoder else {}
        program = export(model, () if has_encoder else (given,), others | names, cache=cache, slots=slots)
    else:
        program = program.snapshot()
        slots = _checked_slots(program, tokens, window_sizes(model) if has_windows else [0], in_steps=in_steps)
    lowered = program if to is None else lower(program, to, simulate=to == "bfloat16")
    runner = resolve_backend(backend, options)
    comparison = _DecodeComparison(model, given, others, lowered, runner, slots, has_windows, to, stages, buffer)
    result = comparison.judge(first_tokens, in_steps=in_steps)
    if in_steps or has_encoder or slots or not _may_count_from_the_last_key(result, program.graph.outputs):
        return result
    try:
        stepped = comparison.judge(1, in_steps=True)
    except Exception as error:  # noqa: BLE001  models raise errors of all types
        text = short_line(
            f"steps could not be compared with those of the model: {type(error).__name__}: {error}", _REASON
        )
        return replace(result, notes=(*result.notes, text))
    return replace(stepped, notes=(*stepped.notes, _IN_STEPS)) if _explains(stepped, result, program) else result


def _may_count_from_the_last_key(result: Decoding, outputs: Collection[str]) -> bool:
    """Return whether what is wrong may be numbers that depend on the position of the last key, as biases of MPT.

    Such a bias is a slice of a constant, and no output is wrong at the positions where it is.
    """
    if result.first_break is None or not result.consistent or result.unjudged or result.failed:
        return False
    wrong_outputs = (item.position for item in result.breaks if item.value in outputs)
    first = min(wrong_outputs, default=len(result.positions))
    to_blame = (item.op for item in result.breaks if item.introduced and item.position < first)
    return result.first_break.position < first and all(op.lower().endswith("slice") for op in to_blame)


def _explains(stepped: Decoding, result: Decoding, program: Program) -> bool:
    """Return whether a comparison in steps explains what was found wrong in one call.

    It does if nothing is wrong in it and no output is wrong in the call, or if it goes wrong later than the call, and
    at the latest where an output of that is wrong.
    """
    wrong = [item.position for item in result.breaks if item.value in program.graph.outputs]
    if result.first_break is None or stepped.first_break is None:
        return not wrong
    return result.first_break.position < stepped.first_break.position <= min(wrong, default=len(result.positions))


@dataclass(frozen=True)
class _DecodeComparison:
    """A program to judge, and how.

    Attributes:
        model: see `compare_decode`.
        given: the tokens, int64 in the shape [sequences, length].
        others: the inputs of the model's encoder, if it has one.
        program: the program, in the precision that it runs in.
        backend: runs the program.
        slots: the number of slots of a static cache; 0 for other caches.
        has_windows: whether layers with a sliding window keep the last keys and values only.
        to: see `compare_decode`.
        stages: see `compare_decode`.
        buffer: see `compare_decode`.
    """

    model: nn.Module
    given: torch.Tensor
    others: Mapping[str, Any]
    program: Program
    backend: Backend
    slots: int
    has_windows: bool
    to: Precision | None
    stages: Sequence[Stage] | None
    buffer: int

    def judge(self, count: int, *, in_steps: bool) -> Decoding:
        """Return what the program computes, compared with the model.

        Args:
            count: the number of tokens of the first step.
            in_steps: whether each step continues the model's own cache, and is compared with a step of the model.
        """
        model, given, slots = self.model, self.given, self.slots
        counts_tokens = any(node.op.endswith(_COUNTING) for node in self.program.graph.nodes)
        last = 1 if counts_tokens else _LAST
        stepwise = Stepwise(self.backend, count, last, slots, len(given) if in_steps else 0)
        mask = torch.ones_like(given)
        mask[1:, _MASKED] = int(counts_tokens)  # 1, not masked, for a program that takes no mask
        notes = [_NOT_MASKED] if counts_tokens else []
        decoded: torch.Tensor | None
        with implementation(model, "experts", EXPORTED_EXPERTS), torch.no_grad():
            # What computes the model's logits step by step, with its own cache, and in one call.
            decode: Callable[[], torch.Tensor] = self._decode_in_steps
            decode_at_once: Callable[[], torch.Tensor] = self._decode_without_cache
            if in_steps:
                with phase("decoding in eager PyTorch"):
                    arguments, decoded = self._stepwise_call()
            else:
                spans = Steps.of(given.shape, count, last, slots).spans
                decode = partial(self._decode, mask, spans)
                decode_at_once = partial(self._decode, mask, [(0, given.shape[1])])
                arguments = cached_call(model, given, self.others, slots=slots, mask=mask)
                with phase("decoding in eager PyTorch"):
                    decoded = _unless_it_fails(decode, notes)
            with steal_forward(model, submodules=True, on_error="raise") as capture:
                expected = logits_of(model(**arguments)).reshape(*given.shape, -1).cpu()
            with phase("decoding in eager PyTorch"):
                at_once = decode_at_once() if in_steps else expected  # in steps, `expected` is that of the steps
                eager, consistent = _consistency(decoded, at_once, decode, decode_at_once)
        report = compare(
            capture,
            self.program,
            backend=stepwise,
            stages=stepwise.stages[-1:] if self.stages is None else self.stages,
            lower_precision=self.to is not None,
            buffer=self.buffer,
        )
        kind = ("static-window" if slots else "window") if self.has_windows else "static" if slots else "dynamic"
        known: dict[str, Any] = {"cache": kind, "to": self.to or "", "eager": eager, "consistent": consistent}
        return replace(decoding_result(model, stepwise, report, expected, **known), notes=tuple(notes))

    def _stepwise_call(self) -> tuple[dict[str, Any], torch.Tensor]:
        """Return the arguments of one call with all steps in its rows, and the model's logits of these steps."""
        return stepwise_call(self.model, self.given, has_windows=self.has_windows, slots=self.slots)

    def _decode_in_steps(self) -> torch.Tensor:
        return self._stepwise_call()[1]

    def _decode_without_cache(self) -> torch.Tensor:
        """Return the model's logits, computed in one call in which no token is masked."""
        plan = Plan(together(self.given.cpu()), "none")
        logits: list[torch.Tensor] = Decoder(self.model, plan, self.others, len(self.given))()
        return logits[0]

    def _decode(self, mask: torch.Tensor, spans: Sequence[tuple[int, int]]) -> torch.Tensor:
        """Return the model's logits, computed in some calls: float in the shape [sequences, length, words]."""
        plan = Plan(masked(self.given.cpu(), mask.cpu(), spans))
        return torch.cat(Decoder(self.model, plan, self.others, len(self.given))(), 1)


def _unless_it_fails(decode: Callable[[], torch.Tensor], notes: list[str]) -> torch.Tensor | None:
    """Return the logits that a model decodes; if it fails, add a note and return None."""
    try:
        return decode()
    except Exception as error:  # noqa: BLE001  models raise errors of all types
        text = short_line(f"{type(error).__name__}: {error}", _REASON)
        notes.append(f"the model itself, with its own cache, fails in these calls and was not compared: {text}")
        return None


def _consistency(
    logits: torch.Tensor | None,
    expected: torch.Tensor,
    decode: Callable[[], torch.Tensor],
    decode_at_once: Callable[[], torch.Tensor],
) -> tuple[float, bool]:
    """Return how far logits that were computed step by step are from those of one call, and whether they are equal.

    Rounding may make them differ by more than a tolerance: then they have to be equal in float64. The difference is
    relative to the root mean square. If the logits are not known, it is NaN, and they count as equal.

    Args:
        logits: those of the steps, float in the shape [sequences, length, words]; None if they are not known.
        expected: those of one call.
        decode: computes `logits` again.
        decode_at_once: computes those of one call.
    """
    if logits is None:
        return math.nan, True
    logits, expected = logits.cpu(), expected.cpu()
    distance = float((logits.double() - expected.double()).abs().max() / expected.double().square().mean().sqrt())
    if compare_tensors(logits, expected).close:
        return distance, True
    mode = Float64Mode("exact")
    try:
        with mode.running():
            stepwise, at_once = decode(), decode_at_once()
    except Exception:  # noqa: BLE001  operators that a mode can't run raise errors of all types
        return distance, False
    exact = mode.value(at_once)
    return distance, TensorNumbers(exact).closeness(RELATIVE).holds(mode.value(stepwise), exact)


def _checked_slots(program: Program, tokens: int, windows: Sequence[int], *, in_steps: bool) -> int:
    """Check that a program returns logits and all of its cache, by the names of `export`; return its number of slots.

    Args:
        program: the program.
        tokens: how many tokens each sequence has.
        windows: the number of tokens that each layer attends to; 0 for all.
        in_steps: whether it may take one token in each step only.

    Raises:
        CompareError: an output is missing, or there are fewer slots than tokens, or it takes one token in each step.
    """
    if not in_steps and _size(program, TOKENS) == 1:
        how = 'if its cache drops keys behind a window, give cache="window" or "static-window"'
        raise CompareError(f"the program takes one token in each step; {how}")
    graph = program.graph
    if not any(name.startswith(PRESENT) for name in graph.outputs):
        raise CompareError(f"the program returns no cache: it has no output {PRESENT}0.key; see export(cache=…)")
    states = (name for name in graph.inputs if name.startswith(PAST) and not is_of_encoder(name))
    wanted = [LOGITS, *(PRESENT + name.removeprefix(PAST) for name in states)]
    if missing := [name for name in wanted if name not in graph.outputs]:
        raise CompareError(f"the program does not return {', '.join(missing)}; see export(cache=…)")
    slots = _size(program, MASK)  # the mask of a static cache is as long
    if 0 < slots < tokens and not all(0 < window <= slots for window in windows):
        raise CompareError(f"{tokens} tokens need as many slots, unless all windows are smaller, not {slots}")
    return slots


def _size(program: Program, name: str) -> int:
    """Return the number of tokens that an input of a program has for each sequence; 0 if it is not fixed."""
    found = next((item for item in program.graph.inputs if item.endswith(name)), None)
    shape = None if found is None else program.graph.values[found].shape
    size = shape[1] if shape is not None and len(shape) > 1 else None
    return size if isinstance(size, int) else 0
