"""One case: every contestant is checked against f64, and those that are right take turns."""

import math
import statistics
import time
from contextlib import ExitStack
from dataclasses import dataclass, field

from . import accuracy
from .worker import Failure, Worker


@dataclass
class Contestant:
    name: str
    command: list
    # What it computes, by the names of the reference.
    outputs: list
    # What is not as for the others, for the reader of the table.
    note: str = ""


@dataclass
class Rules:
    """Rounds, how long an answer may take, and how much memory."""

    rounds: int = 7
    # A contestant that has taken this many seconds, in three rounds or more, rests.
    seconds: float = 20.0
    timeout: float = 300.0
    memory: float = math.inf
    # Short runs are repeated until they take this long.
    shortest: float = 0.02
    # Seconds between turns: threads of some libraries spin for a while when they have no work.
    pause: float = 0.05
    # Seconds of runs that are not timed, at the beginning of a turn on several processors: threads
    # that have slept may all wake on one, and it takes tens of milliseconds to spread them.
    warm_up: float = 0.1
    cpus: tuple = (0,)


@dataclass
class Result:
    name: str
    note: str = ""
    version: str = ""
    # "ok", "wrong", or the kind of a `Failure`.
    status: str = "ok"
    detail: str = ""
    error: float = math.nan
    # Seconds of each round.
    wall: list = field(default_factory=list)
    cpu: list = field(default_factory=list)
    # Bytes: the peak while it ran, and how much that is above the idle worker.
    peak: int = 0
    memory: int = 0

    @property
    def seconds(self):
        """The fastest round: on a shared machine that is what the code costs."""
        return min(self.wall)

    @property
    def cpu_seconds(self):
        return min(self.cpu)

    @property
    def spread(self):
        """How far the median is above the minimum, relative to it."""
        return statistics.median(self.wall) / self.seconds - 1

    def fail(self, failure):
        self.status, self.detail = failure.kind, failure.detail
        self.wall, self.cpu = [], []


def ratios(results, baseline):
    """The time of each contestant that was timed over that of `baseline`, from minima; nothing
    if that has no time."""
    timed = {result.name: result.seconds for result in results if result.status == "ok"}
    if baseline not in timed:
        return {}
    return {name: seconds / timed[baseline] for name, seconds in timed.items()}


def hold(case, contestants, rules, env, directory, say=lambda text: None):
    """`case` is what workers are told, with the directory "expected" of the reference, the largest
    "tolerance", and the "tokens" of a run by which times are divided; `env` is the environment of
    workers; `directory` is for logs and results."""
    expected = accuracy.Reference(case["expected"])
    with ExitStack() as stack:
        entries = []
        for i, contestant in enumerate(contestants):
            entry = Entry(contestant, case, rules, directory / str(i), expected)
            stack.callback(entry.stop)
            say(f"{contestant.name}: checking")
            entry.attempt(lambda entry=entry: entry.start(env))
            entries.append(entry)
        for round_ in range(rules.rounds):
            say(f"round {round_ + 1} of {rules.rounds}")
            # Whoever goes first may find a processor that another one has warmed up.
            turn = round_ % max(len(entries), 1)
            for entry in entries[turn:] + entries[:turn]:
                if not entry.rests():
                    entry.attempt(entry.run)
                    time.sleep(rules.pause)
        return [entry.finished() for entry in entries]


class Entry:
    """A contestant in the contest."""

    def __init__(self, contestant, case, rules, directory, expected):
        self.contestant, self.case, self.rules = contestant, case, rules
        self.directory, self.expected = directory, expected
        self.result = Result(contestant.name, contestant.note)
        self.worker, self.times, self.warm_ups, self.idle = None, 1, 0, 0

    def attempt(self, action):
        try:
            action()
        except Failure as failure:
            self.result.fail(failure)
            self.stop()

    def ask(self, **message):
        return self.worker.ask(message, self.rules.timeout)

    def start(self, env):
        self.directory.mkdir(parents=True)
        rules, log = self.rules, self.directory / "log"
        self.worker = Worker(self.contestant.command, env, rules.cpus, log, rules.memory)
        self.result.version = self.ask(do="hello")["version"]
        self.idle = self.worker.resident()
        self.ask(do="prepare", case=self.case)
        if self.check():
            # The first run may compile and fill caches.
            wall = self.ask(do="run", times=1)["wall"]
            self.times = max(1, min(10_000, math.ceil(rules.shortest / max(wall, 1e-9))))
            if len(rules.cpus) > 1 and wall < rules.warm_up:
                self.warm_ups = math.ceil(rules.warm_up / (self.times * max(wall, 1e-9)))
            self.worker.forget_peak()

    def check(self):
        self.ask(do="check", out=str(self.directory))
        errors = self.expected.errors(self.contestant.outputs, self.directory)
        name = max(errors, key=errors.get)
        self.result.error, limit = errors[name], self.case["tolerance"]
        if self.result.error <= limit:
            return True
        detail = f"{name} is off by {self.result.error:.1e}, more than {limit:.0e}"
        self.result.fail(Failure("wrong", detail))
        self.stop()
        return False

    def rests(self):
        taken = self.result.wall
        spent = sum(taken) * self.times * self.case.get("tokens", 1)
        slow = len(taken) >= 3 and spent > self.rules.seconds
        return self.worker is None or slow

    def run(self):
        for _ in range(self.warm_ups):
            self.ask(do="run", times=self.times)
        answer = self.ask(do="run", times=self.times)
        count = self.times * self.case.get("tokens", 1)
        self.result.wall.append(answer["wall"] / count)
        self.result.cpu.append(answer["cpu"] / count)

    def finished(self):
        if self.worker is not None:
            self.result.peak = self.worker.peak()
            self.result.memory = max(0, self.result.peak - self.idle)
        return self.result

    def stop(self):
        if self.worker is not None:
            self.worker.stop()
            self.worker = None
