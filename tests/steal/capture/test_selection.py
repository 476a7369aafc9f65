"""The selection of modules, the names of records, and the errors about invalid ones."""

import pytest
import torch
from torch import nn

from filch.steal import FilchError, restore, steal_append, steal_forward
from support.models.small import module_of


def layer_module():
    return module_of(
        lambda self, x: self.mlp(self.norm(x)), norm=nn.Identity(), mlp=nn.Sequential(nn.Identity(), nn.Identity())
    )


def own_model():
    def forward(self, x):
        x = self.norm(x)
        for layer in self.layers:
            x = layer(x)
        return x

    return module_of(forward, norm=nn.Identity(), layers=nn.ModuleList([layer_module(), layer_module()]))


LAYER = ["{}.norm", "{}.mlp.0", "{}.mlp.1", "{}.mlp", "{}"]
ALL = ["norm", *(name.format(f"layers.{index}") for index in range(2) for name in LAYER), ""]


def _captured_names(run, modules, **options):
    """Return the names of the modules whose outputs are recorded when `run` runs, in order."""
    with steal_forward(modules, **options) as capture:
        run(torch.ones(1))
    return [key.name for key in capture if key.kind == "O"]


@pytest.fixture
def model():
    """Return a norm, followed by two layers of a norm and two modules in sequence."""
    return own_model()


def test_a_single_unnamed_module_has_the_empty_name(model):
    """Alone or in a list; a given name is used."""
    assert _captured_names(model, model) == [""]
    assert _captured_names(model, [model]) == [""]
    assert _captured_names(model, ("model", model)) == ["model"]
    assert _captured_names(model, [("model", model)]) == ["model"]


def test_several_unnamed_modules_are_named_by_index(model):
    """Given names are kept."""
    assert _captured_names(model, [model.norm, model.layers[0], ("last", model.layers[1])]) == ["0", "1", "last"]


def test_submodules_are_named_by_their_paths(model):
    """Below the given name, or without a prefix if there is none."""
    assert _captured_names(model, model, submodules=True) == ALL
    assert _captured_names(model, ("m", model), submodules=True) == [f"m.{name}" if name else "m" for name in ALL]


def test_a_given_module_is_not_selected_again_as_a_submodule(model):
    """It has one record per call; modules below two given ones are named by the first."""
    given = [("model", model), ("model.norm", model.norm), ("second", model.layers[1])]

    names = _captured_names(model, given, submodules=True, exclude="model.layers.**")

    assert names == ["model.norm", *(name.format("second") for name in LAYER), "model"]


def test_given_modules_may_have_the_names_of_submodules(model):
    """A list as `named_modules` returns it, together with `submodules=True`."""
    given = [("model", model), ("model.layers.0", model.layers[0])]

    assert _captured_names(model, given, submodules=True) == [f"model.{name}" if name else "model" for name in ALL]


@pytest.mark.parametrize(
    ("include", "names"),
    [
        ("norm", ["norm"]),
        ("layers.*", ["layers.0", "layers.1"]),
        ("layers.*.norm", ["layers.0.norm", "layers.1.norm"]),
        ("layers.*.mlp.?", ["layers.0.mlp.0", "layers.0.mlp.1", "layers.1.mlp.0", "layers.1.mlp.1"]),
        ("**.norm", ["norm", "layers.0.norm", "layers.1.norm"]),
        ("layers.**.norm", ["layers.0.norm", "layers.1.norm"]),
        ("layers.0.**", ["layers.0.norm", "layers.0.mlp.0", "layers.0.mlp.1", "layers.0.mlp"]),
        ("**", ALL[:-1]),
        ("*orm", ["norm"]),
        (["norm", "layers.1"], ["norm", "layers.1"]),
        ({"norm"}, ["norm"]),
        ("layers.0.mlp", ["layers.0.mlp"]),
        ("layers.[02].norm", ["layers.0.norm"]),
        ("layers.[!0].norm", ["layers.1.norm"]),
        ("layers.[0-9]", ["layers.0", "layers.1"]),
    ],
)
def test_include_selects_matching_submodules(model, include, names):
    """`*`, `?` and `[…]` match within one step of the path, `**` any number of steps; the given module is included."""
    assert _captured_names(model, model, include=include) == [*names, ""]
    assert _captured_names(model, model, include=include, submodules=True) == [*names, ""]


