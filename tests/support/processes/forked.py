"""Python in processes of its own, forked from one that has imported what they need: each saves seconds."""

import atexit
import functools
import gc
import inspect
import json
import os
import runpy
import signal
import subprocess
import sys
import tempfile
import traceback
from pathlib import Path

PATIENCE = 300  # seconds
TESTS = Path(__file__).resolve().parents[2]


def run_python(*arguments, cwd=".", env=None, forks=False):
    """Run a script, a module after `-m` or code after `-c`, as `python` does; return what `subprocess.run` would.

    A process in which torch has computed may not be forked, and the one that is forked has only exported something.
    With `forks`, what it starts by `sys.executable` is forked from it, too; it may have no threads then.
    """
    with tempfile.TemporaryDirectory() as folder:
        files = [f"{folder}/output", f"{folder}/errors"]
        request = {
            "arguments": [*map(str, arguments)],
            "cwd": os.path.abspath(cwd),  # noqa: PTH100  a string, which JSON takes
            "env": {**os.environ} if env is None else env,
            "files": files,
            "forks": forks,
        }
        server = _server()
        server.stdin.write(f"{json.dumps(request)}\n")
        server.stdin.flush()
        code = int(server.stdout.readline())
        output, errors = (Path(file).read_text("utf-8") for file in files)
    return subprocess.CompletedProcess(arguments, code, output, errors)


@functools.cache
def _server():
    command = f"import sys; sys.path.insert(0, {str(TESTS)!r}); from support.processes.forked import serve; serve()"
    pipe = subprocess.PIPE
    server = subprocess.Popen([sys.executable, "-c", command], cwd=TESTS, stdin=pipe, stdout=pipe, text=True)
    atexit.register(server.communicate)  # ends it: nothing more is to be read
    return server


def serve():
    """Answer each request on the standard input with the exit code of a fork that has run it."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what is printed meanwhile is no answer
    path = sys.path[2:]  # without that of the tests, and the first, which depends on what is run
    _import_all()
    from support.models.exports import quick_exports

    with quick_exports():
        _export_something()
        gc.set_threshold(100_000, 20, 50)  # as tests/conftest.py
        gc.collect()
        gc.freeze()  # forks don't visit what was there before
        for line in sys.stdin:
            pid = os.fork()
            if not pid:
                _run(path=path, **json.loads(line))
            print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), file=answers, flush=True)


def _import_all():
    import onnxruntime  # noqa: F401
    import torch._inductor.compile_fx  # noqa: F401

    import filch.compare.cli._app
    import filch.compare.testing  # noqa: F401


def _export_something():
    import torch
    from torch import nn

    from filch.export import export, optimize

    optimize(export(nn.Sequential(nn.Linear(2, 2), nn.GELU(), nn.LayerNorm(2)).eval(), (torch.ones(1, 2),)))


def _run(*, arguments, cwd, env, files, forks, path):
    """Run Python in this process, and end it."""
    handles = [os.open(os.devnull, os.O_RDONLY), *(os.open(file, os.O_WRONLY | os.O_CREAT) for file in files)]
    os.chdir(cwd)
    if forks:
        subprocess.Popen._execute_child = _forking(subprocess.Popen._execute_child, path)  # noqa: SLF001  all lead here
    _become(arguments, env, handles, path)


def _forking(execute, path):
    """Return the method of `subprocess.Popen` that starts a process, which forks instead where Python is started."""
    signature = inspect.signature(execute)

    def start(*arguments):
        given = signature.bind(*arguments).arguments
        process, (program, *rest) = given["self"], given["args"]
        has_options = rest[0].startswith("-") and rest[0] not in ("-c", "-m")
        if program != sys.executable or has_options or any(given[name] for name in ("cwd", "pass_fds", "preexec_fn")):
            execute(*arguments)
            return
        sys.stdout.flush()
        process.pid = os.fork()
        if process.pid:
            process._child_created = True  # noqa: SLF001  as the method does
            names = ("p2cread", "p2cwrite", "c2pread", "c2pwrite", "errread", "errwrite")
            process._close_pipe_fds(*(given[name] for name in names))  # noqa: SLF001  likewise
            return
        if given["start_new_session"]:
            os.setsid()
        _become(rest, given["env"], [given[name] for name in ("p2cread", "c2pwrite", "errwrite")], path)

    return start


def _become(arguments, env, handles, path):
    """Go on as a new process of Python with these arguments, and these files in place of the standard ones."""
    code = 1
    try:
        os.environ.clear()
        os.environ.update(env)
        for number, handle in enumerate(handles):
            os.dup2(handle, number)
        os.closerange(3, 1024)  # a pipe ends when the process that has its other end does
        signal.alarm(PATIENCE)
        if arguments[0] == "-m":
            _, module, *rest = arguments
            sys.argv, sys.path[:] = [module, *rest], [os.getcwd(), *path]  # noqa: PTH109  a string
            runpy.run_module(module, run_name="__main__", alter_sys=True)
        elif arguments[0] == "-c":
            _, text, *rest = arguments
            sys.argv, sys.path[:] = ["-c", *rest], [os.getcwd(), *path]  # noqa: PTH109  likewise
            exec(text, {"__name__": "__main__"})  # noqa: S102  our own code
        else:
            sys.argv, sys.path[:] = arguments, [str(Path(arguments[0]).resolve().parent), *path]
            runpy.run_path(arguments[0], run_name="__main__")
        code = 0
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
        if isinstance(ended.code, str):
            sys.stderr.write(f"{ended.code}\n")
    except BaseException:  # noqa: BLE001  as the interpreter does
        traceback.print_exc()
    finally:
        atexit._run_exitfuncs()  # noqa: SLF001  `os._exit` does not
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
