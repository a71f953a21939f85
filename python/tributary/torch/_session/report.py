"""A rank's reports of its job: lines of the log, and each round's figures for a display."""

from __future__ import annotations

import os

from tributary._errors import Error
from tributary.torch._base.log import logger
from tributary.torch._model.parallel import Part
from tributary.torch._session.attachment import Attachment
from tributary.torch._session.progress import Progress, RoundReport
from tributary.torch._session.round_watch import RoundWatch


class Report:
    """Reports of one job.

    Attributes:
        watch: reports a round that does not complete.
        restarts: how often the job was attached again.
    """

    def __init__(self, attachment: Attachment, part: Part) -> None:
        self._attachment = attachment
        self._part = part
        self.progress = Progress(self._tell_figure)
        self.watch = RoundWatch(self.say)
        self.restarts = 0
        self._reduced_ns = (0, 0)  # of the view that began with this number of restarts
        self._figure_refused = False

    def say(self, text: str) -> None:
        known = self._attachment.attached
        rank = self._attachment.view.rank if known else os.environ.get("RANK", "0")
        logger.info("rank %s: %s", rank, text)

    def round_done(self, round: int, samples: int, compute_ns: int, blocked_ns: int) -> None:
        """Its parameters are there."""
        session, view = self._attachment.session, self._attachment.view
        reduced_ns = session.stats().reduce_ns
        before = self._reduced_ns[1] if self._reduced_ns[0] == self.restarts else 0
        self._reduced_ns = (self.restarts, reduced_ns)
        reduce_ns = min(blocked_ns, max(0, reduced_ns - before))
        gate = session.gate(round)
        self.progress.round_done(
            RoundReport(
                rank=view.rank,
                world_size=view.world_size,
                replicas=view.world_size if self._part.replica is None else self._part.replicas,
                restarts=self.restarts,
                resumed=self._attachment.began_after,
                complete=round,
                rounds=self._attachment.rounds,
                samples=samples,
                compute_ns=compute_ns,
                reduce_ns=reduce_ns,
                wait_ns=blocked_ns - reduce_ns,
                gradient_norm=gate.norm if gate else None,
                loss_scale=gate.loss_scale if gate else None,
                skipped=gate.skipped if gate else None,
            )
        )

    def _tell_figure(self, round: int, name: str, mean: float, samples: int) -> None:
        if self._attachment.live is None:
            return
        try:
            self._attachment.live.log(round, name, mean, samples)
        except Error as error:  # figures are never worth a job
            if not self._figure_refused:
                logger.warning("%s", error)
            self._figure_refused = True

    def close(self) -> None:
        self.progress.close()
        self.watch.close()
