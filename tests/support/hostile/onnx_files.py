"""ONNX files that ask for files elsewhere, for endless work or for all memory, with what each is refused with."""

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from support.models.small import onnx_model

SECRET = b"SECRET-that-no-program-may-read!" * 2
_VARIABLE = helper.make_tensor_value_info("x", TensorProto.FLOAT, [2, 8])
_RESULT = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
_OPSETS = [helper.make_opsetid("", 18), helper.make_opsetid("local", 1)]


def model_of(nodes, initializers=(), functions=(), outputs=(_RESULT,)) -> onnx.ModelProto:
    """Return a model with the input `x`, float32 of 2 by 8."""
    graph = helper.make_graph(nodes, "g", [_VARIABLE], list(outputs), list(initializers))
    return helper.make_model(graph, opset_imports=_OPSETS, ir_version=10, functions=list(functions))


def _written(body):
    """Return such a model from the text of its initializers and nodes."""
    return onnx_model(f"(float[2, 8] x) => (float y) {body}", 18)


def _relu(source, target, name=""):
    return helper.make_node("Relu", [source], [target], name)


def _add(initializer):
    return model_of([helper.make_node("Add", ["x", "w"], ["y"], "add")], [initializer])


def _external(location, offset="0", length="64", dims=(2, 8), kind=TensorProto.FLOAT):
    tensor = TensorProto(name="w", data_type=kind, dims=dims, data_location=TensorProto.EXTERNAL)
    for key, value in (("location", location), ("offset", offset), ("length", length)):
        if value is not None:
            tensor.external_data.add(key=key, value=value)
    return tensor


def _inline(dims, kind=TensorProto.FLOAT, raw=bytes(64)):
    return TensorProto(name="w", data_type=kind, dims=dims, raw_data=raw)


def _after(prepare: Callable[[Path], object], location: str):
    """Return a function that prepares a folder, and whose model refers to a file there."""

    def make(folder):
        prepare(folder)
        return _add(_external(location))

    return make


def _constant(location):
    tensor = _external(location)
    node = helper.make_node("Constant", [], ["w"], value=tensor)
    return model_of([node, helper.make_node("Add", ["x", "w"], ["y"])])


def _in_branch(location):
    inner = helper.make_graph([_relu("w", "o")], "then", [], [_named("o")], [_external(location)])
    other = helper.make_graph([_relu("x", "p")], "else", [], [_named("p")])
    return _if(inner, other)


def _in_function(location):
    constant = helper.make_node("Constant", [], ["w"], value=_external(location))
    body = [constant, helper.make_node("Add", ["a", "w"], ["b"])]
    function = helper.make_function("local", "F", ["a"], ["b"], body, _OPSETS)
    return model_of([helper.make_node("F", ["x"], ["y"], domain="local")], functions=[function])


def _named(name):
    return helper.make_tensor_value_info(name, TensorProto.FLOAT, None)


def _if(then, other):
    true = numpy_helper.from_array(np.array(True), "c")
    return model_of([helper.make_node("If", ["c"], ["y"], "if", then_branch=then, else_branch=other)], [true])


def _deep(levels):
    graph = helper.make_graph([_relu("x", "o0")], "g0", [], [_named("o0")])
    for level in range(1, levels):
        other = helper.make_graph([_relu("x", f"e{level}")], "e", [], [_named(f"e{level}")])
        node = helper.make_node("If", ["c"], [f"o{level}"], then_branch=graph, else_branch=other)
        graph = helper.make_graph([node], f"g{level}", [], [_named(f"o{level}")])
    return _if(graph, other)


def _calls(name, *called, outputs=1):
    """Return a function that calls others in a row."""
    names = ["a", *(f"t{index}" for index in range(len(called)))]
    nodes = [
        helper.make_node(other, [names[index]], [names[index + 1]], domain="local" if other[0] == "F" else "")
        for index, other in enumerate(called)
    ]
    return helper.make_function("local", name, ["a"], [names[-1]], nodes, _OPSETS)


