"""Collectives of loops: values of all ranks."""

from __future__ import annotations

import math
import unittest
from typing import Any

import torch
from with_fake import WithFake

import tributary.torch as trib
from tributary import Error
from tributary.torch._base import plain
from tributary.torch._run.values import BEFORE_LOOP


def giving(*values: Any) -> Any:
    """Ranks that give these for the next calls, whatever they are."""

    def others(data: bytes) -> list[bytes]:
        call, _ = plain.decoded(data)
        return [plain.encoded((call, value), "") for value in values]

    return others


class Collectives(WithFake):
    def setUp(self) -> None:
        super().setUp()
        self.opt = self.make()

    def test_reductions(self) -> None:
        self.library.others = giving(torch.tensor(4.0), torch.tensor(1.0))
        for op, want in (("mean", 2.0), ("sum", 6.0), ("max", 4.0)):
            self.assertEqual(trib.all_reduce(1.0, op), want)
        self.library.others = giving(torch.tensor(4))
        self.assertEqual(trib.all_reduce(2**60, "sum"), 2**60 + 4)
        self.assertEqual(trib.all_reduce(3), 3.5)
        whole = torch.tensor([1, 5])
        self.library.others = giving(torch.tensor([2, 3]))
        result = trib.all_reduce(whole, "max")
        self.assertEqual((result.tolist(), result.dtype, whole.tolist()), ([2, 5], torch.int64, [1, 5]))
        half = torch.ones(2, dtype=torch.bfloat16)
        self.library.others = giving(half * 2)
        self.assertTrue(torch.equal(trib.all_reduce(half), torch.tensor([1.5, 1.5], dtype=torch.bfloat16)))

    def test_a_sum_has_the_same_bits_on_all_ranks(self) -> None:
        values = [0.1, 1e16, -1e16]
        sums = set()
        for rank in range(3):
            # A rank's own value is among the others' at its place: what counts is the order of the ranks.
            self.library.answers.clear()
            given = [plain.encoded(("all_reduce(op='sum')", torch.tensor(v, dtype=torch.float64)), "") for v in values]
            number = BEFORE_LOOP + rank
            self.library.answers[0, number] = given
            sums.add(trib.all_reduce(torch.tensor(values[rank], dtype=torch.float64), "sum").item())
        self.assertEqual(sums, {0.1 + 1e16 - 1e16})

    def test_others(self) -> None:
        self.assertTrue(trib.is_main())
        trib.barrier()
        self.library.others = giving({"lr": 2})
        self.assertEqual(trib.broadcast({"lr": 1}), {"lr": 1})
        self.assertEqual(trib.broadcast(None, source=1), {"lr": 2})
        with self.assertRaisesRegex(ValueError, r"broadcast\(source=2\): the job has ranks 0 to 1"):
            trib.broadcast(None, source=2)

    def test_a_metric_is_of_all_that_was_logged_since(self) -> None:
        self.library.others = giving((10.0, 1.0))
        for loss, samples in ((1.0, 2), (4.0, 1)):
            trib.log(loss=loss, samples=samples)
        self.assertEqual(trib.metric("loss"), (1.0 * 2 + 4.0 + 10.0) / 4)
        self.library.others = giving((0.0, 0.0))
        self.assertTrue(math.isnan(trib.metric("loss")))
        trib.log(accuracy=torch.tensor(0.5))
        self.assertEqual(trib.metric("accuracy"), 0.5)

    def test_calls_are_numbered_from_each_round(self) -> None:
        trib.barrier()
        self.train(self.opt)
        trib.barrier()
        trib.barrier()
        self.train(self.opt)
        trib.barrier()
        self.assertEqual([key[:2] for key in self.library.gathered], [(0, BEFORE_LOOP), (1, 0), (1, 1), (2, 0)])

    def test_a_view_that_ends_in_a_call(self) -> None:
        self.train(self.opt, 2)
        self.library.gather_events[0] = "lost"
        trib.barrier()
        self.assertEqual([key[:2] for key in self.library.gathered], [(2, 0)])
        self.train(self.opt)
        self.assertEqual(self.opt.round, 3)

    def test_what_calls_of_the_last_iteration_came_to_is_known_to_those_that_ask(self) -> None:
        for iteration in range(3):
            self.train(self.opt)
            self.library.others = giving(torch.tensor(float(iteration)))
            trib.all_reduce(1.0)
        self.train(self.opt)
        answers = dict(self.library.answers)
        self._leave()
        self.library.answers.clear()  # all daemons were lost
        self.opt = self.make()
        self.assertEqual(self.library.answers, {(3, 0): answers[3, 0]})

    def test_a_job_that_goes_back_in_a_call(self) -> None:
        self.train(self.opt, 3)
        self.library.others = giving(torch.tensor(5.0))
        self.library.gather_events[0] = "back to 1"
        with self.assertLogs("tributary", "WARNING") as logs:
            self.assertEqual(trib.all_reduce(1.0), 1.0)
        self.assertIn("this rank has its own value alone until the loop's top", "\n".join(logs.output))
        self.assertEqual(self.opt.round, 1)
        self.assertEqual(trib.all_reduce(1.0), 1.0)
        self.train(self.opt)
        self.assertEqual(self.opt.round, 2)
        self.assertEqual(trib.all_reduce(1.0), 3.0)

    def test_a_loop_that_wants_to_be_told_gets_no_value_of_its_own(self) -> None:
        self.anew()
        self.opt = self.make(on_rewind="raise")
        self.train(self.opt, 3)
        self.library.gather_events[0] = "back to 1"
        for _ in range(2):
            with self.assertRaisesRegex(trib.Rewound, "went back from round 3 to round 1"):
                trib.barrier()
        self.train(self.opt)
        trib.barrier()
        self.assertEqual(self.opt.round, 2)

    def test_a_job_that_stops_in_a_call(self) -> None:
        self.train(self.opt)
        self.library.gather_events[0] = "stopped"
        with self.assertRaisesRegex(trib.Stopped, "somebody asked for it"):
            trib.barrier()

    def test_mistakes_are_told(self) -> None:
        self.library.others = lambda data: [plain.encoded(("barrier()", None), "")]
        with self.assertRaisesRegex(ValueError, r"calls metric\('loss'\), and rank 1 calls barrier\(\)"):
            trib.metric("loss")
        self.library.others = giving(torch.ones(3))
        with self.assertRaisesRegex(ValueError, r"float32 of shape \(2,\) on this rank, and .* \(3,\) on rank 1"):
            trib.all_reduce(torch.ones(2))
        with self.assertRaisesRegex(ValueError, r"op='min'\): the reductions are mean, sum, max"):
            trib.all_reduce(1.0, "min")
        with self.assertRaisesRegex(ValueError, "no mean of torch.int64"):
            trib.all_reduce(torch.tensor([1]))
        with self.assertRaisesRegex(ValueError, r"a value of \d+ bytes; a rank's value has at most 65536"):
            trib.all_reduce(torch.ones(20_000))
        with self.assertRaisesRegex(TypeError, "broadcast"):
            trib.broadcast(object())
        self.opt.finish()
        with self.assertRaisesRegex(Error, "make the DistributedOptimizer before"):
            trib.barrier()


if __name__ == "__main__":
    unittest.main()
