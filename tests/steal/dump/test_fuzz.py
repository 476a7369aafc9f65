"""Real dumps, damaged at random: each is read or refused, soon and in little memory, and nothing of it runs.

The suite takes a sample; `make fuzz` takes 20,000 cases, or `make fuzz CASES=…`.
"""

import contextlib
import copy
import dataclasses
import gc
import json
import logging
import mmap
import os
import re
import signal
import sys
import time
import warnings
from collections import Counter, OrderedDict
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from google.protobuf.message import DecodeError
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from torch import nn
from torch.masked import masked_tensor

from filch.steal import DumpError, restore, steal_append, steal_forward, tensors
from filch.steal.values._structure import structure
from support.models.small import module_of
from support.thorough import slow

CASES = int(os.environ.get("FILCH_FUZZ_CASES", "300"))
SECONDS = 2
MEMORY = 64 * 2**20
SIZE = 900_000  # maximum size of a file: the limits apply to files under 1 MB

NORESERVE = 0x4000  # Python has no name for it before 3.13

log = logging.getLogger("fuzz")

pytestmark = [
    pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="only Linux tells what memory it took"),
    pytest.mark.filterwarnings("ignore:The PyTorch API of (nested|MaskedTensors):UserWarning"),
    pytest.mark.filterwarnings("ignore:Sparse .* tensor support is in beta state:UserWarning"),
    pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor.*deprecated:UserWarning"),
]


# ---- checking a step


class FaultError(AssertionError):
    """Reading a dump misbehaved."""


class _Hang(BaseException):  # `except Exception` does not catch it
    pass


@dataclasses.dataclass(frozen=True)
class Key:
    """A dictionary key."""

    row: int
    column: tuple


@dataclasses.dataclass
class Watched:
    """Records when code of its class runs."""

    value: object = None
    ran = []  # noqa: RUF012  shared by all instances

    def __post_init__(self):
        self.ran.append("constructor")

    def __setattr__(self, name, value):
        self.ran.append("attribute")
        super().__setattr__(name, value)

    def __reduce__(self):
        self.ran.append("pickle")
        return super().__reduce__()


def check_steps(steps, seconds=SECONDS, memory=MEMORY):
    """Run steps, which may only succeed or raise DumpError.

    Returns:
        `"refused"`, `"read in part"` or `"read"`.

    Raises:
        FaultError: a step did anything else, or all of them took too much time or memory.
    """
    Watched.ran.clear()
    outcomes = []
    with _limits(seconds, memory), warnings.catch_warnings():
        modules = set(sys.modules)
        warnings.simplefilter("error")
        for step in steps:
            try:
                step()
                outcomes.append("read")
            except DumpError as error:
                _check_sentence(str(error))
                outcomes.append("refused")
            except Exception as error:
                raise FaultError(f"it raised {type(error).__name__}: {error}") from error
    if Watched.ran:
        raise FaultError(f"it ran the {Watched.ran[0]} of a class")
    if set(sys.modules) != modules:
        raise FaultError(f"it imported {sorted(set(sys.modules) - modules)}")
    return outcomes[0] if len(set(outcomes)) == 1 else "read in part"


def _check_sentence(text):
    if not text or len(text) > 1000 or not text.isprintable():
        raise FaultError(f"its message is not one short printable line: {text[:200]!r}, {len(text)} characters")


@contextlib.contextmanager
def _limits(seconds, memory):
    def hang(*_):
        raise _Hang

    former = signal.signal(signal.SIGALRM, hang)
    # Again later: an import or decoding in progress may swallow the first exception.
    signal.setitimer(signal.ITIMER_REAL, seconds, seconds)
    start, before = time.perf_counter(), _memory(reset=True)
    try:
        yield
        taken = time.perf_counter() - start
    except _Hang:
        raise FaultError(f"it takes more than {seconds} s") from None
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, former)
    if taken > seconds:  # for instance in one long C call
        raise FaultError(f"it takes {taken:.1f} s")
    for name, now in _memory().items():
        if now - before[name] > memory:
            raise FaultError(f"it takes {(now - before[name]) >> 20} MB ({name})")


