"""Find private names of other packages, and say clearly which one is missing."""

import sys
from collections.abc import Mapping
from pkgutil import resolve_name
from typing import Any

from .._errors import FilchError
from ._versions import installed, tried


class PrivateNameError(FilchError):
    """A package lacks a private name that Filch uses, as a version may with which Filch was not tried."""


class PrivateNames:
    """Private names of a package, which is imported when one of them is first needed.

    Args:
        package: the package.
        places: where each name is: `"module:attribute"`, or `"module"` for a module.
    """

    def __init__(self, package: str, places: Mapping[str, str]) -> None:
        self.places = places
        self._package = package

    def find(self, name: str) -> Any:
        """Return what has this name: the `__getattr__` of a module.

        Raises:
            AttributeError: the name is not among the places.
            PrivateNameError: this version of the package does not have it.
        """
        if name not in self.places:
            raise AttributeError(f"Filch uses no private name {name!r} of {self._package}")
        try:
            return resolve_name(self.places[name])
        except (ImportError, AttributeError) as error:
            version = installed().get(self._package)
            if version is None:
                raise
            place = self.places[name].replace(":", ".")
            versions = ", ".join(tried(self._package))
            raise PrivateNameError(
                f"{self._package} {version} has no {place}, which Filch uses ({error}); "
                f"Filch was tested with {self._package} {versions}"
            ) from None  # the message has the reason

    def loaded(self, name: str) -> Any:
        """Return what has this name if its module is imported by now, else None: then nothing can be an instance."""
        return self.find(name) if self.places[name].partition(":")[0] in sys.modules else None
