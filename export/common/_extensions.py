"""What is found by name: our own, or another package's by an entry point; each imported when it is asked for."""

from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from filch.steal import FilchError

from .._errors import reason
from ._suggestions import hint


@dataclass(frozen=True)
class Extensions:
    """One kind of thing that other packages can add to.

    Attributes:
        kind: what a message calls one (`"backend"`).
        package: the package that our own are in.
        own: by name, `module:attribute`, relative to `package`.
        extras: by name, what to install where a library that it imports is missing.
        error: what is raised.
        plural: of `kind`; `""` is with an s.
    """

    kind: str
    package: str | None
    own: Mapping[str, str]
    error: type[FilchError]
    extras: Mapping[str, str]
    plural: str = ""

    @property
    def group(self) -> str:
        """The group of the entry points."""
        return f"filch.{self.plural or self.kind + 's'}"

    def names(self) -> list[str]:
        """All that `find` knows, sorted."""
        return sorted({*self.own, *(entry.name for entry in entry_points(group=self.group))})

    def find(self, name: str) -> Any:
        """What is called so.

        Raises:
            FilchError: there is none of this name, or several, or it can't be imported.
        """
        foreign = [*entry_points(group=self.group, name=name)]
        if foreign and len(foreign) + (name in self.own) > 1:
            packages = [_package(entry) for entry in foreign]
            owners = " and ".join(sorted({*packages, *(["filch itself"] if name in self.own else [])}))
            raise self.error(
                f"{self.kind} {name!r} is not one but several, of {owners}: rename or uninstall all but one"
            )
        if foreign:
            return self._loaded(foreign[0])
        if name in self.own:
            return self._imported(name)
        raise self.error(f"there is no {self.kind} {name!r}; {hint(name, self.names())}")

    def owner(self, name: str) -> str:
        """The package that brought it; `""` if it is our own."""
        return next((_package(entry) for entry in entry_points(group=self.group, name=name)), "")

    def _imported(self, name: str) -> Any:
        module, _, attribute = self.own[name].partition(":")
        try:
            return getattr(import_module(module, self.package), attribute)
        except ImportError as error:
            if name not in self.extras:
                raise
            raise self.error(
                f"{self.kind} {name!r} needs {error.name or name}, which can't be imported ({reason(error)}): "
                f"pip install '{self.extras[name]}'"
            ) from error

    def _loaded(self, entry: EntryPoint) -> Any:
        try:
            return entry.load()
        except Exception as error:
            told = f"({entry.value}) can't be loaded: {reason(error)}"
            raise self.error(f"{self.kind} {entry.name!r} of {_package(entry)} {told}") from error


def _package(entry: EntryPoint) -> str:
    return entry.dist.name if entry.dist else entry.value.partition(":")[0]
