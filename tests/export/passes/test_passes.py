"""Passes: the default ones are torch's own, others plug in, and what looks on sees each of them."""

import json
import re
import resource
import sys
import time
from functools import partial
from importlib.metadata import EntryPoint
from types import ModuleType

import onnx_ir as ir
import pytest
import torch
from onnx_ir.passes.common import IdentityEliminationPass
from torch import nn

from filch.export import Graph, PassError, Program, ViewError, export, lower, optimize
from filch.export.common._quiet import quiet
from filch.export.passes import Pass, PassContext, default_passes, get_pass, pass_names
from filch.export.views import Drawing
from support.models.small import module_of
from support.models.zoo import exported
from support.thorough import slow


def pixels(self, x):
    """A batch norm to be folded into a convolution, a split, and an input that is a result."""
    first, second = self.linear(torch.relu(self.norm(self.conv(x))).mean((2, 3))).split(4, dim=1)
    return x, first - 2 * second


@pytest.fixture(scope="module")
def program():
    torch.manual_seed(0)
    model = module_of(pixels, conv=nn.Conv2d(3, 8, 3), norm=nn.BatchNorm2d(8), linear=nn.Linear(8, 8))
    return export(model.eval(), (torch.randn(2, 3, 8, 8),))


@pytest.fixture
def context():
    """A pass context, entered."""
    with PassContext() as made:
        yield made


@pytest.fixture
def installed(monkeypatch):
    """Lets entry points be found that no package has: `installed("filch.passes", name, thing)`."""
    module = ModuleType("foreign_passes")
    monkeypatch.setitem(sys.modules, "foreign_passes", module)
    there = []

    def found(*, group, name=None):
        return [entry for entry in there if entry.group == group and name in (None, entry.name)]

    def install(group, name, thing):
        setattr(module, name, thing)
        there.append(EntryPoint(name, f"foreign_passes:{name}", group))

    monkeypatch.setattr("filch.export.common._extensions.entry_points", found)
    return install


class Told:
    """Notes what it hears, with a name of its own, in a list that several share."""

    def __init__(self, name="", notes=None):
        self.name, self.notes = name, [] if notes is None else notes

    def before_all_passes(self, program):
        self.notes.append((self.name, "before all", program))

    def before_pass(self, name, program):
        self.notes.append((self.name, f"before {name}", program))

    def pass_took(self, name, seconds):
        self.notes.append((self.name, f"took {name}", seconds))

    def after_pass(self, name, program):
        self.notes.append((self.name, f"after {name}", program))

    def pass_failed(self, name, program, error):
        self.notes.append((self.name, f"failed {name}", error))

    def after_all_passes(self, program):
        self.notes.append((self.name, "after all", program))


def nothing(program):
    return program


def fails(program):
    raise ValueError("no such luck")


def halves(program):
    """Changes a weight in the model that it is given."""
    weight = program.model.graph.initializers["linear.weight"]
    weight.const_value = ir.tensor(weight.const_value.numpy() / 2, name=weight.name)
    return program.model


# The default passes


def _told(model):
    """Nodes, attributes and numbers, with values numbered in the order in which they come up instead of named."""
    graph, numbers = Program(model).graph, {}
    for name in (*graph.inputs, *graph.constants, *graph.producer):
        numbers.setdefault(name, len(numbers))
    nodes = [(node.name, node.op, node.attributes, [numbers.get(name) for name in node.inputs]) for node in graph.nodes]
    weights = [value.const_value.tobytes() for value in model.graph.initializers.values()]
    return nodes, weights, [numbers[name] for name in graph.outputs], graph.functions


@slow
@pytest.mark.parametrize("name", ["resnet", "bert", "mamba"])
def test_the_default_passes_are_what_torch_does(name):
    """One by one they come to the graph that `torch.onnx.export` makes by default, looked at or not."""
    _, _, _, program = exported(name)
    shipped = torch.onnx.ONNXProgram(program.model.clone(), None)
    with quiet():
        shipped.optimize()

    optimized = optimize(program)
    with PassContext() as context:
        context.instrument(Told())
        seen = optimize(program)

    assert _told(optimized.model) == _told(shipped.model) == _told(seen.model)
    assert optimized.graph == seen.graph
    assert optimized.module_calls == seen.module_calls