def _calling(*functions):
    return model_of([helper.make_node(functions[-1].name, ["x"], ["y"], domain="local")], functions=functions)


def _flood(number, count):
    """Return a model whose graph has `count` empty entries of this field: two bytes each that take much memory."""
    graph = bytes((number << 3 | 2, 0)) * count
    return b"\x08\x0a\x3a" + _varint(len(graph)) + graph


def _node_flood(number, count):
    node = bytes((number << 3 | 2, 0)) * count
    graph = b"\x0a" + _varint(len(node)) + node
    return b"\x08\x0a\x3a" + _varint(len(graph)) + graph


def _varint(value):
    found = bytearray()
    while value > 127:
        found.append(value & 127 | 128)
        value >>= 7
    return bytes([*found, value])


def _noted(**noted):
    model = model_of([_relu("x", "y", "n")])
    metadata = {"program": "1", "module_calls": "[]", "inputs": "{}", "outputs": "[]", "model": '"x"'}
    for key, value in (metadata | {"operators": "[]", "strategy": '"strict"'} | noted).items():
        model.metadata_props.add(key=f"filch.{key}", value=value)
    return model


def _node_noted(**noted):
    model = model_of([_relu("x", "y", "n")])
    for key, value in noted.items():
        model.graph.node[0].metadata_props.add(key=f"pkg.torch.onnx.{key}", value=value)
    return model


def _sparse():
    model = _add(_inline([2, 8]))
    values = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[1], float_data=[1.0])
    indices = TensorProto(data_type=TensorProto.INT64, dims=[1], int64_data=[0])
    model.graph.ClearField("initializer")
    model.graph.sparse_initializer.add(values=values, indices=indices, dims=[2**40])
    return model


def _changed(change: Callable[[onnx.ModelProto], object]):
    """Return a model of one Relu after a change."""
    model = model_of([_relu("x", "y")])
    change(model)
    return model


def _twice_an_initializer():
    model = _add(_inline([2, 8]))
    model.graph.initializer.append(_inline([2, 8]))
    return model


def _long_cycle():
    nodes = [_relu(f"v{(index - 1) % 50}", f"v{index}", f"n{index}") for index in range(50)]
    return model_of([*nodes, helper.make_node("Add", ["x", "v0"], ["y"])])


def _cycle_through_branch():
    return _written("""<bool c = {1}> {
        [if] a = If(c) <then_branch = t () => (float o) {o = Relu(b)}, else_branch = e () => (float p) {p = Relu(x)}>
        [back] b = Relu(a) y = Relu(b)
    }""")


def _versioned(domain, version):
    model = model_of([_relu("x", "y")])
    del model.opset_import[:]
    model.opset_import.add(domain=domain, version=version)
    return model


Make = Callable[[Path], onnx.ModelProto | bytes]

ELSEWHERE = {
    "up": "../secret", "up, by a detour": "sub/../../secret", "up, as on Windows": "..\\secret", "no name": "",
    "passwords": "/etc/passwd", "device": "/dev/zero", "the folder": ".",
}  # fmt: skip
NO_NAME, LINK = "is not the name of a file in the folder", "is a link out of the folder"
NO_PLACE = "has no valid location of its external data"
OUTSIDE: dict[str, tuple[Make, str]] = {
    **{name: (_after(lambda _: None, location), NO_NAME) for name, location in ELSEWHERE.items()},
    "absolute": (lambda folder: _add(_external(str(folder.parent / "secret"))), NO_NAME),
    "link": (_after(lambda folder: (folder / "link").symlink_to("../secret"), "link"), LINK),
    "folder that is a link": (_after(lambda folder: (folder / "sub").symlink_to(".."), "sub/secret"), LINK),
    "hard link": (_after(lambda folder: os.link(folder.parent / "secret", folder / "hard"), "hard"), "is a hard link"),
    "FIFO": (_after(lambda folder: os.mkfifo(folder / "fifo"), "fifo"), "it is a FIFO, not a regular file"),
    "link to a device": (_after(lambda folder: (folder / "zero").symlink_to("/dev/zero"), "zero"), LINK),
    "null character": (lambda _: _add(_external("a\0b")), "null"),
    "address in memory": (lambda _: _add(_external("*/_ORT_MEM_ADDR_/*", "4096")), "No such file"),
    "in a constant": (lambda _: _constant("../secret"), NO_NAME),
    "in a branch": (lambda _: _in_branch("../secret"), NO_NAME),
    "in a function": (lambda _: _in_function("../secret"), NO_NAME),
}

