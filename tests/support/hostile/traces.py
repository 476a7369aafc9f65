"""Files that pretend to be traces: to run code, to fill the memory, or to keep whoever reads them busy.

Each is a suffix, the contents, and what is said of it: by `load_trace`, or by `check_trace` if it can be loaded.
"""

import json
import pickle
import struct

CANARY = "touched-by-a-trace"
_TOUCH = b"X" + struct.pack("<I", len(CANARY)) + CANARY.encode()  # the text
_COLLIDING = 2**61 - 1  # all multiples have one hash


def _node(key=0, **changes):
    attrs = {"is_var": "0", "name": "relu", "__id": "0"}
    return {"id": key, "inputs": [], "outputs": [], "stacks": [], "attrs": attrs} | changes


def _json(nodes):
    return json.dumps({"node_data": nodes, "execute_op_info": {}}).encode()


def _pickled(nodes):
    return pickle.dumps({"node_data": nodes, "execute_op_info": {}}, 4)


def _with_attrs(**attrs):
    return _json({"0": _node(attrs=_node()["attrs"] | attrs)})


def _doubled(levels):
    """Return lists that each hold the list below twice: few bytes for 2**levels values."""
    made = b"\x80\x02]q\x00"
    for level in range(levels):
        made += b"](h" + bytes([level]) + b"h" + bytes([level]) + b"eq" + bytes([level + 1])
    return made + b"}X\x09\x00\x00\x00node_datah" + bytes([levels]) + b"s."


def _shared(count):
    """Return nodes that are all the same object, which has as many edges as there are nodes."""
    node = _node(inputs=list(range(count)))
    return _pickled(dict.fromkeys(range(count), node))


def popular(readers):
    """Return a trace of one variable that many operators read; only the last one is listed twice."""
    attrs = {"is_var": "1", "name": "", "__id": "0", "shape": "[1,]", "ndim": "1", "dtype": "f", "dsize": "4"}
    nodes = {number: _node(number, inputs=[readers]) for number in range(readers)}
    nodes[readers] = _node(readers, outputs=[*range(readers), readers - 1], attrs=attrs)
    return {"node_data": nodes, "execute_op_info": {}}


_RUNS = r"asks for {} \(byte \d+\), which may run anything; a trace needs plain values alone"
_MEMORY = r"would take more than 8 MB of memory"
_CUT = r"is cut short"

PICKLES = {
    "a function that is called": (b"\x80\x02cpathlib\nPath\n" + _TOUCH + b"\x85R.", _RUNS.format("GLOBAL")),
    "the same in protocol 4": (
        b"\x80\x04\x8c\x02os\x8c\x05mkdir\x93" + _TOUCH + b"\x85R.",
        _RUNS.format("STACK_GLOBAL"),
    ),
    "an instance of protocol 0": (b"(S'" + CANARY.encode() + b"'\nios\nmkdir\n.", r"asks for STRING \(byte 1\)"),
    "an instance": (b"(" + _TOUCH + b"ios\nmkdir\n.", _RUNS.format("INST")),
    "an object": (b"(" + _TOUCH + b"o.", _RUNS.format("OBJ")),
    "a new object": (b"\x80\x02N" + _TOUCH + b"\x81.", _RUNS.format("NEWOBJ")),
    "a new object with keywords": (b"\x80\x04N" + _TOUCH + b"}\x92.", _RUNS.format("NEWOBJ_EX")),
    "a state": (b"\x80\x02}}b.", _RUNS.format("BUILD")),
    "a call of a dictionary": (b"\x80\x02}NR.", _RUNS.format("REDUCE")),
    "a registered extension": (b"\x80\x02\x82\x01.", _RUNS.format("EXT1")),
    "a persistent object": (b"Pkey\n.", _RUNS.format("PERSID")),
    "another one": (b"\x80\x02NQ.", _RUNS.format("BINPERSID")),
    "a second pickle behind": (
        b"\x80\x02]." + b"cos\nmkdir\n" + _TOUCH + b"\x85R.",
        r"contains a list, not a trace, which is a dict",
    ),
    "a memo of gigabytes": (b"\x80\x02}r" + struct.pack("<I", 2**27) + b".", r"is damaged: byte 3 numbers a value"),
    "a text of exabytes": (b"\x80\x04\x8d" + struct.pack("<Q", 2**62) + b"x.", _CUT),
    "bytes of terabytes": (b"\x80\x04\x8e" + struct.pack("<Q", 2**40) + b"x.", r"asks for BINBYTES8"),
    "a bytearray of gigabytes": (b"\x80\x05\x96" + struct.pack("<Q", 2**36) + b"x.", r"asks for BYTEARRAY8"),
    "a frame of exabytes": (b"\x80\x04\x95" + struct.pack("<Q", 2**60) + b"}.", r"is not a valid \.pkl file: \w+: "),
    "dictionaries by the byte": (lambda: b"\x80\x02](" + b"}" * 40_000 + b"e.", _MEMORY),
    "a text of four bytes a character": (
        lambda: b"\x80\x02X" + struct.pack("<I", 2_400_000) + "\U0001f525".encode() + b"a" * 2_399_996 + b".",
        _MEMORY,
    ),
    "lists that double": (lambda: _doubled(30), r"is nested more than 5 deep"),
    "dictionaries ten thousand deep": (
        lambda: b"\x80\x02" + b"}N" * 10_000 + b"}" + b"s" * 10_000 + b".",
        r"is nested",
    ),
    "a list within itself": (b"\x80\x02}X\x01\x00\x00\x00a]q\x00h\x00as.", r"is nested more than 5 deep"),
    "nodes that are one": (
        lambda: _shared(600),
        r"has more than 209,715 values, those counted twice that stand in two",
    ),
    "numbers of one hash": (
        lambda: pickle.dumps({number * _COLLIDING: 0 for number in range(300)}, 4),
        r"has a number of 8 bytes \(byte \d+\), and at most 7 are read",
    ),
    "tuples, whose hashes can be chosen": (pickle.dumps({(1, 2): 3}, 4), r"asks for TUPLE2"),
    "a key that has no hash": (b"\x80\x02}]Ns.", r"is not a valid \.pkl file: TypeError: unhashable type: 'list'"),
    "a number of a million digits": (
        lambda: b"\x80\x02\x8b" + struct.pack("<I", 400_000) + b"1" * 400_000 + b".",
        r"LONG4",
    ),
    "the same in decimals": (lambda: b"\x80\x02L" + b"9" * 1_000_000 + b"L\n.", r"asks for LONG "),
    "nothing": (b"", _CUT),
    "no end": (b"\x80\x04}", _CUT),
    "a stack that is empty": (b"\x80\x04s.", r"is not a valid \.pkl file: \w+: "),
    "a protocol of the future": (
        b"\x80\xff}.",
        r"is not a valid \.pkl file: ValueError: unsupported pickle protocol: 255",
    ),
    "a thousand and more problems": (
        lambda: _pickled(dict.fromkeys(range(2000), 0)),
        r"there are more than these 1,000",
    ),
}