def test_names_are_kept_through_every_pass(program):
    """The input that is a result, and the parts of what was split, are called what they were exported as."""
    told = Told()
    with PassContext() as context:
        context.instrument(told)
        optimized = optimize(program)

    graphs = [shown.graph for _, what, shown in told.notes if what.startswith("after")]
    assert {graph.inputs for graph in graphs} == {("x",)}
    parts = {node.outputs[0] for node in program.graph.nodes if node.op == "SequenceAt"}
    assert parts and all(parts <= graph.known for graph in graphs)
    assert parts & set(next(node.outputs for node in optimized.graph.nodes if node.op == "Split"))


def test_module_calls_are_followed_through_every_pass(program):
    """The convolution's output is there until it is computed with the norm's, and then it is said where."""
    told = Told()
    with PassContext() as context:
        context.instrument(told)
        optimize(program)

    ports = {
        what: shown.module_calls["conv", 0].outputs[0]
        for _, what, shown in told.notes
        if what.startswith("after") and shown.module_calls
    }
    assert ports["after InlinePass"].resolution == "exact"
    assert ports["after NameFixPass"].resolution == "fused"
    assert ports["after NameFixPass"].note.startswith("into node_Conv")


def test_the_program_stays_as_it_is(program):
    """Whatever a pass does to the model that it is given."""
    before, weight = program.graph, program.constant("linear.weight").clone()

    halved = optimize(program, [halves, "FoldConstantPass"])

    assert program.graph == before
    assert torch.equal(program.constant("linear.weight"), weight)
    assert torch.equal(halved.constant("linear.weight"), weight / 2)


# What is taken for a pass


def test_passes_are_names_and_objects_and_functions(program):
    """In the order in which they are given, under their own names."""
    told = Told()
    with PassContext() as context:
        context.instrument(told)
        optimize(program, ["InlinePass", IdentityEliminationPass(), IdentityEliminationPass, partial(nothing)])

    taken = [what.removeprefix("took ") for _, what, _ in told.notes if what.startswith("took")]
    assert taken == ["InlinePass", "IdentityEliminationPass", "IdentityEliminationPass", "nothing"]


def test_one_name_alone_is_a_pass(program):
    """Not a pass for each of its letters."""
    assert optimize(program, "FoldConstantPass").graph == optimize(program, ["FoldConstantPass"]).graph


def test_a_pass_of_another_package_is_found_by_its_name(installed, program):
    """By its entry point; and a name of ours is not to be had twice."""
    installed("filch.passes", "HalvePass", halves)
    installed("filch.passes", "InlinePass", halves)

    halved = optimize(program, ["HalvePass"])

    assert torch.equal(halved.constant("linear.weight"), program.constant("linear.weight") / 2)
    assert "HalvePass" in pass_names()
    with pytest.raises(PassError, match="pass 'InlinePass' is provided by filch itself and foreign_passes"):
        get_pass("InlinePass")


def test_the_default_passes_are_there():
    """Each of them has a name that `optimize` takes."""
    assert {*default_passes()} <= {*pass_names()}
    assert [get_pass(name).name for name in pass_names()] == pass_names()


class Needy:
    def __init__(self, limit):
        self.limit = limit

    def __call__(self, program):
        return program


def one_input_more(program):
    program.model.graph.inputs.append(ir.Value(name="y"))
    return program