@pytest.mark.parametrize(
    ("exclude", "names"),
    [
        ("layers.**", ["norm", ""]),
        (["**.mlp", "**.mlp.*"], ["norm", "layers.0.norm", "layers.0", "layers.1.norm", "layers.1", ""]),
        ("layers.?.mlp.**", [name for name in ALL if ".mlp." not in name]),
    ],
)
def test_exclude_removes_matching_submodules(model, exclude, names):
    """The others keep their order."""
    assert _captured_names(model, model, submodules=True, exclude=exclude) == names


def test_exclude_wins_over_include(model):
    """A submodule that matches both is not selected; `include` doesn't need `submodules`."""
    assert _captured_names(model, model, include="layers.*", exclude="layers.0") == ["layers.1", ""]


def test_a_dot_in_a_pattern_matches_only_a_dot():
    """Patterns are not regular expressions."""
    model = nn.ModuleDict({"axb": nn.Identity(), "a+b": nn.Identity()})
    model.forward = lambda x: model["a+b"](model["axb"](x))

    assert _captured_names(model, model, include="a+b") == ["a+b", ""]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"include": "layer.*"}, "no module name matches 'layer.*'; names look like 'm.norm'"),
        (
            {"include": ["m.norm", "m.layers.*.mpl"]},
            "no module name matches 'm.layers.*.mpl'; names look like 'm.norm'",
        ),
        ({"include": "norm"}, "no module name matches 'norm'; names look like 'm.norm'"),
        ({"exclude": "m.nrom", "submodules": True}, "no module name matches 'm.nrom'; names look like 'm.norm'"),
        ({"include": "m.layers[.]0"}, "no module name matches 'm.layers[.]0'; names look like 'm.norm'"),
        ({"include": "[b-a]"}, "'[b-a]' is not a valid pattern of module names: bad character range b-a at position 7"),
        ({"include": 5}, "a pattern must be a string like 'decoder.layers.*.mlp', not 5"),
        ({"exclude": ["m.norm", None]}, "a pattern must be a string like 'decoder.layers.*.mlp', not None"),
        ({"storage_limit": "1GB"}, "storage_limit must be a number of bytes like 2**28, not '1GB'"),
    ],
)
def test_invalid_options_are_refused(model, options, message):
    """The message contains the value, and a valid one."""
    with pytest.raises(FilchError) as caught, steal_forward(("m", model), **options):
        pytest.fail("the block was entered")

    assert str(caught.value) == message


@pytest.mark.parametrize(
    ("modules", "message"),
    [
        (5, "steal_forward takes a module, a (name, module) pair or a list of these, not 5"),
        ("m", "steal_forward takes a module, a (name, module) pair or a list of these, not 'm'"),
        ({"m": 1}, "steal_forward takes a module, a (name, module) pair or a list of these, not {'m': 1}"),
        ([], "steal_forward got an empty list of modules"),
        (("m", 5), "item 0 is ('m', 5), not a module or a (name, module) pair"),
        ([("m", 5)], "item 0 is ('m', 5), not a module or a (name, module) pair"),
        ([nn.Identity(), "m"], "item 1 is 'm', not a module or a (name, module) pair"),
        ([(5, nn.Identity())], "item 0 is (5, Identity()), not a module or a (name, module) pair"),
        ([nn.Identity], "item 0 is <class 'torch.nn.modules.linear.Identity'>, not a module or a (name, module) pair"),
        ([("m", nn.Identity()), ("m", nn.ReLU())], "two modules are named 'm'; give each its own name"),
        ([nn.Identity(), ("0", nn.ReLU())], "two modules are named '0'; give each its own name"),
    ],
)
def test_invalid_modules_are_refused(modules, message):
    """The message contains the value, its index, and what is expected."""
    with pytest.raises(FilchError) as caught, steal_forward(modules):
        pytest.fail("the block was entered")

    assert str(caught.value) == message


