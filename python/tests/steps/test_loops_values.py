"""Values that loops change or ask for: rates, decay and momentum, norms, and the optimizer's state."""

from __future__ import annotations

import copy
import math
from unittest import mock

import torch
from with_fake import TwoLayers, WithFake

import tributary.torch as trib
from tributary._library import Gate


class Scheduled(WithFake):
    """Compares with torch alone."""

    def follow(self, net: torch.nn.Module, optimizer: torch.optim.Optimizer, round: int) -> None:
        x = torch.randn(5, 4, generator=torch.Generator().manual_seed(round))
        net(x).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    def both(self, make: object, change: object, rounds: int = 6, **options: object) -> None:
        alone = copy.deepcopy(self.net)
        reference, opt = make(alone), self.make(make(self.net), **options)  # type: ignore[operator]
        for round in range(rounds):
            for optimizer, net in ((reference, alone), (opt, self.net)):
                change(optimizer, round)  # type: ignore[operator]
                self.follow(net, optimizer, round)
        for here, there in zip(self.net.parameters(), alone.parameters()):
            torch.testing.assert_close(here, there)

    def test_weight_decay_and_momentum_by_schedule(self) -> None:
        def change(optimizer: torch.optim.Optimizer, round: int) -> None:
            for group in optimizer.param_groups:
                group["weight_decay"] = 0.1 * round
                group["betas"] = (0.9 - 0.1 * round, 0.99)

        self.both(lambda net: torch.optim.AdamW(net.parameters(), lr=0.01), change, step_on="trainers")

    def test_what_trains_later_has_rate_0_before(self) -> None:
        def make(net: TwoLayers) -> torch.optim.Optimizer:
            return torch.optim.SGD([{"params": net.b.parameters(), "lr": 0.1}, {"params": net.a.parameters(), "lr": 0}])

        def change(optimizer: torch.optim.Optimizer, round: int) -> None:
            optimizer.param_groups[1]["lr"] = 0.1 if round >= 3 else 0.0

        before = self.net.a.weight.detach().clone()
        self.both(make, change, rounds=3)
        self.assertTrue(torch.equal(before, self.net.a.weight))
        self.anew()
        self.both(make, change)
        self.assertFalse(torch.equal(before, self.net.a.weight))


class Asked(WithFake):
    def test_what_was_decided_about_a_round(self) -> None:
        opt = self.make()
        self.train(opt)
        self.assertEqual((opt.grad_norm, opt.skipped), (None, False))
        self.anew()
        opt = self.make(max_grad_norm=math.inf)
        self.assertIn('"clip_norm": 3.4e+38', opt.job)
        self.train(opt)
        self.assertEqual((opt.grad_norm, opt.skipped), (1.0, False))
        with mock.patch.object(self.library.session, "gate", lambda round: Gate(True, math.nan, 0.0, 1.0)):
            self.assertTrue(opt.skipped)
            assert opt.grad_norm is not None
            self.assertTrue(math.isnan(opt.grad_norm))

    def test_a_state_dict_without_state_says_so(self) -> None:
        opt = self.make(torch.optim.AdamW(self.net.parameters()))
        with self.assertNoLogs("tributary"):
            opt.state_dict()  # there is none yet
        self.train(opt)
        with self.assertLogs("tributary") as logs:
            opt.state_dict()
            opt.state_dict()
        self.assertEqual(len(logs.output), 1)
        self.assertIn("the servers of job", logs.output[0])
        self.assertIn("save_checkpoint()", logs.output[0])
        self.anew()
        opt = self.make(torch.optim.AdamW(self.net.parameters()), step_on="trainers")
        self.train(opt)
        with self.assertNoLogs("tributary"):
            state = opt.state_dict()["state"]
        self.assertEqual(len(state), 4)

    def test_the_state_of_a_ddp_run_comes_in(self) -> None:
        alone = torch.optim.AdamW(self.net.parameters(), lr=0.01)
        for round in range(3):
            self.backward(round)
            alone.step()
            alone.zero_grad()
        net, state = copy.deepcopy(self.net), copy.deepcopy(alone.state_dict())
        opt = self.make(alone, step_on="trainers")
        self.library.events[2] = "back to 0"
        self.train(opt, 2)  # a round, and one that is lost with it
        self.assertEqual(opt.round, 0)
        reference = torch.optim.AdamW(net.parameters(), lr=0.01)
        reference.load_state_dict(state)
        for round in range(3):
            x = torch.randn(5, 4, generator=torch.Generator().manual_seed(10 + round))
            net(x).square().mean().backward()
            reference.step()
            reference.zero_grad()
            self.backward(10 + round)
            opt.step()
            opt.zero_grad()
        for here, there in zip(self.net.parameters(), net.parameters()):
            torch.testing.assert_close(here, there)

    def test_orders_need_a_cluster(self) -> None:
        with self.assertRaisesRegex(trib.checkpoints.Error, "there is no open job"):
            trib.save_checkpoint("/nowhere")
        self.make()
        with (
            mock.patch.dict("os.environ", {}, clear=True),
            self.assertRaisesRegex(trib.checkpoints.Error, "which cluster.*TRIBUTARY_ADMIN"),
        ):
            trib.save_checkpoint("/nowhere")
        with self.assertRaisesRegex(ValueError, "no checkpoint is there"):
            trib.load_checkpoint("/nowhere")
