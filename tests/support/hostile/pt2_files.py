"""Archives of exported programs that try to run code, to reach other files or to exhaust the machine."""

from __future__ import annotations

import base64
import json
import os
import pickle
import warnings
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnx

__all__ = ["ARCHIVES", "HARMLESS", "REFUSED", "Files", "canary", "contents", "write"]

Files = dict[str, bytes]
Change = Callable[[Files, Path], None]

MODEL, WEIGHTS = "models/model.json", "data/weights/model_weights_config.json"
CONSTANTS, EXAMPLES = "data/constants/model_constants_config.json", "data/sample_inputs/model.pt"


def canary(folder: Path) -> Path:
    """Return the file that exists once code of the archive ran."""
    return folder / "ran"


def code(folder: Path) -> str:
    """Return a Python expression that creates the canary."""
    return f"__import__('os').system('touch {canary(folder)}')"


class Payload:
    def __init__(self, folder: Path) -> None:
        self.command = f"touch {canary(folder)}"

    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, (self.command,)


def contents(path: Path) -> Files:
    """Return the members of an archive, by their names in its folder."""
    with zipfile.ZipFile(path) as archive:
        return {name.partition("/")[2]: archive.read(name) for name in archive.namelist()}


def write(files: Files, path: Path, *, compression: int = zipfile.ZIP_STORED) -> None:
    """Write an archive of these members."""
    with zipfile.ZipFile(path, "w", compression) as archive:
        for name, data in files.items():
            archive.writestr(f"m/{name}", data)


def in_json(member: str) -> Callable[[Callable[[Any, Path], None]], Change]:
    """Return a change of a member that is JSON."""

    def made(change: Callable[[Any, Path], None]) -> Change:
        def changed(files: Files, folder: Path) -> None:
            data = json.loads(files[member])
            change(data, folder)
            files[member] = json.dumps(data).encode()

        return changed

    return made


def graph(change: Callable[[dict[str, Any], Path], None]) -> Change:
    return in_json(MODEL)(lambda data, folder: change(data["graph_module"]["graph"], folder))


def whole(change: Callable[[dict[str, Any], Path], None]) -> Change:
    return in_json(MODEL)(change)


def first_size(text: Callable[[Path], str]) -> Change:
    """Replace a size of the first tensor by an expression."""

    def change(data: dict[str, Any], folder: Path) -> None:
        tensor = next(iter(data["tensor_values"].values()))
        tensor["sizes"][0] = {"as_expr": {"expr_str": text(folder), "hint": None}}

    return graph(change)


def calls(target: str, *inputs: Callable[[Path], dict[str, Any]]) -> Change:
    """Insert an operation at the beginning, whose result is declared like that of the first one."""

    def change(data: dict[str, Any], folder: Path) -> None:
        arguments = [{"name": "", "arg": made(folder), "kind": 1} for made in inputs]
        like = data["nodes"][0]
        name = like["outputs"][0]["as_tensor"]["name"]
        data["tensor_values"]["further"] = data["tensor_values"][name]
        outputs = [{"as_tensor": {"name": "further"}}]
        data["nodes"].insert(0, {"target": target, "inputs": arguments, "outputs": outputs, "metadata": {}})

    return graph(change)


def text(made: Callable[[Path], str]) -> Callable[[Path], dict[str, Any]]:
    return lambda folder: {"as_string": made(folder)}


def argument(value: dict[str, Any]) -> Change:
    """Add an argument to the first operation."""
    return graph(lambda data, _: data["nodes"][0]["inputs"].append({"name": "other", "arg": value, "kind": 2}))


def renamed(name: Callable[[Path], str]) -> Change:
    """Rename the first operation and its result."""

    def change(files: Files, folder: Path) -> None:
        node = json.loads(files[MODEL])["graph_module"]["graph"]["nodes"][0]
        before = json.dumps(node["outputs"][0]["as_tensor"]["name"]).encode()
        files[MODEL] = files[MODEL].replace(before, json.dumps(name(folder)).encode())

    return change


def renamed_weight(files: Files, folder: Path) -> None:
    name = next(iter(json.loads(files[WEIGHTS])["config"]))
    evil = json.dumps(f'x"); {code(folder)} #').encode()
    for member in (MODEL, WEIGHTS):
        files[member] = files[member].replace(json.dumps(name).encode(), evil)


def weight(**changes: Any) -> Change:
    """Change the entry of the first weight."""
    return in_json(WEIGHTS)(lambda data, _: next(iter(data["config"].values())).update(changes))


def weight_meta(**changes: Any) -> Change:
    return in_json(WEIGHTS)(lambda data, _: next(iter(data["config"].values()))["tensor_meta"].update(changes))


