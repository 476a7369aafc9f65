"""Make the pictures of the README: docs/images/report.png and docs/images/llama.png, by headless Chromium.

    python tools/picture.py          # both
    python tools/picture.py llama    # one

`report` is the page of a bug of docs/stories.md: ONNX Runtime replaces a zero padding in front of a max pooling.
`llama` is a Llama of 27 layers, one of which has another epsilon in the exported file: folded by layers, the graph
shows where the error begins.
"""

import contextlib
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import onnx
import torch
import transformers
from onnx import numpy_helper

from filch.compare import compare
from filch.export import export
from filch.steal import steal_forward

ROOT = Path(__file__).resolve().parents[1]
IMAGES = ROOT / "docs" / "images"
MAX_SIZE = 300_000  # bytes
FILCH = "import sys; from filch.compare.__main__ import main; sys.exit(main())"
LAYERS, CHANGED_LAYER, EPSILON = 27, 9, 3e-6

sys.path.insert(0, str(ROOT / "tests"))  # the tests are not installed

from support.views.chromium import Chromium, missing  # noqa: E402

# Opens the model, but none of its layers; the details are those of the first divergence.
FOLDED = """(() => {
  const first = filch.data.firstDivergence.node, pane = filch.pane(first.graph);
  filch.drawer.classList.add("closed");
  pane.openOnly(new Set([first.groupPath[0]]));
  filch.select(first);
})()"""


def report_page(folder: Path) -> Path:
    """Return the page of the bug in ONNX Runtime."""
    page = folder / "report.html"
    check = ["check", "padded_pool.py:make", "--option", "level=extended", "--all", "-q", "-o", str(page)]
    process = subprocess.run([sys.executable, "-c", FILCH, *check], cwd=ROOT / "docs" / "stories", check=False)
    if process.returncode != 1:
        sys.exit("this version of ONNX Runtime does not show the bug: docs/stories.md names one that does")
    return page


def llama_page(folder: Path) -> Path:
    """Return the page of a Llama, of which one norm has another epsilon in the exported file."""
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=LAYERS,
        num_attention_heads=4,
        num_key_value_heads=2,
        vocab_size=96,
        max_position_embeddings=64,
    )
    model = transformers.LlamaForCausalLM(config).eval().requires_grad_(requires_grad=False)
    tokens = torch.randint(0, config.vocab_size, (1, 10))
    with contextlib.chdir(folder):  # the page shows relative paths
        with steal_forward(model, submodules=True, dump_file="ref.onnx"):
            model(tokens, use_cache=False)
        export(model, (tokens,), {"use_cache": False}).save("llama.onnx")
        onnx.save(_with_epsilon(onnx.load("llama.onnx")), "llama.onnx")
        return compare("ref.onnx", "llama.onnx").view("html", folder / "llama.html")


def _with_epsilon(model: onnx.ModelProto) -> onnx.ModelProto:
    """Change the epsilon of a norm of `CHANGED_LAYER`."""
    name = f"'model.layers.{CHANGED_LAYER}.input_layernorm'"
    adds = (node for node in model.graph.node if node.op_type == "Add")
    (add,) = (node for node in adds if any(name in item.value for item in node.metadata_props))
    model.graph.initializer.append(numpy_helper.from_array(torch.tensor(EPSILON).numpy(), "changed_epsilon"))
    add.input[1] = "changed_epsilon"
    return model


PICTURES: dict[str, tuple[Callable[[Path], Path], tuple[int, int], tuple[str, ...]]] = {
    "report": (report_page, (1200, 760), ()),
    "llama": (llama_page, (860, 1100), (FOLDED, "filch.active.fit()")),
}


def main() -> None:
    """Make the pictures that are named on the command line, or all."""
    if problem := missing():
        sys.exit(problem)
    for name in sys.argv[1:] or PICTURES:
        make, size, scripts = PICTURES[name]
        image = IMAGES / f"{name}.png"
        with tempfile.TemporaryDirectory() as folder, Chromium(*size) as browser:
            browser.open(make(Path(folder)))
            browser.dark(dark=False)
            for script in scripts:
                browser.run(script)
                browser.settle()
            browser.picture(image)
        print(f"{image.relative_to(ROOT)}: {image.stat().st_size:,} bytes")
        if image.stat().st_size > MAX_SIZE:
            sys.exit(f"larger than {MAX_SIZE:,} bytes")


if __name__ == "__main__":
    main()
