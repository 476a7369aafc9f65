"""Numbers, lists and commands as text."""

import shlex
from collections.abc import Mapping, Sequence


def plural(count: int, noun: str) -> str:
    """Return a number with its noun.

    >>> plural(1, "cell"), plural(2000, "cell")
    ('1 cell', '2,000 cells')
    """
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def listed(names: Sequence[object], most: int | None = 5, rest: str = " and {} more") -> str:
    """Return the first names with commas between them, and how many more there are.

    `most` is the number of names, None for all; `rest` is the text about the others, whose number replaces the braces.

    >>> listed("abc", 2)
    'a, b and 1 more'
    """
    more = rest.format(len(names) - most) if most is not None and len(names) > most else ""
    return ", ".join(map(str, names[:most])) + more


def command_text(command: str, *arguments: object, **options: object) -> str:
    """Return a command line of `filch`.

    >>> command_text("diff", "a b.onnx", "c.onnx", tolerance=0.5, all=True)
    "filch diff 'a b.onnx' c.onnx --tolerance 0.5 --all"
    """
    return shlex.join(["filch", command, *map(str, arguments), *option_texts(**options)])


def option_texts(**options: object) -> list[str]:
    """Return options as arguments of a command.

    Those that are None, False or `""` are left out, True has no value, and a mapping gives an option for each entry.

    >>> option_texts(backend="eager", dim={"batch": 2}, lower_precision=True, device="")
    ['-b', 'eager', '--dim', 'batch=2', '--lower-precision']
    """
    texts: list[str] = []
    for name, value in options.items():
        option = "-b" if name == "backend" else f"--{name.replace('_', '-')}"
        if isinstance(value, Mapping):
            texts += [text for key, item in value.items() for text in (option, f"{key}={item}")]
        elif value is not None and value is not False and value != "":
            texts += [option] if value is True else [option, str(value)]
    return texts