def opaque(files: Files, folder: Path) -> None:
    config = {"path_name": "opaque_obj_0", "is_param": False, "use_pickle": True, "tensor_meta": None}
    files[CONSTANTS] = json.dumps({"config": {"evil": config}}).encode()
    files["data/constants/opaque_obj_0"] = pickle.dumps(Payload(folder), 2)


def pickled(member: str) -> Change:
    return lambda files, folder: files.update({member: pickle.dumps(Payload(folder), 2)})


def pickled_weight(files: Files, folder: Path) -> None:
    weight(use_pickle=True)(files, folder)
    pickled("data/weights/weight_0")(files, folder)


def everywhere_pickled(files: Files, folder: Path) -> None:
    for member in ("data/sample_inputs/other.pt", "data/weights/other.pt", "extra/other.pt", "other.pkl", EXAMPLES):
        pickled(member)(files, folder)


def import_in_treespec(data: dict[str, Any], folder: Path) -> None:
    (folder / "evil.py").write_text(code(folder))
    context = '{"default_factory_module": "evil", "default_factory_name": "evil", "dict_context": []}'
    spec = [1, {"type": "collections.defaultdict", "context": context, "children_spec": []}]
    for entry in data["graph_module"]["module_call_graph"]:
        entry["signature"]["in_spec"] = json.dumps(spec)


def code_in_places(data: dict[str, Any], folder: Path) -> None:
    for node in data["nodes"]:
        node["metadata"] = {
            "stack_trace": f'File "a.py", line 1, in f\n    x\n{code(folder)}\n',
            "nn_module_stack": f"a,b,c\n{code(folder)}",
            "from_node": "[" * 100,
            "source_fn_stack": f"a,torch.{code(folder)}",
            "custom": "{" * 100,
        }


def outside(files: Files, _: Path) -> None:
    """Make the graph refer to a file of the machine."""
    model = onnx.ModelProto.FromString(base64.b64decode(files["extra/filch.onnx"]))
    tensor = onnx.TensorProto(name="secret", dims=[16], data_type=onnx.TensorProto.UINT8)
    tensor.data_location = onnx.TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value="/etc/passwd")
    attribute = model.graph.node[0].attribute.add(name="value", type=onnx.AttributeProto.TENSOR)
    attribute.t.CopyFrom(tensor)
    files["extra/filch.onnx"] = base64.b64encode(model.SerializeToString())


def unmade(files: Files, _: Path) -> None:
    """Make the graph read a value that nothing computes."""
    model = onnx.ModelProto.FromString(base64.b64decode(files["extra/filch.onnx"]))
    model.graph.node[0].input[0] = "nothing"
    files["extra/filch.onnx"] = base64.b64encode(model.SerializeToString())


def many_lists(files: Files, _: Path) -> None:
    files[MODEL] = b"[" + b"[]," * 3_000_000 + b"[]]"


def cyclic(_: Path) -> dict[str, Any]:
    return {"as_tensor": {"name": "further"}}


@graph
def beyond_counting(data: dict[str, Any], _: Path) -> None:
    for value in data["tensor_values"].values():
        value.update(sizes=[{"as_int": 2**62}] * 8, strides=[{"as_int": 1}] * 8)


HUGE = {"as_int": 200_000}


def sum_of(count: int, first: int = 0) -> str:
    """Return a sum of so many symbols, which torch assumes to be positive."""
    symbols = (f"Symbol('s{first + index}', integer=True, positive=True)" for index in range(count))
    return f"Add({', '.join(symbols)})"


def of_powers(name: str) -> str:
    """Return a function of two powers of sums, in which sympy looks for common factors."""
    return f"{name}(Pow({sum_of(16)}, Integer(8)), Pow({sum_of(16, 7)}, Integer(8)))"


def of_products(name: str, *further: str) -> str:
    """Return a function of two products of powers of sums."""
    factors = [f"Pow({sum_of(9, first)}, Integer(8))" for first in (0, 5, 9, 3)]
    parts = [f"Mul({', '.join(factors[:2])})", f"Mul({', '.join(factors[2:])})", *further]
    return f"{name}({', '.join(parts)})"


POWERS = "Pow(Integer(9), Pow(Integer(9), Pow(Integer(9), Integer(9))))"

