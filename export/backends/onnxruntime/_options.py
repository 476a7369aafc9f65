"""Options of ONNX Runtime, checked here because the runtime ignores unknown names."""

import mmap
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cache
from pathlib import Path
from typing import Any

import onnxruntime as ort

from filch.steal.private import _onnxruntime
from filch.steal.text._python import python_literal

from ..._errors import BackendError
from ...common._suggestions import hint
from ...common._telemetry import is_off
from .._option_text import boolean, integer, literal, mapping, strings

if is_off():  # the process may have imported the library before Filch
    ort.disable_telemetry_events()
CPU = "CPUExecutionProvider"
CUDA = "CUDAExecutionProvider"
TENSORRT = "TensorrtExecutionProvider"
_ONLY_CUDA = ("use_cuda_graph", "search_space", "tunable", "tf32")
_LEVELS = {"disable": "ORT_DISABLE_ALL"}
_LEVELS |= {name: f"ORT_ENABLE_{name.upper()}" for name in ("basic", "extended", "layout", "all")}
# hidet's search_space as options of the CUDA provider, whose default is between 0 and 1.
_SEARCH: Mapping[int, Mapping[str, str]] = {
    0: {"cudnn_conv_algo_search": "HEURISTIC", "tunable_op_enable": "0"},
    1: {"cudnn_conv_algo_search": "EXHAUSTIVE", "tunable_op_enable": "0"},
    2: {
        "cudnn_conv_algo_search": "EXHAUSTIVE",
        "cudnn_conv_use_max_workspace": "1",
        "tunable_op_enable": "1",
        "tunable_op_tuning_enable": "1",
    },
}
_MAX_THREADS = 1024
_AS_ARRAY = '''\
def as_array(value):
    """Return a tensor as an array; bfloat16, which NumPy lacks, becomes float32."""
    if value.data_type() != "tensor(bfloat16)":
        return value.numpy()
    bits = np.empty(value.shape(), np.uint16)
    ctypes.memmove(bits.ctypes.data, value.data_ptr(), bits.nbytes)
    return (bits.astype(np.uint32) << 16).view(np.float32)


'''


@dataclass(frozen=True)
class OrtOptions:
    """The options of the ONNX Runtime backends; None is ONNX Runtime's default.

    Attributes:
        level: the optimization level: `disable`, `basic`, `extended`, `layout` or `all`.
        providers: ONNX Runtime's names of execution providers, in order of preference, instead of the backend's own.
        provider_options: options of the first provider, by ONNX Runtime's names.
        use_cuda_graph: record the CUDA kernels once and replay them (`enable_cuda_graph`).
        search_space: how the CUDA provider searches for fast kernels: 0 (cuDNN's heuristics), 1 (tries all convolution
            algorithms and tunes matrix products) or 2 (also with any workspace size, and tunable operators).
        tunable: whether to use and tune tunable operators (`tunable_op_enable`, `tunable_op_tuning_enable`).
        tf32: whether float32 matrix products on CUDA may round to TF32 (`use_tf32`).
        threads: the number of threads of one operator (`intra_op_num_threads`).
        session_options: other attributes of `onnxruntime.SessionOptions`.
        session_config: entries of the session's configuration.
        disabled_optimizers: names of graph transformers and rewrite rules to disable.
    """

    level: str = "all"
    providers: tuple[str, ...] = ()
    provider_options: Mapping[str, str] = field(default_factory=dict)
    use_cuda_graph: bool | None = None
    search_space: int | None = None
    tunable: bool | None = None
    tf32: bool | None = None
    threads: int | None = None
    session_options: Mapping[str, Any] = field(default_factory=dict)
    session_config: Mapping[str, str] = field(default_factory=dict)
    disabled_optimizers: tuple[str, ...] = ()

    @property
    def graph_level(self) -> ort.GraphOptimizationLevel:
        """`level` as ONNX Runtime's enumeration."""
        return getattr(ort.GraphOptimizationLevel, _LEVELS[self.level])

    @property
    def entries(self) -> dict[str, str]:
        """The entries of the session's configuration that the options ask for."""
        tuned = {"ep.cuda.enable_gemm_auto_tune": "1"} if self.search_space else {}
        return {**tuned, **self.session_config}

    def session(self, level: ort.GraphOptimizationLevel) -> ort.SessionOptions:
        """Return new session options with this optimization level."""
        options = ort.SessionOptions()
        options.log_severity_level = 4  # errors are raised; warnings are not needed
        for name, value in self.session_options.items():
            setattr(options, name, value)
        if self.threads is not None:
            options.intra_op_num_threads = self.threads
        options.graph_optimization_level = level
        # Threads that spin in and after a run slow down torch's, and other processes.
        for name, value in {"session.intra_op.allow_spinning": "0", **self.entries}.items():
            options.add_session_config_entry(name, value)
        return options

    def code(self, level: str, providers: Sequence[Any]) -> str:
        """Return the code of a function `run(path, names, inputs)`; see `Script`.

        It needs `onnxruntime` imported as `ort`, `ctypes`, and `numpy` as `np`. The session has what the user has set,
        and not what `session` adds for the sake of other processes.

        Args:
            level: the name of the optimization level in `onnxruntime.GraphOptimizationLevel`.
            providers: a name, or a tuple of a name and perhaps options, for each provider.
        """
        attributes = {"graph_optimization_level": f"ort.GraphOptimizationLevel.{level}"}
        attributes |= {name: _code(value) for name, value in self.session_options.items()}
        attributes |= {} if self.threads is None else {"intra_op_num_threads": _code(self.threads)}
        entries = [f"{_code(name)}, {_code(value)}" for name, value in self.entries.items()]
        off = f", disabled_optimizers={_code([*self.disabled_optimizers])}" if self.disabled_optimizers else ""
        on_gpu = any(name not in (CPU, (CPU,)) for name in providers)
        lines = [
            *(['getattr(ort, "preload_dlls", list)()  # CUDA libraries that pip installed'] if on_gpu else []),
            "options = ort.SessionOptions()",
            *(f"options.{name} = {value}" for name, value in attributes.items()),
            *(f"options.add_session_config_entry({entry})" for entry in entries),
            f"session = ort.InferenceSession(path, options, providers={_code([*providers])}{off})",
            'if all(output.type != "tensor(bfloat16)" for output in session.get_outputs()):',
            "    return session.run(names, inputs)",
            "feeds = {name: ort.OrtValue.ortvalue_from_numpy(array) for name, array in inputs.items()}",
            "return [as_array(value) for value in session.run_with_ort_values(names, feeds)]",
        ]
        return "\n    ".join([_AS_ARRAY + "def run(path, names, inputs):", *lines])

    def provider_settings(self, *, replay: bool) -> dict[str, str]:
        """Return the options of the first provider; `tunable` overrides `search_space`, `provider_options` all others.

        Args:
            replay: whether `use_cuda_graph` applies: it needs outputs of known shapes, which an observed graph lacks.
        """
        settings = dict(_SEARCH[self.search_space]) if self.search_space is not None else {}
        if self.tunable is not None:
            settings |= dict.fromkeys(("tunable_op_enable", "tunable_op_tuning_enable"), str(int(self.tunable)))
        if self.tf32 is not None:
            settings["use_tf32"] = str(int(self.tf32))
        if self.use_cuda_graph is not None:
            settings["enable_cuda_graph"] = str(int(self.use_cuda_graph and replay))
        return settings | dict(self.provider_options)


