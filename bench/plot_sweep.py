#!/usr/bin/python3
"""Draws the CSV of `tributary plan --sweep` as a picture: step time, and efficiency where compute time is known.

usage: plot_sweep.py SWEEP.csv PICTURE.svg|PICTURE.png

Exit status: 0 drawn, 1 failed (the reason is on standard error), 2 wrong usage, 3 without matplotlib.
"""
import csv
import sys

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


def read(path):
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


def draw(over, layouts, picture):
    import matplotlib

    matplotlib.use("Agg")
    matplotlib.rcParams["svg.hashsalt"] = "tributary"  # the same file for the same data
    from matplotlib import pyplot, ticker

    label, unit = AXES[over]
    with_compute = any(efficiency > 0 for points in layouts.values() for _, _, efficiency in points)
    figure, axes = pyplot.subplots(1, 2 if with_compute else 1, figsize=(11 if with_compute else 6.5, 4.5), squeeze=False)
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


def main(arguments):
    if len(arguments) != 3 or not arguments[2].endswith((".svg", ".png")):
        print(__doc__.strip(), file=sys.stderr)
        return 2
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        return 3
    try:
        draw(*read(arguments[1]), arguments[2])
    except (OSError, ValueError, KeyError) as error:
        print(f"plot_sweep.py: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv))
