"""Wang, Gittens and Mahoney, JMLR 2019, figure 2: NMI against landmarks c and against rank s, on MNIST itself.

    python examples/papers/landmarks_and_rank.py DATA --out OUT [--seeds 8] [--quick]

The paper's figure 2 is of MNIST8M, 8.1 million deformed digits: NMI against c with s fixed, where the mean rises and
the spread falls, and NMI against s with c fixed, which is poor at the smallest s and worse again where s is too large.
Here are 60,000 rows of MNIST, and 60,000 rows each of digits that are deformed by a quarter and by half of what
`mnist8m_kernel_kmeans.py` does. Sigma is the authors', 1840 for pixels of 0 to 255; so is the cut of the landmarks'
kernel matrix, p = c / 2; the number of seeds is eight.

`wang2019_figure2.csv` has the claims, decided by all sizes and seeds, and `wang2019_figure2_cases.csv` the values. NMI
is over the geometric mean of entropies. `--quick` takes 3,000 rows, three sizes and two seeds.
"""

import dataclasses
from itertools import pairwise

import common
import numpy as np
from claims import Claims, by_seed, case, difference, paired
from sklearn.metrics import normalized_mutual_info_score

from streamkm import Nystroem, StreamKernelKMeans

K, SIGMA, SEEDS, ROWS, QUICK_ROWS = 10, 1840, 8, 60_000, 3000
RANK, LANDMARKS = 20, 400
MANY_LANDMARKS, RANKS = (50, 100, 200, 400, 800, 1600), (10, 15, 20, 40, 80, 160, 200)
STRENGTHS = {"MNIST": 0.0, "deformed by a quarter": 0.25, "deformed by half": 0.5}
STEM = "landmarks_and_rank"


def rows_of(data, strength, n_rows):
    """Images with pixels of 0 to 1, and their digits: MNIST's own without deformation."""
    if not strength:
        return common.mnist(data, n_rows)
    from tests.benchmarks.make_digits import Digits

    digits = dataclasses.replace(Digits.open(data / "mnist.h5"), strength=strength)
    parts = list(digits.parts(n_rows))
    return np.concatenate([X for X, _ in parts]).astype(np.float32) / 255, np.concatenate([y for _, y in parts])


def measure(name, X, classes, grid, n_seeds):
    """A row of the table for each number of landmarks, rank and seed."""
    rows, gamma = [], 255**2 / (2 * SIGMA**2)
    for c, s in grid:
        for seed in range(n_seeds):
            estimator = StreamKernelKMeans(
                K,
                gamma=gamma,
                n_landmarks=c,
                rank=s,
                method=Nystroem(landmark_rank=max(s, c // 2)),
                refine=0,
                random_state=seed,
                executor=1,
                progress=False,
            )
            fit, seconds = common.timed(estimator.fit, X)
            nmi = normalized_mutual_info_score(classes, fit.labels_, average_method="geometric")
            rows.append({"data": name, "rows": len(X), "c": c, "s": s, "seed": seed, "nmi": nmi, "seconds": seconds})
    return rows


def away(found):
    """How far each seed is from the mean of all."""
    mean = np.mean(list(found.values()))
    return {seed: abs(value - mean) for seed, value in found.items()}


def beside(name, rows, claims):
    """The claims of figure 2 on one data set."""
    counts = sorted({row["c"] for row in rows if row["s"] == RANK})
    ranks = sorted({row["s"] for row in rows if row["c"] == LANDMARKS})
    of_c = {c: by_seed(rows, "nmi", c=c, s=RANK) for c in counts}
    of_s = {s: by_seed(rows, "nmi", c=LANDMARKS, s=s) for s in ranks}
    claims.add(
        name,
        f"NMI with any c above the NMI with c = {counts[0]}, s = {RANK}",
        [case(f"c = {c}", paired(of_c[c], of_c[counts[0]], difference), ">=", 0) for c in counts[1:]],
        paper="figure 2(a): the mean rises with c",
    )
    claims.add(
        name,
        f"NMI rises at every step of c, s = {RANK}",
        [
            case(f"c = {c} beside {before}", paired(of_c[c], of_c[before], difference), ">=", 0)
            for before, c in pairwise(counts)
        ],
        paper="figure 2(a): the mean rises with c",
        difference="it levels out: late steps gain less than the seeds differ",
    )
    claims.add(
        name,
        f"the spread of NMI is less with any c than with c = {counts[0]}, s = {RANK}",
        [case(f"c = {c}", paired(away(of_c[c]), away(of_c[counts[0]]), difference), "<=", 0) for c in counts[1:]],
        paper="figure 2(a): the deviation falls with c",
        difference="a spread of eight seeds is known to a quarter only",
    )
    claims.add(
        name,
        f"NMI with s = {ranks[0]} is below that of any other s, c = {LANDMARKS}",
        [case(f"s = {s}", paired(of_s[s], of_s[ranks[0]], difference), ">=", 0) for s in ranks[1:]],
        paper="figure 2(b): poor at the smallest s",
    )
    middle = ranks[len(ranks) // 2]
    claims.add(
        name,
        f"NMI with the largest s, {ranks[-1]}, is below that of s = {middle}, c = {LANDMARKS}",
        [case(f"s = {ranks[-1]}", paired(of_s[ranks[-1]], of_s[middle], difference), "<=", 0)],
        paper="figure 2(b): worse again where s is too large",
    )


def plot(path, rows):
    """NMI against c left and against s right, a line for each data set."""
    names = list(dict.fromkeys(row["data"] for row in rows))
    title = f"NMI (geometric) of rank-restricted Nystroem features: means and ranges over {SEEDS} seeds"
    figure, axes = common.panels(1, 2, title)
    for panel, varied, fixed, value in (
        (axes[0, 0], "c", "s", RANK),
        (axes[0, 1], "s", "c", LANDMARKS),
    ):
        shown = [{**row, "m": row[varied]} for row in rows if row[fixed] == value]
        for number, name in enumerate(names):
            common.draw(panel, name, number, common.mean_by(shown, "nmi", data=name))
        common.size_scale(panel, sorted({row["m"] for row in shown}))
        panel.set(xlabel=varied, title=f"{fixed} = {value}: NMI against {varied}")
    common.finish(figure, axes, path, ncols=3)


def main():
    data, out, quick, n_seeds = common.arguments(__doc__, seeds=(int, SEEDS, "of every fit"))
    if not (data / "mnist.h5").exists():
        return
    grid = sorted({*((c, RANK) for c in MANY_LANDMARKS), *((LANDMARKS, s) for s in RANKS)})
    if quick:
        grid = [(c, RANK) for c in (50, LANDMARKS)] + [(LANDMARKS, s) for s in (10, 40)]
    rows, claims = [], Claims()
    for name, strength in STRENGTHS.items():
        X, classes = rows_of(data, strength, QUICK_ROWS if quick else ROWS)
        found = measure(name, X, classes, grid, 2 if quick else n_seeds)
        beside(name, found, claims)
        rows += found
        common.write_table(out / f"{STEM}.csv", rows, say=False)
    print(out / f"{STEM}.csv")
    claims.write(out, "wang2019_figure2")
    plot(out / f"{STEM}.png", rows)


if __name__ == "__main__":
    main()
