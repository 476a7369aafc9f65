"""The options of ONNX Runtime and its providers, TensorRT among them: what they do, and what is refused."""

from __future__ import annotations

from typing import Any

import onnxruntime as ort
import pytest
import torch
from onnx_ir import serde
from torch import nn

from filch.compare import compare
from filch.export import BackendError, export
from filch.export.backends import get_backend
from filch.export.backends.onnxruntime import _options as _ort_options
from filch.export.backends.onnxruntime._backend import OnnxRuntimeBackend
from filch.export.backends.onnxruntime._run import feeds_of, run
from filch.export.backends.onnxruntime._values import to_torch
from support.models.small import capture_of
from support.processes.forked import run_python

CUDA = "CUDAExecutionProvider"


@pytest.fixture(scope="module")
def program():
    torch.manual_seed(0)
    return export(nn.Sequential(nn.Linear(4, 4), nn.ReLU()).eval(), (torch.randn(2, 3, 4),))


class Recorded:
    """Sessions as ONNX Runtime is asked for them: options, providers and keywords."""

    def __init__(self, monkeypatch):
        self.options: list[ort.SessionOptions] = []
        self.providers: list[Any] = []
        self.keywords: list[dict[str, Any]] = []
        real = ort.InferenceSession

        def session(path, options, *, providers, **keywords):
            self.options.append(options)
            self.providers.append(providers)
            self.keywords.append(keywords)
            made = real(path, options, providers=["CPUExecutionProvider"], **keywords)
            made.get_providers = lambda: [CUDA, "CPUExecutionProvider"]
            return made

        monkeypatch.setattr(ort, "InferenceSession", session)


@pytest.fixture
def recorded(monkeypatch):
    return Recorded(monkeypatch)


def on_cuda(**options):
    """The CUDA backend as it is made where there is a device."""
    return OnnxRuntimeBackend("onnxruntime-cuda", CUDA, _ort_options.read_options("onnxruntime-cuda", CUDA, options))


@pytest.mark.parametrize(
    ("level", "asked"),
    [
        ("disable", "ORT_DISABLE_ALL"),
        ("basic", "ORT_ENABLE_BASIC"),
        ("extended", "ORT_ENABLE_EXTENDED"),
        ("layout", "ORT_ENABLE_LAYOUT"),
        ("all", "ORT_ENABLE_ALL"),
    ],
)
def test_a_level_arrives(program, recorded, level, asked):
    """Each of the five, at the session that optimizes."""
    get_backend("onnxruntime-cpu", level=level).compile(program, optimize=True)

    assert recorded.options[0].graph_optimization_level == getattr(ort.GraphOptimizationLevel, asked)


def test_session_settings_arrive(program):
    """Attributes, entries and threads, as values or as the text of a command line; seen at the session itself."""
    texts = {"threads": "2", "session_options": "execution_mode=ORT_PARALLEL,enable_mem_pattern=false"}
    texts["session_config"] = "session.disable_prepacking=1"
    values = {"threads": 2, "session_config": {"session.disable_prepacking": True}}
    values["session_options"] = {"execution_mode": ort.ExecutionMode.ORT_PARALLEL, "enable_mem_pattern": False}

    for options in (texts, values):
        made = get_backend("onnxruntime-cpu", **options).compile(program, optimize=True)
        held = made.handle.session.get_session_options()

        assert held.intra_op_num_threads == 2
        assert held.execution_mode == ort.ExecutionMode.ORT_PARALLEL
        assert held.enable_mem_pattern is False
        assert held.get_session_config_entry("session.disable_prepacking") == "1"


def test_a_disabled_optimizer_leaves_the_graph_as_it_is(program):
    """MatMul and Add stay two nodes where their fusion is off."""
    fused = get_backend("onnxruntime-cpu").compile(program, optimize=True).graph
    options = {"disabled_optimizers": "MatMulAddFusion"}
    apart = get_backend("onnxruntime-cpu", **options).compile(program, optimize=True).graph

    assert not any(node.op == "MatMul" for node in fused.nodes)
    assert {"MatMul", "Add"} <= {node.op for node in apart.nodes}