def _memory(*, reset=False):
    """Return the peak memory in bytes: resident since the last reset, and ever allocated."""
    if reset:
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
    found = dict(re.findall(r"(VmHWM|VmPeak):\s+(\d+) kB", Path("/proc/self/status").read_text(encoding="ascii")))
    return {name: int(amount) * 1024 for name, amount in found.items()}


def _read_all(path):
    """Return steps that each read something of the dump at `path`."""
    found = []
    yield lambda: found.append(restore(path))
    if not found:
        return
    [dump] = found
    yield lambda: dump.tensors
    yield dump.describe
    yield dump.calls
    yield lambda: repr((dump, dump.modules, dump.environment, dump.failed))
    for key in dump:
        yield lambda key=key: dump.nbytes(key)
        yield lambda key=key: _touch(dump[key], set())
        yield lambda key=key: (tensors(dump[key]), structure(dump[key]))


def _touch(value, seen):
    """Read the bytes of all tensors in a value."""
    if id(value) in seen:
        return
    seen.add(id(value))
    if isinstance(value, dict | list | tuple):
        for item in value.values() if isinstance(value, dict) else value:
            _touch(item, seen)
    elif type(value) is torch.Tensor and value.layout == torch.strided and not value.is_nested:
        storage = value.untyped_storage()
        if storage.data_ptr() not in seen:
            seen.add(storage.data_ptr())
            storage.clone()


# ---- real dumps


def _model(folder, **options):
    # Two layers, of which the second one's inputs come from the first.
    module = module_of(lambda self, x: self.second(self.first(x).relu()), first=nn.Linear(3, 4), second=nn.Linear(4, 2))
    with steal_forward(("pair", module), submodules=True, dump_file=folder / "dump.onnx", **options):
        module(torch.ones(2, 3))
        module(torch.zeros(1, 3))


def _kinds(folder, **options):
    whole = torch.arange(6.0)
    value = {
        "tensors": [whole, whole[2:], torch.ones(2, 3).T, torch.zeros(0, 2), torch.ones(2, dtype=torch.complex64)],
        "others": [
            torch.Size([2]),
            torch.float16,
            torch.device("cpu"),
            slice(1, None),
            range(3),
            b"a",
            object(),
            {1, 2},
        ],
        "numbers": (1, 2**70, 1.5, float("nan"), 1j, None, True),
        ("key", 1): OrderedDict(array=np.ones(2), scalar=np.float32(1), watched=Watched(1), bits=torch.ones(3) > 0),
        "again": torch.max(torch.ones(2, 2), 0),
    }
    value["same"] = value["tensors"]
    value[Key(1, (2,))] = [
        nn.Parameter(torch.ones(2, 3).T),
        torch.ones(1, 2).expand(3, 2),
        torch.eye(3).to_sparse(),
        torch.eye(3).to_sparse_csr(),
        torch.nested.nested_tensor([torch.ones(2), torch.zeros(1)]),
        torch.nested.nested_tensor([torch.ones(2), torch.zeros(1)], layout=torch.jagged),
        torch.quantize_per_tensor(torch.ones(3), 0.1, 3, torch.quint8),
        masked_tensor(torch.ones(2), torch.tensor([True, False])),
        np.asfortranarray(np.ones((2, 3))),
        np.array(["a", "b"]),
        np.ones(2, ">f4"),
    ]
    with steal_forward(("m", nn.Identity()), dump_file=folder / "dump.onnx", **options):
        steal_append("kinds", value)
        steal_append("kinds", torch.ones(300).bfloat16())


def _nothing(folder):
    with steal_forward(("m", nn.Identity()), dump_file=folder / "dump.onnx"):
        pass


MAKERS = {
    "model": _model,
    "model, beside": _model,
    "kinds": _kinds,
    "kinds, beside": _kinds,
    "packed": lambda folder: _kinds(folder, compress=True),
    "packed, beside": lambda folder: _kinds(folder, compress=True),
    "statistics": lambda folder: _kinds(folder, statistics_only=True),
    "nothing": _nothing,
}


