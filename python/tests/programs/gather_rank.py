"""A rank that gives values between rounds, straight through the library: what ``test_gather.py`` runs.

The argument is JSON: ``rounds``; ``pause``, seconds a round; ``holds``, rounds between whose two values rank 1 waits
for a file ``go-ROUND`` in ``folder``; ``skips``, a round after which rank 1 leaves its first value out; ``leaves``, one
after which it finishes without another value. A line "values ROUND INDEX [...]" reports each answer.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import tributary
from tributary import _library
from tributary._library import AttachOptions, Leave, Session, Step, Tensor

JOB = '[job]\nname = "values"\n[snapshot]\nevery_rounds = 2\n[optimizer]\nname = "sgd"\n'
VALUES = 2
RANK = int(os.environ["RANK"])


class Rank:
    def __init__(self, settings: dict[str, Any]) -> None:
        self.settings = settings
        self.folder = Path(settings["folder"])
        self.library = _library.load()
        self.recovery = self.library.recovery()
        # Calls that this process need not repeat: of as many rounds as answers are kept of, so that others can ask.
        self.known: set[tuple[int, int]] = set()

    def attach(self) -> Session:
        options = AttachOptions(JOB, [Tensor("w", (1000,))], recovery=self.recovery)
        while True:
            try:
                session = self.library.attach(options)
            except tributary.Unavailable:
                time.sleep(0.1)
                continue
            try:
                values = session.initial(0) if session.view().fresh else None
                if values is not None:
                    values[:] = [0.0] * 1000
                session.start()
                return session
            except tributary.Unavailable:
                session.destroy()

    def gather(self, session: Session, round: int) -> Step:
        for index in range(VALUES):
            if (round, index) in self.known:
                continue
            if RANK == 1 and index == 0 and round == self.settings.get("skips"):
                continue
            if RANK == 1 and index == 1 and round in self.settings.get("holds", []):
                self.hold(round)
            got = session.gather(round, index, f"{RANK}:{os.getpid()}:{round}:{index}".encode())
            if isinstance(got, Step):
                return got
            self.known.add((round, index))
            print("values", round, index, json.dumps([value.decode() for value in got]), flush=True)
        return Step.CONTINUE

    def hold(self, round: int) -> None:
        print("holds", round, flush=True)
        while not (self.folder / f"go-{round}").exists():
            time.sleep(0.01)

    def train(self, session: Session) -> Step:
        """As long as the view goes."""
        round = session.view().resume_round
        kept = sorted({key[0] for key in self.known})[-4:]
        self.known = {key for key in self.known if key[0] in kept and key[0] <= round}
        step = self.gather(session, round - 1) if round > 0 else Step.CONTINUE
        while step == Step.CONTINUE:
            if RANK == 1 and round == self.settings.get("leaves"):
                return step
            step = self.gather(session, round)
            if step != Step.CONTINUE or round == self.settings["rounds"]:
                return step
            gradient = session.gradient(0)
            gradient[:] = [1.0] * 1000
            session.ready(0, 1)
            step = session.wait()
            time.sleep(self.settings.get("pause", 0))
            round += 1
        return step

    def run(self) -> None:
        while True:
            session = self.attach()
            try:
                step = self.train(session)
            except tributary.Unavailable:
                step = Step.RESTART
            if step == Step.RESTART:
                print("again:", session.stop_reason(), flush=True)
                session.destroy()
                time.sleep(0.05)
                continue
            print("ends", step.name, session.stop_reason(), flush=True)
            session.finish(Leave.FINISHED if step == Step.CONTINUE else Leave.STOPPED)
            session.saved()
            session.destroy()
            return


if __name__ == "__main__":
    Rank(json.loads(sys.argv[1])).run()
