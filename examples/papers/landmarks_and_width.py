"""Yin, Liu, Wang and Meng, NeurIPS 2022, figure 1: accuracy and seconds against m, and a sweep of kernel widths.

    python examples/papers/landmarks_and_width.py DATA --out OUT [--seeds 8] [--quick]

Figure 1 of the poster shows accuracy and training time of every sketch against the sketch's size m, on simulated data
that it does not describe; its text claims that m = sqrt(n) keeps the accuracy of exact kernel k-means. Simulated data
here are five overlapping Gaussian clusters in ten features, our own guess; segment and PenDigits are beside them. All
have 5,120 rows at most, of which a fifth is held out, so that sqrt(n) is 64 of 4,096 rows. m is a power of two, which
ROS needs, so that all sketches have the same.

The sweep has m near sqrt(n) and widths sigma from a 32nd of the usual one to twice as wide, on sets where the poster's
figures are about the share of the largest class: that is where a narrow kernel leads.

`yin2022_figure1.csv` has the claims, decided by all sizes, sketches and seeds; `yin2022_figure1_cases.csv` has the
values. `--quick` takes 1,000 rows, two sizes and widths, and two seeds.
"""

from functools import partial
from itertools import pairwise

import common
import numpy as np
from claims import Claims, by_seed, case, difference, paired, ratio
from randomized_sketches import COLUMNS, EXACT, GAUSSIAN, METHODS, OURS, exact, held_out_accuracy, sketched, stored

SEEDS, ROWS, QUICK_ROWS = 8, 5120, 1000
SIZES, MIDDLE, WIDTHS = (16, 32, 64, 128, 256), 64, (1 / 32, 1 / 8, 1 / 4, 1 / 2, 1, 2)
SIMULATED, CLUSTERS, FEATURES, APART = "simulated", 5, 10, 1.0
AGAINST_SIZE = (SIMULATED, "segment", "pendigits")
AGAINST_WIDTH = ("dna", "mushrooms", "pendigits", "a8a", "w7a", "connect-4")
PROPOSED = [method for method in METHODS if method != OURS]
SKETCHES = {**{method: METHODS[method] for method in PROPOSED}, GAUSSIAN: {"method": "gaussian", **COLUMNS}}
STEM = "landmarks_and_width"


def simulated():
    """Rows of overlapping Gaussian clusters, and which."""
    rng = np.random.default_rng(0)
    classes = np.arange(ROWS) % CLUSTERS
    centers = APART * rng.standard_normal((CLUSTERS, FEATURES))
    return (centers[classes] + rng.standard_normal((ROWS, FEATURES))).astype(np.float32), classes


def load(data, name, most):
    """Rows and classes of a set, at most so many, drawn evenly; None where it is not there."""
    given = simulated() if name == SIMULATED else stored(data, name)
    if given is None:
        return None
    X, classes = given
    few = np.sort(np.random.default_rng(0).permutation(len(X))[:most])
    return X[few], np.unique(classes[few], return_inverse=True)[1]


