"""What a golden dump stores besides the values: rounding levels, and fingerprints of weights and random numbers.

It is JSON under the key `filch.golden` of the file's metadata, with these entries:

- `weights`: by parameter or buffer, a row with the attributes of `Fingerprint`.
- `random`: a fingerprint of the random numbers' state before the run if the run has drawn any, or `""`.
- `problem`: why values have no level, or `""`.

The key `filch.golden.levels` has a JSON object with the rounding levels: by value (the label of its key and the path in
the record), a row with the attributes of `StoredLevel`. Former files have it as the entry `levels`.

The environment is that of every dump (`filch.environment`).
"""

import json
from dataclasses import dataclass, field
from pathlib import Path

from filch.steal import Dump, DumpError, add_properties
from filch.steal.files._untrusted import parse_json

from ..common._errors import CompareError
from ..float64._fingerprint import Fingerprint
from ..float64._levels_file import levels_of, write_levels
from ..float64._stored_level import StoredLevel

KEY, LEVELS_KEY = "filch.golden", "filch.golden.levels"


@dataclass(frozen=True)
class GoldenRecord:
    """What a golden dump stores besides the values; see the description of the file.

    Attributes:
        levels: the rounding levels by value.
        weights: the fingerprints of the weights by name.
        random: a fingerprint of the state of the random numbers, or `""`.
        problem: why values have no level, or `""`.
    """

    levels: dict[str, StoredLevel] = field(default_factory=dict)
    weights: dict[str, Fingerprint] = field(default_factory=dict)
    random: str = ""
    problem: str = ""

    @classmethod
    def of(cls, dump: Dump) -> "GoldenRecord | None":
        """Return the record of a dump; None if it has none, as those that older versions of Filch stored.

        Raises:
            CompareError: it is damaged.
        """
        text = dump.properties.get(KEY)
        if text is None:
            return None
        try:
            data = parse_json(text)
            former = {str(place): StoredLevel.from_row(row) for place, row in data.get("levels", {}).items()}
            levels = former or levels_of(dump, LEVELS_KEY)
            weights = {str(name): Fingerprint.from_row(row) for name, row in data["weights"].items()}
            return cls(levels, weights, str(data["random"]), str(data["problem"]))
        except (AttributeError, DumpError, KeyError, TypeError, ValueError) as error:
            raise CompareError(f"{KEY!r} in {dump.source!r} is damaged: {error!r:.200}") from error

    def write(self, path: Path) -> None:
        """Add the record to a dump that has none."""
        data = {
            "weights": {name: weight.row() for name, weight in self.weights.items()},
            "random": self.random,
            "problem": self.problem,
        }
        add_properties(path, {KEY: json.dumps(data, separators=(",", ":"))})
        write_levels(path, self.levels, LEVELS_KEY)