def one_output_less(program):
    program.model.graph.outputs.pop()
    return program


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("FoldConstantsPass", r"^there is no pass 'FoldConstantsPass'; did you mean 'FoldConstantPass'\?$"),
        (5, r"^a pass is a name, a pass of onnx-ir's or a function of a Program, not 5$"),
        (Needy, r"^Needy needs arguments: .*'limit'; pass an instance instead of the class$"),
        (fails, r"^pass 'fails', 2 of 2, failed: ValueError: no such luck$"),
        (lambda program: None, r"^pass '<lambda>', 2 of 2, failed: it returned a NoneType; a pass returns the Program"),
        (one_input_more, r"^pass 'one_input_more', 2 of 2, failed: its graph has 2 inputs, not 1 \(x\)$"),
        (one_output_less, r"^pass 'one_output_less', 2 of 2, failed: its graph has 1 outputs, not 2$"),
        (partial(lower, to="int3"), r"^pass 'lower', 2 of 2, failed: there is no precision 'int3'; there are float16"),
    ],
)
def test_what_is_no_pass_or_fails_is_one_sentence(program, given, message):
    """It says which pass, and what is wrong with it."""
    with pytest.raises(PassError, match=message):
        optimize(program, [nothing, given])


def test_the_error_of_a_pass_keeps_its_cause(program):
    """So that its own traceback is there."""
    with pytest.raises(PassError) as caught:
        optimize(program, [fails])
    assert isinstance(caught.value.__cause__, ValueError)


def test_what_is_misspelt_is_said_before_anything_runs(program, context):
    """Long passes may stand before it."""
    told = context.instrument(Told())
    with pytest.raises(PassError):
        optimize(program, [nothing, "Nothing"])
    assert told.notes == []


@pytest.mark.parametrize(
    ("name", "precision"), [("Float16Pass", "float16"), ("BFloat16Pass", "bfloat16"), ("Int4Pass", "int4")]
)
def test_passes_to_lower_precision_are_lower(name, precision):
    """The same graphs as those of `lower`."""
    program = optimize(export(nn.Linear(64, 32).eval(), (torch.randn(2, 3, 64),)))
    lowered = optimize(program, [name]).graph
    assert lowered == lower(program, precision).graph != program.graph


def test_onnxruntime_levels_are_passes(program):
    """Each makes another graph; what they keep of nodes is still in its module."""
    given = optimize(program)

    basic, extended, whole = (optimize(given, [f"Ort{level}Pass"]).graph for level in ("Basic", "Extended", "All"))

    assert len(given.graph.nodes) >= len(basic.nodes) > len(extended.nodes)
    assert "com.microsoft::FusedConv" in {node.op for node in extended.nodes}
    assert "com.microsoft::FusedConv" not in {node.op for node in (*basic.nodes, *whole.nodes)}
    assert next(node.module for node in extended.nodes if node.op == "Gemm") == "linear"


# What looks on


def test_instruments_are_told_in_order(program):
    """What comes before a pass in the order in which they were added, what comes after it in the reverse one."""
    notes = []
    with PassContext() as context:
        context.instrument(Told("a", notes))
        context.instrument(Told("b", notes))
        optimize(program, [nothing, "InlinePass"])

    assert [f"{name}: {what}" for name, what, _ in notes] == [
        "a: before all",
        "b: before all",
        *("a: before nothing", "b: before nothing", "b: took nothing", "a: took nothing"),
        *("b: after nothing", "a: after nothing"),
        *("a: before InlinePass", "b: before InlinePass", "b: took InlinePass", "a: took InlinePass"),
        *("b: after InlinePass", "a: after InlinePass"),
        "b: after all",
        "a: after all",
    ]


def test_an_instrument_keeps_what_it_was_shown(program):
    """Each program is as it was then, also after passes that change models where they are."""
    told = Told()
    with PassContext() as context:
        context.instrument(told)
        optimize(program, ["FoldConstantPass", "SubgraphRewritePass", halves])

    before, *_, after = [shown for _, what, shown in told.notes if isinstance(shown, Program)]
    assert before.graph == program.graph
    assert torch.equal(before.constant("linear.weight") / 2, after.constant("linear.weight"))


def test_an_instrument_hears_of_a_failure(program, context):
    """And of nothing that comes after it."""
    told = context.instrument(Told())
    with pytest.raises(PassError):
        optimize(program, [nothing, fails, nothing])
    assert [what for _, what, _ in told.notes][-2:] == ["before fails", "failed fails"]
    assert isinstance(told.notes[-1][2], ValueError)


def test_an_instrument_may_hear_of_one_thing_alone(program):
    """What it has no method for, it does not hear of."""

    class Last:
        def after_all_passes(self, program):
            self.program = program

    with PassContext() as context:
        last = context.instrument(Last())
        made = optimize(program, [nothing])
    assert last.program is made


