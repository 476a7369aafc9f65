"""Nested values are restored, skipped with a reason, or readable as `Foreign`."""

import collections
import dataclasses
import enum
import functools
import itertools
import json
import struct
import sys
import time
import tracemalloc
import types
from typing import NamedTuple

import ml_dtypes
import numpy as np
import pytest
import torch
from torch import nn
from torch.utils import _pytree as pytree
from transformers.modeling_outputs import BaseModelOutputWithPast

from filch.steal import DumpError, Foreign, Skipped, describe, missing_tensors, restore, steal_forward, tensors
from filch.steal.values._decode import decode
from filch.steal.values._encode import encode
from filch.steal.values._structure import structure
from support.processes.forked import run_python
from support.thorough import slow


class Point(NamedTuple):
    x: torch.Tensor
    y: object = None


class Color(enum.Enum):
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


class Bits(enum.IntFlag):
    LOW = 1
    HIGH = 2


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
    made: int = dataclasses.field(init=False, default=7)

    def __post_init__(self):
        self.value = self.value + 1


@dataclasses.dataclass(frozen=True)
class Position:
    row: int
    column: tuple = ()


class Stack(list):
    """A list with a `__dict__`."""


class Pair(tuple):
    __slots__ = ()


class Named(dict):
    __slots__ = ("first", "name", "unset")

    def __init__(self, *args):
        raise AssertionError("it must not run again")


class Settings(collections.UserDict):
    """A mapping that is not a dict."""


class Group:
    """A class that is registered with torch's pytree."""

    def __init__(self, left, right):
        self.left, self.right = left, right


pytree.register_pytree_node(
    Group,
    lambda group: ((group.left, group.right), "context"),
    lambda items, _: Group(*items),
    flatten_with_keys_fn=lambda group: (
        [(pytree.GetAttrKey("left"), group.left), (pytree.GetAttrKey("right"), group.right)],
        "context",
    ),
)


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
    "keys of any type": {
        0: ONE, "0": 1, None: 2, True: 3, 1.5: 4, (1, ("a", None)): 5, b"b": 6, Color.RED: 7, Position(1, (2,)): 8,
        frozenset({1}): 9, torch.float32: 10,
    },
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
    "enumerations": [Color.RED, Color.NONE, Level.LOW, Level.HIGH, Mode.FAST, Access.READ],
    "flags": [Access.READ | Access.WRITE, Access(0), Bits.LOW | Bits.HIGH, Bits(0), Bits(6)],
    "sets": [set(), {1, "a", (2, None)}, frozenset(), frozenset({1.5, frozenset({2})})],
    "queues": [collections.deque(), collections.deque([1, 2], 3), collections.deque("ab")],
    "counters": collections.Counter("aab"),
    "read-only mapping": types.MappingProxyType({"a": ONE}),
    "namespaces": [types.SimpleNamespace(), types.SimpleNamespace(a=1, b=[2])],
    "byte arrays": [bytearray(b""), bytearray(b"a\0")],
    "constants": [Ellipsis, NotImplemented],
    "arrays": [
        np.arange(6).reshape(2, 3), np.float16([1.5, np.nan]), np.zeros((0, 2)), np.array(3.0), np.array([True]),
        np.array([1 + 2j]), np.arange(6.0)[::-2], np.arange(4, dtype=np.uint16), np.arange(6).reshape(2, 3).T,
        np.ones(3, ">f4"), np.array(["a", "böse"]), np.array([b"ab", b""]), np.array(["2020-01"], "M8[M]"),
        np.array([], "U3"), np.ones((2, 0), ">i8"), np.ones(2, ml_dtypes.bfloat16),
        np.ones((2, 1), ml_dtypes.float8_e4m3fn),
    ],
    "scalars of numpy": [
        np.float32(1.5), np.int64(-1), np.bool_(True), np.complex64(1j), np.float64("nan"), np.uint64(2**64 - 1),
        np.str_("a"), np.datetime64("2020"), np.timedelta64(3, "s"), ml_dtypes.bfloat16(1.5),
    ],
}  # fmt: skip