def test_a_submodule_with_a_given_name_is_refused(model):
    """The records of both modules would have the same keys."""
    given = [("m.norm", nn.Identity()), ("m", model)]

    with pytest.raises(FilchError, match=r"two modules are named 'm\.norm'"), steal_forward(given, submodules=True):
        pytest.fail("the block was entered")


def test_a_shared_submodule_is_named_by_its_first_path():
    """As in `named_modules`."""
    shared = nn.Identity()
    model = nn.Sequential(shared, shared)

    assert _captured_names(model, model, submodules=True) == ["0", "0", ""]


ONE = torch.ones(1)


NAMES = ["0", "a,b", "a___b", "True", "((x))", "a.b-c", "None", "1.5", "I", "a#0.I", "a.b", "", "(root)#0.I", "../x"]


@pytest.mark.parametrize("name", [*NAMES, "ö 'quoted' \"twice\"", "\ud800"])
def test_any_string_is_a_valid_name(steal, name):
    """Names are never parsed or converted, so no character has a meaning."""
    module = nn.Identity()

    records = steal((name, module), lambda: [module(ONE), module(2 * ONE)])

    assert list(records) == [(name, 0, "I"), (name, 0, "O"), (name, 1, "I"), (name, 1, "O")]
    assert all(type(key.name) is str for key in records)
    assert torch.equal(records[name, 1, "O"], 2 * ONE)
    assert list(records.modules) == [name]


@pytest.mark.parametrize("name", ["ROI", "I", "O", "GO", "m"])
def test_an_appended_value_may_have_any_name(tmp_path, name):
    """A name like a kind or a module does not conflict with its records."""
    module, path = nn.Identity(), tmp_path / "dump.onnx"

    with steal_forward(("m", module), dump_file=path):
        module(ONE)
        steal_append(name, torch.full((1,), 5.0))

    dump = restore(path)
    assert list(dump) == [("m", 0, "I"), ("m", 0, "O"), (name, 0, "V")]
    assert dump[name, 0, "V"].item() == 5


def test_kinds_do_not_select_by_name(tmp_path):
    """`kinds=("O",)` skips inputs, but no module or value whose name looks like an input."""
    module, path = nn.Identity(), tmp_path / "dump.onnx"

    with steal_forward([("ROI", module), ("I", nn.Identity())], dump_file=path, kinds=("O",)):
        module(ONE)
        steal_append("ROI", ONE)

    dump = restore(path)
    assert ("ROI", 0, "O") in dump
    assert ("ROI", 0, "I") not in dump
    assert ("ROI", 0, "V") in dump


def test_names_of_submodules_do_not_depend_on_their_code(tmp_path):
    """A model and its changed version have the same names, so that their captures can be compared."""

    class Short(nn.Module):
        def __init__(self):
            super().__init__()
            self.decoder = nn.Sequential(nn.LayerNorm(2), nn.ReLU())

        def forward(self, x):
            return self.decoder(x)

    class Longer(Short):
        """The same module, after somebody worked on its file."""

        def forward(self, x):
            y = self.decoder(x)
            return y + 0

    names = []
    for index, model in enumerate((Short(), Longer())):
        path = tmp_path / f"{index}.onnx"
        with steal_forward(("m", model), submodules=True, dump_file=path):
            model(torch.ones(1, 2))
        names.append([key.name for key in restore(path) if key.kind == "O"])

    assert names[0] == ["m.decoder.0", "m.decoder.1", "m.decoder", "m"]
    assert names[0] == names[1]