def fits(name, X, classes, seed, width, works):
    """A row of the table for each piece of work, on one split and one width."""
    order = np.random.default_rng(seed).permutation(len(X))
    train, test = order[: -len(X) // 5], order[-len(X) // 5 :]
    gamma, k, rows = 1 / (2 * width**2 * X.var(axis=0, dtype=np.float64).sum()), classes.max() + 1, []
    for method, m, work in works:
        (labels, predict), seconds = common.timed(work, X[train], k, gamma, seed)
        accuracy = held_out_accuracy(classes[train], labels, classes[test], predict(X[test]))
        described = {"data": name, "rows": len(train), "method": method, "width": width, "m": m, "seed": seed}
        largest = np.bincount(classes).max() / len(X)
        rows.append({**described, "accuracy": accuracy, "seconds": seconds, "largest_class": largest})
    return rows


def sketch(method, m):
    """A piece of work: one sketch of one size."""
    how = {**SKETCHES[method], "n_landmarks": m} | ({"rank": m} if method == GAUSSIAN else {})
    return method, m, partial(sketched, **how)


def of_sizes(name, rows, claims):
    """The claims of figure 1 on one set."""
    sizes = sorted({row["m"] for row in rows if row["m"] != ""})

    def of(value, method, m=""):
        return by_seed(rows, value, method=method, m=m)

    exact_ = of("accuracy", EXACT)
    claims.add(
        name,
        f"accuracy with m = {MIDDLE}, about sqrt(n), is at most 0.01 below that of exact kernel k-means",
        [
            case(method, paired(of("accuracy", method, MIDDLE), exact_, difference), ">=", -0.01)
            for method in PROPOSED
            if MIDDLE in sizes
        ],
        paper="m = sqrt(n) keeps the accuracy",
        difference=WHY.get(name, ""),
    )
    for value, told, combine, bound in (
        ("accuracy", "accuracy", difference, -0.005),
        ("seconds", "seconds", ratio, 1),
    ):
        claims.add(
            name,
            f"{told} of each sketch {'falls by at most 0.005' if value == 'accuracy' else 'grow'} at a step of m",
            [
                case(f"{method}, m = {m} beside {least}", paired(*pair, combine), ">=", bound)
                for method in SKETCHES
                for least, m in pairwise(sizes)
                if (pair := [of(value, method, size) for size in (m, least)])
            ],
            paper=f"figure 1: {told} against m (curves without numbers)",
            difference=WHY.get((name, value), ""),
        )
    claims.add(
        name,
        "seconds of the proposed sketches are less than those of exact kernel k-means",
        [
            case(f"{method}, m = {m}", paired(of("seconds", method, m), of("seconds", EXACT), ratio), "<=", 1)
            for method in PROPOSED
            for m in sizes
        ],
        paper="figure 1: the sketches are faster",
    )


ONE_SIGN = "the sub-Gaussian sketch has one sign a row: more columns add noise, and rows of S cancel less"
SMALL = "what does not depend on m takes most of the time at small m; splits differ by more than steps do"
WHY = {
    SIMULATED: "columns are compared as they are, which weighs directions by an eigenvalue more than the kernel does",
    "segment": "splits and seeds differ by 0.05, five times the margin",
    "pendigits": "splits and seeds differ by 0.05, five times the margin",
    (SIMULATED, "accuracy"): ONE_SIGN,
    ("segment", "accuracy"): ONE_SIGN,
    ("pendigits", "accuracy"): "splits and seeds differ by 0.05, ten times the margin",
    **{(name, "seconds"): SMALL for name in AGAINST_SIZE},
}


def of_widths(name, rows, claims):
    """Whether some width leads each sketch to the share of the largest class."""
    share = rows[0]["largest_class"]
    for method in PROPOSED:
        found = {width: by_seed(rows, "accuracy", method=method, width=width) for width in WIDTHS}
        claims.add(
            name,
            f"{method}: at some width accuracy is within 0.05 of the largest class's share",
            [
                case(f"sigma = {width:.3g}", [abs(value - share) for value in by.values()], "<=", 0.05)
                for width, by in found.items()
                if by
            ],
            paper="printed accuracy is about that share",
            of="some",
        )


def plot(path, rows, swept):
    """Accuracy and seconds against m above, accuracy against the width below."""
    names, more = (list(dict.fromkeys(row["data"] for row in part)) for part in (rows, swept))
    columns = max(len(names), -(-len(more) // 2), 1)
    title = "Sketches of drawn kernel columns: means and ranges over seeds"
    figure, axes = common.panels(4, columns, title)
    methods = [*SKETCHES, OURS]
    for panel in axes.flat:
        panel.set_axis_off()
    for column, name in enumerate(names):
        for panel, value in zip(axes[:2, column], ("accuracy", "seconds"), strict=True):
            panel.set_axis_on()
            kept = [row for row in rows if row["data"] == name]
            for number, method in enumerate(methods):
                if method in SKETCHES:
                    shown = [row for row in kept if row["m"] != ""]
                    common.draw(panel, method, number, common.mean_by(shown, value, method=method))
            level = np.mean([row[value] for row in kept if row["method"] == EXACT])
            panel.axhline(level, color="#222222", linestyle="--", label=EXACT)
            common.size_scale(panel, sorted({row["m"] for row in kept if row["m"] != ""}))
            panel.set(xlabel="kernel columns, m", title=f"{name}: {value}")
        common.log_scale(axes[1, column], "y")
    for panel, name in zip(axes[2:].flat, more, strict=False):
        panel.set_axis_on()
        kept = [{**row, "m": row["width"]} for row in swept if row["data"] == name]
        for number, method in enumerate(methods):
            curve = common.mean_by(kept, "accuracy", method=method)
            if curve[0]:
                common.draw(panel, method, number, curve)
        panel.axhline(kept[0]["largest_class"], color="#9a9a9a", linestyle=":", label="share of the largest class")
        panel.set_xscale("log", base=2)
        panel.set(xlabel="sigma, of the usual width", title=f"{name}: accuracy", ylim=(0, 1))
    common.finish(figure, axes, path, ncols=4)


def main():
    data, out, quick, n_seeds = common.arguments(__doc__, seeds=(int, SEEDS, "splits and fits of every method"))
    most, sizes, widths = (QUICK_ROWS, SIZES[1:3], WIDTHS[::4]) if quick else (ROWS, SIZES, WIDTHS)
    n_seeds, rows, swept, claims = 2 if quick else n_seeds, [], [], Claims()
    works = [(EXACT, "", exact), *(sketch(method, m) for method in SKETCHES for m in sizes)]
    for name in AGAINST_SIZE:
        if given := load(data, name, most):
            fits(name, given[0][:600], given[1][:600], 0, 1, works[1:])  # compiles
            found = [row for seed in range(n_seeds) for row in fits(name, *given, seed, 1, works)]
            of_sizes(name, found, claims)
            rows += found
            common.write_table(out / f"{STEM}.csv", rows, say=False)
    works = [*(sketch(method, MIDDLE) for method in PROPOSED), (OURS, "", sketched)]
    for name in AGAINST_WIDTH:
        if given := load(data, name, most):
            found = [row for w in widths for seed in range(n_seeds) for row in fits(name, *given, seed, w, works)]
            of_widths(name, found, claims)
            swept += found
            common.write_table(out / f"{STEM}_widths.csv", swept, say=False)
    print(out / f"{STEM}.csv")
    claims.write(out, "yin2022_figure1")
    plot(out / f"{STEM}.png", rows, swept)


if __name__ == "__main__":
    main()