class _Dumps(dict):
    def __repr__(self):
        return "dumps"  # hypothesis prints the arguments of a strategy


@pytest.fixture(scope="module")
def dumps(tmp_path_factory):
    """Return the bytes of some real dumps: of the model, and of its data file or None."""
    found = _Dumps()
    for name, make in MAKERS.items():
        folder = tmp_path_factory.mktemp("dump")
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("filch.steal.dump._format.INLINE_LIMIT", 0 if "beside" in name else 2**20)
            make(folder)
        data = folder / "dump.onnx.data"
        assert data.exists() == ("beside" in name)
        found[name] = ((folder / "dump.onnx").read_bytes(), data.read_bytes() if data.exists() else None)
    return found


# ---- damage

WORDS = """
    tensor numpy tuple list dict set fields state class shared same skipped reason int float complex bytes size torch
    device enum type slice range sparse nested masked quantized order expand requires_grad attributes constant bits
    scalar parts part statistics rows layout values indices outer inner data mask scale zero_point axis coalesced shape
    jagged strided sparse_coo sparse_csr readonly F |S4 >f4 <U1 what content minimum nan inf zlib
    float32 complex64 bool uint8 float4_e2m1fn_x2 cpu cuda:0 meta load os:system 0x10 ff enum:Enum
    torch.nn.parameter:Parameter torch:Tensor collections:OrderedDict collections:deque builtins:mappingproxy
    torch.return_types:max dump.onnx dump.onnx.data ../x /dev/zero
""".split()  # noqa: SIM905  shorter than a list
WORDS += [f"{__name__}:Watched", "\ud800"]
NUMBERS = [
    -1, 0, 1, 2, 63, 64, 2**31, 2**32, 2**53, 2**61 - 1, 2**63 - 1, 2**63, 2**64, 10**400, -(2**63), 1e308, 1e400,
]  # fmt: skip
PLACES = [*map(str, NUMBERS), *WORDS[:-1], "64", "128", "4096", "１", "1_0", " 1", "9" * 5000]  # noqa: RUF001
_leaves = st.one_of(
    st.none(), st.booleans(), st.sampled_from(NUMBERS), st.integers(0, 20), st.sampled_from(WORDS), st.text(max_size=4)
)
_json = st.recursive(
    _leaves,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from(WORDS), inner, min_size=1, max_size=3),
    max_leaves=8,
)
_byte_damage = st.sampled_from(["flip", "flip", "insert", "delete", "copy", "cut", "repeat"])


def _damaged_bytes(draw, whole):
    """Draw bytes with some of them changed, inserted, removed, copied, truncated or repeated."""
    way = draw(_byte_damage)
    start = draw(st.integers(0, len(whole)))
    stop = draw(st.integers(start, min(len(whole), start + 64)))
    if way == "cut":
        return whole[:start]
    if way == "delete":
        return whole[:start] + whole[stop:]
    if way == "copy":
        to = draw(st.integers(0, len(whole)))
        return whole[:to] + whole[start:stop] + whole[to:]
    if way == "repeat":
        return whole[:start] + whole[start:stop] * _times(draw, len(whole), stop - start) + whole[stop:]
    fresh = draw(st.binary(min_size=1, max_size=8))
    return whole[:start] + fresh + whole[start + (len(fresh) if way == "flip" else 0) :]


def _times(draw, whole, part):
    """Draw how often a part is repeated: rarely up to the maximum size of the file."""
    few = draw(st.integers(0, 20))
    return few if few < 20 else max(0, SIZE - whole) // max(part, 1)


