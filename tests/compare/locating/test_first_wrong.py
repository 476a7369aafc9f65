"""Which nodes introduce an error, and what inherits it."""

from filch.compare.locating._first_wrong import first_wrong, inherited, inherited_starts, leading_to
from filch.export import Node
from support.models.hand_made import chain, graph_of

CHAIN = chain("Neg", "Exp", "Sqrt", "Abs")  # the values a, b, c and d
EVERY = frozenset("abcd")


def introducing(graph, wrong, judged, right=()):
    return [node.outputs[0] for node in first_wrong(graph, wrong, judged={*judged}, right={"x", *right})]


def test_the_first_wrong_value_of_a_chain_introduces_the_error():
    assert introducing(CHAIN, "d", EVERY, right="a") == ["b"]


def test_a_value_that_can_not_be_judged_is_passed_over():
    """What is wrong behind it may be so because of it, or because of what it is computed from."""
    assert introducing(CHAIN, "d", "acd", right="a") == ["c"]
    assert introducing(CHAIN, "d", "ad") == ["a"]


def test_what_leads_to_no_wrong_value_is_not_named():
    graph = graph_of([Node("a", "Neg", ("x",), ("a",)), Node("b", "Exp", ("x",), ("b",))], outputs=("a", "b"))
    assert introducing(graph, "b", "ab") == ["b"]


def test_an_error_behind_a_right_value_is_one_of_its_own():
    """Also if the value is wrong and was replaced by the reference's numbers for those who read it."""
    assert introducing(CHAIN, "bd", EVERY, right="abc") == ["b", "d"]
    assert introducing(CHAIN, "d", EVERY, right="ab") == ["c"]


def test_a_constant_is_to_blame_only_if_nothing_else_is():
    nodes = [Node("a", "Neg", ("x",), ("a",)), Node("b", "Exp", ("w",), ("b",)), Node("c", "Add", ("a", "b"), ("c",))]
    graph = graph_of(nodes, outputs=("c",), constants=("w",))
    assert introducing(graph, "c", "abc") == ["a"]
    assert introducing(graph, "c", "abc", right="a") == ["b"]


def test_values_lead_to_others_through_those_that_are_not_right():
    assert leading_to(CHAIN, "d", {"a"}) == {"b", "c", "d"}
    assert leading_to(CHAIN, "d", {"d"}) == {"a", "b", "c", "d", "x"}


def test_an_error_is_inherited_up_to_the_next_right_value():
    assert inherited(CHAIN.nodes, {"a"}) == {"b", "c", "d"}
    assert inherited(CHAIN.nodes, {"a"}, {"c"}) == {"b", "c"}
    assert inherited(CHAIN.nodes, {"x"}) == {"a", "b", "c", "d"}


def test_an_error_is_inherited_from_the_position_where_it_starts():
    starts = {"b": 3, "c": None}
    found = inherited_starts(CHAIN.nodes, starts.get, {"x": 5})
    assert found == {"a": 5, "b": 5, "c": 3, "d": None}
