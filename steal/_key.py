"""The name of one captured value."""

from typing import Literal, NamedTuple

Kind = Literal["I", "O", "V", "GI", "GO", "P", "GP"]


class Key(NamedTuple):
    """What a captured value is called; equal to, and usable as, the plain tuple.

    Attributes:
        name: the module's name as given to `steal_forward` (`""` for an unnamed one), or what `steal_append` was given.
        iteration: how many times it was called before in this capture.
        kind: `"I"` for inputs, `"O"` for the output, `"V"` for a value handed to `steal_append`; `"GI"` and `"GO"` for
            the gradients with respect to inputs and output, `"P"` for a parameter and `"GP"` for its gradient.
    """

    name: str
    iteration: int
    kind: str

    def __repr__(self) -> str:
        return repr(tuple(self))  # it prints as what it is equal to

    @property
    def label(self) -> str:
        """The key in one word, as in `decoder.norm_1#0.O`."""
        return f"{self.name or '(root)'}#{self.iteration}.{self.kind}"

    def place(self, path: str) -> str:
        """A tensor inside the value as a person reads it: of inputs, `.args[1]` and `.kwargs['x']`."""
        if self.kind in ("I", "GI"):
            args = path.startswith("[0]")
            path = path.replace("[0]", ".args", 1) if args else path.replace("[1]", ".kwargs", 1)
        return self.label + path