def _damaged_json(draw, text):
    """Draw JSON with one value replaced, removed, doubled or repeated."""
    if isinstance(text, bytes):  # it is not UTF-8 any more
        return text
    try:
        right = json.loads(text)
    except ValueError:
        return _damaged_text(draw, text)
    places = list(_places(right))
    *above, last = draw(st.sampled_from(places)) or (None,)
    way = draw(st.sampled_from(["replace", "replace", "move", "move", "delete", "repeat", "text"]))
    if way == "text" or last is None:
        return _damaged_text(draw, text)
    changed = copy.deepcopy(right)
    inside = _at(changed, above)
    if way == "replace":
        inside[last] = draw(_json)
    elif way == "move":
        inside[last] = copy.deepcopy(_at(right, draw(st.sampled_from(places))))
    elif way == "delete":
        del inside[last]
    elif isinstance(inside, list):
        part = len(json.dumps(inside[last])) + 2
        inside[last:last] = [inside[last]] * _times(draw, len(text), part)
    return json.dumps(changed)


def _damaged_text(draw, text):
    return _damaged_bytes(draw, text.encode(errors="replace")).decode(errors="replace")


def _places(value, path=()):
    yield path
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in items:
        yield from _places(item, (*path, key))


def _at(value, path):
    for key in path:
        value = value[key]
    return value


def _damaged_node(draw, model):
    """Damage a node or its tensor."""
    nodes = model.graph.node
    if not nodes:
        return
    index = draw(st.integers(0, len(nodes) - 1))
    node = nodes[index]
    tensor = node.attribute[0].t if node.attribute else onnx.TensorProto()
    ways = [
        "dims", "type", "raw", "where", "name", "word", "node", "attribute",
        *["place"] * 2 * len(tensor.external_data),
    ]  # fmt: skip
    way = draw(st.sampled_from(ways))
    if way == "dims":
        tensor.dims[:] = draw(st.lists(st.sampled_from([0, 1, 2, 3, 6, 2**40, 2**62, -1]), max_size=70))
    elif way == "type":
        tensor.data_type = draw(st.integers(-1, 30))
    elif way == "raw":
        tensor.raw_data = _damaged_bytes(draw, tensor.raw_data)
    elif way == "where":
        tensor.data_location = draw(st.sampled_from([0, 1]))
    elif way == "place":
        entry = draw(st.sampled_from(list(tensor.external_data)))
        entry.value = draw(st.sampled_from(PLACES))
    elif way == "name":
        node.output[:] = draw(st.lists(st.sampled_from([*node.output, "x", nodes[0].name]), max_size=2))
    elif way == "word":
        node.op_type = draw(st.sampled_from(["Constant", "Loop", ""]))
    else:
        _repeat(draw, nodes if way == "node" else node.attribute, model.ByteSize())


def _repeat(draw, whole, size):
    """Remove an item of a repeated protobuf field, or repeat it many times."""
    if not whole:
        return
    index = draw(st.integers(0, len(whole) - 1))
    part = copy.deepcopy(whole[index])
    if count := _times(draw, size, part.ByteSize() + 4):
        whole.extend([part] * count)
    else:
        del whole[index]


def _damaged_model(draw, contents):
    """Draw a model with damage to its index, its nodes or the rest; bytes if it is not a model any more."""
    model = onnx.ModelProto()
    try:
        model.ParseFromString(contents)
    except DecodeError:
        return _damaged_bytes(draw, contents)
    way = draw(st.sampled_from(["json", "json", "json", "node", "node", "part"]))
    props = model.metadata_props
    with contextlib.suppress(ValueError):  # protobuf refuses lone surrogates, and returns bytes that are not UTF-8
        if way == "node":
            _damaged_node(draw, model)
        elif props:
            entry = draw(st.sampled_from(list(props)))
            if way == "json":
                entry.value = _damaged_json(draw, entry.value)
            elif draw(st.booleans()):
                props.add(key=entry.key, value=draw(st.sampled_from(list(props))).value)
            else:
                props.remove(entry)
    return model.SerializeToString()


@st.composite
def damage(draw, dumps):
    """Draw a model and its data of less than 1 MB, of which at least one is damaged."""
    contents, data = dumps[draw(st.sampled_from(sorted(dumps)))]
    for _ in range(draw(st.sampled_from([1, 1, 1, 2, 3]))):
        where = draw(st.sampled_from(["model", "model", "model", "bytes", "data"]))
        if where == "data" and data is not None:
            data = _damaged_bytes(draw, data)
        elif where == "model":
            contents = _damaged_model(draw, contents)
        else:
            contents = _damaged_bytes(draw, contents)
    return contents[:SIZE], None if data is None else data[:SIZE]