TENSORS: dict[str, tuple[Make, str]] = {
    "negative offset": (lambda _: _add(_external("inside", "-5")), NO_PLACE),
    "offset beyond": (lambda _: _add(_external("inside", "1000")), "has 0 bytes, but its shape requires 64"),
    "length beyond": (lambda _: _add(_external("inside", "0", None, (2**30, 2**30))), "but its shape requires"),
    "offset of many digits": (lambda _: _add(_external("inside", "9" * 5000)), NO_PLACE),
    "texts elsewhere": (lambda _: _add(_external("inside", kind=TensorProto.STRING)), NO_PLACE),
    "fewer numbers than dims": (lambda _: _add(_inline([2**31, 2**31])), "has 64 bytes, but its shape requires"),
    "a product of dims that overflows": (lambda _: _add(_inline([2**32, 2**32, 16])), "but its shape requires"),
    "negative dim": (lambda _: _add(_inline([-1])), "has the invalid shape"),
    "many dims": (lambda _: _add(_inline([1] * 100_000)), "has the invalid shape"),
    "unknown type": (lambda _: _add(_inline([16], 99)), "has the unknown type 99"),
    "sparse": (lambda _: _sparse(), "sparse"),
}

GRAPHS: dict[str, tuple[Make, str]] = {
    "cycle": (
        lambda _: model_of([helper.make_node("Add", ["x", "b"], ["a"], "n1"), _relu("a", "b", "n2"), _relu("b", "y")]),
        "the graph has a cycle: n[12] → n[12] → n[12]",
    ),
    "cycle of one": (
        lambda _: model_of([helper.make_node("Add", ["x", "y"], ["y"], "n1")]),
        "the graph has a cycle: n1 → n1",
    ),
    "long cycle": (lambda _: _long_cycle(), "the graph has a cycle: n.*…"),
    "cycle through a branch": (lambda _: _cycle_through_branch(), "the graph has a cycle: .*back"),
    "input that nothing makes": (lambda _: model_of([_relu("nope", "y")]), "no node computes 'nope'"),
    "output that nothing makes": (lambda _: model_of([_relu("x", "q")]), "no node computes 'y'"),
    "value made twice": (lambda _: model_of([_relu("x", "y"), _relu("x", "y")]), "two nodes or inputs define 'y'"),
    "input made again": (lambda _: model_of([_relu("x", "x"), _relu("x", "y")]), "two nodes or inputs define 'x'"),
    "input twice": (
        lambda _: _changed(lambda model: model.graph.input.append(_VARIABLE)),
        "two of its inputs have the same name",
    ),
    "initializer twice": (lambda _: _twice_an_initializer(), "two of its initializers have the same name"),
    "deep": (lambda _: _deep(30), "nested more than 16 deep"),
    "function that calls itself": (lambda _: _calling(_calls("F", "F")), "a function calls itself: F → F"),
    "functions in a circle": (
        lambda _: _calling(_calls("F1", "F2"), _calls("F2", "F1")),
        "a function calls itself: F[12] → F[12] → F[12]",
    ),
    "functions that double": (
        lambda _: _calling(_calls("F0", "Relu"), *(_calls(f"F{i}", f"F{i - 1}", f"F{i - 1}") for i in range(1, 40))),
        "its functions have more than 250,000 nodes when inlined",
    ),
    "functions in a chain": (
        lambda _: _calling(_calls("F0", "Relu"), *(_calls(f"F{i}", f"F{i - 1}") for i in range(1, 100))),
        "call each other more than 50 deep",
    ),
    "attribute without a type": (
        lambda _: _changed(lambda model: model.graph.node[0].attribute.add(name="a", i=1)),
        "the attribute 'a' has an unknown type",
    ),
    "attribute of an unknown type": (
        lambda _: _changed(lambda model: model.graph.node[0].attribute.add().ParseFromString(b"\x0a\x01a\xa0\x01\x63")),
        "the attribute 'a' has an unknown type",
    ),
    "operators of a version to come": (
        lambda _: _versioned("", 2**62),
        "it imports version 4,611,.* which does not exist",
    ),
    "the same, by the domain's other name": (lambda _: _versioned("ai.onnx", 2**32 + 18), "which does not exist"),
    "input of an unknown type": (
        lambda _: _changed(lambda model: setattr(model.graph.input[0].type.tensor_type, "elem_type", 99)),
        "ValueError: 99 is not a valid DataType",
    ),
    "input that is a map": (
        lambda _: _changed(lambda model: setattr(model.graph.input[0].type.map_type, "key_type", TensorProto.INT64)),
        "is a map, which only a ZipMap node may return",
    ),
    "function twice": (lambda _: _calling(_calls("F", "Relu"), _calls("F", "Relu")), "has the function 'F' twice"),
}