JSONS = {
    "brackets by the byte": (
        lambda: b'{"node_data":[' + b"[]," * 60_000 + b"[]]}",
        r"would take about \d+ MB of memory",
    ),
    "brackets fifty thousand deep": (
        lambda: b'{"node_data":' + b"[" * 50_000 + b"]" * 50_000 + b"}",
        r"is nested too deep",
    ),
    "a list six deep": (_with_attrs(name=[[[]]]), r"is nested more than 5 deep"),
    "a key of a million digits": (
        lambda: _json({"9" * 1_000_000: _node()}),
        r"the key is '9+\.\.\., and has to be an int",
    ),
    "a number of a million digits": (lambda: b'{"node_data":' + b"9" * 1_000_000 + b"}", r"has too many digits"),
    "a number of four thousand": (
        lambda: _json({"0": _node(10**4000)}),
        r"\.id is an int of 13288 bits, and has to be its key",
    ),
    "keys of one hash": (
        lambda: _json({str(number * _COLLIDING): _node() for number in range(1, 300)}),
        r"the key is '2305843009213693951', and has to be an int, from 0 to 2\*\*60",
    ),
    "edges of one hash": (
        lambda: _json({"0": _node(inputs=[number * _COLLIDING for number in range(1, 30_000)])}),
        r"\.inputs\[0\] is an int of 61 bits, and has to be of type int, from 0 to 2\*\*60",
    ),
    "five thousand digits as text": (
        _with_attrs(grad_op_id="9" * 5000),
        r"\['grad_op_id'\] is '9+\.\.\., and has to be a number of at most 18 digits, as text",
    ),
    "digits that are none of ASCII's": (_with_attrs(__id="\u00b2"), r"\['__id'\] is '\u00b2', and has to be a number"),
    "a shape of a hundred thousand dimensions": (
        lambda: _with_attrs(is_var="1", shape="[" + "1," * 100_000 + "]", ndim="3", dtype="", dsize="4"),
        r"\['ndim'\] is '3', and the shape is '\[[1,]+\.\.\.$",
    ),
    "a name that moves the cursor": (_with_attrs(is_var="\x1b[2J\u202e\n"), r"is '\\x1b\[2J\\u202e\\n', and has to be"),
    "no number at all": (b'{"node_data": NaN}', r"NaN is not JSON"),
    "half a character": (b'{"node_data": "\xff"}', r"is not a valid \.json file: UnicodeDecodeError: "),
}

HOSTILE = {
    **{name: (".pkl", *case) for name, case in PICKLES.items()},
    **{f"{name}, in JSON": (".json", *case) for name, case in JSONS.items()},
}


def hostile_trace(name):
    """Return the suffix, the contents (created on demand), and the pattern of the error message."""
    suffix, content, message = HOSTILE[name]
    return suffix, content() if callable(content) else content, message