def _code(value: Any) -> str:
    """Return the code of a value: a literal, or a member of an enumeration of ONNX Runtime."""
    kind = type(value)
    return f"ort.{kind.__name__}.{value.name}" if kind.__module__.startswith("onnxruntime") else python_literal(value)


def read_options(backend: str, provider: str, values: Mapping[str, Any]) -> OrtOptions:
    """Check and parse options, which may be strings from the command line.

    Args:
        backend: the name of the backend, for messages.
        provider: its execution provider.
        values: the values of options by the names of `OrtOptions`.

    Raises:
        BackendError: an option, a value or a name inside a value is unknown, or the option is for another provider.
    """
    known = [entry.name for entry in fields(OrtOptions)]
    for name in values:
        if name not in known:
            raise BackendError(f"backend {backend!r} has no option {name!r}; {hint(name, known)}")
        if provider != CUDA and values[name] is not None and name in _ONLY_CUDA:
            raise BackendError(f"option {name!r} is for a CUDA device; backend {backend!r} has none")
    try:
        options = OrtOptions(**{name: _PARSERS[name](item) for name, item in values.items() if item is not None})
    except ValueError as error:
        raise BackendError(f"backend {backend!r}: {error}") from error
    off = tuple(dict.fromkeys(item for name in options.disabled_optimizers for item in _optimizers(name)))
    options = replace(options, disabled_optimizers=off)
    _check(options, backend, provider)
    return options


def _optimizers(name: str) -> list[str]:
    """Return the names in ONNX Runtime that a user means by a name.

    A message of ONNX Runtime may name an optimizer that it has once for each level, without the level.
    """
    found = [f"{name}L{level}" for level in (1, 2, 3) if _is_known(f"{name}L{level}")]
    return found if found and not is_optimizer(name) else [name]


def _check(options: OrtOptions, backend: str, provider: str) -> None:
    """Refuse options that ONNX Runtime lacks or would ignore."""
    available = ort.get_available_providers()
    for name in options.providers:
        if name not in available:
            raise BackendError(f"this ONNX Runtime has no provider {name!r}; {hint(name, available)}")
    provider_names = (*options.provider_options, *options.provider_settings(replay=True))
    first = (*options.providers, provider)[0]
    if provider_names and first == CPU:
        raise BackendError(f"backend {backend!r} runs on {first}, which takes no options such as {provider_names[0]!r}")
    defaults = ort.SessionOptions()
    for name, value in options.session_options.items():
        _check_attribute(name, value, defaults)
    for kind, names, is_known in (
        ("configuration entry", options.session_config, _is_known),
        ("provider option", provider_names, _is_known),
        ("optimizer", options.disabled_optimizers, is_optimizer),
    ):
        for name in names:
            if not is_known(name):
                raise BackendError(f"ONNX Runtime {ort.__version__} has no {kind} {name!r} and would ignore it")


