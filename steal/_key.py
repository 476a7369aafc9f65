"""The name of one captured value."""

from typing import NamedTuple

PlainKey = tuple[str, int, str]  # a `Key`, or the equal tuple, which takes less time to make


class Key(NamedTuple):
    """The name of a captured value; equal to, and usable as, the plain tuple.

    Attributes:
        name: the name of the module (`""` for an unnamed one), or the name given to `steal_append`.
        iteration: how many times the module was called before in this capture.
        kind: `"I"` for inputs, as `forward` receives them, and `"A"` for the arguments that the caller of the outermost
            module gave, if its forward pre-hooks have changed them; `"O"` for the output, `"V"` for a
            value given to `steal_append`; `"GI"` and `"GO"` for the gradients with respect to inputs and output, `"P"`
            for a parameter, `"GP"` for its gradient after each accumulation and `"GF"` for its final gradient, as an
            optimizer's step or the end of the block finds it; `"C"` for a collective that the module has run.
    """

    name: str
    iteration: int
    kind: str

    def __repr__(self) -> str:
        return repr(tuple(self))  # as the tuple that it is equal to

    @property
    def label(self) -> str:
        """The key as one word, such as `decoder.norm_1#0.O`."""
        return f"{self.name or '(root)'}#{self.iteration}.{self.kind}"

    def place(self, path: str) -> str:
        """Return the label with the path of a tensor in the value; of inputs, as in `.args[1]` or `.kwargs['x']`."""
        if self.kind in ("I", "A", "GI"):  # the value is the pair (args, kwargs)
            args = path.startswith("[0]")
            path = path.replace("[0]", ".args", 1) if args else path.replace("[1]", ".kwargs", 1)
        return self.label + path