@pytest.mark.parametrize("name", VALUES)
def test_values_are_restored(captured, restored, differ, name):
    """From memory and from a dump, with the same types, order and bits."""
    value = VALUES[name]

    assert differ(restored(value), value) is None
    assert differ(captured(value), value) is None


def test_no_constructor_runs_when_a_value_is_rebuilt(restored):
    """Neither `__init__` nor `__post_init__`; the fields are as they were."""
    value = Checking(torch.zeros(1))

    assert restored(value).value.item() == 1
    assert restored(value).made == 7


def test_a_restored_model_output_is_usable(restored):
    """By attribute, key and index; None fields are omitted from the last two."""
    found = restored(BaseModelOutputWithPast(last_hidden_state=ONE))

    assert torch.equal(found.last_hidden_state, ONE)
    assert found.past_key_values is None
    assert list(found.keys()) == ["last_hidden_state"]
    assert torch.equal(found[0], ONE)
    assert torch.equal(found["last_hidden_state"], ONE)


def test_container_subclasses_are_restored_with_their_attributes(restored, captured):
    """Their class, items, `__dict__` and the slots that are set."""
    stack, named = Stack([ONE]), Named.__new__(Named)
    stack.note, named.first, named.name = torch.zeros(3), 1, "n"
    named["a"] = 2

    for send in (restored, captured):
        found = send([stack, Pair((1, 2)), named])
        assert [type(item) for item in found] == [Stack, Pair, Named]
        assert found[1:] == [(1, 2), {"a": 2}]
        assert found[0].note.shape == (3,)
        assert (found[2].first, found[2].name, hasattr(found[2], "unset")) == (1, "n", False)
    assert list(tensors(stack)) == ["[0]", ".note"]


def test_defaultdicts_are_restored_with_a_builtin_factory(restored):
    """Any other factory would be code that the file chooses."""
    value = [collections.defaultdict(list, a=[1]), collections.defaultdict(lambda: 1, b=2)]

    known, unknown = restored(value)

    assert (known, known["new"]) == ({"a": [1], "new": []}, [])
    assert (type(unknown), unknown, unknown.default_factory) == (collections.defaultdict, {"b": 2}, None)


def test_other_mappings_are_restored_as_foreign(restored):
    """They may need more than their items to be rebuilt; keys and paths are kept."""
    value = Settings({"a": ONE, 3: 4})

    found = restored(value)

    assert isinstance(found, Foreign)
    assert (found.type_name, found.kind, found[3]) == (f"{__name__}:Settings", "dict", 4)
    assert list(tensors(found)) == list(tensors(value)) == ["['a']"]
    assert describe(found) == "Settings({a: f32[2], 3: 4})"


def test_classes_registered_with_pytree_are_restored_as_foreign(restored):
    """With the registered names; the unflatten function is not called, as it is a constructor."""
    value = Group(ONE, [Group(1, None)])

    found = restored(value)

    assert isinstance(found, Foreign)
    assert torch.equal(found.left, ONE)
    assert found.right == [Foreign(f"{__name__}:Group", {"left": 1, "right": None, "context": "context"})]
    assert list(tensors(found)) == list(tensors(value)) == [".left"]


@pytest.mark.parametrize("bits", ["7ff8000000000000", "fff8000000000000", "7ff8000000000123", "fff0000000000001"])
def test_nans_keep_their_bits(restored, bits):
    """Sign and payload."""
    number = struct.unpack(">d", bytes.fromhex(bits))[0]

    found = restored([number, complex(number, 1)])

    assert [struct.pack(">d", part).hex() for part in (found[0], found[1].real)] == [bits] * 2


def test_arrays_keep_their_order_and_writability(restored):
    """Fortran order and read-only."""
    columns, constant = restored([np.asfortranarray(np.ones((2, 3))), np.broadcast_to(np.ones(1), (2, 3))])

    assert columns.flags.f_contiguous and not columns.flags.c_contiguous and columns.flags.writeable
    assert not constant.flags.writeable


def test_masked_arrays_are_restored_as_data_and_mask(restored, differ):
    """As `Foreign`."""
    found = restored(np.ma.masked_array([1, 2], [False, True]))

    assert differ([found.data, found.mask], [np.array([1, 2]), np.array([False, True])]) is None