@pytest.mark.parametrize("given", [5, Told, nn.Identity()])
def test_what_hears_of_nothing_is_refused(given):
    """A class that nobody has made is no instrument, either."""
    with PassContext() as context, pytest.raises(PassError, match="an instrument has a method among before_all_passes"):
        context.instrument(given)


def test_an_instrument_of_another_package_is_found_by_its_name(installed, program):
    """It is made with what `instrument` is given."""
    installed("filch.instruments", "told", Told)

    with PassContext() as context:
        told = context.instrument("told", "theirs", notes=[])
        optimize(program, [])

    assert [name for name, _, _ in told.notes] == ["theirs", "theirs"]
    with pytest.raises(PassError, match="there is no instrument 'tolt'; did you mean 'told'"):
        PassContext().instrument("tolt")


def test_the_innermost_context_counts(program):
    """Outside of any, nothing looks on; after an exception, too."""
    notes = []
    with PassContext() as outer:
        outer.instrument(Told("outer", notes))
        with PassContext() as inner:
            inner.instrument(Told("inner", notes))
            optimize(program, [])
        assert PassContext.current() is outer
        with pytest.raises(ValueError, match="stop"), outer:
            raise ValueError("stop")
        assert PassContext.current() is outer
        optimize(program, [])
    optimize(program, [])

    assert PassContext.current() is None
    assert [name for name, _, _ in notes] == ["inner", "inner", "outer", "outer"]


# Times


def test_times_are_printed_as_in_hidet(program, capsys):
    """The name in 50 characters, then what it does, or how long it took."""
    with PassContext() as context:
        context.profile_pass_instrument(print_stdout=True)
        optimize(program, ["FoldConstantPass"])

    started, took = capsys.readouterr().out.splitlines()
    assert started == "                                  FoldConstantPass started..."
    assert re.fullmatch(r" {34}FoldConstantPass \d+\.\d{3} seconds", took)


def test_nothing_is_printed_unless_asked(program, capsys):
    """Not even with an instrument that times."""
    with PassContext() as context:
        context.profile_pass_instrument()
        optimize(program)
    assert capsys.readouterr() == ("", "")


def test_the_log_file_holds_the_last_run(program, tmp_path, monkeypatch):
    """In the current directory, too; each run begins it anew."""
    monkeypatch.chdir(tmp_path)
    with PassContext() as context:
        context.profile_pass_instrument(log_file="passes.txt")
        optimize(program, ["FoldConstantPass", nothing])
        optimize(program, ["InlinePass"])

    lines = (tmp_path / "passes.txt").read_text().splitlines()
    assert [line.split()[0] for line in lines] == ["InlinePass", "InlinePass"]


def test_each_run_of_a_pass_has_its_own_time(program, tmp_path):
    """Also if it runs twice; and what other instruments take is not counted."""
    pauses = iter([0.0, 0.3])

    def pausing(program):
        time.sleep(next(pauses))
        return program

    class Slow:
        def before_pass(self, name, program):
            time.sleep(0.3)

        after_pass = before_pass

    with PassContext() as context:
        context.profile_pass_instrument(log_file=tmp_path / "logs" / "passes.txt")
        context.instrument(Slow())
        optimize(program, [pausing, pausing])

    lines = (tmp_path / "logs" / "passes.txt").read_text().splitlines()
    first, second = (float(line.split()[1]) for line in lines if line.endswith("seconds"))
    assert first < 0.3 <= second


def test_a_pass_that_raises_is_a_failed_line(program, context, tmp_path):
    """In the place of its time."""
    context.profile_pass_instrument(log_file=tmp_path / "passes.txt")
    with pytest.raises(PassError):
        optimize(program, [fails])
    assert (tmp_path / "passes.txt").read_text().splitlines()[-1].strip() == "fails failed: ValueError: no such luck"


def test_a_log_file_that_cannot_be_written_is_one_sentence(program, context, tmp_path):
    """Before any pass runs."""
    context.profile_pass_instrument(log_file=tmp_path)
    with pytest.raises(PassError, match=r"can't write .*: Is a directory"):
        optimize(program, [fails])


