"""A contestant in a process of its own, asked by lines of JSON.

A worker reads one JSON object per line from stdin and answers each with one on stdout that has
"ok". Other lines on stdout are a library's chatter and are ignored.
"""

import json
import os
import select
import signal
import subprocess
import time

# Seconds between looks at a worker's memory.
POLL = 0.1


class Failure(Exception):
    """Why a contestant has no result. `kind` is one of "unsupported", "failed", "crashed",
    "timeout" and "out of memory"."""

    def __init__(self, kind, detail=""):
        super().__init__(f"{kind}: {detail}" if detail else kind)
        self.kind, self.detail = kind, detail


class Worker:
    """`command` runs on the processors `cpus`, with `env` and its stderr in the file `log`. More
    than `memory` bytes is a failure."""

    def __init__(self, command, env, cpus, log, memory):
        self.log, self.memory, self.unread = log, memory, b""

        def before_exec():
            os.sched_setaffinity(0, cpus)
            # When the machine runs out of memory, the workers go first.
            with open("/proc/self/oom_score_adj", "w") as file:
                file.write("1000")

        with open(log, "wb") as stderr:
            self.process = subprocess.Popen(
                command,
                env=env,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stderr,
                preexec_fn=before_exec,
                start_new_session=True,
            )

    def ask(self, message, timeout):
        """The answer to a message. Raises `Failure`; after one of the process itself, the worker
        is gone."""
        try:
            self.process.stdin.write(json.dumps(message).encode() + b"\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            raise self.died() from None
        deadline = time.monotonic() + timeout
        while True:
            answer = self.answer_in(self.next_line(deadline, timeout))
            if answer is None:
                continue
            if answer["ok"]:
                return answer
            kind = "unsupported" if "unsupported" in answer else "failed"
            raise Failure(kind, answer.get("unsupported") or answer.get("error", ""))

    @staticmethod
    def answer_in(line):
        try:
            answer = json.loads(line)
        except ValueError:
            return None
        return answer if isinstance(answer, dict) and "ok" in answer else None

    def next_line(self, deadline, timeout):
        stdout = self.process.stdout.fileno()
        while b"\n" not in self.unread:
            if not select.select([stdout], [], [], POLL)[0]:
                if self.resident() > self.memory:
                    self.stop()
                    raise Failure("out of memory", f"more than {self.memory / 1e9:.1f} GB")
                if time.monotonic() > deadline:
                    self.stop()
                    raise Failure("timeout", f"more than {timeout:g} s")
                continue
            data = os.read(stdout, 1 << 16)
            if not data:
                raise self.died()
            self.unread += data
        line, self.unread = self.unread.split(b"\n", 1)
        return line

    def died(self):
        code = self.process.wait()
        if code == -signal.SIGKILL:
            return Failure("out of memory", "killed by the system")
        with open(self.log, "rb") as file:
            lines = file.read().decode(errors="replace").strip().splitlines()
        how = signal.Signals(-code).name if code < 0 else f"exit code {code}"
        return Failure("crashed", f"{how}: {lines[-1][:200]}" if lines else how)

    def status(self, field):
        """A line of /proc/PID/status in bytes; 0 once the process has ended."""
        try:
            with open(f"/proc/{self.process.pid}/status") as file:
                for line in file:
                    if line.startswith(field):
                        return 1024 * int(line.split()[1])
        except (FileNotFoundError, ProcessLookupError):
            pass
        return 0

    def resident(self):
        return self.status("VmRSS:")

    def peak(self):
        """The most memory since the start, or since `forget_peak`."""
        return self.status("VmHWM:")

    def forget_peak(self):
        with open(f"/proc/{self.process.pid}/clear_refs", "w") as file:
            file.write("5")

    def stop(self):
        """End it, with all that it has started."""
        try:
            os.killpg(self.process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        self.process.wait()
        self.process.stdin.close()
        self.process.stdout.close()