_RESERVED = {
    "graph_optimization_level": "use level=…",
    "intra_op_num_threads": "use threads=…",
    "optimized_model_filepath": "Filch sets it to observe the graph",
    "enable_profiling": "use compare(…, profile=True)",
    "profile_file_prefix": "use compare(…, profile=True)",
}


def _check_attribute(name: str, value: Any, defaults: ort.SessionOptions) -> None:
    """Refuse an attribute of `SessionOptions` that does not exist, has another type or is set by Filch."""
    if name in _RESERVED:
        raise BackendError(f"session option {name!r} can't be set here: {_RESERVED[name]}")
    settable = [item for item in dir(defaults) if not item.startswith("_") and not callable(getattr(defaults, item))]
    if name not in settable:
        raise BackendError(f"onnxruntime.SessionOptions has no {name!r}; {hint(name, settable)}")
    try:
        setattr(defaults, name, value)
    except TypeError as error:
        kind = type(getattr(defaults, name)).__name__
        raise BackendError(f"session option {name!r} takes a value of type {kind}, not {value!r}") from error


def is_optimizer(name: str) -> bool:
    """Return whether ONNX Runtime may have a graph transformer or rewrite rule of this name.

    Some names are put together at run time, so their parts are looked up.
    """
    level, _, rest = name.partition("_")
    if re.fullmatch(r"Level\d", level) and rest == "RuleBasedTransformer":
        return _is_known(f"_{rest}")
    # The name of one for a single provider begins with a known name and ends with the provider's.
    return _is_known(name) or _is_class(name) or (rest in ort.get_all_providers() and _is_known(level))


_RENAMED = ("ClipQuantFusion", "MatmulBNFusion", "PadFusion", "ReluQuantFusion")  # the optimizers have other names


def _is_class(name: str) -> bool:
    """Return whether a class of this name exists, for optimizers whose names are not in the libraries as strings.

    Compilers merge a string with the end of a longer one (SkipLayerNormFusion), or write it as numbers
    (ConvActivationFusion).
    """
    symbols = (f"{len(name)}{name}E".encode(), f"AV{name}@".encode())  # as GCC or Clang, and as MSVC mangle names
    exists = any(library.find(symbol) >= 0 for library in _libraries() for symbol in symbols)
    return exists and name not in _RENAMED and not _is_known(f"{name}L1")  # else the optimizers' names have a level


@cache
def _is_known(name: str) -> bool:
    """Return whether a name is a string in the runtime's libraries, as the runtime has no list of names.

    Compilers merge a string with the end of a longer one; here those end with `/` and the name.
    """
    text = name.encode() + b"\0"
    return any(library.find(start + text) >= 0 for library in _libraries() for start in (b"\0", b"/"))


@cache
def _libraries() -> list[mmap.mmap]:
    """Return the contents of the runtime's libraries, mapped into memory."""
    contents = []
    for path in sorted(Path(_onnxruntime.capi.__file__).parent.iterdir()):
        if {".so", ".dylib", ".dll", ".pyd"} & set(path.suffixes):
            with path.open("rb") as file:
                contents.append(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
    return contents


def _level(value: Any) -> str:
    """Parse the name of an optimization level."""
    if value not in _LEVELS:
        raise ValueError(f"there is no level {value!r}; there are {', '.join(_LEVELS)}")
    return str(value)


def _search_space(value: Any) -> int:
    """Parse a number of `_SEARCH`."""
    if integer(value) not in _SEARCH:
        raise ValueError(f"there is no search_space {value!r}; there are 0, 1 and 2")
    return integer(value)


def _string_values(value: Any) -> dict[str, str]:
    """Parse a mapping whose values are strings for ONNX Runtime; a boolean becomes `0` or `1`."""
    return {name: str(int(item)) if isinstance(item, bool) else str(item) for name, item in mapping(value).items()}


def _attributes(value: Any) -> dict[str, Any]:
    """Parse session attributes, which have types: a string is a JSON literal or the name of an ORT_ constant."""
    return {name: _typed(item) if isinstance(item, str) else item for name, item in mapping(value).items()}


def _typed(text: str) -> Any:
    """Parse the value of a session attribute: the name of an enumeration's member, or a literal."""
    for kind in (ort.ExecutionMode, ort.ExecutionOrder):
        if hasattr(kind, text):
            return getattr(kind, text)
    return literal(text)


def _threads(value: Any) -> int:
    """Parse a number of threads; limited, because an untrusted report may contain it."""
    count = integer(value)
    if count > _MAX_THREADS:
        raise ValueError(f"{value!r} is more than {_MAX_THREADS:,} threads")
    return count


_PARSERS: Mapping[str, Callable[[Any], Any]] = {
    "level": _level,
    "providers": strings,
    "provider_options": _string_values,
    "use_cuda_graph": boolean,
    "search_space": _search_space,
    "tunable": boolean,
    "tf32": boolean,
    "threads": _threads,
    "session_options": _attributes,
    "session_config": _string_values,
    "disabled_optimizers": strings,
}
