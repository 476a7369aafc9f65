"""Names and paths that are wider than a column."""

import pytest

from filch.compare.rendering._names import shortened_names, shortened_paths

GPT2 = [
    f"transformer.h.{layer}.{name}"
    for layer in range(12)
    for name in ("ln_1", "attn", "attn.c_attn", "attn.c_proj", "ln_2", "mlp", "mlp.c_fc", "mlp.act", "mlp.c_proj")
]


@pytest.mark.parametrize(
    ("width", "short"),
    [
        (26, "transformer.h.6.mlp.c_proj"),
        (25, "…h.6.mlp.c_proj"),
        (14, "…6.mlp.c_proj"),
        (12, "…6…c_proj"),
    ],
)
def test_a_path_keeps_as_many_names_as_fit(width, short):
    """Those at its end first, and always the number of a layer."""
    assert shortened_paths(["transformer.h.6.mlp.c_proj"], width).popitem()[1] == (short,)


def test_a_long_last_name_loses_its_middle():
    """The number before it is kept."""
    path = "model.layers.3.post_attention_layernorm"

    assert shortened_paths([path], 24)[path] == ("…3.post_atten…_layernorm",)


@pytest.mark.parametrize("width", range(4, 30))
def test_two_paths_never_look_alike(width):
    """No line is too long, and a path for which no short form remains is continued on the next lines."""
    short = shortened_paths(GPT2, width)

    assert list(short) == GPT2
    assert len(set(short.values())) == len(GPT2)
    assert max(len(line) for lines in short.values() for line in lines) <= width


@pytest.mark.parametrize("width", range(12, 30))
def test_paths_of_a_model_have_one_line(width):
    """This is the least width of a column of modules."""
    assert {len(lines) for lines in shortened_paths(GPT2, width).values()} == {1}


def test_a_short_form_that_fits_another_path_is_not_used():
    """`…6…c_proj` could be both, so a part of the name that distinguishes them is shown."""
    paths = ["transformer.h.6.attn.c_proj", "transformer.h.6.mlp.c_proj"]

    assert list(shortened_paths(paths, 12).values()) == [("…6.at…c_proj",), ("…6.ml…c_proj",)]


def test_names_that_differ_only_in_their_middle_have_several_lines():
    """Lines end at punctuation; a name that differs at its end has one line."""
    names = ["node_convert_1_element_type", "node_convert_2_element_type", "node_convert_1_element_type_7"]

    short = shortened_names(names, 13)

    assert short[names[0]] == ("node_convert_", "1_element_", "type")
    assert short[names[1]] == ("node_convert_", "2_element_", "type")
    assert short[names[2]] == ("node_c…type_7",)
