"""Options that several commands of `filch` share. Nothing slow is imported here: `filch --help` has to be quick."""

from collections.abc import Callable
from dataclasses import dataclass
from difflib import get_close_matches
from importlib.metadata import entry_points
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from ._command import usage_error

# The backends of Filch; `filch.export.backends` has them, too, but imports torch.
BACKENDS = (
    *("eager", "inductor", "onnxruntime-cpu", "onnxruntime-cuda", "onnxruntime-tensorrt", "openvino", "reference"),
)
DEFAULT_BACKEND = "onnxruntime-cpu"
BACKEND_OPTIONS = (
    "level=basic for ONNX Runtime, dtype=float16 for eager, device=GPU for OpenVINO; a wrong name lists all of them"
)


# The views of Filch, for the same reason.
VIEWS = (
    *("dot", "hidet", "html", "model-explorer", "model-explorer-status", "model-explorer-time", "netron"),
    *("png", "svg", "text", "trace"),
)


# The statuses of a cell that `--again` takes.
REPEATABLE = ("crashed", "timeout", "lost", "failed", "missing", "different", "incomplete", "close")
DEFAULT_TIMEOUT = 3600.0


# The precisions to which a program can be lowered; see `filch.export.lower`.
Precision = Literal["float16", "bfloat16", "int8", "int4"]
# The tables that a report can be printed as; see `Report.table`.
TableView = Literal["summary", "nodes", "operators", "modules", "outcomes", "precision"]


def backend_names() -> list[str]:
    """Return the backends of Filch and of other packages, by name."""
    return sorted({*BACKENDS, *(entry.name for entry in entry_points(group="filch.backends"))})


def _complete_backend(incomplete: str) -> list[str]:
    return [name for name in backend_names() if name.startswith(incomplete)]


def check_backend(name: str) -> str:
    """Return the name of a backend, or end the process if there is none of this name."""
    if name not in (names := backend_names()):
        close = get_close_matches(name, names, n=1)
        hint = f"did you mean {close[0]!r}?" if close else f"there are {', '.join(names)}"
        raise usage_error(f"there is no backend {name!r}; {hint}")
    return name


def parse_tolerance(text: str | None) -> float | Literal["default"] | None:
    """Return the tolerance of the option `--tolerance`; None, without the option, judges by float64."""
    if text is None:
        return None
    if text == "default":
        return "default"
    try:
        return float(text)
    except ValueError:
        raise usage_error(f"--tolerance is a number or 'default', not {text!r}") from None


def parse_options(options: list[str] | None) -> dict[str, str]:
    """Split each `name=value`; the backend converts the values from text."""
    for option in options or ():
        if "=" not in option.partition(" ")[0]:  # a name has no space, the value may have some
            raise usage_error(f"an option is written as name=value, not {option!r}")
    return dict(option.split("=", 1) for option in options or ())


def parse_sizes(dimensions: list[str]) -> dict[str, list[int]]:
    """Return the sizes of each dimension by its name, from options like `batch=1,2,7`."""
    sizes: dict[str, list[int]] = {}
    for text in dimensions:
        name, _, numbers = text.partition("=")
        parts = numbers.split(",")
        if not name.isidentifier() or name in sizes or not all(part.isdecimal() for part in parts):
            raise usage_error(f"--dim is a name and its sizes, each name once, like batch=1,2,7,64, not {text!r}")
        sizes[name] = [int(part) for part in parts]
    return sizes


def parse_shapes(shapes: list[str] | None) -> dict[str, tuple[int, ...]]:
    """Split each `name=2x8`; `name=` is the shape of a single number."""
    parsed = {}
    for shape in shapes or ():
        name, _, dims = shape.rpartition("=")  # the name may have one, too
        sizes = dims.split("x") if dims else []
        if not name or not all(size.isascii() and size.isdecimal() for size in sizes):
            raise usage_error(f"a shape is written as name=2x8, not {shape!r}")
        parsed[name] = tuple(map(int, sizes))
    return parsed


def parse_again(text: str | None) -> tuple[str, ...]:
    """Return the statuses of the option `--again`, which are separated by commas; empty without the option."""
    statuses = tuple(text.split(",")) if text else ()
    for status in statuses:
        if status not in REPEATABLE:
            raise usage_error(f"--again takes statuses: {', '.join(REPEATABLE)}, separated by commas, not {status!r}")
    return statuses


def checked(parse: Callable[[Any], object]) -> Callable[[Any], Any]:
    """Return a callback that ends the process if an option can't be parsed, before anything slow is imported."""

    def check(value: Any) -> Any:
        parse(value)
        return value

    return check


def parse_accept(texts: list[str] | None) -> dict[str, str]:
    """Return the reasons of the option `--accept`, which are written as `value=reason`, by the name of the value."""
    reasons = {}
    for text in texts or ():
        name, reason = (part.strip() for part in text.partition("=")[::2])
        reasons[name] = reason
        if not (name and reason):
            raise usage_error(
                f"--accept is the name of a value and a reason, as 'logits=drawn at random', not {text!r}"
            )
    return reasons