TOO_MUCH = "would take more than 768 MB"
BYTES: dict[str, tuple[Make, str]] = {
    "nodes": (lambda _: _flood(1, 10**6), TOO_MUCH),
    "initializers": (lambda _: _flood(5, 10**6), TOO_MUCH),
    "inputs": (lambda _: _flood(11, 10**6), TOO_MUCH),
    "attributes": (lambda _: _node_flood(5, 2 * 10**6), TOO_MUCH),
    "notes": (lambda _: _node_flood(9, 4 * 10**6), TOO_MUCH),
    "text that is none": (
        lambda _: model_of([_relu("x", "y", "AAAA")]).SerializeToString().replace(b"AAAA", b"A\xff\xfeA"),
        "a string that is not UTF-8",
    ),
    "nothing": (lambda _: b"", "is not an ONNX file"),
    "a length beyond the file": (lambda _: b"\x08\x0a\x3a\xff\xff\xff\xff\x07", "is not an ONNX file"),
    "a number without end": (lambda _: b"\x08" + b"\xff" * 1000, "is not an ONNX file"),
    "fields that no model has": (
        lambda _: model_of([_relu("x", "y")]).SerializeToString() + b"z\0" * 10_001,
        "is not an ONNX file",
    ),
    "a group": (lambda _: b"\x0b" * 1000, "is not an ONNX file"),
    "cut": (lambda _: model_of([_relu("x", "y")]).SerializeToString()[:-9], "is not an ONNX file"),
}

NOTES: dict[str, tuple[Make, str]] = {
    "calls of many brackets": (lambda _: _noted(module_calls="[" * 100_000), "it is nested too deep"),
    "a strategy of many brackets": (lambda _: _noted(strategy="[" * 100_000), "it is nested too deep"),
    "calls that are none": (lambda _: _noted(module_calls="[1]"), "are damaged"),
    "a call of many digits": (lambda _: _noted(module_calls="[" + "1" * 5000 + "]"), "too many digits"),
    "calls that are many": (lambda _: _noted(module_calls="[" + "{}," * (2 * 10**6) + "{}]"), "would take about"),
    "inputs that are none": (lambda _: _noted(inputs='{"x": ["y"]}'), "are damaged"),
    "operators that are none": (lambda _: _noted(operators="[[1, 2, 3]]"), "are damaged"),
    "original elsewhere": (
        lambda _: _noted(original='["../model.onnx.pt2", "x"]'),
        "does not name a file in the same folder",
    ),
}