def test_subclasses_of_numbers_and_strings_are_restored_as_builtins(restored, differ):
    """A model computes with the built-in value."""

    class Count(int):
        pass

    class Text(str):
        __slots__ = ()

    assert differ(restored([Count(3), Text("a")]), [3, "a"]) is None


UNKNOWN = "Filch does not know how to store it"
SKIPPED = {
    "object": (object(), "builtins:object", UNKNOWN),
    "function": (len, "builtins:builtin_function_or_method", UNKNOWN),
    "partial": (functools.partial(len, [1]), "functools:partial", UNKNOWN),
    "class": (int, "builtins:type", UNKNOWN),
    "view of a dictionary": ({}.keys(), "builtins:dict_keys", UNKNOWN),
    "generator of numbers": (torch.Generator(), "torch._C:Generator", UNKNOWN),
    "module": (nn.Identity(), "torch.nn.modules.linear:Identity", UNKNOWN),
    "slice of strings": (slice("a", "b"), "builtins:slice", UNKNOWN),
    "array of objects": (np.array([None]), "numpy:ndarray", UNKNOWN),
    "array of records": (np.zeros(2, [("a", "i4")]), "numpy:ndarray", "torch has no dtype [('a', '<i4')]"),
}


@pytest.mark.parametrize("name", SKIPPED)
def test_values_that_cannot_be_stored_are_skipped_with_type_and_reason(captured, restored, name):
    """Other values are stored."""
    value, what, reason = SKIPPED[name]

    assert captured(value) == Skipped(what, reason)
    assert restored([1, value, 2]) == [1, Skipped(what, reason), 2]


class Unreadable(collections.abc.Mapping):
    """A mapping whose items raise."""

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


class Nameless(type):
    def __getattribute__(cls, name):
        raise LookupError(name)


class Hidden(metaclass=Nameless):
    pass


@pytest.mark.parametrize(
    ("value", "error"), [(Unreadable(), "OSError"), (Lazy(), "RuntimeError"), (Hidden(), "LookupError")]
)
def test_an_exception_while_reading_a_value_does_not_end_the_run(captured, value, error):
    """It is the reason why the value was skipped."""
    assert captured([value])[0].reason == f"reading it raised {error}"
    assert describe([value]).startswith("[<")


class Refusing:
    """Raises in all overridden methods."""

    @property
    def __class__(self):
        raise RuntimeError

    def __eq__(self, _):
        raise RuntimeError

    def __hash__(self):
        return 1

    __repr__ = __str__ = __len__ = __iter__ = __bool__ = __int__ = __abs__ = __eq__


class RefusingList(Refusing, list):
    pass


class RefusingNumber(Refusing, int):
    pass


class RefusingText(Refusing, str):
    __slots__ = ()


def test_overridden_methods_of_values_are_not_called(captured):
    """Such as `__eq__`, `__len__` and `__class__`; lists and numbers are read through the built-in class."""
    found = captured([Refusing(), RefusingList([1]), RefusingNumber(2), RefusingText("a"), {Refusing(): 3}])

    assert found[0] == Skipped(f"{__name__}:Refusing", UNKNOWN)
    assert list.__getitem__(found[1], 0) == 1
    assert found[2:4] == [2, "a"]
    assert found[4] == {Skipped(f"{__name__}:Refusing", "it is key 0 of a dictionary"): 3}
    assert describe([Refusing(), {Refusing(): 3}]) == "[<Refusing>, {<Refusing>: 3}]"


class Growing:
    """Adds itself to a dictionary and a list whenever it is read."""

    def __init__(self):
        self.known, self.listed = {self: 1}, [types.MappingProxyType(self)]

    def keys(self):
        self.listed.append(types.MappingProxyType(self))
        return ()

    items = keys

    def __getitem__(self, _):
        return 1

    def __repr__(self):
        self.known[Growing] = 1
        return "growing"


def test_a_list_that_grows_while_it_is_read_is_read_once(captured):
    """With the items that it had when reading began."""
    value = Growing()

    known, listed = captured([value.known, value.listed])

    assert list(known.values()) == [1]
    assert len(listed) == 1 < len(value.listed)


