"""Names of records: any string for modules and appended values, paths for submodules."""

import pytest
import torch
from torch import nn

from filch.steal import restore, steal_append, steal_forward

ONE = torch.ones(1)


@pytest.mark.parametrize("name", ["0", "a,b", "a___b", "True", "((x))", "a.b-c", "None", "1.5", "I", "a#0.I"])
def test_any_string_is_a_valid_name(steal, name):
    """Names are never parsed or converted."""
    module = nn.Identity()

    records = steal((name, module), lambda: module(ONE))

    assert list(records) == [(name, 0, "I"), (name, 0, "O")]
    assert all(type(key.name) is str for key in records)
    assert torch.equal(records[name, 0, "O"], ONE)


def test_children_of_a_sequential_are_named_by_strings(steal):
    """The names are `"0"` and `"1"`, as in the paths of the modules."""
    model = nn.Sequential(nn.Identity(), nn.Identity())

    records = steal(model, lambda: model(ONE), submodules=True)

    assert [key.name for key in records if key.kind == "O"] == ["0", "1", ""]
    assert torch.equal(records["1", 0, "O"], ONE)


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
