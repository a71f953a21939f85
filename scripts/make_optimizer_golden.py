#!/usr/bin/env python3
"""Writes tests/data/optimizers_golden.json: what torch.optim's optimizers make of small, exactly reproducible inputs.

    python3 -m venv venv && venv/bin/pip install torch numpy
    venv/bin/python scripts/make_optimizer_golden.py tests/data/optimizers_golden.json

The CPU is enough. Run again only to add a case or to follow a change in PyTorch's formulae; the file names the version
it came from. Parameters are stored as the hexadecimal bits of float32, one string per step.

Inputs come from a 32-bit linear congruential generator whose top 24 bits become a multiple of 2^-23 in [-1, 1), times a
power of two: every value is exact in float32, and tests/unit/kernels/test_optimizers.cc makes the same ones.
"""

import argparse
import json

import numpy
import torch

ELEMENTS = 17
STEPS = 100


class Lcg:
    def __init__(self, seed):
        self.state = seed

    def next(self):
        self.state = (self.state * 1664525 + 1013904223) % 2**32
        return ((self.state >> 8) - 2**23) / 2**23


def initial_parameters():
    lcg = Lcg(1)
    return [lcg.next() * 2.0 ** (1 - i % 4) for i in range(ELEMENTS)]


def gradients():
    """[step][element]. Element 3 starts with ten zeros and element 5 has nothing else, as unused weights do."""
    lcg = Lcg(2)
    rows = []
    for step in range(1, STEPS + 1):
        row = [lcg.next() * 2.0 ** (-(i % 5)) for i in range(ELEMENTS)]
        if step <= 10:
            row[3] = 0.0
        row[5] = 0.0
        rows.append(row)
    return rows


# name, torch class, lr, options under the names of the job file
CASES = [
    ("sgd", "SGD", 0.05, {}),
    ("sgd weight decay", "SGD", 0.05, {"weight_decay": 0.1}),
    ("sgd momentum", "SGD", 0.05, {"momentum": 0.9}),
    ("sgd momentum dampening decay", "SGD", 0.05, {"momentum": 0.9, "dampening": 0.3, "weight_decay": 0.01}),
    ("sgd nesterov", "SGD", 0.05, {"momentum": 0.8, "nesterov": True, "weight_decay": 0.05}),
    ("adam", "Adam", 1e-3, {}),
    ("adam weight decay", "Adam", 0.01, {"weight_decay": 0.1, "beta1": 0.8, "beta2": 0.95, "eps": 1e-6}),
    ("adam small beta1", "Adam", 0.01, {"beta1": 0.3}),
    ("adamw", "AdamW", 1e-3, {"weight_decay": 0.01}),
    ("adamw large decay", "AdamW", 0.02, {"weight_decay": 0.5, "beta1": 0.95, "beta2": 0.98}),
    ("adagrad", "Adagrad", 0.01, {"eps": 1e-10}),
    ("adagrad lr decay", "Adagrad", 0.1, {"eps": 1e-10, "lr_decay": 0.05, "initial_accumulator": 0.1}),
    ("adagrad weight decay", "Adagrad", 0.1, {"eps": 1e-8, "weight_decay": 0.1}),
]


def torch_options(name, options):
    out = {k: v for k, v in options.items() if k not in ("beta1", "beta2", "initial_accumulator")}
    if "initial_accumulator" in options:
        out["initial_accumulator_value"] = options["initial_accumulator"]
    if name in ("Adam", "AdamW"):
        out["betas"] = (options.get("beta1", 0.9), options.get("beta2", 0.999))
    return out


def run(name, lr, options, rows):
    parameter = torch.nn.Parameter(torch.tensor(initial_parameters(), dtype=torch.float32))
    # foreach=False without fused: the single-tensor path, which is the formulae line by line.
    optimizer = getattr(torch.optim, name)([parameter], lr=lr, foreach=False, **torch_options(name, options))
    steps = []
    for row in rows:
        parameter.grad = torch.tensor(row, dtype=torch.float32)
        optimizer.step()
        bits = parameter.detach().numpy().view(numpy.uint32)
        steps.append(" ".join(f"{int(b):08x}" for b in bits))
    return steps


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("output")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    rows = gradients()
    cases = [
        {
            "name": name,
            "optimizer": cls.lower(),
            "lr": lr,
            "options": options,
            "parameters": run(cls, lr, options, rows),
        }
        for name, cls, lr, options in CASES
    ]
    golden = {"torch": torch.__version__.split("+")[0], "elements": ELEMENTS, "steps": STEPS}
    with open(arguments.output, "w", encoding="ascii") as f:  # a line a case
        lines = ",\n".join(json.dumps(case) for case in cases)
        f.write(f'{json.dumps(golden)[:-1]}, "cases": [\n{lines}\n]}}\n')


if __name__ == "__main__":
    main()