@pytest.mark.parametrize("value", [iter([1, 2]), (item for item in (1, 2)), map(int, "12"), zip("a", "b", strict=True)])
def test_iterators_are_not_consumed(captured, value):
    """The model gets all items."""
    assert isinstance(captured(value), Skipped)
    assert len(list(value)) in (1, 2)


class Endless(Unreadable):
    def __getitem__(self, key):
        return key

    def __iter__(self):
        return itertools.count()


def test_an_endless_mapping_is_skipped(captured, monkeypatch):
    """After a number of items that no finite value has."""
    monkeypatch.setattr("filch.steal.values._encode.MAX_PARTS", 1000)

    assert captured([Endless(), 1]) == [Skipped(f"{__name__}:Endless", "it has more than 1000 parts"), 1]
    assert len(describe(Endless())) < 1_000_000
    after = captured([[0] * 2000, Plain([1])])  # the reason of what comes later is the same
    assert {item.reason for item in after} == {"it has more than 1000 parts"}


def test_keys_that_cannot_be_stored_stay_distinct(restored):
    """The number of entries is kept, and so are the other keys."""
    value = {object(): torch.zeros(1), object(): torch.ones(1), ONE.to("meta"): 2, "a": 3, np.int64(7): 4}

    found = restored(value)

    assert [str(item) for item in found.values()] == ["tensor([0.])", "tensor([1.])", "2", "3", "4"]
    assert list(found) == [
        Skipped("builtins:object", "it is key 0 of a dictionary"),
        Skipped("builtins:object", "it is key 1 of a dictionary"),
        Skipped("f32[2]", "it is key 2 of a dictionary"),
        "a",
        7,
    ]


def test_tensors_can_be_keys_and_set_elements(restored, differ):
    """They are compared by identity."""
    (key, value), element = *restored({ONE: 1}).items(), restored({(ONE, 2)}).pop()

    assert differ([key, value, element], [ONE, 1, (ONE, 2)]) is None


def test_recursive_values_are_skipped_where_they_recur(captured, differ):
    """A tree whose children refer to their parents is stored once, not once per level."""
    root = {"value": ONE, "children": []}
    root["children"] += [{"value": 1, "parent": root}, {"value": 2, "parent": root}]
    cut = Skipped("builtins:dict", "it contains itself")

    found = captured(root)

    assert differ(found, {"value": ONE, "children": [{"value": 1, "parent": cut}, {"value": 2, "parent": cut}]}) is None


SHARED = {
    "tensor": ONE, "list": [1], "dictionary": {"a": 1}, "set": {1}, "array": np.ones(2), "object": Plain([]),
    "empty list": [], "transposed tensor": torch.ones(2, 3).t(), "parameter": nn.Parameter(ONE.clone()),
}  # fmt: skip


@pytest.mark.parametrize("name", SHARED)
def test_shared_objects_are_restored_as_one_object(restored, captured, name):
    """Wherever they occur; equal objects stay distinct."""
    shared = SHARED[name]

    for send in (restored, captured):
        found = send([shared, {"a": (shared,)}, [ONE.clone()]])
        assert found[0] is found[1]["a"][0]
        assert found[0] is not found[2][0]


def test_only_shared_objects_have_numbers():
    """Values without shared objects have the same form as before."""
    put = lambda _tensor, path: {"tensor": path}  # noqa: E731

    assert encode([ONE, {"a": ()}, ()], put) == {
        "list": [[0, {"tensor": "[0]"}], [1, {"dict": [["a", {"tuple": []}]]}], [2, {"tuple": []}]]
    }
    assert encode((ONE, ONE, ONE), put) == {
        "tuple": [[0, {"tensor": "[0]", "shared": 0}], [1, {"same": 0}], [2, {"same": 0}]]
    }
    assert structure((ONE, ONE)) == structure((ONE, ONE.clone()))
    assert list(tensors((ONE, ONE))) == ["[0]", "[1]"]


def test_lists_that_double_at_each_level_are_stored_once(restored, monkeypatch):
    """Their full expansion would fill any disk."""
    monkeypatch.setattr("filch.steal.values._encode.MAX_PARTS", 1000)
    value = functools.reduce(lambda inner, _: [inner, inner], range(60), ONE)

    found = restored(value)

    assert found[0][0] is found[1][1]
    assert len(describe(found)) < 1_000_000
    assert len(json.dumps(structure(found))) < 1_000_000


