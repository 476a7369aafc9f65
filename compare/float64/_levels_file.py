"""Rounding levels that are stored in a dump beside its values, under the key `filch.levels` of its metadata."""

import json
import os
from collections.abc import Mapping

from filch.steal import Dump, DumpError, Records, add_properties, parse_json

from ._stored_level import StoredLevel

KEY = "filch.levels"


def write_levels(path: str | os.PathLike[str], levels: Mapping[str, StoredLevel]) -> None:
    """Add rounding levels to a dump that has none, by the label of the record's key and the path of the tensor."""
    add_properties(path, {KEY: json.dumps({place: level.row() for place, level in levels.items()})})


def levels_of(records: Records) -> dict[str, StoredLevel]:
    """Return the rounding levels that a dump has; empty if it has none.

    Raises:
        DumpError: they are damaged.
    """
    text = records.properties.get(KEY) if isinstance(records, Dump) else None
    if text is None:
        return {}
    try:
        return {str(place): StoredLevel.from_row(row) for place, row in parse_json(text).items()}
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise DumpError(f"{KEY!r} in {records.source!r} is damaged: {error!r:.200}") from error
