"""Run captures in forked processes and kill them; a script, as a process that forks must not have threads.

Run as `kills.py FOLDER COUNT SEED`. Prints a line of JSON for each kill: the folder with the remaining files, where the
process was killed, and how many records were reported as complete before.
"""

import json
import os
import random
import signal
import sys
import time
from pathlib import Path

import torch
from torch import nn

import filch.steal.dump._format as form
from filch.steal import steal_forward

PHASES = ("run", "write", "publish")


def value(index):
    """Return the tensor of call `index`: 1 to 50,000 elements that no other call has."""
    return torch.arange(1 + index * 7919 % 50_000, dtype=torch.float32) + 1000 * index


def die():
    os.kill(os.getpid(), signal.SIGKILL)


def arm(place, chance):
    """Prepare a kill during one of the writer's writes, possibly half done, or between two steps of publishing."""
    if place == "write":
        write, left = os.write, [chance.randrange(1, 60)]

        def killing(handle, view):
            left[0] -= 1
            if left[0] <= 0:
                write(handle, view[: chance.randrange(len(view) + 1)])
                die()
            return write(handle, view)

        os.write = killing
    if place == "publish":
        steps = [(os, "link"), (os, "ftruncate"), (Path, "write_bytes"), (Path, "replace"), (Path, "unlink")]
        left = [chance.randrange(1, 11)]
        for owner, name in steps:
            setattr(owner, name, with_kill(getattr(owner, name), left))


def with_kill(step, left):
    """Return the step with a kill before or after it, once `left` is counted down."""

    def killing(*args, **options):
        left[0] -= 1
        if left[0] == 0:
            die()
        result = step(*args, **options)
        left[0] -= 1
        if left[0] == 0:
            die()
        return result

    return killing


def capture(folder, place, chance, report):
    module = nn.Identity()
    calls = 10_000 if place == "run" else chance.randrange(20, 60)
    with steal_forward(("m", module), dump_file=folder / "dump.onnx", buffer=2**20) as records:
        for index in range(calls):
            module(value(index))
            if chance.random() < 0.2:
                os.write(report, b"%d\n" % records.flush())
        if place == "publish":
            os.write(report, b"%d\n" % records.flush())
            arm(place, chance)


def run(folder, place, seed):
    """Kill one capture; return the number of records that it last reported as complete."""
    chance = random.Random(seed)
    form.INLINE_LIMIT = chance.choice([0, 2**30])
    reader, writer = os.pipe()
    if not (child := os.fork()):
        try:
            arm(place if place == "write" else None, chance)
            capture(folder, place, chance, os.dup(writer))
        finally:
            os._exit(0)
    os.close(writer)
    if place == "run":
        time.sleep(chance.uniform(0, 0.12))
        os.kill(child, signal.SIGKILL)
    reports = b"".join(iter(lambda: os.read(reader, 2**16), b""))
    os.close(reader)
    os.waitpid(child, 0)
    return int(reports.split()[-1]) if reports.split() else 0


if __name__ == "__main__":
    base, count, first = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    for number in range(count):
        place = PHASES[number % len(PHASES)]
        left = base / f"{number}-{place}"
        left.mkdir()
        print(json.dumps({"folder": left.name, "place": place, "reported": run(left, place, first + number)}))
