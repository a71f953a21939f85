#!/usr/bin/python3
"""Turns the results of `tributary bench stragglers` into one HTML page with its plots inside.

usage: stragglers_report.py RESULTS.json REPORT.html

Exit status: 0 written, 1 failed (the reason is on standard error), 2 wrong usage, 3 without matplotlib.
"""
import html
import json
import sys

from report import STYLE, Figures, colour, table

NAMES = {
    "sync": "sync",
    "weighted": "sync, work-weighted",
    "ssp-1": "ssp, s = 1",
    "ssp-4": "ssp, s = 4",
    "ssp-16": "ssp, s = 16",
    "async": "async",
    "diloco": "DiLoCo, H = 10",
}
SLOWDOWNS = {
    "none": "Nobody is slow",
    "constant": "One of the nodes takes 3 times as long, always",
    "random": "One of the nodes takes 5 times as long, in 10 % of its steps",
}


def throughput(figures, runs):
    figure, axes = figures.rows(len(runs))
    for row, run in enumerate(runs):
        axes.barh(row, run["samples_per_s"], height=0.55, color=colour(row))
        axes.annotate(f"{run['samples_per_s']:.0f}", (run["samples_per_s"], row), xytext=(6, 0), textcoords="offset points", va="center")
    axes.axvline(runs[0]["ideal_per_s"], color="#888", linestyle=":", label="ideal: n − 1 + 1/f nodes")
    axes.set_yticks(range(len(runs)), [NAMES[run["variant"]] for run in runs])
    axes.set_xlabel("samples a second")
    axes.set_xlim(left=0)
    axes.margins(x=0.12)
    axes.legend(frameon=False, loc="upper center", bbox_to_anchor=(0.5, -0.45 if len(runs) < 3 else -0.2))
    return figure


def accuracy(figures, runs, key, label, scale=1.0):
    figure, axes = figures.pyplot.subplots(figsize=(9, 4))
    for index, run in enumerate(runs):
        points = [(scale * p[key], 100 * p["test_accuracy"]) for p in run["curve"]]
        axes.plot([p[0] for p in points], [p[1] for p in points], color=colour(index), linewidth=1.6, label=NAMES[run["variant"]])
    axes.set_xlabel(label)
    axes.set_ylabel("test accuracy, %")
    axes.set_ylim(bottom=60)
    axes.legend(frameon=False, ncols=2)
    return figure


def seconds_to(run, goal):
    return next((f"{p['seconds']:.1f} s" for p in run["curve"] if p["test_accuracy"] >= goal), "not reached")


def section(name, runs, figures):
    text = f"<h2>{html.escape(SLOWDOWNS[name])}</h2>"
    text += figures.svg(throughput(figures, runs), "Of all nodes together.")
    goal = 0.98 * max(run["test_accuracy"] or 0 for run in runs)
    text += table(
        ("variant", "samples/s", "of the ideal", "left for want of time", f"to {100 * goal:.1f} % accuracy", "accuracy at the end (mean of 5)"),
        [
            (
                NAMES[run["variant"]],
                f"{run['samples_per_s']:.0f}",
                f"{run['ratio']:.3f}",
                f"{run['left']:.0f}",
                seconds_to(run, goal),
                f"{100 * (run['test_accuracy'] or 0):.2f} %",
            )
            for run in runs
        ],
    )
    text += figures.svg(accuracy(figures, runs, "seconds", "seconds since training began"), "Test accuracy against wall time.")
    text += figures.svg(accuracy(figures, runs, "samples", "thousand samples", 1e-3), "The same against samples.")
    return text


def page(result):
    figures = Figures()
    options = result["options"]
    text = (
        '<!doctype html>\n<html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width">'
        f"<title>One slow node of {options['nodes']}</title><style>{STYLE}</style>\n<h1>One slow node of {options['nodes']}</h1>"
        f"<p>Every run trains for {options['seconds']:g} s. A node's step is {options['batch']} samples in {options['micro_batches']} micro-batches, "
        f"{1e-3 * options['us_per_sample'] * options['batch']:.0f} ms of which it sleeps instead of computing; the deadline of work-weighted rounds is "
        f"{options.get('deadline_ms', 0)} ms. Evaluation happens after the run, on copies.</p>\n"
    )
    order = list(NAMES)
    for name in SLOWDOWNS:
        runs = sorted((run for run in result["runs"] if run["slowdown"] == name), key=lambda run: order.index(run["variant"]))
        if runs:
            text += section(name, runs, figures)
    return text + "</html>\n"


def main():
    if len(sys.argv) != 3:
        print(__doc__, file=sys.stderr)
        return 2
    try:
        with open(sys.argv[1], encoding="utf-8") as file:
            result = json.load(file)
        text = page(result)
        with open(sys.argv[2], "w", encoding="utf-8") as file:
            file.write(text)
    except ModuleNotFoundError as error:
        print(f"stragglers_report.py: {error}", file=sys.stderr)
        return 3
    except (OSError, ValueError, KeyError) as error:
        print(f"stragglers_report.py: {type(error).__name__}: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