KINDS = {"outside": OUTSIDE, "tensors": TENSORS, "graphs": GRAPHS, "bytes": BYTES, "notes": NOTES}
REFUSED = {f"{kind}: {name}": case for kind, cases in KINDS.items() for name, case in cases.items()}

# What is odd, and loads and is shown all the same.
LOADED: dict[str, Make] = {
    "scopes that are code": lambda _: _node_noted(name_scopes="__import__('os').system('touch canary')"),
    "scopes of many brackets": lambda _: _node_noted(class_hierarchy="[" * 3000 + "]" * 3000),
    "scopes that are long": lambda _: _node_noted(name_scopes="[" + "1," * 10**6 + "1]"),
    "a stack that is long": lambda _: _node_noted(stack_trace='File "' * 10**5),
    "a model that is code": lambda _: _noted(model='"os:system"'),
    "a call of a huge number": lambda _: _noted(module_calls='[["", 99999999999999999999, [], []]]'),
    "paths that are code": lambda _: _noted(inputs='{"x": "input.__class__.__mro__[1].__subclasses__()"}'),
    "nodes without names": lambda _: model_of([helper.make_node("Relu", ["x"], [""]), _relu("x", "y")]),
    "one value read 100,000 times": lambda _: model_of([helper.make_node("Sum", ["x"] * 100_000, ["y"])]),
    "a loop without end": lambda _: _endless(),
    "a branch in a branch": lambda _: _deep(5),
}


def _endless():
    return _written("""<bool t = {1}> { [loop] y = Loop(, t, x)
        <body = step (int64 i, bool c, float v) => (bool d, float w) { d = Identity(c) w = Identity(v) }>
    }""")


def _sized(sizes, operator, *inputs, **attributes):
    """Return a model that adds the sum of a large value to its input; initializers hold the size of that value."""
    held = [numpy_helper.from_array(np.array(numbers), name) for name, numbers in sizes.items()]
    nodes = [
        helper.make_node(operator, list(inputs), ["large"], "large", **attributes),
        helper.make_node("ReduceSum", ["large"], ["sum"], keepdims=0),
        helper.make_node("CastLike", ["sum", "x"], ["cast"]),
        helper.make_node("Add", ["x", "cast"], ["y"]),
    ]
    return model_of(nodes, held)


def _sized_in_function():
    return _written("""{ y = own.F(x) } <domain: "own", opset_import: ["": 18]> F(a) => (b) {
        s = Constant<value_ints = [200000, 200000]>() large = ConstantOfShape(s)
        sum = ReduceSum<keepdims = 0>(large) b = Add(a, sum)
    }""")


def _sized_and_denied():
    model = _sized({"s": [200_000, 200_000]}, "ConstantOfShape", "s")
    model.graph.value_info.append(helper.make_tensor_value_info("large", TensorProto.FLOAT, [1, 1]))
    return model


# What loads, and must not be run: some bytes that ask for terabytes.
LARGE: dict[str, Make] = {
    "filled": lambda _: _sized({"s": [200_000, 200_000]}, "ConstantOfShape", "s"),
    "filled, and said to be small": lambda _: _sized_and_denied(),
    "filled in a function": lambda _: _sized_in_function(),
    "expanded": lambda _: _sized({"s": [2**20, 2**20, 2, 8]}, "Expand", "x", "s"),
    "tiled": lambda _: _sized({"s": [2**20, 2**20]}, "Tile", "x", "s"),
    "counted": lambda _: _sized({"a": 0, "b": 2**40, "c": 1}, "Range", "a", "b", "c"),
    "drawn": lambda _: _sized({}, "RandomNormal", shape=[2**20, 2**20]),
    "padded": lambda _: _sized({"s": [0, 0, 2**20, 2**20]}, "Pad", "x", "s"),
}