NOT_VALID, TERMS = "not valid in a symbolic size", "more than 100 terms"
UNKNOWN, NOT_RUN = "knows no operator", "Filch does not run from a file"
TOO_MANY, OTHER_SIZE = "at most 10,000 are read", "does not have the size in its metadata"
REFUSED: dict[str, tuple[Change, str]] = {
    "a size that is code": (first_size(lambda folder: code(folder) + " or 2"), NOT_VALID),
    "code in a symbol": (first_size(lambda folder: f"Symbol({code(folder)})"), NOT_VALID),
    "code in an assumption": (
        first_size(lambda folder: f"Symbol('s0', real={code(folder)})"),
        "assumptions that torch does not use",
    ),
    "a lambda": (first_size(lambda folder: f"(lambda: {code(folder)})()"), NOT_VALID),
    "powers of powers": (first_size(lambda _: "9**9**9**9"), NOT_VALID),
    "sympy's powers of powers": (first_size(lambda _: POWERS), "the exponent"),
    "a remainder of powers": (first_size(lambda _: of_powers("PythonMod")), TERMS),
    "a quotient of powers": (first_size(lambda _: of_powers("FloorDiv")), TERMS),
    "a quotient of products": (first_size(lambda _: of_products("FloorDiv")), TERMS),
    "an index of products": (first_size(lambda _: of_products("ModularIndexing", "Integer(7)")), TERMS),
    "a remainder of products of sums": (
        first_size(lambda _: f"PythonMod(Mul({sum_of(19)}, {sum_of(19, 9)}), {sum_of(9, 5)})"),
        TERMS,
    ),
    "a long number": (first_size(lambda _: f"Integer({'9' * 3000})"), "too large a number"),
    "products of products": (first_size(lambda _: f"Mul({', '.join(['Integer(2**40)'] * 90)})"), NOT_VALID),
    "an expression without end": (first_size(lambda _: "Add(" * 500 + "1" + ")" * 500), "too long"),
    "brackets in a size": (first_size(lambda _: "[" * 3000), "not a symbolic size"),
    "a file that is mapped": (
        calls("torch.ops.aten.from_file.default", text(lambda folder: str(canary(folder)))),
        NOT_RUN,
    ),
    "a file that is written": (calls("torch.ops.aten.save.default", text(str)), NOT_RUN),
    "a shell": (calls("torch.os.system", text(lambda folder: f"touch {canary(folder)}")), UNKNOWN),
    "a library": (calls("torch.ops.load_library", text(str)), UNKNOWN),
    "a function of Python": (calls("_operator.methodcaller", text(str)), UNKNOWN),
    "an operator of nobody": (calls("torch.ops.nobody.knows.default"), UNKNOWN),
    "an unchecked view": (calls("torch.ops.aten._reshape_alias.default"), NOT_RUN),
    "a change in place": (calls("torch.ops.aten.add_.Tensor", cyclic), NOT_RUN),
    "a loop": (calls("torch.ops.higher_order.while_loop"), NOT_RUN),
    "an operator as an argument": (argument({"as_operator": "torch.os.system"}), UNKNOWN),
    "an object as an argument": (argument({"as_custom_obj": {"name": "x", "class_fqn": "y"}}), "as_custom_obj"),
    "a number of any length": (argument({"as_int": 10**30}), "not a 64-bit integer"),
    "a text of two lines": (argument({"as_string": "a\nb"}), "not a single line of text"),
    "an unknown type": (argument({"as_scalar_type": 99}), "not a supported ScalarType"),
    "an unchecked layout": (argument({"as_layout": 2}), "not a supported Layout"),
    "a million dimensions to sum": (argument({"as_ints": [0] * 1_000_000}), TOO_MANY),
    "lists of a million numbers": (argument({"as_int_lists": [[0] * 1_000_000]}), TOO_MANY),
    "a million symbols": (argument({"as_sym_ints": [{"as_int": 1}] * 100_000}), TOO_MANY),
    "a value of too many dimensions": (
        graph(lambda data, _: next(iter(data["tensor_values"].values())).update(sizes=[{"as_int": 1}] * 10_001)),
        TOO_MANY,
    ),
    "two arguments in one": (argument({"as_int": 1, "as_string": "x"}), "not one of"),
    "a value of itself": (calls("torch.ops.aten.neg.default", cyclic), "torch can't make a program of it"),
    "objects of classes": (
        graph(lambda data, _: data.update(custom_obj_values={"x": {"name": "x", "class_fqn": "y"}})),
        "objects of classes",
    ),
    "a name that is code": (renamed(lambda folder: f"x = 1\n{code(folder)}\ny"), "not a single line of text"),
    "a name that is an expression": (renamed(code), "not a valid name of a value"),
    "a weight's name that is code": (
        renamed_weight,
        "not a valid name of a weight: it has a quotation mark or a backslash",
    ),
    "sizes that are text": (graph(lambda data, _: data["tensor_values"].update(x={"sizes": "4"})), "is not a list"),
    "a count of symbols": (
        whole(lambda data, _: data["range_constraints"].update(u9999999999={"min_val": 0, "max_val": 9})),
        "not a valid name of a symbolic size",
    ),
    "a schema to come": (whole(lambda data, _: data.update(schema_version={"major": 9, "minor": 0})), "its schema has"),
    "no graph": (whole(lambda data, _: data.update(graph_module=None)), "is not an object"),
    "a list of operations without end": (many_lists, "MB of memory"),
    "brackets": (lambda files, _: files.update({MODEL: b"[" * 200_000}), "nested too deep"),
    "an opaque constant": (opaque, "a pickle may hold code"),
    "a pickled weight": (pickled_weight, "a pickle may hold code"),
    "weights of an older torch": (pickled("data/weights/model.pt"), "its weights are pickled"),
    "a weight larger than its bytes": (weight_meta(sizes=[HUGE, HUGE], strides=[HUGE, {"as_int": 1}]), OTHER_SIZE),
    "a weight that repeats its numbers": (
        weight_meta(sizes=[HUGE, HUGE], strides=[{"as_int": 0}, {"as_int": 0}]),
        "repeats its elements too often",
    ),
    "values of too many elements": (beyond_counting, "can't make a program"),
    "a weight at the end of memory": (weight_meta(storage_offset={"as_int": 2**62}), OTHER_SIZE),
    "a weight of another file": (weight(path_name="../../../../etc/passwd"), "it has no member"),
    "a graph with data of another file": (outside, "refers to other files"),
    "a graph with a value that nothing makes": (unmade, "no node computes 'nothing'"),
    "a graph of too many operations": (
        graph(lambda data, _: data.update(nodes=[{}] * 20_001)),
        "at most 20,000 are read",
    ),
}

