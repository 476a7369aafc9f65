"""At which positions a wrong value is not wrong, as nothing that it is computed from is."""

import pytest

from filch.compare.decoding._decoded import _without_rounding
from filch.compare.decoding._positioned_row import PositionedRow
from filch.compare.float64._verdict import RoundingVerdict
from filch.compare.results._rows import Row
from support.models.hand_made import chain

RIGHT, WRONG = RoundingVerdict("rounding"), RoundingVerdict("wrong")
CHAIN = chain("Neg", "Exp", "Sqrt")  # the values a, b and c


def wrong_at(positions, alone):
    """Return where values are wrong, by name, and the rows of all; `alone` has the verdicts on their nodes."""
    rows = {
        node.outputs[0]: Row(
            *(0, "exported", index, "node", node.name, node.op, node.outputs[0]),
            status="different" if node.outputs[0] in positions else "same",
            isolated=alone.get(node.outputs[0]),
        )
        for index, node in enumerate(CHAIN.nodes)
    }
    items = [PositionedRow(rows[name], (), places[0], 0, places) for name, places in positions.items()]
    return {item.row.value: item.wrong for item in _without_rounding(CHAIN, items, rows)}


def test_a_value_is_wrong_from_where_one_before_it_is():
    found = wrong_at({"a": (6, 7), "b": (2, 6, 7), "c": (2, 6, 7)}, {"a": WRONG, "b": RIGHT, "c": RIGHT})
    assert found == {"a": (6, 7), "b": (6, 7), "c": (6, 7)}


@pytest.mark.parametrize("verdict", [WRONG, RoundingVerdict("suspicious"), None])
def test_a_node_that_is_not_right_alone_may_be_wrong_before(verdict):
    assert wrong_at({"a": (6,), "b": (2, 6)}, {"a": WRONG, "b": verdict})["b"] == (2, 6)


def test_a_value_behind_a_right_one_keeps_its_positions():
    assert wrong_at({"a": (6,), "c": (2, 6)}, {"a": WRONG, "c": RIGHT})["c"] == (2, 6)