def _again(operator, count, first, *others, last="Identity", **attributes):
    """Return a model in which an operator reads its own result twice, repeatedly."""
    nodes = [helper.make_node(first, ["x"], ["v0"], **({"to": TensorProto.INT64} if first == "Cast" else {}))]
    for place in range(count):
        read = [f"v{place}", *(others or [f"v{place}"])]
        nodes.append(helper.make_node(operator, read, [f"v{place + 1}"], **attributes))
    end = ["x", f"v{count}"] if last == "Reshape" else [f"v{count}"]
    zero = numpy_helper.from_array(np.array([0]), "zero")
    return model_of([*nodes, helper.make_node(last, end, ["y"])], [zero])


def _squeezed(operator, **attributes):
    """Return a model that alternates Gather and an operator whose axes repeat one axis 900 times."""
    nodes = [helper.make_node("Cast", ["x"], ["v0"], to=TensorProto.INT64)]
    for place in range(40):
        nodes.append(helper.make_node("Gather", [f"v{place}", f"v{place}"], [f"g{place}"]))
        nodes.append(helper.make_node(operator, [f"g{place}", "axes"], [f"v{place + 1}"], **attributes))
    axes = numpy_helper.from_array(np.zeros(900, np.int64), "axes")
    return model_of([*nodes, helper.make_node("Cast", ["v40"], ["y"], to=TensorProto.FLOAT)], [axes])


def _shaped(operator, reads, **sizes):
    """Return a model whose input is reshaped by a long shape that an operator computes from a short one."""
    held = [numpy_helper.from_array(np.array(numbers), name) for name, numbers in sizes.items()]
    return model_of(
        [
            helper.make_node(operator, reads, ["made"]),
            helper.make_node("Reshape", ["made", "flat"], ["shape"]),
            helper.make_node("Reshape", ["x", "shape"], ["y"]),
        ],
        [*held, numpy_helper.from_array(np.array([-1]), "flat")],
    )


def _gathered_in_function():
    gathers = " ".join(f"v{place + 1} = Gather(v{place}, v{place})" for place in range(40))
    return _written(f"""{{ y = own.F(x) }} <domain: "own", opset_import: ["": 18]> F(a) => (b) {{
        v0 = Cast<to = 7>(a) {gathers} b = Cast<to = 1>(v40)
    }}""")


# What loads, and must not be run: some nodes that ask for billions of dimensions.
DIMENSIONS: dict[str, Make] = {
    "gathered by itself": lambda _: _again("Gather", 40, "Cast"),
    "gathered by itself in a function": lambda _: _gathered_in_function(),
    "gathered from each": lambda _: _again("GatherND", 10_000, "Cast", "v0"),
    "a shape joined with itself": lambda _: _again("Concat", 40, "Shape", last="Reshape", axis=0),
    "squeezed by one axis often": lambda _: _squeezed("Squeeze"),
    "summed by one axis often": lambda _: _squeezed("ReduceSum", keepdims=0),
    "a shape that is filled": lambda _: _shaped("ConstantOfShape", ["n"], n=[2**27]),
    "a shape that is tiled": lambda _: _shaped("Tile", ["one", "n"], one=[1], n=[2**27]),
    "a shape that is expanded": lambda _: _shaped("Expand", ["one", "n"], one=[1], n=[2**27]),
    "a shape that is counted": lambda _: _shaped("Range", ["a", "n", "b"], a=0, n=2**27, b=1),
    "a shape that is padded": lambda _: _shaped("Pad", ["one", "n"], one=[1], n=[0, 2**27]),
    "one more, again and again": lambda _: _again("Unsqueeze", 10_000, "Identity", "zero"),
}


def write(make: Make, folder: Path) -> Path:
    """Write a file to a folder beside which there is a secret file.

    Returns:
        its path.
    """
    folder.mkdir()
    (folder.parent / "secret").write_bytes(SECRET)
    (folder / "inside").write_bytes(bytes(64))
    made = make(folder)
    path = folder / "model.onnx"
    path.write_bytes(made if isinstance(made, bytes) else made.SerializeToString())
    return path
