"""Print the largest memory of each phase of one use of Filch, as multiples of the bytes of the weights, as JSON.

`python memory.py USE`: a use is a function below. It runs twice, first with a small model, so that what is imported or
compiled once is not counted. A fork shares the pages of the process that it was forked from; they are not counted, too.
"""

import ctypes
import gc
import json
import sys
import tempfile
from pathlib import Path

import torch
from torch import nn

from filch.compare import align, compare, compare_programs, diff
from filch.export import export
from filch.export.common import _memory
from filch.steal import steal_forward, watch_phases

BUFFER = 2**22  # bytes, so that the weights and not the values are what takes memory
WIDTH, LAYERS = 768, 11  # 53 million parameters, 213 MB, in matrices of 9 MB


class Block(nn.Module):
    """A residual block of a transformer's MLP."""

    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        return x + self.down(nn.functional.gelu(self.up(self.norm(x))))


class Mlp(nn.Module):
    """An embedding and blocks, nearly all of it matrices."""

    def __init__(self, width, layers):
        super().__init__()
        self.words = nn.Embedding(2 * width, width)
        self.blocks = nn.Sequential(*(Block(width) for _ in range(layers)))

    def forward(self, ids):
        return self.blocks(self.words(ids))


def _model(width, layers=LAYERS):
    torch.manual_seed(0)
    model = Mlp(width, layers).eval()
    return model, (torch.arange(16)[None],), sum(parameter.nbytes for parameter in model.parameters())


def check(folder, width):
    """`filch check`: export, capture and compare, with the model in memory."""
    model, inputs, weights = _model(width)
    yield weights
    _check(model, inputs)


def _check(model, inputs):
    program = export(model, inputs)
    with steal_forward(model, submodules=True) as capture:
        model(*inputs)
    assert compare(capture, program, buffer=BUFFER).close


def gemms(folder, width):
    """A check of a model whose inputs have two dimensions: runtimes convert its weights without optimization, too."""
    model, (ids,), weights = _model(width)
    yield weights
    _check(model, (ids[0],))


def save(folder, width):
    """Save a program, whose weights are those of the model."""
    model, inputs, weights = _model(width)
    program = export(model, inputs)
    yield weights
    program.save(folder / "model.onnx")


def files(folder, width):
    """Compare a saved program with a dump; the model is gone."""
    model, inputs, weights = _model(width)
    _record(model, inputs, folder / "run.onnx")
    export(model, inputs).save(folder / "model.onnx")
    del model
    yield weights
    assert compare(folder / "run.onnx", folder / "model.onnx", buffer=BUFFER).close


def dumps(folder, width):
    """Compare two dumps that have the weights, too."""
    model, inputs, weights = _model(width)
    for name in ("a.onnx", "b.onnx"):
        _record(model, inputs, folder / name, parameters=True)
    del model
    yield 2 * weights
    assert diff(folder / "a.onnx", folder / "b.onnx").close


def programs(folder, width):
    """Compare two saved programs; the models are gone."""
    model, inputs, weights = _model(width)
    for name in ("a.onnx", "b.onnx"):
        export(model, inputs).save(folder / name)
    del model
    yield 2 * weights
    assert compare_programs(folder / "a.onnx", folder / "b.onnx", buffer=BUFFER).close


def modules(folder, width):
    """Align two models, which run in float64."""
    (first, inputs, weights), (second, _, _) = _model(width), _model(width)
    yield 2 * weights
    assert align(first, second, inputs).close


def _record(model, inputs, path, **options):
    with steal_forward(model, submodules=True, dump_file=path, **options):
        model(*inputs)


class Peaks:
    """The largest resident memory in each phase, in bytes."""

    def __init__(self):
        self.found = {}
        self._name = ""

    def __call__(self, phases):
        name = phases[-1].name if phases else ""
        if name != self._name:
            self.end()
            self._name = name

    def end(self):
        """End the current phase."""
        self.found[self._name] = max(self.found.get(self._name, 0), _peak())
        _forget()


def _peak():
    status = Path("/proc/self/status").read_text("ascii")
    return int(status.partition("VmHWM:")[2].split()[0]) * 1024


def _forget():
    Path("/proc/self/clear_refs").write_text("5", "ascii")


def _settled():
    """Return the bytes of memory of this process, after what is free was returned."""
    gc.unfreeze()
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    _forget()
    return _peak()


def measure(use, width):
    """Return the largest memory of each phase as a multiple of the weights."""
    with tempfile.TemporaryDirectory() as folder, torch.no_grad():
        before = _settled()
        run = use(Path(folder), width)
        weights = next(run)
        _settled()
        peaks = Peaks()
        with watch_phases(peaks):
            next(run, None)
        peaks.end()
    return {name: round((peak - before) / weights, 3) for name, peak in peaks.found.items()}


if __name__ == "__main__":
    _memory._LITTLE = 0  # memory is returned as in a process that has 2 GiB  # noqa: SLF001
    torch.set_num_threads(1)
    use = globals()[sys.argv[1]]
    measure(use, 8)
    print(json.dumps(measure(use, WIDTH)))
