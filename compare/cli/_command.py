"""What all commands of `filch` share: errors are told in one sentence and end with exit code 2."""

import gc
import inspect
import shlex
import sys
import traceback as python_traceback
from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from functools import wraps
from typing import Annotated, Any

import typer

from ..common._streams import OutputError

_INTERRUPTED = 130  # the exit code of a program that Ctrl-C ended
# Options that say how a result is printed and written, and the number of values that each takes.
_OF_OUTPUT = {"-q": 0, "--quiet": 0, "--json": 0, "--markdown": 0, "--all": 0, "--wide": 0, "--traceback": 0}
_OF_OUTPUT |= {"--view": 1, "-o": 1, "--output": 1}
Traceback = Annotated[bool, typer.Option("--traceback", help="If an error occurs, print all of its stack frames.")]


def as_command(function: Any) -> Callable[..., None]:
    """Return a command with the option `--traceback` that ends the process with code 2 if the function raises.

    A parameter of the function that is a dataclass, a group of options, becomes an option for each of its fields.
    Typer reads the options from the signature of the command, and calls it with their values.
    """
    own = inspect.signature(function).parameters.values()
    groups: dict[str, Any] = {one.name: one.annotation for one in own if is_dataclass(one.annotation)}

    @wraps(function)
    def command(*args: Any, traceback: bool, **options: Any) -> None:
        from filch.export.common._time_limit import end_process_if_stuck

        if not gc.isenabled():  # see `filch.compare.__main__`
            gc.freeze()
            gc.enable()
        try:
            with end_process_if_stuck():
                for name, group in groups.items():
                    options[name] = group(**{field.name: options.pop(field.name) for field in fields(group)})
                function(*args, **options)
        except (OutputError, typer.Exit):
            raise
        except KeyboardInterrupt:
            interrupted()
        except Exception as error:  # noqa: BLE001  Python would exit with 1, which means a difference here
            typer.echo(_message(error, traceback=traceback), err=True, nl=False)  # which may be closed
            raise typer.Exit(2) from None

    added = [(field.name, field.type, field.default) for group in groups.values() for field in fields(group)]
    parameters = [one for one in own if one.name not in groups]
    for name, annotation, default in [*added, ("traceback", Traceback, False)]:
        kind = inspect.Parameter.KEYWORD_ONLY
        parameters.append(inspect.Parameter(name, kind, default=default, annotation=annotation))
    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    command.__annotations__ = {one.name: one.annotation for one in parameters}
    return command


def interrupted() -> None:
    """End the process as Ctrl-C does, without a traceback."""
    sys.stderr.write("filch: interrupted\n")
    sys.exit(_INTERRUPTED)


def usage_error(message: str) -> typer.Exit:
    """Print the message of an invalid argument, before anything slow is imported, and return what to raise."""
    typer.echo(f"filch: {message}", err=True)
    return typer.Exit(2)


def command_line(not_repeated: Mapping[str, int], *more: str, command: str = "") -> str:
    """Return the command line of this process without some options.

    Args:
        not_repeated: the options to leave out, and the number of values that each takes, besides those that say how
            the result is printed and written.
        *more: arguments to append.
        command: the command, if it is another one.
    """
    not_repeated = _OF_OUTPUT | dict(not_repeated)
    arguments = iter(sys.argv[1:])
    kept = []
    for argument in arguments:
        name, equals, _ = argument.partition("=")
        is_attached = not argument.startswith("--") and not_repeated.get(argument[:2], 0) > 0  # as in -ofile
        if name in not_repeated and not equals:  # the next arguments are its values
            for _ in range(not_repeated[name]):
                next(arguments, None)
        elif name not in not_repeated and not is_attached and argument != "--":  # options are appended
            kept.append(argument)
    return shlex.join(["filch", *([command] if command else []), *kept, *more])


def _message(error: Exception, *, traceback: bool) -> str:
    """Return an error as text: expected ones in a sentence and with the user's line of code, others as a traceback."""
    from filch.steal import FilchError
    from filch.steal.files._outputs import has_no_room, write_problem
    from filch.steal.text._visible import for_terminal

    from ..common._source import user_frame

    if traceback or not isinstance(error, FilchError | OSError):
        return for_terminal("".join(python_traceback.format_exception(error)))
    problem = str(error)
    if isinstance(error, OSError) and has_no_room(error):
        file = repr(error.filename) if error.filename else "a temporary file"
        problem = f"can't write {file}: {write_problem(error, error.filename)}"
    frame = user_frame(error)
    place = f"  {frame}\n  (--traceback prints all stack frames)\n" if frame else ""
    return for_terminal(f"filch: {problem}\n{place}")