# Graphs


class Kept:
    """A view that keeps the graphs."""

    suffixes = (".json", ".svg", ".txt")
    graphs: tuple[Graph, ...] = ()

    def draw(self, graph, suffix):
        Kept.graphs += (graph,)
        return Drawing(b"{}", suffix, "drawn by hand")


@pytest.fixture
def kept(installed):
    """That view, installed."""
    Kept.graphs = ()
    installed("filch.views", "kept", Kept)
    return Kept


def _files(folder):
    return sorted(path.name for path in folder.iterdir() if path.name[0] != ".")


def test_each_graph_is_drawn(program, context, tmp_path):
    """Before all passes and after each; for hidet's viewer and as text, which says what was fused."""
    context.save_graph_instrument(tmp_path / "outs")
    optimize(program, ["FoldConstantPass", "SubgraphRewritePass"])

    names = ["0_Origin", "1_FoldConstantPass", "2_SubgraphRewritePass"]
    assert _files(tmp_path / "outs") == [f"{name}{suffix}" for name in names for suffix in (".json", ".txt")]
    assert (tmp_path / "outs" / "0_Origin.txt").read_text() == f"{program.graph}\n"
    assert 'fusion="Conv BatchNormalization"' in (tmp_path / "outs" / "2_SubgraphRewritePass.txt").read_text()
    assert json.loads((tmp_path / "outs" / "2_SubgraphRewritePass.json").read_text())["format"] == "netron"


def test_one_view_draws_several_formats(program, context, tmp_path):
    """They differ in their suffixes."""
    context.save_graph_instrument(tmp_path / "outs", views=["netron.netron", "netron.json"])
    optimize(program, [])

    assert _files(tmp_path / "outs") == ["0_Origin.json", "0_Origin.netron"]


def test_a_drawn_graph_knows_what_it_was_made_of(program, tmp_path, kept):
    """The graph before the pass, and in it what each node computes."""
    with PassContext() as context:
        context.save_graph_instrument(tmp_path, views=["kept"])
        optimize(program, ["FoldConstantPass", "SubgraphRewritePass"])

    origin, folded, rewritten = kept.graphs
    assert origin.source_graph is None and folded.source_graph == program.graph
    assert [node.name for node in rewritten.source_graph.nodes] == [node.name for node in folded.nodes]
    conv = next(node for node in rewritten.nodes if node.op == "Conv")
    operators = {node.name: node.op for node in rewritten.source_graph.nodes}
    assert [operators[name] for name in conv.origins] == ["Conv", "BatchNormalization"]
    assert all(node.origins == (node.name,) for node in rewritten.nodes if node.op == "Relu")


def test_a_second_run_leaves_nothing_of_the_first(program, tmp_path, kept):
    """It begins at 0 again; with an instrument of its own as well, and other views; users' files stay."""
    for name in ("1_notes.txt", "2024_report.json", "0_Origin.md", "kept.txt"):
        (tmp_path / name).write_text("mine")
    with PassContext() as context:
        context.save_graph_instrument(tmp_path, views=("kept", "text"))
        optimize(program, [nothing, "FoldConstantPass", nothing])
        optimize(program, [nothing])
    first = _files(tmp_path)
    with PassContext() as context:
        context.save_graph_instrument(tmp_path, views="text")
        optimize(program, [])

    mine = ["0_Origin.md", "1_notes.txt", "2024_report.json", "kept.txt"]
    drawn = ["0_Origin.json", "0_Origin.txt", "1_nothing.json", "1_nothing.txt"]
    assert first == sorted([*mine, *drawn])
    assert _files(tmp_path) == sorted([*mine, "0_Origin.txt"])
    assert {(tmp_path / name).read_text() for name in mine} == {"mine"}


