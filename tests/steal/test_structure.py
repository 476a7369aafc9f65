"""Any nesting of values comes back as it was; what can't be stored says why, and what can't be rebuilt can be read."""

import collections
import dataclasses
import enum
import functools
import subprocess
import sys
from types import SimpleNamespace
from typing import NamedTuple

import numpy as np
import pytest
import torch
from torch import nn
from transformers.modeling_outputs import BaseModelOutputWithPast

from filch.steal import Foreign, Skipped, restore, steal_forward, structure, tensors


class Point(NamedTuple):
    x: torch.Tensor
    y: object = None


class Colour(enum.Enum):
    RED = "red"
    NONE = 0


class Level(enum.IntEnum):
    LOW = 0
    HIGH = 1


class Mode(enum.StrEnum):
    FAST = "fast"


class Access(enum.Flag):
    READ = 1
    WRITE = 2


@dataclasses.dataclass
class Plain:
    values: list
    name: str = "plain"


@dataclasses.dataclass(frozen=True, slots=True)
class Frozen:
    values: dict


@dataclasses.dataclass
class Checking:
    """Its constructor must not run again."""

    value: torch.Tensor

    def __post_init__(self):
        self.value = self.value + 1


ONE = torch.ones(2)
VALUES = {
    "None": None,
    "booleans": [True, False],
    "integers": [0, -1, 2**53, 2**53 + 1, -(2**70), 10**30],
    "floats": [0.0, -0.0, 1.5, 1e-320, float("inf"), float("-inf"), float("nan"), 0.1],
    "complex numbers": [1 + 2j, complex(float("nan"), -0.0), complex(float("-inf"), 0.1)],
    "strings": ["", "ö", "a\nb", "\ud800", '"', "x" * 1000],
    "bytes": [b"", b"\x00\xff"],
    "empty containers": [[], (), {}, [[]], ([],), {"a": {}}, (((),),)],
    "tuples in lists": [(ONE, 1), [(ONE,)], ((ONE, [ONE]),)],
    "dictionaries in dictionaries": {"a": {"b": {"c": ONE}}, "d": [ONE, {"e": None}]},
    "keys of any type": {0: ONE, "0": 1, None: 2, True: 3, 1.5: 4, (1, ("a", None)): 5, b"b": 6, Colour.RED: 7},
    "order of keys": {"z": 1, "a": 2, "m": 3},
    "ordered dictionary": collections.OrderedDict([("b", ONE), ("a", 1)]),
    "named tuple": Point(ONE, Point(ONE)),
    "dataclass": Plain([ONE, Plain([])]),
    "frozen dataclass with slots": Frozen({"a": ONE}),
    "model output": BaseModelOutputWithPast(last_hidden_state=ONE, hidden_states=(ONE, ONE)),
    "result of torch.max": torch.max(torch.eye(3), dim=0),
    "torch.Size": [torch.Size([2, 3]), torch.Size([])],
    "dtypes": [torch.float32, torch.bfloat16, torch.float8_e4m3fn, torch.complex64, torch.quint8, torch.bits8],
    "layouts and memory formats": [torch.strided, torch.sparse_coo, torch.channels_last, torch.preserve_format],
    "devices": [torch.device("cpu"), torch.device("cuda", 1), torch.device("meta")],
    "slices": [slice(None), slice(1, None, -1), slice(0, 2**70), (slice(None), 0, None)],
    "ranges": [range(3), range(10, 0, -3), range(2**70)],
    "enumerations": [Colour.RED, Colour.NONE, Level.LOW, Level.HIGH, Mode.FAST, Access.READ],
    "arrays": [
        np.arange(6).reshape(2, 3), np.float16([1.5, np.nan]), np.zeros((0, 2)), np.array(3.0), np.array([True]),
        np.array([1 + 2j]), np.arange(6.0)[::-2], np.arange(4, dtype=np.uint16), np.arange(6).reshape(2, 3).T,
    ],
    "scalars of numpy": [
        np.float32(1.5), np.int64(-1), np.bool_(True), np.complex64(1j), np.float64("nan"), np.uint64(2**64 - 1),
    ],
}  # fmt: skip


@pytest.mark.parametrize("name", VALUES)
def test_a_value_comes_back_as_it_was(remembered, restored, differ, name):
    """From memory and from a dump: same types, same order, same bits."""
    value = VALUES[name]

    assert differ(restored(value), value) is None
    assert differ(remembered(value), value) is None


def test_nothing_runs_when_a_value_is_rebuilt(restored):
    """Neither a constructor nor `__post_init__`: the fields are what they were."""
    value = Checking(torch.zeros(1))

    assert restored(value).value.item() == 1


def test_a_model_output_is_usable_again(restored):
    """By attribute, key and index, its None fields left out of the last two."""
    found = restored(BaseModelOutputWithPast(last_hidden_state=ONE))

    assert torch.equal(found.last_hidden_state, ONE)
    assert found.past_key_values is None
    assert list(found.keys()) == ["last_hidden_state"]
    assert torch.equal(found[0], ONE)
    assert torch.equal(found["last_hidden_state"], ONE)


