#!/usr/bin/env python3
"""Faults planted in a copy of the sources: each must make `make prove` fail, and be named.

One fault a kind of thing that the proofs are there for: a partition, a weight, the acceptor, the
GDN program, the width of an accumulator, roundings and digits, a law whose hypothesis cannot hold.
Each is planted alone and restored; the copy proves at the end, all of it. Some minutes: with
ELPIS_TEST_FULL only. tests/lua/coq_spec.lua plants a partition, a sum, a step and a cycle of waits
always.
"""

import os
import shutil
import subprocess
import tempfile
import unittest

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
COPIED = ("lua", "schedules", "templates", "proofs", "core", "Makefile")
LIMIT_SECONDS = 900

# The law that replaces `speculation`: the same with a hypothesis that cannot hold, which proves.
VACUOUS = """
  (* Law speculation: as before, but only where the budget is larger than itself.
     Mirrors: spec_inv. *)
  Theorem speculation : row_law -> (forall p, legal (fst (draft p))) ->
    forall most budget p, 1 <= budget -> budget <= most -> budget < budget ->
    fst (speculate most budget p) = plain budget p.
  Proof. intros. apply speculation_whole; assumption. Qed.

  (* Law rounds_prefix:"""


def lacking():
    if not os.environ.get("ELPIS_TEST_FULL"):
        return "needs ELPIS_TEST_FULL"
    if not shutil.which("coqc"):
        return "needs coqc"
    return None


