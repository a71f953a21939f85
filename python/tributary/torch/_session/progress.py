"""A round's figures for display: in the job's status, and as one JSON datagram to the program that started the trainers
(``train/progress.h`` has the format).
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import socket
from dataclasses import dataclass
from typing import Any, Callable

MOST_FIGURES = 32  # of a job: kMaxFigures of common/math/figures.h
LONGEST_NAME = 64  # bytes: kMaxFigureNameBytes


@dataclass
class RoundReport:
    """Figures of a round, once its parameters have come."""

    rank: int
    world_size: int
    replicas: int  # of the model: all ranks of one see the same samples
    restarts: int
    resumed: int
    complete: int
    rounds: int
    samples: int  # of this rank
    compute_ns: int
    reduce_ns: int
    wait_ns: int
    gradient_norm: float | None = None
    loss_scale: float | None = None
    skipped: bool | None = None


class Progress:
    """Reports a round's figures to the job, and sends a datagram to the socket that ``TRIBUTARY_PROGRESS`` names, if
    any.

    A loop says its figures (:func:`tributary.torch.log`) before or after ``step()``. So a report whose figures have not
    come waits for them, at most until the next round's report. Sending never blocks and never fails training.

    Args:
        tell: reports to the job: a round, a figure's name, its mean, and over how many samples of this rank.
        path: of the socket; None: as the environment says.
    """

    def __init__(self, tell: Callable[[int, str, float, int], None], path: str | None = None) -> None:
        self._tell = tell
        self._path = path if path is not None else os.environ.get("TRIBUTARY_PROGRESS", "")
        self._socket: socket.socket | None = None
        if self._path:
            self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC)
            self._socket.setblocking(False)
        self._figures: dict[str, float] = {}
        self._pending: RoundReport | None = None
        self.last: dict[str, float] = {}

    def log(self, figures: dict[str, Any]) -> dict[str, float]:
        """Takes the loop's figures of the newest round: ``loss``, ``accuracy``, ``samples``, or others.

        Args:
            figures: numbers, or tensors of one element.

        Returns:
            They as numbers.
        """
        values = {key: _number(value) for key, value in figures.items() if value is not None}
        for name in values:
            if not 0 < len(name.encode()) <= LONGEST_NAME:
                raise ValueError(
                    f"the figure's name {name[:80]!r} has {len(name.encode())} bytes: at most {LONGEST_NAME}"
                )
        if len(values) > MOST_FIGURES:
            raise ValueError(f"{len(values)} figures of a round: a job has at most {MOST_FIGURES}; log fewer names")
        self.last = values
        self._figures = values
        if self._pending is not None:
            self._send()
        return values

    def round_done(self, report: RoundReport) -> None:
        """The round's parameters are there."""
        if self._pending is not None:
            self._send()
        self._pending = report
        if self._figures:
            self._send()

    def close(self) -> None:
        """Sends what waits."""
        if self._pending is not None:
            self._send()
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def _send(self) -> None:
        report, self._pending = self._pending, None
        figures, self._figures = self._figures, {}
        if report is None:
            return
        samples = _samples(report, figures)
        for name, mean in figures.items():
            if name != "samples":
                self._tell(report.complete, name, mean, samples)
        if self._socket is None:
            return
        data = json.dumps(as_datagram(report, figures), allow_nan=False).encode()
        with contextlib.suppress(OSError):
            self._socket.sendto(data, socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL, self._path)


def _number(value: Any) -> float:
    return float(value.detach() if hasattr(value, "detach") else value)


def _samples(report: RoundReport, figures: dict[str, float]) -> int:
    """How many samples of this rank the figures are means of."""
    return max(0, int(figures.get("samples", report.samples)))


def as_datagram(report: RoundReport, figures: dict[str, float]) -> dict[str, Any]:
    """The object of a round's datagram."""
    seen = _samples(report, figures)
    # A sum over ranks must count a replica's samples once.
    samples = seen if report.replicas == report.world_size else -(-seen * report.replicas // report.world_size)
    datagram: dict[str, Any] = {
        "rank": report.rank,
        "world_size": report.world_size,
        "restarts": report.restarts,
        "resumed": report.resumed,
        "complete": report.complete,
        "round": report.complete,
        "rounds": report.rounds,
        "samples": samples,
        "global_samples": seen * report.replicas,
        "samples_sum": 0,
        "compute_ns": report.compute_ns,
        "reduce_ns": report.reduce_ns,
        "wait_ns": report.wait_ns,
    }
    if "loss" in figures:  # JSON has no NaN
        datagram["loss_sum"] = figures["loss"] * samples if math.isfinite(figures["loss"]) else None
    if "accuracy" in figures:
        datagram["correct"] = max(0, round(figures["accuracy"] * samples))
    if report.gradient_norm is not None:
        datagram["gradient_norm"] = report.gradient_norm if math.isfinite(report.gradient_norm) else None
        datagram["loss_scale"] = report.loss_scale
        datagram["skipped"] = report.skipped
    if "test_accuracy" in figures:
        datagram["test_accuracy"] = figures["test_accuracy"]
    if "test_loss" in figures:
        datagram["test_loss"] = figures["test_loss"]
    return datagram
