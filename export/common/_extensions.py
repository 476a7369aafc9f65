"""Look up extensions by name: Filch's own, and those of other packages by entry point, imported on first use."""

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
    """One kind of extension, such as backends or views.

    Attributes:
        kind: the word for one in messages (`"backend"`).
        package: the package of Filch's own extensions.
        built_in: Filch's own extensions: `module:attribute`, relative to `package`, by name.
        error: the exception to raise.
        extras: what to install if a library that an extension imports is missing, by name.
        plural: the plural of `kind`; `""` if it ends with an s.
    """

    kind: str
    package: str | None
    built_in: Mapping[str, str]
    error: type[FilchError]
    extras: Mapping[str, str]
    plural: str = ""

    @property
    def group(self) -> str:
        """The name of the entry point group."""
        return f"filch.{self.plural or self.kind + 's'}"

    def names(self) -> list[str]:
        """Return the names of all extensions, sorted."""
        return sorted({*self.built_in, *(entry.name for entry in entry_points(group=self.group))})

    def find(self, name: str) -> Any:
        """Import and return the extension of this name.

        Raises:
            FilchError: no extension has the name, several have it, or it can't be imported.
        """
        entries = [*entry_points(group=self.group, name=name)]
        if entries and len(entries) + (name in self.built_in) > 1:
            packages = [_package(entry) for entry in entries]
            owners = " and ".join(sorted({*packages, *(["filch itself"] if name in self.built_in else [])}))
            raise self.error(f"{self.kind} {name!r} is provided by {owners}: rename or uninstall all but one")
        if entries:
            return self._load(entries[0])
        if name in self.built_in:
            return self._import_built_in(name)
        raise self.error(f"there is no {self.kind} {name!r}; {hint(name, self.names())}")

    def owner(self, name: str) -> str:
        """Return the package that provides an extension; `""` for Filch's own."""
        return next((_package(entry) for entry in entry_points(group=self.group, name=name)), "")

    def _import_built_in(self, name: str) -> Any:
        """Import one of Filch's own extensions; the error says what to install."""
        module, _, attribute = self.built_in[name].partition(":")
        try:
            return getattr(import_module(module, self.package), attribute)
        except ImportError as error:
            if name not in self.extras:
                raise
            raise self.error(
                f"{self.kind} {name!r} needs {error.name or name}, which can't be imported ({reason(error)}): "
                f"pip install '{self.extras[name]}'"
            ) from error

    def _load(self, entry: EntryPoint) -> Any:
        """Import an extension of another package."""
        try:
            return entry.load()
        except Exception as error:
            where = f"{self.kind} {entry.name!r} of {_package(entry)} ({entry.value})"
            raise self.error(f"{where} can't be loaded: {reason(error)}") from error


def _package(entry: EntryPoint) -> str:
    """Return the name of the package that has an entry point."""
    return entry.dist.name if entry.dist else entry.value.partition(":")[0]