def test_other_mappings_lists_and_tuples_come_back_as_the_plain_ones(restored, differ):
    """What they hold is what counts; their classes may need more than their items."""

    class Stack(list):
        pass

    class Pair(tuple):
        __slots__ = ()

    value = [collections.defaultdict(list, a=ONE), collections.Counter("a"), Stack([ONE]), Pair((1, 2))]

    assert differ(restored(value), [{"a": ONE}, {"a": 1}, [ONE], (1, 2)]) is None


def test_numbers_and_strings_of_own_classes_come_back_as_the_plain_ones(restored, differ):
    """A subclass adds nothing that a model computes with."""

    class Count(int):
        pass

    class Text(str):
        __slots__ = ()

    assert differ(restored([Count(3), Text("a")]), [3, "a"]) is None


SKIPPED = {
    "object": (object(), "builtins:object", "Filch does not know how to store it"),
    "function": (len, "builtins:builtin_function_or_method", "Filch does not know how to store it"),
    "class": (int, "builtins:type", "Filch does not know how to store it"),
    "set": ({1}, "builtins:set", "Filch does not know how to store it"),
    "namespace": (SimpleNamespace(a=1), "types:SimpleNamespace", "Filch does not know how to store it"),
    "generator": (torch.Generator(), "torch._C:Generator", "Filch does not know how to store it"),
    "module": (nn.Identity(), "torch.nn.modules.linear:Identity", "Filch does not know how to store it"),
    "slice of strings": (slice("a", "b"), "builtins:slice", "Filch does not know how to store it"),
    "several flags": (Access.READ | Access.WRITE, f"{__name__}:Access", "Filch does not know how to store it"),
    "no flag": (Access(0), f"{__name__}:Access", "Filch does not know how to store it"),
    "array of objects": (np.array([None]), "numpy:ndarray", "Filch does not know how to store it"),
    "array of strings": (np.array(["a"]), "numpy:ndarray", "torch has no dtype <U1"),
    "array of dates": (np.array(["2020"], "M8[Y]"), "numpy:ndarray", "torch has no dtype datetime64[Y]"),
    "array of the other byte order": (np.ones(1, ">f4"), "numpy:ndarray", "torch has no dtype >f4"),
}


@pytest.mark.parametrize("name", SKIPPED)
def test_what_can_not_be_stored_is_recorded_with_its_type_and_the_reason(remembered, restored, name):
    """And what stands beside it is stored."""
    value, what, reason = SKIPPED[name]

    assert remembered(value) == Skipped(what, reason)
    assert restored([1, value, 2]) == [1, Skipped(what, reason), 2]


class Unreadable(collections.abc.Mapping):
    """A mapping of a user's that can't be read."""

    def __getitem__(self, key):
        raise NotImplementedError

    def __iter__(self):
        raise OSError("closed")

    def __len__(self):
        return 1


@dataclasses.dataclass
class Lazy:
    value: int = 0

    def __getattribute__(self, name):
        if name == "value":
            raise RuntimeError("not yet")
        return super().__getattribute__(name)


@pytest.mark.parametrize(("value", "error"), [(Unreadable(), "OSError"), (Lazy(), "RuntimeError")])
def test_a_value_that_can_not_be_read_does_not_end_the_run(remembered, value, error):
    """The error of the user's class is the reason why it was skipped."""
    assert remembered([value])[0].reason == f"reading it raised {error}"


def test_keys_that_can_not_be_stored_do_not_fall_together(restored):
    """As many entries come back as there were, and the other keys with them."""
    value = {object(): torch.zeros(1), object(): torch.ones(1), nn.Parameter(ONE): 2, "a": 3, np.int64(7): 4}

    found = restored(value)

    assert [str(item) for item in found.values()] == ["tensor([0.])", "tensor([1.])", "2", "3", "4"]
    assert list(found) == [
        Skipped("builtins:object", "it is key 0 of a dictionary"),
        Skipped("builtins:object", "it is key 1 of a dictionary"),
        Skipped("f32[2]", "it is key 2 of a dictionary"),
        "a",
        7,
    ]


def test_a_value_that_contains_itself_is_cut_where_it_closes(remembered, differ):
    """A tree whose children know their parents is stored once, not a hundred levels deep and more often each level."""
    root = {"value": ONE, "children": []}
    root["children"] += [{"value": 1, "parent": root}, {"value": 2, "parent": root}]
    cut = Skipped("builtins:dict", "it contains itself")

    found = remembered(root)

    assert differ(found, {"value": ONE, "children": [{"value": 1, "parent": cut}, {"value": 2, "parent": cut}]}) is None


def test_a_shared_object_is_stored_wherever_it_stands(restored, differ):
    """Only what contains itself is cut."""
    shared = [ONE]

    assert differ(restored([shared, {"a": shared}]), [[ONE], {"a": [ONE]}]) is None