def test_very_deep_nesting_is_skipped(restored):
    """A hundred levels are restored; deeper values are skipped with a reason."""
    value = functools.reduce(lambda inner, _: [inner], range(150), ONE)

    found, levels = restored(value), 0
    while isinstance(found, list):
        found, levels = found[0], levels + 1

    assert levels == 101 - 2
    assert found == Skipped("builtins:list", "it is nested too deeply")


def test_paths_of_tensors_are_python_expressions():
    """Each leads to its tensor."""
    value = {"a": [ONE, Point(ONE, Plain([ONE]))], 3: BaseModelOutputWithPast(last_hidden_state=ONE), "n": np.zeros(2)}

    assert list(tensors(value)) == [
        "['a'][0]", "['a'][1].x", "['a'][1].y.values[0]", "[3].last_hidden_state", "['n']",
    ]  # fmt: skip
    assert tensors(ONE)[""] is ONE
    assert tensors(5) == {}


def test_values_built_alike_have_equal_structures():
    """The data of tensors doesn't count; everything else does."""
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


def test_classes_that_are_not_imported_are_restored_as_foreign(tmp_path, echo, monkeypatch):
    """In another process without the model's code, with class name, fields and the same paths."""
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

    done = run_python("-c", READ, "dump.onnx", cwd=tmp_path)

    assert done.stdout.splitlines() == [
        " ".join(tensors(value)),
        "{s: State(hidden=f32[2], inner=Pair(left=f32[1], right=5)), i: Inner(value=[f32[3]]), k: Kind(name='CODER')}",
        "dict strange_classes:State 1.0 CODER",
        "strange_classes:State was stored without 'wrong'",
    ]
    found = restore(tmp_path / "dump.onnx")["echo", 0, "I"][0][0]
    assert isinstance(found["s"], Foreign)
    assert list(tensors(found)) == list(tensors(value))


def test_a_class_with_other_fields_is_restored_as_foreign(monkeypatch):
    """Fields that the imported class doesn't have would be lost or run its code."""

    @dataclasses.dataclass
    class Renamed:
        other: object

    module = nn.Identity()
    with steal_forward(("m", module)) as capture:
        module([Plain([1]), Point(2), Color.RED])

    monkeypatch.setattr(sys.modules[__name__], "Plain", Renamed)
    monkeypatch.setattr(sys.modules[__name__], "Point", NamedTuple("Point", [("z", object)]))
    monkeypatch.setattr(sys.modules[__name__], "Color", Level)
    plain, point, color = capture["m", 0, "O"]

    assert plain == Foreign(f"{__name__}:Plain", {"values": [1], "name": "plain"})
    assert point == Foreign(f"{__name__}:Point", {"x": 2, "y": None})
    assert color == Foreign(f"{__name__}:Color", {"name": "RED"})


def test_foreign_values_can_be_captured_again(captured, restored):
    """And are restored unchanged."""
    value = Foreign("gone:State", {"hidden": 1, "inner": Foreign("gone:Pair", {"left": [2]})})

    assert restored(value) == value
    assert captured(value) == value


class Closing(list):
    """Runs code of its class when it is deleted."""

    ran = []  # noqa: RUF012  shared by all instances

    def __del__(self):
        self.ran.append(1)


@dataclasses.dataclass
class Guarded:
    value: int = 0


Guarded.value = property(lambda self: 1, lambda self, item: Closing.ran.append(item))


@pytest.mark.parametrize(
    ("spec", "kind"),
    [
        ({"list": [[0, 1]], "class": f"{__name__}:Closing"}, "list"),
        ({"fields": [["value", 1]], "class": f"{__name__}:Guarded"}, "fields"),
        ({"tuple": [[0, 1]], "class": f"{__name__}:Point"}, "tuple"),
        ({"tuple": [[0, 1]], "class": "time:struct_time"}, "tuple"),
        ({"dict": [["a", 1]], "class": "os:_Environ"}, "dict"),
        ({"list": [[0, 1]], "class": f"{__name__}:Stack", "attributes": [["__class__", 1]]}, "list"),
        ({"set": [[0, 1]], "class": "builtins:list"}, "set"),
    ],
)
def test_a_class_whose_code_would_run_is_not_rebuilt(spec, kind):
    """When it is filled or deleted; neither is a class that doesn't match the items."""
    Closing.ran.clear()

    found = decode(spec, None)

    assert (found.type_name, found.kind, list(found.fields.values())) == (spec["class"], kind, [1])
    assert Closing.ran == []


