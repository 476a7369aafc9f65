"""Plants faults in what a backend made of a program: one node of the compiled graph each, the program stays sound."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from random import Random

import numpy as np
import onnx
import onnxruntime as ort
import torch

from filch.export import Program
from filch.export.backends import Backend, Compiled
from filch.export.backends.onnxruntime._backend import OnnxRuntimeBackend

from .plants import Kinds, Planter, change_attribute, change_epsilon, drop_input, flip_bit, run, swap_inputs

ORT_KINDS: Kinds = {
    "epsilon": change_epsilon,
    "weight bit": flip_bit,
    "swapped inputs": swap_inputs,
    "dropped input": drop_input,
    "activation": partial(change_attribute, name="activation"),
    "attribute": change_attribute,
}


@dataclass(frozen=True, eq=False)
class CompiledPlant:
    """A backend that is wrong in one node of the graph that it compiles.

    Attributes:
        kind: what was done.
        node: the compiled node's name.
        text: the node after it.
        backend: compiles to the wrong graph; both the undisturbed and the observed run use it.
    """

    kind: str
    node: str
    text: str
    backend: Backend


def handing_out(backend: Backend, made: Compiled) -> Backend:
    """Return the backend with a fixed result of `compile`."""
    shadow = copy.copy(backend)
    vars(shadow)["compile"] = lambda program, *, optimize: made
    return shadow


@dataclass(frozen=True)
class WrongOnnxRuntime(OnnxRuntimeBackend):
    """ONNX Runtime with the file `wrong` in place of the optimized file that it saves."""

    wrong: bytes = b""

    def _session(
        self, path: Path, level: ort.GraphOptimizationLevel, *, save_to: Path | None = None, **how: bool
    ) -> ort.InferenceSession:
        session = super()._session(path, level, save_to=save_to, **how)
        if save_to is None:
            return session
        save_to.write_bytes(self.wrong)
        return super()._session(save_to, ort.GraphOptimizationLevel.ORT_DISABLE_ALL)


class OrtPlants:
    """Plants faults in the file that ONNX Runtime optimized, in nodes that the exported graph does not have.

    A fault that changes no result is none: blocked layouts have channels that nobody reads.
    """

    kinds = ORT_KINDS

    def __init__(self, program: Program, inputs: Mapping[str, torch.Tensor], clean: OnnxRuntimeBackend) -> None:
        self.clean = clean
        made = self.clean.compile(program, optimize=True)
        model = onnx.load(made.handle.path)
        ops = {node.name: node.op for node in program.graph.nodes}
        self._planter = Planter(
            model,
            {name: tensor.numpy() for name, tensor in inputs.items()},
            kinds=ORT_KINDS,
            may=lambda node: ops.get(node.name) != node.op_type,
            provider=clean.provider,
        )

    def plant(self, kind: str, random: Random) -> CompiledPlant | None:
        """Return a fault of a kind; None if none was found."""
        plants = iter(partial(self._planter.plant, kind, random), None)
        plant = next((plant for plant in islice(plants, 20) if self._shows(plant.model)), None)
        if plant is None:
            return None
        backend = WrongOnnxRuntime(**vars(self.clean), wrong=plant.model.SerializeToString())
        return CompiledPlant(kind, plant.node, plant.text, backend)

    def _shows(self, model: onnx.ModelProto) -> bool:
        found = run(model, self._planter.inputs, [], self.clean.provider)
        return any(not np.array_equal(self._planter.values[name], array) for name, array in found.items())
