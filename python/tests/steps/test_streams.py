"""A model on a GPU: copies on a stream of their own.

The stream is one in Python that does nothing before it must: a read that comes too early finds the values before.
"""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Iterator
from typing import Callable
from unittest import mock

import torch
from fake import FakeCuda, FakeStream
from torch import nn
from with_fake import TwoLayers, WithFake

import tributary.torch as trib
from tributary import Error
from tributary._errors import Status
from tributary.torch._model.copies import Copies, StreamCopies, _DeviceArray, copies_of
from tributary.torch._model.slots import Slot


class Streams(WithFake):
    def setUp(self) -> None:
        super().setUp()
        record = mock.patch.object(torch.Tensor, "record_stream", create=True)  # the CPU has none
        record.start()
        self.addCleanup(record.stop)

    @contextlib.contextmanager
    def on_gpu(self) -> Iterator[FakeStream]:
        """Programs find a model on a GPU."""
        self.library.stream = stream = FakeStream()
        copies = mock.Mock(side_effect=lambda slots: StreamCopies(torch.device("cpu", 0), FakeCuda(stream)))
        where = "tributary.torch.{}.copies_of"
        with mock.patch(where.format("optimizer"), copies), mock.patch(where.format("local_sgd"), copies):
            yield stream
            self._leave()

    def check_same(self, train: Callable[[], None]) -> None:
        """Checks that training leaves the same model without and with a GPU."""
        ended = []
        for around in (contextlib.nullcontext, self.on_gpu):
            self._leave()
            self.library.__init__()  # type: ignore[misc]
            self.net = TwoLayers()
            with around():
                train()
            ended.append(self.values())
        for one, other in zip(*ended):
            self.assertTrue(torch.equal(one, other))
            self.assertTrue(bool(torch.isfinite(one).all()))

    def test_the_same_bits(self) -> None:
        def train() -> None:
            opt = self.make(torch.optim.SGD(self.net.parameters(), lr=0.05))
            for _ in range(4):
                self.train(opt)
                for parameter, values in zip(self.net.parameters(), self.library.last):
                    self.assertTrue(torch.equal(parameter.detach().flatten(), torch.tensor(values)))
            opt.finish()

        self.check_same(train)
        self.assertEqual([options.device for options in self.library.attaches], [0])

    def test_gradients_leave_during_backward(self) -> None:
        with self.on_gpu() as stream:
            opt = self.make()
            self.backward()
            self.assertEqual(len(stream.queue), 8)  # a copy, and that it is ready, of each of four
            self.assertEqual(self.library.session.said, {})
            opt.step()
            self.assertEqual(stream.queue, [])

    def test_halves_are_converted_where_they_are(self) -> None:
        copied: list[torch.dtype] = []

        class Memory(torch.Tensor):
            def copy_(self, source: torch.Tensor, non_blocking: bool = False) -> torch.Tensor:
                copied.append(source.dtype)
                return super().copy_(source, non_blocking)

        with self.on_gpu():
            opt = self.make()
            self.backward()
            copies = opt._link.attachment.copies
            memory = torch.zeros(2).as_subclass(Memory)
            for factor in (1, 3):
                copies.give(memory, torch.ones(2, dtype=torch.bfloat16), factor)
        self.assertEqual(copied, [torch.float32] * 2)

    def test_a_rank_waits_when_its_own_part_is_done(self) -> None:
        with self.on_gpu():
            opt = self.make()
            self.backward()
            session, unsaid = self.library.session, []
            with mock.patch.object(session, "wait", side_effect=session.wait) as wait:
                wait.side_effect = lambda *tensor: (
                    unsaid.append(session.unsaid),
                    type(session).wait(session, *tensor),
                )[1]
                opt.step()
            self.assertEqual(unsaid[0], 0)

    def test_a_model_that_moved_is_told(self) -> None:
        with self.on_gpu():
            opt = self.make()
            self.backward()
            copies = opt._link.attachment.copies
            moved = torch.zeros(2, device="meta")
            with self.assertRaisesRegex(RuntimeError, "a gradient is on meta, and the model was on cpu:0 when the job"):
                copies.give(torch.zeros(2), moved, 1)

    def test_samples_accumulation_and_missing_gradients(self) -> None:
        def weighted() -> None:
            opt = self.make()
            for round in range(3):
                opt.samples(round + 2)
                self.train(opt)

        def accumulated() -> None:
            opt = self.make(accumulate=2)
            for seed in range(4):
                self.backward(seed)
                if seed % 2:
                    opt.step()
                    opt.zero_grad()

        def missing() -> None:
            opt = self.make()
            self.net.a.weight.sum().backward()
            opt.step()

        for train in (weighted, accumulated, missing):
            with self.subTest(train.__name__):
                self.check_same(train)

    def test_half_precision_parameters(self) -> None:
        def train() -> None:
            self.net.to(torch.bfloat16)
            opt = self.make()
            for parameter in self.net.parameters():
                parameter.grad = torch.full_like(parameter, 0.25)
            opt.step()

        self.check_same(train)

    def test_the_trainers_step(self) -> None:
        self.check_same(lambda: self.train(self.make(torch.optim.RMSprop(self.net.parameters(), lr=0.01)), 3))

    def test_diloco(self) -> None:
        def train() -> None:
            inner = torch.optim.SGD(self.net.parameters(), lr=0.1)
            with trib.DiLoCo(self.net, inner, sync_every=2, outer={"lr": 1.0}):
                for seed in range(4):
                    self.backward(seed)
                    inner.step()
                    inner.zero_grad()

        self.check_same(train)

    def test_what_is_lost_is_pushed_again(self) -> None:
        for event in ("gone", "lost", "late", "torn", "back to 1"):
            with self.subTest(event):

                def train(event: str = event) -> None:
                    opt = self.make()
                    self.train(opt, 2)
                    self.library.events[3] = event
                    self.train(opt, 3)
                    opt.finish()

                self.check_same(train)
                self.assertEqual(len(self.library.sessions), 2)

    def test_a_library_without_cuda(self) -> None:
        self.library.refuse = [Error("this build has no CUDA", Status.NO_DEVICE)]
        with self.on_gpu(), self.assertLogs("tributary", "INFO") as logs:
            opt = self.make()
            self.library.stream = None
            self.train(opt, 2)
            self.assertEqual(opt.round, 2)
        self.assertIn("between the GPU and the job is waited for: this build has no CUDA", "\n".join(logs.output))
        self.assertEqual([options.device for options in self.library.attaches], [0, -1])

    def test_other_errors_of_an_attach_stay(self) -> None:
        self.library.refuse = [Error("another configuration", Status.CONFIG_MISMATCH)]
        with self.on_gpu(), self.assertRaisesRegex(Error, "another configuration"):
            self.make()


