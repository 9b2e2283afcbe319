"""The harness itself, with contestants of a few lines: python3 -m unittest discover bench/tests"""

import json
import sys
import tempfile
import unittest
from array import array
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from harness import accuracy, cases, charts, contest, report  # noqa: E402

# A contestant that writes `y` and takes `wall` seconds, unless it does something else first.
PROGRAM = """
import json, os, sys, time
from array import array
y, walls, trouble = json.loads(sys.argv[1])
for line in sys.stdin:
    message = json.loads(line)
    do, answer = message["do"], {"ok": True, "version": "1.0"}
    if do == trouble.get("at"):
        exec(trouble["code"])
    if do == "check":
        with open(message["out"] + "/y.f32", "wb") as file:
            array("f", y).tofile(file)
    if do == "run":
        wall = walls.pop(0)
        answer |= {"wall": wall * message["times"], "cpu": 2 * wall * message["times"]}
    print("a library says hello")
    print(json.dumps(answer), flush=True)
"""


def contestant(name, y=(1.0, 2.0), walls=(0.1,) * 9, at=None, code=""):
    words = json.dumps([list(y), list(walls), {"at": at, "code": code}])
    return contest.Contestant(name, [sys.executable, "-c", PROGRAM, words], ["y"])


class Contest(unittest.TestCase):
    def hold(self, *contestants, **rules):
        directory = tempfile.TemporaryDirectory()
        self.addCleanup(directory.cleanup)
        path = Path(directory.name)
        (path / "y.f64").write_bytes(array("d", [1.0, 2.0]).tobytes())
        case = {"expected": str(path), "tolerance": 1e-4}
        rules = contest.Rules(**{"rounds": 3, "timeout": 20, "pause": 0, **rules})
        results = contest.hold(case, contestants, rules, {"PATH": ""}, path / "work")
        return {result.name: result for result in results}

    def test_a_wrong_result_is_reported_and_not_timed(self):
        for y in [(1.0, 2.1), (1.0,), (1.0, float("nan"))]:
            results = self.hold(contestant("right"), contestant("wrong", y=y))
            self.assertEqual(results["right"].status, "ok")
            self.assertEqual(results["wrong"].status, "wrong")
            self.assertIn("y is off by", results["wrong"].detail)
            self.assertEqual(results["wrong"].wall, [])
            self.assertNotIn("wrong", contest.ratios(results.values(), "right"))

    def test_crashes_and_refusals_are_reported(self):
        crash = "print('no such kernel', file=sys.stderr); os.abort()"
        refuse = "answer = {'ok': False, 'unsupported': 'bf16'}"
        error = "answer = {'ok': False, 'error': 'shape'}"
        results = self.hold(
            contestant("crash", at="run", code=crash),
            contestant("refuse", at="prepare", code=refuse),
            contestant("error", at="check", code=error),
            contestant("killed", at="run", code="os.kill(os.getpid(), 9)"),
            contestant("right"),
        )
        found = {name: (result.status, result.detail) for name, result in results.items()}
        self.assertEqual(found["crash"], ("crashed", "SIGABRT: no such kernel"))
        self.assertEqual(found["refuse"], ("unsupported", "bf16"))
        self.assertEqual(found["error"], ("failed", "shape"))
        self.assertEqual(found["killed"][0], "out of memory")
        self.assertEqual(len(results["right"].wall), 3, "others go on")

    def test_a_contestant_that_hangs_is_stopped(self):
        hang = contestant("hang", at="prepare", code="time.sleep(60)")
        result = self.hold(hang, timeout=1.0)["hang"]
        self.assertEqual((result.status, result.detail), ("timeout", "more than 1 s"))

    def test_a_contestant_that_takes_too_much_memory_is_stopped(self):
        code = "memory = bytearray(os.urandom(1 << 20) * 200); time.sleep(60)"
        result = self.hold(contestant("large", at="check", code=code), memory=100e6)["large"]
        self.assertEqual(result.status, "out of memory")

    def test_ratios_are_of_minima(self):
        # The first run warms up and does not count.
        ours = contestant("taipan", walls=[9.0, 2.0, 1.0, 4.0])
        peer = contestant("peer", walls=[0.1, 3.0, 5.0, 7.0])
        results = self.hold(ours, peer)
        self.assertEqual(contest.ratios(results.values(), "taipan"), {"taipan": 1.0, "peer": 3.0})
        self.assertEqual(results["peer"].cpu_seconds, 6.0)
        self.assertAlmostEqual(results["peer"].spread, 5 / 3 - 1)

    def test_short_runs_are_repeated(self):
        result = self.hold(contestant("short", walls=(0.001,) * 9))["short"]
        self.assertAlmostEqual(result.seconds, 0.001)

    def test_a_slow_contestant_rests(self):
        result = self.hold(contestant("slow", walls=(2.0,) * 9), rounds=6, seconds=5.0)["slow"]
        self.assertEqual(len(result.wall), 3)

    def test_memory_is_that_of_the_runs(self):
        code = "memory = os.urandom(1 << 20) * 50"
        results = self.hold(
            contestant("large", at="run", code=code),
            contestant("once", at="check", code=code + "; del memory"),
        )
        self.assertGreater(results["large"].memory, 40e6)
        self.assertLess(results["once"].memory, 40e6)