def test_only_files_in_the_folder_are_removed(program, tmp_path):
    """Whatever the note of an earlier run says."""
    precious, folder = tmp_path / "0_Origin.txt", tmp_path / "outs"
    precious.write_text("mine")
    folder.mkdir()
    (folder / "notes").write_text("mine")
    (folder / ".filch-drawn").write_text(f"../0_Origin.txt\n{precious}\nnotes\n")

    with PassContext() as context:
        context.save_graph_instrument(folder, views="text")
        optimize(program, [])

    assert precious.read_text() == (folder / "notes").read_text() == "mine"


def test_a_file_that_was_changed_is_not_replaced(program, tmp_path):
    """Nor one that another program has written, whatever the list says; nothing else is drawn then."""
    with PassContext() as context:
        context.save_graph_instrument(tmp_path / "outs", views="text")
        optimize(program, ["FoldConstantPass"])
    mine = tmp_path / "outs" / "1_FoldConstantPass.txt"
    mine.write_text("mine")

    with PassContext() as context:
        context.save_graph_instrument(tmp_path / "outs", views="text")
        with pytest.raises(ViewError, match=r"1_FoldConstantPass\.txt' exists, and Filch did not draw it: move it"):
            optimize(program, ["FoldConstantPass"])

    assert mine.read_text() == "mine"
    assert [path.name for path in (tmp_path / "outs").iterdir()] == [mine.name]


def test_of_drawings_that_do_not_fit_none_is_left(program, tmp_path):
    """Nor the folder for them."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    with PassContext() as context:
        context.save_graph_instrument(tmp_path / "outs", views=["text", "html"])
        resource.setrlimit(resource.RLIMIT_FSIZE, (2**16, before[1]))
        try:
            with pytest.raises(ViewError, match=r"can't write '.*0_Origin\.html': File too large"):
                optimize(program, [])
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)

    assert not (tmp_path / "outs").exists()


def test_a_pass_that_raises_leaves_the_graph_before_it(program, context, tmp_path):
    """And nothing of those after it."""
    context.save_graph_instrument(tmp_path, views="text")
    with pytest.raises(PassError):
        optimize(program, ["FoldConstantPass", fails, "InlinePass"])
    assert _files(tmp_path) == ["0_Origin.txt", "1_FoldConstantPass.txt"]


def test_names_of_passes_become_names_of_files(program, tmp_path):
    """Whatever they are."""
    names = ["../up", "a b", "a.b", "ü", "x" * 300]
    with PassContext() as context:
        context.save_graph_instrument(tmp_path / "outs", views="text")
        optimize(program, [lambda program: program, *(Pass(name, nothing) for name in names)])

    files = ["0_Origin", "1_lambda", "2_up", "3_a_b", "4_a_b", "5_pass", f"6_{'x' * 100}"]
    assert _files(tmp_path) == ["outs"]
    assert _files(tmp_path / "outs") == [f"{name}.txt" for name in files]


def test_a_view_may_write_another_of_its_suffixes(program, tmp_path, kept, caplog):
    """It is asked for behind its name; what the view has to say is said once."""
    with PassContext() as context:
        context.save_graph_instrument(tmp_path, views=["kept.svg"])
        optimize(program, [nothing])

    assert _files(tmp_path) == ["0_Origin.svg", "1_nothing.svg"]
    assert caplog.messages == ["drawn by hand"]


@pytest.mark.parametrize(
    ("views", "message"),
    [
        (["tixt"], r"^there is no view 'tixt'; did you mean 'text'\?$"),
        (["text.pdf"], r"^view 'text' writes .txt, not .pdf$"),
        (["text", "kept.txt"], r"^views 'text' and 'kept' both write .txt, and one would overwrite the other's$"),
    ],
)
def test_views_that_cannot_be_drawn_are_one_sentence(context, tmp_path, kept, views, message):
    """Before any pass runs: when they are asked for."""
    with pytest.raises(ViewError, match=message):
        context.save_graph_instrument(tmp_path, views=views)


def test_a_folder_that_cannot_be_written_is_one_sentence(program, context, tmp_path):
    """Here it is a file."""
    (tmp_path / "outs").write_text("mine")
    context.save_graph_instrument(tmp_path / "outs", views="text")
    with pytest.raises(ViewError, match=r"can't draw into .*outs'"):
        optimize(program, [])
