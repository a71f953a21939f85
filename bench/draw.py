#!/usr/bin/python3
"""Draws what `tributary bench` and `tributary plan` measured or computed.

usage: draw.py compare RESULTS.json PAGE.html       one page with its plots inside
       draw.py torch RESULTS.json PAGE.html         the same
       draw.py stragglers RESULTS.json PAGE.html    the same
       draw.py sweep SWEEP.csv PICTURE.svg|.png     step time, and efficiency where compute time is known

Exit status: 0 drawn, 1 failed (the reason is on standard error), 2 wrong usage, 3 without matplotlib.
"""

import csv
import html
import io
import json
import sys

# Colour-blind safe, one for each variant in its order; of the parts of a step, and of the two ways of a link.
VARIANT_COLOURS = ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#6b6b6b", "#8c564b"]
PARTS = [
    ("compute_ms", "computing", "#56b4e9"),
    ("reduce_ms", "node reduction", "#e69f00"),
    ("wait_ms", "waiting for the exchange", "#d55e00"),
]
SENT, RECEIVED = "#0072b2", "#56b4e9"
PREDICTED = "#222222"

STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; color: #222; max-width: 62rem; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.6rem; } h2 { font-size: 1.2rem; margin-top: 2.2rem; }
table { border-collapse: collapse; margin: 1rem 0; font-variant-numeric: tabular-nums; }
th, td { padding: .3rem .8rem .3rem 0; text-align: right; border-bottom: 1px solid #ddd; vertical-align: top; }
th:first-child, td:first-child { text-align: left; }
figure { margin: 1rem 0; overflow-x: auto; } svg { max-width: 100%; height: auto; }
figcaption, .small { color: #555; font-size: .9rem; }
dt { font-weight: 600; margin-top: .8rem; } dd { margin: 0; }
"""


def milliseconds(seconds):
    return f"{1e3 * seconds:.1f} ms"


def figure_or(value, pattern):
    return "" if value is None else pattern.format(value)


def page_head(title):
    return (
        '<!doctype html>\n<html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width">'
        f"<title>{title}</title><style>{STYLE}</style>\n"
    )


def colour(index):
    return VARIANT_COLOURS[index % len(VARIANT_COLOURS)]


class Figures:
    def __init__(self):
        import matplotlib

        matplotlib.use("Agg")
        matplotlib.rcParams.update(
            {
                "svg.hashsalt": "tributary",  # the same page for the same data
                "axes.spines.top": False,
                "axes.spines.right": False,
                "axes.axisbelow": True,
                "axes.grid": True,
                "grid.color": "#e4e4e4",
                "font.size": 10,
            }
        )
        from matplotlib import pyplot

        self.pyplot = pyplot

    def svg(self, figure, caption):
        out = io.StringIO()
        figure.savefig(out, format="svg", bbox_inches="tight", metadata={"Date": None})
        self.pyplot.close(figure)
        text = out.getvalue()
        return f"<figure>{text[text.index('<svg') :]}<figcaption>{html.escape(caption)}</figcaption></figure>"

    def rows(self, count):
        figure, axes = self.pyplot.subplots(figsize=(9, 0.9 + 0.55 * count))
        axes.invert_yaxis()
        axes.grid(axis="y", visible=False)
        return figure, axes

    def times(self, names, parts, label, reference=None):
        """Bars of measured medians with the spread of the repetitions, and a mark where the model predicts."""
        figure, axes = self.rows(len(names))
        told = False
        for row, (_, (spread, predicted)) in enumerate(zip(names, parts)):
            middle = 1e3 * spread["median"]
            low, high = middle - 1e3 * spread["min"], 1e3 * spread["max"] - middle
            axes.barh(
                row,
                middle,
                height=0.55,
                color=colour(row),
                xerr=[[low], [high]],
                error_kw={"elinewidth": 1.2, "capsize": 3},
            )
            axes.annotate(
                f"{middle:.1f}", (1e3 * spread["max"], row), xytext=(6, 0), textcoords="offset points", va="center"
            )
            if predicted is not None:
                axes.plot(
                    [1e3 * predicted] * 2,
                    [row - 0.4, row + 0.4],
                    color=PREDICTED,
                    linewidth=2.2,
                    label=None if told else "predicted",
                )
                told = True
        if reference is not None:
            axes.axvline(1e3 * reference, color="#888", linestyle=":", label="model / goodput of one link")
        axes.set_yticks(range(len(names)), names)
        axes.set_xlabel(label)
        axes.set_xlim(left=0)
        axes.margins(x=0.12)
        if told or reference is not None:
            axes.legend(
                loc="upper center", bbox_to_anchor=(0.5, -0.45 if len(names) < 3 else -0.28), ncols=2, frameon=False
            )
        return figure

    def split(self, names, splits):
        figure, axes = self.rows(len(names))
        left = [0.0] * len(names)
        for key, label, shade in PARTS:
            widths = [s[key] for s in splits]
            axes.barh(range(len(names)), widths, left=left, height=0.55, color=shade, label=label)
            left = [a + b for a, b in zip(left, widths)]
        axes.set_yticks(range(len(names)), names)
        axes.set_xlabel("milliseconds of a step, mean over ranks")
        axes.legend(
            loc="upper center", bbox_to_anchor=(0.5, -0.45 if len(names) < 3 else -0.28), ncols=3, frameon=False
        )
        return figure

    def loss(self, variants, label="training loss"):
        figure, axes = self.pyplot.subplots(figsize=(9, 4))
        for index, (name, curve) in enumerate(variants):
            points = [(p["seconds"], p["loss"]) for p in curve if p["loss"] is not None]
            axes.plot([p[0] for p in points], [p[1] for p in points], color=colour(index), linewidth=1.6, label=name)
        axes.set_xlabel("seconds since training began")
        axes.set_ylabel(label)
        axes.set_xlim(left=0)
        axes.legend(frameon=False)
        return figure

    def bytes(self, name, wire_bytes):
        figure, axes = self.pyplot.subplots(figsize=(9, 2.6))
        hosts = [b["host"] for b in wire_bytes]
        for shift, key, shade in ((-0.2, "sent", SENT), (0.2, "received", RECEIVED)):
            axes.bar(
                [i + shift for i in range(len(hosts))],
                [1e-6 * b[key] for b in wire_bytes],
                width=0.38,
                color=shade,
                label=key,
            )
        axes.set_xticks(range(len(hosts)), hosts)
        axes.set_ylabel("MB a round")
        axes.set_title(name, loc="left", fontsize=10)
        axes.grid(axis="x", visible=False)
        axes.legend(frameon=False, loc="center left", bbox_to_anchor=(1.0, 0.5))
        return figure


def table(head, rows):
    cells = "".join(f"<th>{html.escape(h)}</th>" for h in head)
    body = "".join("<tr>" + "".join(f"<td>{html.escape(str(c))}</td>" for c in row) + "</tr>" for row in rows)
    return f"<table><tr>{cells}</tr>{body}</table>"


def predicted_cell(part):
    if part["predicted"] is None:
        return "not known"
    error = "" if part["error"] is None else f" ({100 * part['error']:+.1f} %)"
    return milliseconds(part["predicted"]["seconds"]) + error


def predicted_seconds(part):
    return None if part["predicted"] is None else part["predicted"]["seconds"]


def words(variants, key):
    items = "".join(
        f"<dt>{html.escape(v['name'])}</dt><dd>{html.escape(v[key]['binds'])}"
        + (
            f" <span class=small>The model's word for it: {html.escape(v[key]['predicted']['bottleneck'])}.</span>"
            if v[key]["predicted"]
            else f" <span class=small>No prediction: {html.escape(v[key]['predicted_why_not'])}.</span>"
        )
        + "</dd>"
        for v in variants
    )
    return f"<dl>{items}</dl>"


def predictions_section(results):
    """Draws every measured time next to the cost model's."""

    def row(result, variant, key, what, seconds):
        part = variant[key]
        error = "" if part["error"] is None else f"{100 * part['error']:+.1f} %"
        predicted = "not known" if part["predicted"] is None else milliseconds(part["predicted"]["seconds"])
        size = part["model_bytes"] if key == "job" else result["model_bytes"]
        return (
            f"{result['lab']['name']}: {variant['name']}",
            what,
            f"{1e-6 * size:.1f}",
            milliseconds(part[seconds]["median"]),
            predicted,
            error,
            f"{100 * part['machine_busy']:.0f} %",
        )

    rows = []
    for result in results:
        for v in result["variants"]:
            rows.append(row(result, v, "exchange", "exchange", "seconds"))
            if v["job"]:
                rows.append(row(result, v, "job", "step", "step_seconds"))
    return (
        "<h2>Predicted beside measured</h2>"
        + table(
            ("lab and variant", "time of", "model, MB", "measured", "predicted", "measured against it", "processors"),
            rows,
        )
        + "<p class=small>An exchange is predicted from the links' rates, the hosts and the bytes of the "
        "encodings alone. A step's prediction takes "
        "the measured time of computing and the lab file's overlap. All hosts share one machine's processors: "
        "where these are full, the network's model cannot hold.</p>"
    )


def lab_section(result):
    lab = result["lab"]
    rows = []
    for host in lab["hosts"]:
        roles = [r for r, there in (("worker", host["worker"]), ("server", host["server"])) if there]
        rows.append(
            (host["name"], " and ".join(roles), host["ranks"], f"{host['up_mbit']:g}", f"{host['down_mbit']:g}")
        )
    source = "measured there with iperf3" if lab["goodput_from"] == "iperf3" else "from its rate, not measured"
    text = (
        f"<h2>The lab</h2><p>{len(lab['hosts'])} hosts as network namespaces on one machine, their links "
        "limited in both directions. "
        f"Goodput of a link: {1e-6 * lab['goodput_bytes_per_s']:.2f} MB/s, {source}.</p>"
    )
    text += table(("host", "runs", "ranks", "up, Mbit/s", "down, Mbit/s"), rows)
    if lab["links"]:
        worst = max(abs(link["ratio"] - 1) for link in lab["links"])
        text += (
            f"<p class=small>{len(lab['links'])} links measured; the farthest from what its rate allows by "
            f"{100 * worst:.1f} %.</p>"
        )
    return text


def exchange_section(result, figures):
    variants = result["variants"]
    names = [v["name"] for v in variants]
    model = result["model_bytes"]
    ideal = model / result["lab"]["goodput_bytes_per_s"]
    text = (
        f"<h2>The exchange alone</h2><p>A model of {1e-6 * model:.1f} MB, no computing, median of "
        f"{result['repetitions']} repetitions in turn.</p>"
    )
    text += figures.svg(
        figures.times(
            names,
            [(v["exchange"]["seconds"], predicted_seconds(v["exchange"])) for v in variants],
            "milliseconds a round",
            ideal,
        ),
        "Time of a round; lines span the repetitions.",
    )
    text += table(
        (
            "variant",
            "median",
            "min to max",
            "× model / goodput",
            "predicted (measured against it)",
            "CPU-s a round",
            "processors",
            "drops",
        ),
        [
            (
                v["name"],
                milliseconds(v["exchange"]["seconds"]["median"]),
                f"{1e3 * v['exchange']['seconds']['min']:.1f} to {1e3 * v['exchange']['seconds']['max']:.1f}",
                f"{v['exchange']['ratio']:.3f}",
                predicted_cell(v["exchange"]),
                f"{v['exchange']['cpu_seconds']:.3f}",
                f"{100 * v['exchange']['machine_busy']:.0f} %",
                f"{v['exchange']['drops']:.0f}",
            )
            for v in variants
        ],
    )
    if result["speedups"]:
        sentences = " ".join(
            f"{s['of']} exchanges {s['times']:.2f} times as fast as {s['over']}." for s in result["speedups"]
        )
        text += f"<p>{html.escape(sentences)}</p>"
    text += "<h2>What binds the exchange</h2>" + words(variants, "exchange")
    text += (
        "<h2>Bytes on each host's wire</h2><p>With all headers, as the links' limits count them, of one round "
        "of the exchange.</p>"
    )
    for v in variants:
        text += figures.svg(figures.bytes(v["name"], v["exchange"]["wire_bytes"]), "")
    return text


def training_section(result, figures):
    variants = [v for v in result["variants"] if v["job"]]
    if not variants:
        return ""
    names = [v["name"] for v in variants]
    size = 1e-6 * variants[0]["job"]["model_bytes"]
    text = (
        f"<h2>Training</h2><p>A model of {size:.1f} MB, the same data and seed in every variant. A step is a "
        "round: of local steps, all of them and the exchange after them.</p>"
    )
    text += figures.svg(
        figures.times(
            names, [(v["job"]["step_seconds"], predicted_seconds(v["job"])) for v in variants], "milliseconds a step"
        ),
        "Time of a step: the slowest rank's, median over the rounds. The prediction takes the measured time of "
        "computing.",
    )
    text += "<h2>Where a step's time goes</h2>"
    text += figures.svg(
        figures.split(names, [v["job"]["step_split"] for v in variants]), "Waiting is what computing does not cover."
    )
    text += words(variants, "job")
    text += "<h2>Loss against wall time</h2>"
    text += figures.svg(
        figures.loss([(v["name"], v["job"]["curve"]) for v in variants]), "Of the repetition nearest to the median."
    )

    text += table(
        (
            "variant",
            "step",
            "predicted (measured against it)",
            "seconds in all",
            "rounds",
            "bytes a sample on the wires",
            "training loss",
            "test accuracy",
            "digest",
        ),
        [
            (
                v["name"],
                milliseconds(v["job"]["step_seconds"]["median"]),
                predicted_cell(v["job"]),
                f"{v['job']['seconds']:.1f}",
                v["job"]["rounds"],
                figure_or(v["job"].get("wire_bytes_per_sample"), "{:.1f}"),
                figure_or(v["job"]["train_loss"], "{:.4f}"),
                figure_or(v["job"]["test_accuracy"], "{:.4f}"),
                v["job"]["digest"][:8],
            )
            for v in variants
        ],
    )
    return text


def comparison_page(results):
    figures = Figures()
    names = [html.escape(result["lab"]["name"]) for result in results]
    text = page_head(f"Comparison in {', '.join(names)}")
    if len(results) > 1:
        text += "<h1>Comparison in " + str(len(results)) + " labs</h1>\n" + predictions_section(results)
    for name, result in zip(names, results):
        text += (
            f"<h1>Comparison in {name}</h1>\n"
            + exchange_section(result, figures)
            + training_section(result, figures)
            + lab_section(result)
        )
    return text + "</html>\n"


def torch_section(result, figures):
    variants = result["variants"]
    names = [v["words"] for v in variants]
    lab = result["lab"]
    ranks = sum(host["ranks"] for host in lab["hosts"])
    text = (
        f"<h1>PyTorch in {html.escape(lab['name'])}</h1><p>A byte-level GPT of "
        f"{result['model_bytes'] / 4e6:.2f} million parameters "
        f"({1e-6 * result['model_bytes']:.1f} MB), {ranks} ranks with batches of {result['batch']} × 128 bytes "
        "of text, AdamW. "
        f"Every variant trains on the same batches; {result['repetitions']} repetitions in turn.</p><h2>Time of "
        "a step</h2>"
    )
    text += figures.svg(
        figures.times(names, [(v["step_seconds"], None) for v in variants], "milliseconds a step"),
        "The slowest rank's step, median over steps; lines span the repetitions. DiLoCo exchanges now and then "
        "only: see the means.",
    )

    def megabytes(variant):
        moved = [b["sent"] + b["received"] for b, host in zip(variant["wire_bytes"], lab["hosts"]) if host["worker"]]
        return f"{1e-6 * max(moved):.1f}"

    text += table(
        (
            "variant",
            "step",
            "beside DDP",
            "mean step",
            "beside DDP",
            "MB a step, a training host",
            "a rank's private MB",
            "processors",
            "drops",
        ),
        [
            (
                v["words"],
                milliseconds(v["step_seconds"]["median"]),
                figure_or(v.get("over_ddp"), "{:.3f}"),
                milliseconds(v["mean_step_seconds"]["median"]),
                figure_or(v.get("mean_over_ddp"), "{:.3f}"),
                megabytes(v),
                f"{v['private_mb']:.0f}",
                f"{100 * v['machine_busy']:.0f} %",
                f"{v['drops']:.1f}",
            )
            for v in variants
        ],
    )
    trained = [v for v in variants if v["curve"] and v["name"] != "alone"]
    if trained:
        steps = min(v["curve"][-1]["step"] for v in trained)  # at which all are compared
        text += "<h2>Validation loss against time</h2>"
        text += figures.svg(
            figures.loss([(v["words"], v["curve"]) for v in trained], "validation loss"),
            "Of the first repetition; looking at the loss is not counted.",
        )
        text += table(
            (
                "variant",
                f"loss after {steps} steps",
                "beside DDP",
                "seconds to DDP's, within 1 %",
                "steps in all",
                "loss then",
            ),
            [
                (
                    v["words"],
                    figure_or(v["validation_loss"], "{:.4f}"),
                    figure_or(v.get("loss_over_ddp"), "{:.4f}"),
                    figure_or(v.get("seconds_to_equal_loss"), "{:.1f}") or "not reached",
                    v["curve"][-1]["step"],
                    f"{v['curve'][-1]['loss']:.4f}",
                )
                for v in trained
            ],
        )
    return text + lab_section(result)


def torch_page(results):
    figures = Figures()
    names = ", ".join(html.escape(result["lab"]["name"]) for result in results)
    return (
        page_head(f"PyTorch in {names}") + "".join(torch_section(result, figures) for result in results) + "</html>\n"
    )


STRAGGLER_NAMES = {
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
        axes.annotate(
            f"{run['samples_per_s']:.0f}",
            (run["samples_per_s"], row),
            xytext=(6, 0),
            textcoords="offset points",
            va="center",
        )
    axes.axvline(runs[0]["ideal_per_s"], color="#888", linestyle=":", label="ideal: n − 1 + 1/f nodes")
    axes.set_yticks(range(len(runs)), [STRAGGLER_NAMES[run["variant"]] for run in runs])
    axes.set_xlabel("samples a second")
    axes.set_xlim(left=0)
    axes.margins(x=0.12)
    axes.legend(frameon=False, loc="upper center", bbox_to_anchor=(0.5, -0.45 if len(runs) < 3 else -0.2))
    return figure


def accuracy(figures, runs, key, label, scale=1.0):
    figure, axes = figures.pyplot.subplots(figsize=(9, 4))
    for index, run in enumerate(runs):
        points = [(scale * p[key], 100 * p["test_accuracy"]) for p in run["curve"]]
        axes.plot(
            [p[0] for p in points],
            [p[1] for p in points],
            color=colour(index),
            linewidth=1.6,
            label=STRAGGLER_NAMES[run["variant"]],
        )
    axes.set_xlabel(label)
    axes.set_ylabel("test accuracy, %")
    axes.set_ylim(bottom=60)
    axes.legend(frameon=False, ncols=2)
    return figure


def seconds_to(run, goal):
    return next((f"{p['seconds']:.1f} s" for p in run["curve"] if p["test_accuracy"] >= goal), "not reached")


def slowdown_section(name, runs, figures):
    text = f"<h2>{html.escape(SLOWDOWNS[name])}</h2>"
    text += figures.svg(throughput(figures, runs), "Of all nodes together.")
    goal = 0.98 * max(run["test_accuracy"] or 0 for run in runs)
    text += table(
        (
            "variant",
            "samples/s",
            "of the ideal",
            "left for want of time",
            f"to {100 * goal:.1f} % accuracy",
            "accuracy at the end (mean of 5)",
        ),
        [
            (
                STRAGGLER_NAMES[run["variant"]],
                f"{run['samples_per_s']:.0f}",
                f"{run['ratio']:.3f}",
                f"{run['left']:.0f}",
                seconds_to(run, goal),
                f"{100 * (run['test_accuracy'] or 0):.2f} %",
            )
            for run in runs
        ],
    )
    text += figures.svg(
        accuracy(figures, runs, "seconds", "seconds since training began"), "Test accuracy against wall time."
    )
    text += figures.svg(accuracy(figures, runs, "samples", "thousand samples", 1e-3), "The same against samples.")
    return text


def stragglers_page(result):
    figures = Figures()
    options = result["options"]
    text = page_head(f"One slow node of {options['nodes']}") + (
        f"<h1>One slow node of {options['nodes']}</h1>"
        f"<p>Every run trains for {options['seconds']:g} s. A node's step is {options['batch']} samples in "
        f"{options['micro_batches']} micro-batches, "
        f"{1e-3 * options['us_per_sample'] * options['batch']:.0f} ms of which it sleeps instead of computing; "
        "the deadline of work-weighted rounds is "
        f"{options.get('deadline_ms', 0)} ms. Evaluation happens after the run, on copies.</p>\n"
    )
    order = list(STRAGGLER_NAMES)
    for name in SLOWDOWNS:
        runs = sorted(
            (run for run in result["runs"] if run["slowdown"] == name), key=lambda run: order.index(run["variant"])
        )
        if runs:
            text += slowdown_section(name, runs, figures)
    return text + "</html>\n"


# A layout's name, colour and line: rings and trees dashed, above the servers' lines, so that equal ones show both.
LAYOUTS = {
    "flat-ring": ("flat ring", "tab:blue", "--"),
    "hierarchical-ring": ("hierarchical ring", "tab:cyan", "--"),
    "tree": ("two trees", "tab:gray", "--"),
    "dedicated": ("servers on machines of their own", "tab:red", "-"),
    "colocated": ("servers beside the workers", "tab:green", "-"),
    "mixed": ("servers on both", "tab:purple", "-"),
}
AXES = {
    "payload": ("payload in MB", 1e6),
    "bandwidth": ("bandwidth of a host's link in MB/s", 1e6),
    "nodes": ("nodes", 1.0),
    "servers": ("server hosts", 1.0),
}


def read_sweep(path):
    """(what is swept, {layout: [(value, step seconds, efficiency)]}), layouts in the order of the file."""
    layouts = {}
    over = None
    with open(path, newline="", encoding="utf-8") as file:
        for row in csv.DictReader(file):
            over = row["over"]
            point = (float(row["value"]), float(row["step_s"]), float(row["efficiency"]))
            layouts.setdefault(row["layout"], []).append(point)
    if over not in AXES:
        raise ValueError(f"{path} is no CSV of `tributary plan --sweep`")
    return over, layouts


def draw_sweep(path, picture):
    over, layouts = read_sweep(path)
    import matplotlib

    matplotlib.use("Agg")
    matplotlib.rcParams["svg.hashsalt"] = "tributary"  # the same file for the same data
    from matplotlib import pyplot, ticker

    label, unit = AXES[over]
    with_compute = any(efficiency > 0 for points in layouts.values() for _, _, efficiency in points)
    figure, axes = pyplot.subplots(
        1, 2 if with_compute else 1, figsize=(11 if with_compute else 6.5, 4.5), squeeze=False
    )
    for layout, points in layouts.items():
        x = [value / unit for value, _, _ in points]
        name, colour, line = LAYOUTS[layout]
        style = {"label": name, "color": colour, "linestyle": line, "marker": ".", "zorder": 4 if line == "--" else 3}
        axes[0][0].plot(x, [1e3 * step for _, step, _ in points], **style)
        if with_compute:
            axes[0][1].plot(x, [100 * efficiency for _, _, efficiency in points], **style)
    axes[0][0].set_ylabel("step in ms")
    geometric = over in ("payload", "bandwidth")
    if geometric:
        axes[0][0].set_yscale("log")
    else:
        axes[0][0].set_ylim(bottom=0)
    if with_compute:
        axes[0][1].set_ylabel("efficiency in %")
        axes[0][1].set_ylim(0, 102)
    for axis in axes[0]:
        axis.set_xlabel(label)
        if geometric:
            axis.set_xscale("log")
        axis.grid(True, alpha=0.3)
        for scale in (axis.xaxis, axis.yaxis):
            if scale.get_scale() == "log":
                scale.set_major_formatter(ticker.FormatStrFormatter("%g"))
    axes[0][0].legend(fontsize="small")
    figure.tight_layout()
    figure.savefig(picture, metadata={"Date": None} if picture.endswith(".svg") else None)


def write_page(page, data, path):
    with open(data, encoding="utf-8") as file:
        result = json.load(file)
    text = page(result)
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)


PICTURES = {
    "compare": lambda data, path: write_page(lambda result: comparison_page(result["labs"]), data, path),
    "torch": lambda data, path: write_page(lambda result: torch_page(result["labs"]), data, path),
    "stragglers": lambda data, path: write_page(stragglers_page, data, path),
    "sweep": draw_sweep,
}


def main(arguments):
    if len(arguments) != 4 or arguments[1] not in PICTURES:
        print(__doc__.strip(), file=sys.stderr)
        return 2
    try:
        import matplotlib  # noqa: F401
    except ImportError as error:
        print(f"draw.py: {error}", file=sys.stderr)
        return 3
    try:
        PICTURES[arguments[1]](arguments[2], arguments[3])
    except (OSError, ValueError, KeyError) as error:
        print(f"draw.py: {type(error).__name__}: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv))