def _two_lines():
    raise DumpError("this\nand that")


def _reserve():
    """Allocate more memory than ever before, without touching it."""
    more = _memory()["VmPeak"] + 2**28
    mmap.mmap(-1, more, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | NORESERVE)


def _import():
    sys.modules["planted"] = None


@pytest.mark.parametrize(
    ("step", "message"),
    [
        (lambda: {}["x"], "it raised KeyError: 'x'"),
        (lambda: int("x"), "it raised ValueError"),
        (lambda: warnings.warn("of something", UserWarning, stacklevel=1), "it raised UserWarning: of something"),
        (_two_lines, "its message is not one short printable line"),
        (_import, r"it imported \['planted'\]"),
        (lambda: Watched(1), "it ran the attribute of a class"),
        (lambda: time.sleep(2), r"it takes more than 0\.2 s"),
        (lambda: sum(range(5 * 10**7)), r"it takes \d+\.\d s|it takes more than 0\.2 s"),
        (lambda: bytearray(2**28), r"it takes \d+ MB"),
        (lambda: torch.ones(2**26), r"it takes 2\d\d MB"),
        (_reserve, r"it takes \d+ MB \(VmPeak\)"),
    ],
)
def test_the_fuzzer_detects_every_planted_fault(monkeypatch, step, message):
    """Every kind of misbehavior that reading a dump must not show."""
    monkeypatch.setitem(sys.modules, "planted", None)
    del sys.modules["planted"]
    gc.collect()  # what other tests have left would be freed while the memory is measured

    with pytest.raises(FaultError, match=message):
        check_steps([step], seconds=0.2 if message.endswith(" s") else 30)  # other processes may keep this one waiting


def test_the_fuzzer_detects_memory_below_the_peak_of_the_process():
    """An earlier peak of the process must not hide the memory of a step."""
    torch.empty(2**29, device="cpu")
    gc.collect()

    with pytest.raises(FaultError, match=r"it takes 2\d\d MB \(VmHWM\)"):
        check_steps([lambda: torch.ones(2**26)], seconds=30)


def test_the_fuzzer_accepts_refusals():
    """Whether all records are refused, some or none."""

    def refuse():
        raise DumpError("it is damaged")

    assert check_steps([refuse]) == "refused"
    assert check_steps([dict, refuse]) == "read in part"
    assert check_steps([dict, dict]) == "read"


@slow
def test_a_dump_with_random_damage_is_read_or_refused(dumps, tmp_path):
    """No crash, no hang, no large allocation, no foreign code, and no exception other than DumpError."""
    path, data = tmp_path / "dump.onnx", tmp_path / "dump.onnx.data"
    outcomes, start = Counter(), time.perf_counter()
    torch.ones(2**20).clone()  # one-time imports and threads must not count as memory of a dump
    for contents, more in dumps.values():
        path.write_bytes(contents)
        data.write_bytes(more or b"")
        for step in _read_all(path):
            step()

    @settings(
        max_examples=CASES,
        deadline=None,
        database=None,
        derandomize="FILCH_FUZZ_CASES" not in os.environ,
        phases=(Phase.generate, Phase.shrink),
        suppress_health_check=list(HealthCheck),
    )
    @given(damage(dumps))
    def run(case):
        path.write_bytes(case[0])
        data.unlink(missing_ok=True)
        if case[1] is not None:
            data.write_bytes(case[1])
        outcomes[check_steps(_read_all(path))] += 1
        if outcomes.total() % 1000 == 0:
            log.info("%s cases in %.0f s: %s", outcomes.total(), time.perf_counter() - start, dict(outcomes))

    run()

    log.info("%s cases in %.0f s: %s", outcomes.total(), time.perf_counter() - start, dict(outcomes))
    assert outcomes.total() >= CASES
    assert min(outcomes["refused"], outcomes["read"], outcomes["read in part"]) > CASES // 100