HARMLESS: dict[str, Change] = {
    "pickles that nothing needs": everywhere_pickled,
    "guards": whole(lambda data, folder: data.update(guards_code=[code(folder)])),
    "an import": whole(import_in_treespec),
    "code in the places that nodes are from": graph(code_in_places),
    "a compiled library": lambda files, _: files.update({"data/aotinductor/model/evil.so": b"\x7fELF"}),
    "fields of another kind": whole(lambda data, folder: data.update(code=code(folder), verifiers=[code(folder)])),
}


def compressed(files: Files, path: Path) -> None:
    write(files | {MODEL: b" " * 10**7 + files[MODEL]}, path, compression=zipfile.ZIP_DEFLATED)


def outside_names(files: Files, path: Path) -> None:
    write(files | {"../../evil": b""}, path)


def same_names(files: Files, path: Path) -> None:
    write(files, path)
    with warnings.catch_warnings(action="ignore"), zipfile.ZipFile(path, "a") as archive:
        archive.writestr(f"m/{MODEL}", b"{}")


def cut(files: Files, path: Path) -> None:
    write(files, path)
    path.write_bytes(path.read_bytes()[:-200])


def other_bytes(files: Files, path: Path) -> None:
    write(files, path)
    path.write_bytes(path.read_bytes().replace(files["data/weights/weight_0"], bytes(48)))


def overlapping(files: Files, path: Path) -> None:
    """Return an archive of many members at the same offset."""
    write(files | {f"data/{index:03}": bytes(10_000 if index == 0 else 0) for index in range(200)}, path)
    with zipfile.ZipFile(path) as archive:
        first = archive.getinfo("m/data/000")
    found = bytearray(path.read_bytes())
    entry = found.rfind(b"PK\1\2")
    while (entry := found.rfind(b"PK\1\2", 0, entry)) >= 0:
        if b"m/data/0" in found[entry : entry + 60] or b"m/data/1" in found[entry : entry + 60]:
            found[entry + 16 : entry + 28] = first.CRC.to_bytes(4, "little") + (10_000).to_bytes(4, "little") * 2
            found[entry + 42 : entry + 46] = first.header_offset.to_bytes(4, "little")
    path.write_bytes(found)


def linked(files: Files, path: Path) -> None:
    write(files, path.parent.parent / "elsewhere")
    path.symlink_to("../elsewhere")


def hard_linked(files: Files, path: Path) -> None:
    write(files, path.with_name("elsewhere"))
    path.hardlink_to(path.with_name("elsewhere"))


ARCHIVES: dict[str, tuple[Change, str]] = {
    "a compressed member": (compressed, "is compressed"),
    "a member outside of the folder": (outside_names, "is encrypted or has an invalid name"),
    "two members of the same name": (same_names, "the same name"),
    "an archive that is cut short": (cut, "damaged"),
    "other bytes than were written": (other_bytes, "damaged"),
    "members that share bytes": (overlapping, "larger than the file"),
    "a link out of the folder": (linked, "a link out of the folder"),
    "a hard link": (hard_linked, "hard link"),
    "a link to a device": (lambda _, path: path.symlink_to("/dev/zero"), ""),
    "a FIFO": (lambda _, path: os.mkfifo(path), ""),
    "nothing": (lambda _, path: path.write_bytes(b""), "not a zip file"),
    "a pickle": (lambda _, path: path.write_bytes(pickle.dumps(Payload(path.parent.parent), 2)), "not a zip file"),
}
