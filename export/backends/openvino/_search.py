"""Find the outputs of executed layers that are exported values, by compiling the model with further outputs.

Making a value an output can prevent layers from being fused. So only values between two layers are requested, and a
value counts only if the compilation without further outputs has the layer that computes it, too.
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

import openvino as ov

from ._layers import BoundaryValue, ExecutedLayers, Port, by_pattern, every_third
from ._scalars import move_scalars

_ATTEMPTS = 4  # compilations in search of outputs that change no layer


@dataclass(frozen=True)
class Compilation:
    """One compilation.

    Attributes:
        compile: compiles the model again.
        layers: the layers of the compiled model.
        notes: remarks on its precision.
        compiled: the compiled model; None if it is large.
    """

    compile: Callable[[], ov.CompiledModel]
    layers: ExecutedLayers
    notes: tuple[str, ...]
    compiled: ov.CompiledModel | None

    def model(self) -> ov.CompiledModel:
        """Return the compiled model, compiled again if it was not kept."""
        return self.compile() if self.compiled is None else self.compiled


class ValueSearch:
    """A search for the exported values among the outputs of executed layers.

    Args:
        compile_with: compiles a model, with values of these names as further outputs.
        plain: the compilation without further outputs.
        boundary: the values to search, by name.

    Attributes:
        compilations: the compilations that return the values that were found.
        ports: the port of a layer of `plain` that computes each value that was found, by the name of the value.
    """

    def __init__(
        self,
        compile_with: Callable[[ov.Model, Collection[str]], Compilation],
        plain: Compilation,
        boundary: Mapping[str, BoundaryValue],
    ) -> None:
        self._compile_with, self._plain, self._boundary = compile_with, plain, boundary
        self.compilations: list[Compilation] = []
        self.ports: dict[str, Port] = {}

    def run(self, model: ov.Model) -> None:
        """Search until as many of the values as possible are found: all at once, then fewer at a time."""
        results = self._plain.layers.results
        named = {name for op in model.get_ordered_ops() for port in op.outputs() for name in port.get_names()}
        # Values that the imported model still has under their names, and that are not outputs anyway.
        requested = [name for name in self._boundary if name in named and name not in results]
        compilation = self._compile_undisturbed(model, requested)
        self.compilations.append(compilation)
        self.ports.update(self._plain.layers.ports_of(compilation.layers))
        for partition in (by_pattern, every_third):
            missing = {name: self._boundary[name] for name in requested if name not in self.ports}
            for names in partition(missing):
                self._request(model, names)
        moved = model.clone()
        if factors := move_scalars(moved, [name for name in requested if name not in self.ports]):
            self._request(moved, factors)
        # A result may be a copy in another layout of the value that was found; the name belongs to the copy.
        self.ports = {name: results.get(name, port) for name, port in self.ports.items()}

    def _compile_undisturbed(self, model: ov.Model, names: list[str]) -> Compilation:
        """Compile with these values as outputs, without those that seem to have changed layers."""
        compilation = self._plain
        for _ in range(_ATTEMPTS):
            compilation = self._compile_with(model, names)
            changed = self._plain.layers.missing_in(compilation.layers)
            suspects = self._plain.layers.nearest_values(changed, {name: self._boundary[name] for name in names})
            names = [name for name in names if name not in suspects]
            if not suspects:
                break
        return self._without_missing(model, names, compilation)

    def _request(self, model: ov.Model, names: Collection[str]) -> None:
        """Compile with these values as outputs, and keep the compilation if it finds one of them."""
        compilation = self._without_missing(model, names, self._compile_with(model, names))
        found = self._plain.layers.ports_of(compilation.layers)
        new = {name: port for name, port in found.items() if port not in self.ports.values()}  # each port once
        if new.keys() & {*names}:
            self.compilations.append(compilation)
        self.ports.update(new)

    def _without_missing(self, model: ov.Model, names: Collection[str], compilation: Compilation) -> Compilation:
        """Compile again without the values that were not found, which may be the cause, if layers have changed."""
        plain, layers = self._plain.layers, compilation.layers
        ports = plain.ports_of(layers)
        found = [name for name in names if name in ports]
        has_changes = plain.missing_in(layers) or layers.missing_in(plain)
        if not found or len(found) == len(names) or not has_changes:
            return compilation
        again = self._compile_with(model, found)
        return again if {*found} <= plain.ports_of(again.layers).keys() else compilation