class Memory(WithFake):
    def test_lent_memory_is_named_as_the_cuda_array_interface_has_it(self) -> None:
        floats = (ctypes.c_float * 6)()
        copies = StreamCopies(torch.device("cpu", 0), FakeCuda(FakeStream()))
        with mock.patch("torch.as_tensor", side_effect=lambda array, device: (array, device)) as made:
            array, device = copies.tensor_of(floats, (2, 3), on_device=True)
            copies.tensor_of(floats, (2, 3), on_device=True)
        self.assertEqual(made.call_count, 1)
        self.assertIsInstance(array, _DeviceArray)
        self.assertEqual(device, torch.device("cpu", 0))
        interface = array.__cuda_array_interface__
        self.assertEqual(interface["data"], (ctypes.addressof(floats), False))
        self.assertEqual((interface["shape"], interface["typestr"], interface["strides"]), ((2, 3), "<f4", None))

    def test_only_a_model_that_is_on_one_gpu_has_a_stream(self) -> None:
        slots = [Slot(0, "a", nn.Parameter(torch.zeros(2)), 0), Slot(1, "b", nn.Parameter(torch.zeros(2)), 0)]
        self.assertIs(type(copies_of(slots)), Copies)
        places = iter([torch.device("cuda", 0), torch.device("cuda", 1)])
        with (
            mock.patch.object(Slot, "local", lambda slot: mock.Mock(device=next(places))),
            self.assertLogs("tributary", "WARNING") as logs,
        ):
            self.assertIs(type(copies_of(slots)), Copies)
        self.assertIn("is waited for: its parameters are on cuda:0, cuda:1", logs.output[0])
        made = mock.patch("tributary.torch._model.copies.StreamCopies", side_effect=lambda device: device)
        with made, mock.patch.object(Slot, "local", lambda slot: mock.Mock(device=torch.device("cuda", 1))):
            self.assertEqual(copies_of(slots), torch.device("cuda", 1))
            without = mock.patch.object(torch.Tensor, "numpy", side_effect=RuntimeError("Numpy is not available"))
            with without, self.assertLogs("tributary", "WARNING") as logs:
                self.assertIs(type(copies_of(slots)), Copies)
            self.assertIn("is waited for: this Python has no NumPy that torch can use", logs.output[0])
