"""Rounding levels that are stored in a dump beside its values, under the key `filch.levels` of its metadata."""

import json
import os
from collections.abc import Mapping

from filch.steal import Dump, DumpError, Records, add_properties

from ._stored_level import StoredLevel

KEY = "filch.levels"


def write_levels(path: str | os.PathLike[str], levels: Mapping[str, StoredLevel], key: str = KEY) -> None:
    """Add rounding levels to a dump that has none, by the label of the record's key and the path of the tensor."""
    rows = {place: level.row() for place, level in levels.items()}
    add_properties(path, {key: json.dumps(rows, separators=(",", ":"))})


def levels_of(records: Records, key: str = KEY) -> dict[str, StoredLevel]:
    """Return the rounding levels that a dump has; empty if it has none.

    They are parsed one by one, as there are as many as there are values.

    Raises:
        DumpError: they are damaged.
    """
    if not isinstance(records, Dump) or key not in records.properties:
        return {}
    try:
        return {place: StoredLevel.from_row(row) for place, row in records.property_entries(key)}
    except (TypeError, ValueError) as error:
        raise DumpError(f"{key!r} in {records.source!r} is damaged: {error!r:.200}") from error