_FACTORY = typer.Argument(
    help="package.module:factory or path.py:factory; it returns (model, args[, kwargs[, dynamic_shapes]])"
)
Factory = Annotated[str, _FACTORY]
OptionalFactory = Annotated[str | None, _FACTORY]
Factories = Annotated[list[str], _FACTORY]
Program = Annotated[Path, typer.Argument(help="An ONNX file.")]
ReferenceFile = Annotated[Path, typer.Argument(help="The reference: a dump of the model, or an ONNX program.")]
ActualFile = Annotated[Path, typer.Argument(help="The ONNX program to judge, or a dump.")]
Inputs = Annotated[
    Path | None,
    typer.Option(help="Inputs of two programs: .npz, .safetensors, or the .json of Polygraphy's --save-inputs."),
]
Seed = Annotated[int, typer.Option(help="Seed of the inputs of two programs, if they are drawn.")]
Shapes = Annotated[
    list[str] | None,
    typer.Option("--shape", metavar="NAME=DIMS", help="Shape of a drawn input, as name=2x8; may be repeated."),
]
_BACKEND_HELP = f"Backend that runs the program: {', '.join(BACKENDS)}, or that of another package"
Backend = Annotated[
    str,
    typer.Option(
        "--backend",
        "-b",
        metavar="NAME",
        help=f"{_BACKEND_HELP}.",
        autocompletion=_complete_backend,
        callback=check_backend,
    ),
]
Backends = Annotated[
    list[str],
    typer.Option(
        "--backend",
        "-b",
        metavar="NAME",
        help=f"{_BACKEND_HELP}; may be repeated.",
        autocompletion=_complete_backend,
        callback=lambda names: [*map(check_backend, names)],
    ),
]
Options = Annotated[
    list[str] | None,
    typer.Option(
        "--option",
        metavar="NAME=VALUE",
        callback=checked(parse_options),
        help=f"Option of the backend: {BACKEND_OPTIONS}; may be repeated.",
    ),
]
Optimized = Annotated[bool, typer.Option("--optimize", help="Apply the exporter's optimizations.")]
Tolerance = Annotated[float | None, typer.Option(help="Largest harmonic error; by default it depends on the dtype.")]
Blame = Annotated[
    Path | None, typer.Option("--blame", help="If a value differs, find the cause and write a repro to this folder.")
]
Limit = Annotated[
    float | None,
    typer.Option("--limit", help="Time limit of a run in seconds; by default 60, plus 60 for each GB of weights."),
]
ViewOption = Annotated[TableView, typer.Option("--view", help="What to print; nodes has a row for each value.")]
Layout = Annotated[
    Path | None, typer.Option(help="TOML file with the layouts of the plain tensors of several processes.")
]
Executor = Annotated[
    str | None,
    typer.Option(
        "--executor",
        metavar="NAME",
        help="Run each comparison in a process of its own: processes:N, slurm:PARTITION, submitit:local, ray, ray://ADDRESS.",
    ),
]
Compress = Annotated[bool, typer.Option("--compress", help="Write a smaller dump; slower.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]


@dataclass(frozen=True)
class Judging:
    """How values are judged, and how backends run."""

    tolerance: Annotated[
        str | None,
        typer.Option(
            "--tolerance",
            metavar="FLOAT|default",
            callback=checked(parse_tolerance),
            help="Judge by the largest harmonic error, or by the default of each dtype, instead of by float64.",
        ),
    ] = None
    lower_precision: Annotated[
        bool,
        typer.Option("--lower-precision", help="Allow values of a coarser dtype than the model's, or quantized ones."),
    ] = False
    option: Options = None
    limit: Limit = None

    @property
    def arguments(self) -> dict[str, Any]:
        """The arguments of the same meaning of `matrix`, `sweep` and `CellOptions`."""
        return {
            "options": parse_options(self.option),
            "tolerance": parse_tolerance(self.tolerance),
            "lower_precision": self.lower_precision,
            "limit": self.limit,
        }


@dataclass(frozen=True)
class Comparing(Judging):
    """The same, and what else is measured when a program is compared."""

    profile: Annotated[bool, typer.Option("--profile", help="Show the run time of each node beside its error.")] = False
    every_node: Annotated[
        bool,
        typer.Option("--every-node", help="Run every node in isolation, not only those with an unexplained error."),
    ] = False
    repeats: Annotated[int, typer.Option(help="Number of runs, which tell unstable values from wrong ones.")] = 1
    statistics: Annotated[
        bool,
        typer.Option("--statistics", help="Statistics of each value and its reference; .html and .json have them."),
    ] = False

    @property
    def arguments(self) -> dict[str, Any]:
        """The arguments of the same meaning of `compare`; `statistics` also depends on what is written."""
        own = {"profile": self.profile, "every_node": self.every_node, "repeats": self.repeats}
        return super().arguments | own


@dataclass(frozen=True)
class ExecutorOptions:
    """Where comparisons run, and which of them; the other options need an executor."""

    executor: Executor = None
    ledger: Annotated[
        Path | None,
        typer.Option("--ledger", help="File of what has ended; comparisons that it has do not run again."),
    ] = None
    timeout: Annotated[
        float | None,
        typer.Option(
            "--timeout",
            min=0.0,
            metavar="SECONDS",
            help="Time limit of each comparison with an executor, without its imports; "
            f"{DEFAULT_TIMEOUT:.0f} by default.",
        ),
    ] = None
    again: Annotated[
        str | None,
        typer.Option(
            "--again",
            metavar="STATUSES",
            callback=checked(parse_again),
            help="Run what the ledger has with these statuses again: crashed,timeout,lost,failed.",
        ),
    ] = None

    def __post_init__(self) -> None:
        given = {"--ledger": self.ledger, "--timeout": self.timeout, "--again": self.again}
        needless = next((name for name, value in given.items() if value is not None), None)
        if needless and not self.executor:
            raise usage_error(f"{needless} needs an executor: --executor processes:4")


@dataclass(frozen=True)
class FleetExecution(ExecutorOptions):
    """The same for a fleet, which always has an executor."""

    executor: Executor = "processes:1"
