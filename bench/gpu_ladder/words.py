"""The page: the figures of a check in words."""

from __future__ import annotations

import re
from typing import Any

ENOUGH = 0.85  # of a copy on the device, for a kernel that reads and writes everything once
LARGE = 26  # a power of two: with fewer values a kernel's launch counts


def in_words(result: dict[str, Any]) -> str:
    """Lines of whatever is there: of a step that was not run there are no figures. Failures come first."""
    facts = result["machine"]
    lines = [f"gpu_check: {result['status']}" + (f", {result['reason']}" if "reason" in result else "")]
    for step in result["steps"]:
        if step["status"] == "failed":
            lines += [f"failed: {step['rung']}: {step['name']}: {step.get('reason', '')}"]
    passed = [step for step in result["steps"] if step["status"] == "passed"]
    rungs = dict.fromkeys(step["rung"] for step in passed)
    for rung in rungs:
        steps = [step for step in passed if step["rung"] == rung]
        lines.append(f"passed: {rung}: {len(steps)} of its steps, {sum(step['seconds'] for step in steps):.0f} s")
    memory = f", {facts['memory_available_mib'] / 1024:.0f} GiB available" if facts.get("memory_available_mib") else ""
    lines.append(f"{facts['cpu']}, {facts['cpu_cores']} cores{memory}, Linux {facts['kernel']}, {facts['glibc']}")
    for gpu in facts["gpus"]:
        lines.append(", ".join(f"{key} {value}" for key, value in gpu.items()))
    if facts["gpus"]:
        lines.append("MPS runs" if facts["mps"] else "MPS does not run: processes of a GPU take turns")
    figures = {step["name"]: step["figures"] for step in result["steps"] if isinstance(step.get("figures"), dict)}
    for part in (
        doctor_in_words,
        costs_in_words,
        kernels_in_words,
        pipelines_in_words,
        torch_in_words,
        losses_in_words,
    ):
        try:
            lines += part(figures)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            lines.append(f"figures that are not understood: {error!r}")
    skipped: dict[str, list[str]] = {}
    for step in result["steps"]:
        reason = step.get("reason", "").partition("\n")[0]
        if step["status"] == "skipped" and reason != "not asked for":
            skipped.setdefault(reason, []).append(step["name"])
    lines += [f"skipped: {names[0]}{others(names)}: {reason}" for reason, names in skipped.items()]
    return "\n".join(lines) + "\n"


def others(names: list[str]) -> str:
    return f" and {len(names) - 1} more" if len(names) > 1 else ""


def doctor_in_words(figures: dict[str, Any]) -> list[str]:
    checks = figures.get("doctor", {}).get("checks", [])
    return [f"{check['name']}: {check['found']}" for check in checks if check.get("section") == "GPUs"]


def costs_in_words(figures: dict[str, Any]) -> list[str]:
    costs = figures.get("bench gpu-costs")
    if not costs:
        return []
    lines = ["us a call: " + ", ".join(f"{call} {us:.1f}" for call, us in costs["calls_us"].items())]
    lines.append(f"a host function behind a copy delays the next by {costs['host_function_gap_us']:.1f} us")
    for memory, callbacks in (("pinned", False), ("pinned", True), ("registered", False)):
        rows = [row for row in costs["links"] if row["memory"] == memory and row["callbacks"] == callbacks]
        for direction in ("to_host", "to_device", "both"):
            rates = [
                f"{row['bytes'] / 2**20:g} MiB {row['gb_per_s']:.1f}" for row in rows if row["direction"] == direction
            ]
            lines.append(
                f"GB/s {direction}, {memory}{', a host function a copy' if callbacks else ''}: " + ", ".join(rates)
            )
    return lines


def kernels_in_words(figures: dict[str, Any]) -> list[str]:
    lines = []
    for name, bench in figures.items():
        if not name.startswith("bench gpu-kernels"):
            continue
        line = f"{name}: copy {bench['copy_gb_per_s']:.0f} GB/s; {len(bench['results'])} kernels"
        power = re.search(r"2\^(\d+) values", name)
        if power and int(power.group(1)) >= LARGE:
            slow = [row for row in bench["results"] if row["one_pass"] and row["ratio"] < ENOUGH]
            line += f", {len(slow)} of one pass below {ENOUGH} of it"
            line += "".join(f"; {row['kernel']} {row['ratio']:.2f}" for row in slow)
        lines.append(line)
    return lines


def pipelines_in_words(figures: dict[str, Any]) -> list[str]:
    lines = []
    for name, bench in figures.items():
        if name.startswith("bench gpu-pipeline"):
            split, rate = bench["time_split"], bench["gb_per_s_each_way"]
            # Without a ceiling, as over shared memory, the ratio is 0.
            beside = f", {bench['ratio_to_ceiling']:.2f} of the echo" if bench.get("ratio_to_ceiling") else ""
            copies = min(bench.get("link", {}).values(), default=0)
            if copies > 0:
                beside += f", {rate / copies:.2f} of bare copies"
            lines.append(
                f"{name}: {rate:.2f} GB/s each way{beside}; of a chunk's {split['round_us']:.0f} us"
                f" {split['device_to_host_us']:.0f} up, {split['host_to_device_us']:.0f} down"
            )
    return lines


def torch_in_words(figures: dict[str, Any]) -> list[str]:
    lines = []
    for name, models in figures.items():
        if not name.startswith("torch, "):
            continue
        for run in models.values():
            # A run that did not get to its end has its first ways alone.
            ratios = run.get("step_ratio")
            for way, of_way in run.items() if ratios is None else ():
                lines.append(f"{name}: {way}: a step {of_way['step_ms']:.2f} ms")
            for way, ratio in (ratios or {}).items():
                lines.append(
                    f"{name}: a step {run[way]['step_ms']:.2f} ms, {ratio:.3f} of one without Tributary; "
                    f"gradients over memory of the {run[way]['gradients']}"
                )
    return lines


def losses_in_words(figures: dict[str, Any]) -> list[str]:
    calm = figures.get("losses, calm", {}).get("digest")
    lines = []
    for name, run in figures.items():
        if not name.startswith("losses, ") or run["killed"] is None:
            continue
        bits = "the calm run's bits" if run["digest"] == calm else "other bits than the calm run's"
        when = f"killed after round {run['at_round']}, the next step {run['next_step_s']:.2f} s later"
        lines.append(f"{name}: {run['killed']} {when}, {bits} after {run['rounds']} rounds")
    return lines
