"""How a loop learns that its job went back, or was stopped."""

from __future__ import annotations

EXIT_STOPPED = 75  # EX_TEMPFAIL: no success, and the same command continues


class Rewound(RuntimeError):
    """The job went back to an earlier round, because all copies of later ones were lost. Or the open round begins again
    in an elastic job, because other ranks share its samples now.

    Parameters, sampler and schedulers are those of :attr:`round` when this is raised; the loop continues with its next
    batch. The loop must correct its own counters.
    """

    def __init__(self, round: int, from_round: int) -> None:
        if round < from_round:
            what = f"went back from round {from_round} to round {round}: all copies of the rounds between were lost"
        elif round == from_round:
            what = f"has other ranks: the samples of round {round + 1} are shared out anew"
        else:
            what = f"went from round {from_round} to round {round} without this rank"
        super().__init__(f"the job {what}")
        self.round = round
        self.from_round = from_round


class Stopped(SystemExit):
    """The job was stopped cleanly. Ends the program with exit status 75; the same command continues it.

    After :func:`tributary.torch.stop` training is complete, and the status is 0.
    """

    def __init__(self, reason: str, round: int, status: int = EXIT_STOPPED) -> None:
        super().__init__(status)
        self.reason = reason
        self.round = round

    def __str__(self) -> str:
        return f"stopped after round {self.round}: {self.reason}"
