"""Jobs that continue with the ranks that are left, with real daemons: each sample comes once an epoch."""

from __future__ import annotations

import collections
import json
import unittest

from cluster import Cluster, wait_all
from test_cluster import WithDaemons

SAMPLES, BATCH, EPOCHS = 256, 8, 2

# Before a step: which round the batch is of, of how many ranks.
PROGRAM = f"""
options = json.loads(sys.argv[1])
data = TensorDataset(torch.randn({SAMPLES}, 20), torch.arange({SAMPLES}))
net = torch.nn.Sequential(nn.Linear(20, 5), nn.BatchNorm1d(5))
inner = OPTIMIZERS["momentum"](net.parameters())
job = {{"membership": {{"on_worker_loss": "continue", "rejoin_ms": 500}}}}
opt = trib.DistributedOptimizer(net, inner, name="elastic", job=job, **options)
scheduler = torch.optim.lr_scheduler.ExponentialLR(opt, 0.9)
sampler = trib.DistributedSampler(data, seed=1)
for epoch in trib.epochs({EPOCHS}):
    for number, (x, index) in enumerate(DataLoader(data, batch_size={BATCH}, sampler=sampler)):
        said = [opt.round + 1, trib.world_size(), epoch, scheduler.last_epoch, index.tolist()]
        print("batch", json.dumps(said), flush=True)  # before the round can be complete without this rank
        net(x).square().mean().backward()
        opt.step()
        print("round elastic", opt.round, flush=True)
        scheduler.step()
        opt.zero_grad()
        time.sleep(0.05)
opt.finish()
"""


class Elastic(WithDaemons):
    def batches(self, cluster: Cluster, rank: int) -> dict[int, tuple[int, int, int, list[int]]]:
        """Ranks, epoch, steps of the scheduler and samples of each round: the last report before it was complete. Later
        reports are of a rank that goes through it again.
        """
        found: dict[int, tuple[int, int, int, list[int]]] = {}
        complete = 0
        for line in cluster.log_of(rank).splitlines():
            if line.startswith("round elastic "):
                complete = max(complete, int(line.split()[-1]))
            elif line.startswith("batch "):
                round, world, epoch, steps, samples = json.loads(line.removeprefix("batch "))
                if round > complete:
                    found[round] = (world, epoch, steps, samples)
        return found

    def check_samples(self, cluster: Cluster, alone: bool) -> None:
        first, second = self.batches(cluster, 0), self.batches(cluster, 1)
        self.assertEqual(list(first), list(range(1, len(first) + 1)))
        self.assertEqual(1 in {world for world, *_ in first.values()}, alone)
        seen: collections.Counter[tuple[int, int]] = collections.Counter()
        for round, (world, epoch, steps, samples) in first.items():
            self.assertEqual(steps, round - 1, cluster.log_of(0))
            seen.update((epoch, sample) for sample in samples)
            if world == 2:
                self.assertEqual(second[round][:3], (world, epoch, steps), cluster.log_of(1))
                seen.update((epoch, sample) for sample in second[round][3])
        times = collections.Counter(seen[epoch, sample] for epoch in range(EPOCHS) for sample in range(SAMPLES))
        self.assertEqual(times, {1: EPOCHS * SAMPLES}, cluster.log_of(0) + cluster.log_of(1))

    def test_a_node_is_lost_and_comes_back(self) -> None:
        for folder, options in (("servers", {}), ("mean", {"step_on": "trainers"})):
            with self.subTest(options=options), Cluster(self.folder / folder, nodes=2) as cluster:
                program = self.program("elastic.py", PROGRAM)
                ranks = [cluster.start_rank([program, json.dumps(options)], rank) for rank in range(2)]
                cluster.wait_for_round(0, "elastic", 5)
                ranks[1].kill()
                cluster.kill("worker-1")
                ranks[1].wait()
                cluster.wait_for_round(0, "elastic", 9)
                if folder != "mean":  # whose parameters only the trainers have
                    cluster.start_worker(1)
                    ranks[1] = cluster.start_rank([program, json.dumps(options)], 1)
                wait_all([rank for rank in ranks if rank.returncode is None], 90)
                self.assertEqual(ranks[0].returncode, 0, cluster.log_of(0))
                self.assertIn("has other ranks: the samples of round", cluster.log_of(0))
                self.check_samples(cluster, alone=True)

    def test_a_node_leaves_cleanly(self) -> None:
        with Cluster(self.folder, nodes=2) as cluster:
            program = self.program("elastic.py", PROGRAM)
            ranks = [cluster.start_rank([program, "{}"], rank) for rank in range(2)]
            cluster.wait_for_round(0, "elastic", 5)
            cluster.daemons["worker-1"].terminate()
            cluster.daemons["worker-1"].wait(60)
            cluster.wait_for_round(0, "elastic", 9)
            wait_all([ranks[0]], 90)
            self.assertEqual(ranks[0].returncode, 0, cluster.log_of(0))
            self.check_samples(cluster, alone=True)


if __name__ == "__main__":
    unittest.main()