@unittest.skipIf(lacking(), lacking())
class Faults(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.mkdtemp(prefix="elpis-faults-")
        for name in COPIED:
            source, target = os.path.join(ROOT, name), os.path.join(cls.folder, name)
            (shutil.copytree if os.path.isdir(source) else shutil.copy)(source, target)

    @classmethod
    def tearDownClass(cls):
        shutil.rmtree(cls.folder)

    def prove(self, *options):
        """Returns (everything said, whether all was proved)."""
        environment = dict(os.environ, BUILD=os.path.join(self.folder, "build"))
        done = subprocess.run(["sh", os.path.join(self.folder, "proofs/prove.sh"), *options],
                              env=environment, cwd=self.folder, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, text=True, timeout=LIMIT_SECONDS,
                              check=False)
        return done.stdout, done.returncode == 0

    def prove_schedule(self, name):
        """Proves what one schedule exports, from a folder that has only it and the libraries."""
        own = os.path.join(self.folder, "own/schedules")
        shutil.rmtree(own, ignore_errors=True)
        shutil.copytree(os.path.join(self.folder, "schedules"), own, ignore=lambda _, names: [
            other for other in names if other != name + ".lua" and not other.startswith("lib_")])
        return self.prove("--schedules", os.path.dirname(own))

    def plant(self, path, changes, prove, *messages):
        """Changes a file, proves, expects failing lines with the messages; restores it."""
        full = os.path.join(self.folder, path)
        with open(full, encoding="utf-8") as file:
            good = file.read()
        bad = good
        for before, after in changes:
            self.assertIn(before, bad, "the text that the fault changes")
            bad = bad.replace(before, after, 1)
        with open(full, "w", encoding="utf-8") as file:
            file.write(bad)
        text, proved = prove()
        with open(full, "w", encoding="utf-8") as file:
            file.write(good)
        self.assertFalse(proved, "it proves with the fault")
        failing = [line for line in text.splitlines() if line.startswith("not ok")]
        for message in messages:
            self.assertTrue(any(message in line for line in failing), "%s in\n%s" % (message, text))

    def test_wrong_partition_in_a_schedule(self):
        own = ('partition = { name = "strided", count = function(s) return '
               "(s.total + s.workers - 1 - s.worker) // s.workers end, "
               "item = function(s) return s.worker + s.item * (s.workers + 1) end }")
        self.plant("schedules/gdn_step.lua", [("partition = p.map", own)],
                   lambda: self.prove_schedule("gdn_step"),
                   "law exactly_once, schedule gdn_step, map jobs: does not prove")

    def test_wrong_weight_in_a_table(self):
        # The columns of a launch's parts, as first groups: what a part weighs.
        self.plant("schedules/linear_main.lua",
                   [("group_first[i] = groups",
                     "group_first[i] = i == 1 and groups - 1 or groups")],
                   lambda: self.prove_schedule("linear_main"),
                   "law grouped, schedule linear_main, parts of the launch")

    def test_wrong_weight_of_a_worker(self):
        # gdn_step dealt by weights, which prove; then one of them is used for the other.
        full = os.path.join(self.folder, "schedules/gdn_step.lua")
        with open(full, encoding="utf-8") as file:
            good = file.read()
        weighted = good.replace("partition = p.map", 'partition = "weighted", weights = {3, 2, 5}')
        self.assertNotEqual(good, weighted)
        with open(full, "w", encoding="utf-8") as file:
            file.write(weighted)
        self.assertTrue(self.prove_schedule("gdn_step")[1], "it does not prove without the fault")
        self.plant("lua/work.lua",
                   [("expr.mul(expr.min(worker, half), w0)",
                     "expr.mul(expr.min(worker, half), w1)")],
                   lambda: self.prove_schedule("gdn_step"),
                   "law exactly_once, schedule gdn_step, map jobs: does not prove")
        with open(full, "w", encoding="utf-8") as file:
            file.write(good)

    def test_acceptor_takes_the_second_child(self):
        self.plant("core/engine/tree.c",
                   [("    for (u32 child = row + 1; child < tree->rows; child++)\n"
                     "        if (tree->parent[child] == row && tree->token[child] == token)\n"
                     "            return child;",
                     "    u32 seen = 0;\n"
                     "    for (u32 child = row + 1; child < tree->rows; child++)\n"
                     "        if (tree->parent[child] == row && seen++ == 1)\n"
                     "            return child;")],
                   lambda: self.prove("--only", "trees"),
                   "laws accept_longest and program_sound: core/engine/tree.c")

    def test_gdn_program_forgets_a_reload(self):
        self.plant("core/engine/tree.c", [("        step(program, TREE_RELOAD, 0);\n", "")],
                   lambda: self.prove("--only", "trees"),
                   "laws accept_longest and program_sound: core/engine/tree.c")

    def test_accumulator_one_bit_too_narrow(self):
        self.plant("lua/work.lua", [("i64 = 63", "i64 = 62")],
                   lambda: self.prove_schedule("linear_main"),
                   "law sum_exact, schedule linear_main, sum total in i64: does not prove")

    def test_roundings_more_than_stock(self):
        # Blocks dropped from a k on at which they err more than stock's sums.
        self.plant("schedules/linear_main.lua", [("fold = 2, k = 15872", "fold = 2, k = 16000")],
                   lambda: self.prove_schedule("linear_main"), "law bound_compared, schedule "
                   "linear_main, roundings of decode linear, 3inst and mcg: does not prove")
        # A state that stock does not round.
        self.plant("schedules/gdn_step.lua", [("r32 = sum + 1 + 1 + 1, b16 = 1", "r32 = sum + 3")],
                   lambda: self.prove_schedule("gdn_step"),
                   "law bound_repeated, schedule gdn_step, roundings of GDN step: does not prove")

    def test_digits_less_fine(self):
        self.plant("lua/coq.lua", [("math.ceil(2.0 ^ 24", "math.floor(2.0 ^ 24")],
                   lambda: self.prove_schedule("attention_decode"),
                   "law digits_norm, schedule attention_decode, digits of blocks of 72")

    def test_law_made_vacuous(self):
        self.plant("proofs/Speculation.v",
                   [("  Theorem speculation :", "  Theorem speculation_whole :"),
                    ("(* Law speculation:", "(* Law speculation_whole:"),
                    ("rewrite !(speculation next)", "rewrite !(speculation_whole next)"),
                    ("\n  (* Law rounds_prefix:", VACUOUS)],
                   lambda: self.prove("--only", "laws"),
                   "laws of Speculation: Example speculation_used does not prove")

    def test_z_no_fault(self):
        text, proved = self.prove()
        self.assertTrue(proved, text)


if __name__ == "__main__":
    unittest.main(verbosity=2)
