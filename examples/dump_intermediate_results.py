"""Record the inputs and outputs of six modules of a tiny language model, and compare the ONNX graph with them."""

import tempfile
from pathlib import Path

import onnx

from filch.compare import compare, tiny_llm
from filch.export import export
from filch.export.views import plot_dot
from filch.steal import describe, restore, steal_forward


def main(folder: Path) -> None:
    model, inputs, dynamic_shapes = tiny_llm(dynamic_shapes=True)
    print(f"inputs={describe(inputs)}")
    print(f"dynamic_shapes={describe(dynamic_shapes)}")

    print("\nIt contains these submodules:")
    for name, module in model.named_modules():
        print(f"- {name}: {type(module).__name__}")

    print("\nThe inputs and outputs of six of them are written to a dump, an ONNX file of constants:")
    with steal_forward(
        [
            ("model", model),
            ("model.decoder", model.decoder),
            ("model.decoder.attention", model.decoder.attention),
            ("model.decoder.feed_forward", model.decoder.feed_forward),
            ("model.decoder.norm_1", model.decoder.norm_1),
            ("model.decoder.norm_2", model.decoder.norm_2),
        ],
        dump_file=folder / "dump.onnx",
        verbose=1,
        storage_limit=2**28,
    ):
        model(*inputs)

    print("\nRestored from it:")
    for key, value in restore(folder / "dump.onnx").items():
        print(f"{key} -- {describe(value)}")

    print("\nThe exported graph in Graphviz's DOT language:")
    export(model, inputs, dynamic_shapes=dynamic_shapes).save(folder / "model.onnx")
    text = plot_dot(onnx.load(folder / "model.onnx"), folder / "model.dot")
    print(f"{text.count('->')} edges; `dot -Tpng` draws them; with Graphviz installed, so does the path model.png")

    print("\nThe exported graph, run by ONNX Runtime and compared with the recorded tensors:")
    report = compare(folder / "dump.onnx", folder / "model.onnx")
    print(report.table("modules", width=80))
    report.assert_close()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as name:
        main(Path(name))
