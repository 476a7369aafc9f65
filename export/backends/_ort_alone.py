"""Runs a program with the ONNX Runtime that an interpreter has: a script that needs nothing else, and no Filch."""

import json
import sys
from pathlib import Path

import numpy as np
import onnxruntime as ort


def main(folder: Path) -> None:
    """Read `told.json` and the inputs, write the outputs of each call and the version."""
    told = json.loads((folder / "told.json").read_text("utf-8"))
    options = ort.SessionOptions()
    options.graph_optimization_level = getattr(ort.GraphOptimizationLevel, told["level"])
    if told["threads"] is not None:
        options.intra_op_num_threads = told["threads"]
    for name, value in told["config"].items():
        options.add_session_config_entry(name, value)
    off = {"disabled_optimizers": told["off"]} if told["off"] else {}
    session = ort.InferenceSession(told["model"], options, providers=told["providers"], **off)
    for call, given in enumerate(told["inputs"]):
        with np.load(folder / f"inputs-{call}.npz") as held:
            feeds = {name: held[f"arr_{place}"] for place, name in enumerate(given)}
        found = session.run(told["outputs"], {entry.name: feeds[entry.name] for entry in session.get_inputs()})
        np.savez(folder / f"outputs-{call}.npz", *found)
    (folder / "version.json").write_text(json.dumps(ort.__version__), "utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
