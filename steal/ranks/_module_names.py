"""The names of modules without the steps that wrappers of torch add to them."""

from collections.abc import Iterator, Mapping

from .._key import Key
from .._records import ModuleInfo
from ..dump._dump import Dump
from ..private._torch import WRAPPERS


def wrapper_names(modules: Mapping[str, ModuleInfo]) -> dict[str, str]:
    """Return the names of wrapped modules by the name of the wrapper."""
    steps = ((name, WRAPPERS.get(info.type_name)) for name, info in modules.items())
    return {name: f"{name}.{step}" if name else step for name, step in steps if step is not None}


def unwrapped(name: str, wrappers: Mapping[str, str]) -> str:
    """Return a name without the submodules that wrappers add."""
    for wrapper, inner in sorted(wrappers.items(), key=lambda pair: -len(pair[1])):  # the innermost first
        if name == inner or name.startswith((f"{inner}.", f"{inner}/")):  # an ATen call is named `module/0.operator`
            name = f"{wrapper}{name[len(inner) :]}".removeprefix(".")
    return name


class _SameKeys(Mapping[Key, Key]):
    """The keys of a dump by themselves, without a copy of them."""

    def __init__(self, dump: Dump) -> None:
        self._records = dump.records

    def __getitem__(self, key: Key) -> Key:
        if key not in self._records:
            raise KeyError(key)
        return key

    def __iter__(self) -> Iterator[Key]:
        return iter(self._records)

    def __len__(self) -> int:
        return len(self._records)


def unwrapped_keys(dump: Dump) -> Mapping[Key, Key]:
    """Return the keys of a dump by their names without wrappers.

    A wrapper's own record is left out if the module that it wraps has one, as both would have the same key.
    """
    wrappers = wrapper_names(dump.modules)
    if not wrappers:
        return _SameKeys(dump)
    own = {key: key._replace(name=unwrapped(key.name, wrappers)) for key in dump.records}
    taken = {new for key, new in own.items() if key.name not in wrappers}
    return {new: key for key, new in own.items() if key.name not in wrappers or new not in taken}
