#!/usr/bin/python3
"""Draws what `tributary bench` measured.

usage: draw.py compare RESULTS.json PAGE.html       one page with its plots inside
       draw.py torch RESULTS.json PAGE.html         the same

Exit status: 0 drawn, 1 failed (the reason is on standard error), 2 wrong usage, 3 without matplotlib.
"""

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


def write_page(page, data, path):
    with open(data, encoding="utf-8") as file:
        result = json.load(file)
    text = page(result)
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)


PICTURES = {
    "compare": lambda data, path: write_page(lambda result: comparison_page(result["labs"]), data, path),
    "torch": lambda data, path: write_page(lambda result: torch_page(result["labs"]), data, path),
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