@pytest.mark.parametrize(
    "name",
    [
        "SkipLayerNormFusion",  # the end of another name
        "ConvActivationFusion",  # written as numbers
        "Level1_RuleBasedTransformer",  # put together, as the next one
        "TransposeOptimizer_CPUExecutionProvider",
    ],
)
def test_optimizers_without_a_text_of_their_own_are_known(name):
    """Of some names, the library holds no text that could be found."""
    assert get_backend("onnxruntime-cpu", disabled_optimizers=name).options.disabled_optimizers == (name,)


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"use_cuda_graph": True}, {"enable_cuda_graph": "1"}),
        ({"use_cuda_graph": "false"}, {"enable_cuda_graph": "0"}),
        ({"search_space": 0}, {"cudnn_conv_algo_search": "HEURISTIC", "tunable_op_enable": "0"}),
        ({"search_space": "1"}, {"cudnn_conv_algo_search": "EXHAUSTIVE", "tunable_op_enable": "0"}),
        (
            {"search_space": 2},
            {
                "cudnn_conv_algo_search": "EXHAUSTIVE",
                "cudnn_conv_use_max_workspace": "1",
                "tunable_op_enable": "1",
                "tunable_op_tuning_enable": "1",
            },
        ),
        ({"search_space": 2, "tunable": False}, {"tunable_op_enable": "0", "tunable_op_tuning_enable": "0"}),
        ({"tf32": False}, {"use_tf32": "0"}),
        ({"provider_options": "sdpa_kernel=2"}, {"sdpa_kernel": "2"}),
    ],
)
def test_what_is_for_cuda_arrives_at_its_provider(program, recorded, monkeypatch, options, told):
    """At the first provider of the session that is asked for, the CPU behind it."""
    monkeypatch.setattr(_ort_options, "_is_known", lambda name: True)  # a build for the CPU lacks CUDA's names

    on_cuda(**options).compile(program, optimize=True)

    (first, given), *rest = recorded.providers[0]
    assert (first, rest) == (CUDA, ["CPUExecutionProvider"])
    assert told.items() <= given.items()


def test_a_search_tunes_matrix_products_too(program, recorded, monkeypatch):
    """By an entry of the configuration, from 1 on."""
    monkeypatch.setattr(_ort_options, "_is_known", lambda name: True)

    on_cuda(search_space=1).compile(program, optimize=True)

    assert recorded.options[0].get_session_config_entry("ep.cuda.enable_gemm_auto_tune") == "1"


def test_an_observed_graph_is_not_recorded_as_a_cuda_graph(program, recorded, monkeypatch):
    """Its outputs have no fixed addresses."""
    monkeypatch.setattr(_ort_options, "_is_known", lambda name: True)
    backend = on_cuda(use_cuda_graph=True)
    made = backend.compile(program, optimize=True)

    backend.run(made, {program.graph.inputs[0]: torch.randn(2, 3, 4)}, made.graph.producer)

    assert [providers[0][1]["enable_cuda_graph"] for providers in recorded.providers] == ["1", "0"]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"levl": "all"}, r"backend 'onnxruntime-cpu' has no option 'levl'; did you mean 'level'\?"),
        ({"level": "most"}, r"there is no level 'most'; there are disable, basic, extended, layout, all"),
        ({"threads": "many"}, r"'many' is not a non-negative integer"),
        ({"threads": 10**30}, r"10{30} is more than 1,024 threads"),
        ({"tf32": True}, r"option 'tf32' is for a CUDA device; backend 'onnxruntime-cpu' has none"),
        ({"use_cuda_graph": "true"}, r"option 'use_cuda_graph' is for a CUDA device"),
        ({"search_space": 1}, r"option 'search_space' is for a CUDA device"),
        ({"providers": ["CpuProvider"]}, r"no provider 'CpuProvider'"),
        ({"provider_options": {"use_tf32": 1}}, r"runs on CPUExecutionProvider, which takes no options"),
        ({"session_options": {"enable_mem_patern": 1}}, r"no 'enable_mem_patern'; did you mean 'enable_mem_pattern'\?"),
        ({"session_options": {"enable_mem_pattern": "no"}}, r"takes a value of type bool, not 'no'"),
        ({"session_options": "graph_optimization_level=1"}, r"can't be set here: use level=…"),
        ({"session_options": "enable_mem_pattern"}, r"'enable_mem_pattern' is not name=value,name=value"),
        ({"session_config": {"session.disable_prepackin": "1"}}, r"no configuration entry 'session.disable_prepackin'"),
        ({"disabled_optimizers": ["MatmulBNFusion"]}, r"no optimizer 'MatmulBNFusion' and would ignore it"),
    ],
)
def test_what_is_not_known_is_refused_in_a_sentence(options, said):
    """Names, values, and names inside of values."""
    with pytest.raises(BackendError, match=said):
        get_backend("onnxruntime-cpu", **options)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"search_space": 3}, r"there is no search_space '?3'?; there are 0, 1 and 2"),
        ({"tf32": "maybe"}, r"'maybe' is neither true nor false"),
        ({"provider_options": {"use_tf23": 1}}, r"has no provider option 'use_tf23'"),
    ],
)
def test_what_cuda_does_not_know_is_refused_too(options, said):
    """Before a device is asked for."""
    with pytest.raises(BackendError, match=said):
        on_cuda(**options)