class Accuracy(unittest.TestCase):
    def test_errors_are_relative_to_value_and_tensor(self):
        expected = accuracy.Expected(array("d", [3.0, 4.0, 0.0, 0.0]))  # rms 2.5
        self.assertAlmostEqual(expected.error([3.0, 4.0, 0.0, 0.25]), 0.1)
        self.assertAlmostEqual(expected.error([3.0, 4.65, 0.0, 0.0]), 0.1)
        self.assertEqual(expected.error([3.0, 4.0, 0.0, float("inf")]), float("inf"))
        self.assertEqual(accuracy.Expected(array("d", [0.0])).error([0.0]), 0.0)


def timed(name, *wall, **fields):
    return contest.Result(name, wall=list(wall), cpu=list(wall), error=1e-7, **fields)


class Report(unittest.TestCase):
    RESULTS = [
        timed("peer", 0.006, 0.003, note="product alone"),
        contest.Result("broken", status="wrong", detail="y is off by 1.0e-01, more than 1e-04"),
        timed("taipan", 0.002, 0.001, memory=3 << 20),
    ]

    def test_tables_have_ratios_and_reasons(self):
        lines = report.text("case", self.RESULTS).splitlines()
        self.assertEqual(lines[0], "case")
        self.assertEqual(lines[2].split()[:3], ["taipan", "1", "ms"])
        self.assertRegex(lines[3], r"peer \(product alone\) +3 ms +\+50 % .* 3\.00× ")
        self.assertTrue(lines[4].endswith("wrong: y is off by 1.0e-01, more than 1e-04"))
        rows = report.markdown("case", self.RESULTS).splitlines()[2:]
        self.assertEqual({row.count("|") for row in rows}, {8}, "every row has every column")

    def test_json_has_what_was_measured(self):
        case = cases.quick("linear")[0]
        found = report.as_json({}, "compare", 1, [(case, self.RESULTS)])
        first = json.loads(json.dumps(found, allow_nan=False))["cases"][0]
        self.assertEqual(first["results"][0]["ratio"], 3.0)
        self.assertEqual(first["results"][1]["status"], "wrong")
        self.assertEqual(first["case"]["name"], case.name)

    def test_charts_are_valid_and_leave_out_what_failed(self):
        import xml.etree.ElementTree as xml

        growing = cases.growth(True)
        contests = [(case, self.RESULTS) for case in [*cases.quick("linear"), *growing]]
        with tempfile.TemporaryDirectory() as directory:
            charts.write(Path(directory), contests, 2)
            files = sorted(path.name for path in Path(directory).iterdir())
            self.assertIn("linear.svg", files)
            self.assertIn("scan-length-time.svg", files)
            self.assertIn("decode-width-memory.svg", files)
            for path in Path(directory).iterdir():
                words = list(xml.parse(path).getroot().itertext())
                self.assertIn("taipan", words)
                self.assertNotIn("broken", words)


class Cases(unittest.TestCase):
    def test_names_are_unique_and_contestants_known(self):
        for small in True, False:
            for task in [*cases.TASKS, "growth"]:
                found = cases.select(task, small)
                self.assertEqual(len({(case.name, case.axis) for case in found}), len(found))
                for case in found:
                    for name in cases.CONTESTANTS[case.task]:
                        self.assertTrue(case.outputs(name))


if __name__ == "__main__":
    unittest.main()