def test_very_deep_nesting_ends_in_a_reason(restored):
    """A hundred levels come back, those of the arguments among them; what lies deeper is skipped."""
    value = functools.reduce(lambda inner, _: [inner], range(150), ONE)

    found, levels = restored(value), 0
    while isinstance(found, list):
        found, levels = found[0], levels + 1

    assert levels == 101 - 2
    assert found == Skipped("builtins:list", "it is nested too deeply")


def test_paths_of_tensors_read_as_python():
    """Each tensor by the expression that leads to it."""
    value = {"a": [ONE, Point(ONE, Plain([ONE]))], 3: BaseModelOutputWithPast(last_hidden_state=ONE), "n": np.zeros(2)}

    assert list(tensors(value)) == [
        "['a'][0]", "['a'][1].x", "['a'][1].y.values[0]", "[3].last_hidden_state", "['n']",
    ]  # fmt: skip
    assert tensors(ONE)[""] is ONE
    assert tensors(5) == {}


def test_values_built_alike_have_equal_structures():
    """Numbers of tensors do not count; everything else does."""
    assert structure([ONE, {"a": 1}]) == structure([torch.zeros(5), {"a": 1}])
    assert structure([ONE, {"a": 1}]) != structure([ONE, {"a": 2}])
    assert structure([ONE]) != structure((ONE,))
    assert structure([ONE]) != structure([None])


CLASSES = """
import dataclasses, enum
from typing import NamedTuple

@dataclasses.dataclass
class State:
    hidden: object
    inner: object = None

class Pair(NamedTuple):
    left: object
    right: object

class Kind(enum.Enum):
    CODER = 1

class Outer:
    @dataclasses.dataclass
    class Inner:
        value: object
"""

READ = """
import sys
from filch.steal import describe, restore, tensors
found = restore(sys.argv[1])["echo", 0, "I"][0][0]
assert "strange_classes" not in sys.modules
print(*tensors(found))
print(describe(found))
print(type(found).__name__, found["s"].type_name, found["s"].inner.left.item(), found["k"].name)
try:
    found["s"].wrong
except AttributeError as error:
    print(error)
"""


def test_classes_that_are_not_imported_can_be_read_all_the_same(tmp_path, echo, monkeypatch):
    """In another process, without the model's code, each object has its class's name, its fields and the same paths."""
    (tmp_path / "strange_classes.py").write_text(CLASSES)
    monkeypatch.syspath_prepend(tmp_path)
    import strange_classes as strange

    value = {
        "s": strange.State(torch.zeros(2), strange.Pair(torch.ones(1), 5)),
        "i": strange.Outer.Inner([torch.zeros(3)]),
        "k": strange.Kind.CODER,
    }
    module = echo()
    with steal_forward(("echo", module), dump_file=tmp_path / "dump.onnx"):
        module(value)
    monkeypatch.delitem(sys.modules, "strange_classes")

    command = [sys.executable, "-c", READ, str(tmp_path / "dump.onnx")]
    shown = subprocess.run(command, check=True, capture_output=True, text=True, cwd=tmp_path).stdout

    assert shown.splitlines() == [
        " ".join(tensors(value)),
        "{s: State(hidden=f32[2], inner=Pair(left=f32[1], right=5)), i: Inner(value=[f32[3]]), k: Kind(name='CODER')}",
        "dict strange_classes:State 1.0 CODER",
        "strange_classes:State was stored without 'wrong'",
    ]
    found = restore(tmp_path / "dump.onnx")["echo", 0, "I"][0][0]
    assert isinstance(found["s"], Foreign)
    assert list(tensors(found)) == list(tensors(value))


def test_a_class_that_has_changed_since_is_read_like_one_that_is_not_there(monkeypatch):
    """Fields that the class of today does not have would otherwise be lost or run its code."""

    @dataclasses.dataclass
    class Renamed:
        other: object

    module = nn.Identity()
    with steal_forward(("m", module)) as capture:
        module([Plain([1]), Point(2), Colour.RED])

    monkeypatch.setattr(sys.modules[__name__], "Plain", Renamed)
    monkeypatch.setattr(sys.modules[__name__], "Point", NamedTuple("Point", [("z", object)]))
    monkeypatch.setattr(sys.modules[__name__], "Colour", Level)
    plain, point, colour = capture["m", 0, "O"]

    assert plain == Foreign(f"{__name__}:Plain", {"values": [1], "name": "plain"})
    assert point == Foreign(f"{__name__}:Point", {"x": 2, "y": None})
    assert colour == Foreign(f"{__name__}:Colour", {"name": "RED"})


def test_what_is_foreign_can_be_stolen_again(remembered, restored):
    """A value restored without its class goes through another capture unchanged."""
    value = Foreign("gone:State", {"hidden": 1, "inner": Foreign("gone:Pair", {"left": [2]})})

    assert restored(value) == value
    assert remembered(value) == value
