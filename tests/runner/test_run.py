#!/usr/bin/env python3
"""The runner counts cases right: what each of the three test tools prints, and how it can end."""

import os
import sys
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
import run  # noqa: E402


def counted(text):
    outcome = run.Outcome(None)
    run.count_cases(outcome, run.parse_cases(text))
    return outcome.passed, outcome.failed, outcome.skipped


def ran(shell, limit=20):
    program = run.Program("c", "example", ["sh", "-c", shell], limit=limit)
    outcome = run.run_program(program, dict(os.environ))
    return outcome.passed, outcome.failed, outcome.skipped


class Counting(unittest.TestCase):
    def test_cmocka(self):
        text = "1..3\nok 1 - test_a\nnot ok 2 - test_b\n# error at line 3\nnot ok 3 # SKIP test_c\n"
        self.assertEqual(counted(text), (["test_a"], ["test_b"], ["test_c"]))

    def test_busted(self):
        text = "ok 1 - x works\nnot ok 2 - x fails\nok 3 - # SKIP x later\n1..3\n"
        self.assertEqual(counted(text), (["x works"], ["x fails"], ["x later"]))

    def test_unittest(self):
        text = "test_a (m.C.test_a) ... ok\ntest_b (m.C) ... FAIL\ntest_c (m.C) ... skipped 'x'\n"
        self.assertEqual(counted(text), (["test_a"], ["test_b"], ["test_c"]))

    def test_node_subtests_are_counted_once(self):
        text = ("# Subtest: group\n    ok 1 - first\n    not ok 2 - second\n    1..2\n"
                "not ok 1 - group\nok 2 - alone\n")
        self.assertEqual(counted(text), (["first", "alone"], ["second"], []))

    def test_a_group_that_fails_by_itself_is_a_failure(self):
        text = "    ok 1 - first\nnot ok 1 - group\n"
        self.assertEqual(counted(text), (["first"], ["group"], []))


class Endings(unittest.TestCase):
    def test_silent_failure(self):
        self.assertEqual(ran("echo ok 1 - a; exit 3"), (["a"], ["exit status 3"], []))

    def test_killed(self):
        self.assertEqual(ran("echo ok 1 - a; kill -9 $$"), (["a"], ["killed by signal 9"], []))

    def test_too_long(self):
        self.assertEqual(ran("echo ok 1 - a; sleep 60", limit=1),
                         (["a"], ["ran longer than 1 s"], []))

    def test_no_case(self):
        self.assertEqual(ran("true"), ([], ["printed no case"], []))


if __name__ == "__main__":
    unittest.main(verbosity=2)
