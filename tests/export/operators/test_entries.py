"""Each operator has one entry, and no other file has a list of operators."""

import ast
import operator
import re
from pathlib import Path

import onnxruntime as ort
import pytest
import torch
from onnx import defs
from torch._inductor.decomposition import select_decomp_table

from filch.export import export
from filch.export.operators._operator import Operator
from filch.export.operators._registry import find_operator, operator_name, operator_of
from support.models.zoo import MODELS
from support.thorough import slow

ROOT = Path(__file__).resolve().parents[3]
# Operators of ONNX without an entry, and why.
WITHOUT = {
    "strings": {"RegexFullMatch", "StringConcat", "StringNormalizer", "StringSplit"},
    "dictionaries": {"CastMap", "CategoryMapper", "DictVectorizer", "ZipMap"},
    "labels": {"LinearClassifier", "SVMClassifier"},
    "images": {"ImageDecoder"},
    "training": {"Adagrad", "Adam", "Gradient", "Momentum"},
}
# Operators of PyTorch without an entry: they compute numbers from others by additions or functions that nothing more
# has to be known of, and PyTorch itself computes them in float64.
PLAIN = {"_assert_tensor_metadata", "addcmul", "iota", "sym_size", "var", "var_mean"}
TABLE = 3  # names from which on a list of them is one of operators
MODELS_READ = ["mixtral", "deberta_v2", "mamba2", "segformer"]


def _has_entry(target):
    return operator_of(target).torch != "" or operator_name(target) in PLAIN


def _called(nodes):
    """Return the operators of PyTorch that are called, without those that only take a result of several."""
    return {str(node.target) for node in nodes if node.op == "call_function" and node.target is not operator.getitem}


@pytest.fixture(scope="module", params=MODELS_READ)
def program(request):
    """An exported model of the zoo."""
    model, args, kwargs = MODELS[request.param]()
    return export(model, args, kwargs)


def test_operators_of_onnx():
    """All, also those that compute no floating-point numbers."""
    missing = {item.name for item in defs.get_all_schemas() if find_operator(item.domain, item.name) is None}
    assert missing == set().union(*WITHOUT.values())


@slow
def test_operators_of_models(program):
    """Those of the ONNX graph, and those of PyTorch that it was translated from."""
    calls = _called(program.original.nodes)
    assert len(calls) > 5
    assert {target for target in calls if not _has_entry(target)} == set()
    ops = {node.op for node in program.graph.nodes}
    assert {op for op in ops if find_operator(*op.rpartition("::")[::2]) is None} == set()


def test_operators_of_inductor():
    """Those that Inductor decomposes others to."""
    model, args, kwargs = MODELS["bert"]()
    decomposed = torch.export.export(model, args, kwargs).run_decompositions(select_decomp_table())
    assert {target for target in _called(decomposed.graph.nodes) if not _has_entry(target)} == set()


def test_operators_without_an_entry_add():
    """What nothing is known of is judged as what adds numbers."""
    unknown = operator_of("somebody::Operator")
    assert unknown.name == "Operator"
    assert unknown.adds
    assert unknown.movement == ""


@pytest.mark.parametrize("op", ["custom::Cast", "my::Split", "lib::Sub", "x::max"])
def test_an_operator_of_another_domain_may_mean_anything(op):
    """Only runtimes use the names of ONNX for the same."""
    assert operator_of(op) == Operator(op.partition("::")[2])


def test_names_of_pytorch_are_read_with_or_without_what_is_around_them():
    """In place, with an overload or without, and of each namespace."""
    for op in ("floor", "floor_", "aten.floor", "aten.floor_.default", "aten.floor.out"):
        assert operator_of(op).jumps, op
    assert operator_of("prims.convert_element_type.default").movement == "cast"
    assert operator_of("aten.div.Tensor_mode").jumps
    assert not operator_of("aten.div.Tensor").jumps


def test_functions_that_differ_are_of_different_kinds():
    """Equal kinds on equal operands are taken for a proof that two values are the same."""
    for names in (
        "tril triu",
        "ones_like zeros_like",
        "fmod remainder",
        "maximum fmax",
        "rnn_tanh rnn_relu",
        "add sub",
    ):
        one, other = names.split()
        assert operator_of(one).kind != operator_of(other).kind
    assert operator_of("mm").kind == operator_of("Gemm").kind == operator_of("com.microsoft::FusedMatMul").kind


def test_integers_of_onnxruntime_have_a_scale():
    """All operators that ONNX Runtime has for quantized integers."""
    get_schemas = ort.capi.onnxruntime_pybind11_state.get_all_operator_schema
    names = {(item.domain, item.name) for item in get_schemas() if re.match(r"QLinear|QGemm|\w+Integer$", item.name)}
    assert len(names) > 10
    found = {(domain, name): operator_of(f"{domain}::{name}" if domain else name) for domain, name in names}
    assert {name for name, item in found.items() if item.quantization != "integers"} == set()


def _tables(tree):
    """Yield the lines of lists and of keys that name several operators."""
    names = {item.name for item in defs.get_all_schemas()} - {"If", "Loop", "Scan"}  # those with graphs
    for node in ast.walk(tree):
        items = node.keys if isinstance(node, ast.Dict) else getattr(node, "elts", [])
        found = [item for item in items if isinstance(item, ast.Constant) and item.value in names]
        if len(found) >= TABLE:
            yield node.lineno


@slow
def test_no_other_file_lists_operators():
    """Passes and views are about single operators."""
    rooms = [file for room in ("steal", "export", "compare") for file in sorted((ROOT / room).rglob("*.py"))]
    excepted = {("export", "operators"), ("export", "passes"), ("export", "views")}
    others = [file for file in rooms if file.relative_to(ROOT).parts[:2] not in excepted]
    found = [
        f"{file.relative_to(ROOT)}:{line}" for file in others for line in _tables(ast.parse(file.read_text("utf-8")))
    ]
    assert len(others) > 300
    assert found == []
    assert [*_tables(ast.parse("MOVES = {'Reshape', 'Squeeze', 'Transpose'}"))] == [1]