def test_a_script_for_a_device_loads_its_libraries():
    """Without them, ONNX Runtime would use the CPU; on the CPU there are none."""
    if CUDA not in ort.get_available_providers():
        pytest.skip("needs onnxruntime-gpu, which knows the options of a device")
    loads = 'getattr(ort, "preload_dlls", list)()'
    code = on_cuda(tf32=False).script(optimize=True).code
    assert 0 < code.index(loads) < code.index("ort.InferenceSession(")
    assert loads not in get_backend("onnxruntime-cpu").script(optimize=True).code


def test_a_provider_that_does_not_start_is_no_cpu(program):
    """ONNX Runtime would step back to the CPU without a word."""
    if CUDA not in ort.get_available_providers() or torch.cuda.is_available():
        pytest.skip("needs onnxruntime-gpu on a machine without a GPU")

    with pytest.raises(BackendError, match=r"ONNX Runtime (can't start |refuses the program)"):
        on_cuda().compile(program, optimize=True)


@pytest.mark.parametrize("replay", [False, True])
def test_results_that_stay_on_their_device_are_the_same(program, replay):
    """Bound to a device, and at fixed places as a CUDA graph needs them; here the device is the CPU."""
    x = torch.randn(2, 3, 4)
    content = serde.serialize_model(program.model).SerializeToString()
    session = ort.InferenceSession(content, providers=["CPUExecutionProvider"])
    feeds = feeds_of(["input"], {"input": x})

    plain, bound = run(session, feeds), run(session, feeds, "cpu", replay=replay)

    assert plain.keys() == bound.keys()
    assert all(torch.equal(to_torch(plain[name]), to_torch(bound[name])) for name in plain)


def test_each_call_records_a_cuda_graph_of_its_own(program):
    """A graph that was recorded for other inputs would be replayed with their addresses."""
    content = serde.serialize_model(program.model).SerializeToString()
    session = ort.InferenceSession(content, providers=["CPUExecutionProvider"])
    ids: list[int] = []
    run_bound = session.run_with_iobinding

    def record(binding, options):
        ids.append(int(options.get_run_config_entry("gpu_graph_id")))
        run_bound(binding, options)

    session.run_with_iobinding = record
    for x in torch.randn(2, 2, 3, 4):
        run(session, feeds_of(["input"], {"input": x}), "cpu", replay=True)

    (first, recorded, replayed), (second, recorded_again, replayed_again) = ids[:3], ids[3:]
    assert first == second == -1  # without a graph
    assert 0 < recorded == replayed < recorded_again == replayed_again


@pytest.fixture(scope="module")
def subject():
    torch.manual_seed(0)
    model, x = nn.Sequential(nn.Linear(4, 4), nn.Tanh()).eval(), torch.randn(2, 4)
    capture = capture_of(model, x, submodules=True)
    return capture, export(model, (x,))


def test_tensorrt_says_what_is_missing_and_falls_back_to_nothing():
    """In a process of its own, as ONNX Runtime would print; where it is there, this is skipped."""
    code = "from filch.export.backends import get_backend; get_backend('onnxruntime-tensorrt')"
    done = run_python("-c", code)
    if done.returncode == 0:
        pytest.skip("TensorRT is there")

    assert done.stdout == ""
    last = done.stderr.strip().splitlines()[-1]
    assert "BackendError: backend 'onnxruntime-tensorrt'" in last
    assert "can't load lib" in last or "needs onnxruntime-gpu" in last


def test_a_session_that_does_not_get_its_provider_is_refused(subject, monkeypatch):
    """ONNX Runtime takes the next one, and only logs it."""
    import onnxruntime as ort

    from filch.export.backends.onnxruntime._backend import OnnxRuntimeBackend

    class Fallen(ort.InferenceSession):
        def get_providers(self):
            return []

    monkeypatch.setattr(ort, "InferenceSession", Fallen)
    backend = OnnxRuntimeBackend("onnxruntime-cpu", "CPUExecutionProvider")

    with pytest.raises(BackendError, match="ONNX Runtime can't start CPUExecutionProvider for this program"):
        backend.compile(subject[1], optimize=False)


@pytest.mark.gpu
def test_tensorrt_runs_where_it_is(subject):
    """Its nodes are whole subgraphs."""
    capture, program = subject
    try:
        backend = get_backend("onnxruntime-tensorrt")
    except BackendError as error:
        pytest.skip(str(error))

    report = compare(capture, program, backend=backend)

    assert {row.stage for row in report.rows} == {"exported", "compiled"}
    assert all(row.judged for row in report.rows if row.kind == "output")