@pytest.mark.parametrize(
    "spec",
    [
        {"same": 0}, {"list": [[0, {"same": 0}]], "shared": 0}, {"list": [[0, {"list": [], "shared": []}]]},
        {"set": [[0, {"list": []}]]}, {"dict": [[{"tuple": [[0, {"list": []}]]}, 1]]},
        {"list": [[0, {"tuple": [], "shared": 0}], [1, {"set": [[0, {"same": 0}]]}]]},
        {"list": [], "class": "collections:deque", "maxlen": -1}, {"constant": "exit"}, {"bytes": "zz"},
        {"dict": [], "class": "collections:defaultdict", "factory": "os:system"}, {"float": "nan", "bits": "00"},
        {"enum": [], "class": f"{__name__}:Access"},
        {"numpy": {"tensor": 0}, "dtype": "|O8"}, {"numpy": {"tensor": 0}, "dtype": "<U3"},
        {"numpy": {"tensor": 0}, "dtype": ">f8"}, {"numpy": {"tensor": 0}, "dtype": "<f4,<f4"},
    ],
)  # fmt: skip
def test_an_invalid_description_is_refused(spec):
    """With a DumpError."""
    with pytest.raises(DumpError, match="the description of a value is damaged: "):
        decode(spec, lambda _: ONE)


def test_unknown_flags_are_restored_as_foreign():
    """With their number."""
    name = f"{__name__}:Access"

    assert decode({"enum": 64, "class": name}, None) == Foreign(name, {"value": 64})


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode, lambda: torch.device("meta")])
def test_modes_do_not_affect_values(restored, differ, mode):
    """Neither when they are recorded nor when they are restored."""
    value = [ONE, torch.ones(2, 3).t(), np.ones(2), ONE.clone().requires_grad_(), torch.ones(1, 2).expand(3, 2)]

    with mode():
        found = restored(value)

    assert differ([*found[:3], found[3].detach(), found[4]], value) is None
    assert found[3].requires_grad


def _twice(value, levels=60):
    return functools.reduce(lambda inner, _: [inner, inner], range(levels), value)


@slow
@pytest.mark.parametrize(
    "value",
    [
        _twice(ONE), _twice([np.ones((100, 1000)).T]), _twice([b"x" * 10**6]), _twice([2**10**6]),
        {"k" * 400_000: [ONE] * 10_000}, _twice({"k" * 400_000: 1}), _twice([torch.Size([1] * 10**5)]),
        _twice(Foreign("gone:Class", {"f" * 10**6: 1})), _twice({(0,) * 50_000: 1}),
    ],
)  # fmt: skip
def test_traversing_exponentially_large_values_ends(value):
    """Soon and in little memory; repeated parts and long paths count more."""
    start = time.perf_counter()
    tracemalloc.start()

    tensors(value), structure(value)

    assert tracemalloc.get_traced_memory()[1] < 2**26
    tracemalloc.stop()
    assert time.perf_counter() - start < 20


def test_a_long_list_is_traversed_to_its_end():
    """A hundred thousand token ids, and the values after them."""
    assert list(tensors([list(range(100_000)), {"attention_mask": ONE}])) == ["[1]['attention_mask']"]


def test_missing_tensors_lists_a_shared_value_once():
    """By the first of 2**64 paths; a recursive value ends."""
    gone = Skipped("f32[2]", "it was not asked for")
    value = [gone]
    for _ in range(64):
        value = [value, value]
    circle = {"gone": gone}
    circle["again"] = circle

    assert missing_tensors(value) == {"[0]" * 65: gone}
    assert missing_tensors(circle) == {"['gone']": gone}
    assert missing_tensors([(gone, gone), {"b": gone}]) == {"[0][0]": gone, "[0][1]": gone, "[1]['b']": gone}
