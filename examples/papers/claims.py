"""Which claims of a paper hold: every size, method and seed decides, with the spread of seeds.

A claim has cases, one for each size and method that it speaks of. A case has a value for each seed and a bound that the
values keep, at least or at most. A case is "yes" where every seed keeps the bound, or the mean by two standard errors;
"no" where every seed misses it, or the mean by two; and "within the spread" between. A claim holds if all its cases are
"yes", or, where the paper says so itself, most or some of them. Fewer than eight seeds decide nothing.
"""

from collections import Counter

import common
import numpy as np

FEWEST_SEEDS, ERRORS = 8, 2
YES, NO, OPEN, FEW = "yes", "no", "within the spread", f"fewer than {FEWEST_SEEDS} seeds"


def case(name, values, relation, bound):
    """One case; values are rounded to what the table keeps, so that the table decides as the run did."""
    values = " ".join(f"{value:.5g}" for value in values)
    return {"case": name, "relation": relation, "bound": bound, "values": values}


def values_of(one):
    """Numbers of a case, one for each seed."""
    return np.array(one["values"].split(), float)


def spread_of(one):
    """(mean, standard error) of a case."""
    values = values_of(one)
    error = values.std(ddof=1) / np.sqrt(len(values)) if len(values) > 1 else 0.0
    return values.mean(), error


def room(one):
    """By how much the mean keeps the bound; below 0 where it misses it."""
    mean, bound = spread_of(one)[0], float(one["bound"])
    return mean - bound if one["relation"] == ">=" else bound - mean


def verdict(one):
    """Say "yes", "no" or "within the spread" for one case."""
    bound, error = float(one["bound"]), ERRORS * spread_of(one)[1]
    kept = values_of(one) >= bound if one["relation"] == ">=" else values_of(one) <= bound
    if kept.all() or room(one) > error:
        return YES
    return NO if not kept.any() or room(one) < -error else OPEN


def decide(cases, of="all"):
    """Whether a claim about all, most or some of its cases holds."""
    if min(len(values_of(one)) for one in cases) < FEWEST_SEEDS:
        return FEW
    found = Counter(map(verdict, cases))
    enough = {"all": len(cases), "most": len(cases) // 2 + 1, "some": 1}[of]
    if found[YES] >= enough:
        return YES
    return NO if found[YES] + found[OPEN] < enough else OPEN


def told(one):
    """Say what a case is, and its mean and deviation."""
    values = values_of(one)
    return f"{one['case']}: {values.mean():.4g} +- {values.std():.2g}"


def worst_and_best(cases):
    """Say how many cases are what, and which lie at the ends, by relative room where bounds differ from 0."""
    found = Counter(map(verdict, cases))
    ranked = sorted(cases, key=lambda one: room(one) / (abs(float(one["bound"])) or 1))
    counts = ", ".join(f"{found[name]} {name}" for name in (YES, OPEN, NO) if found[name])
    if len(cases) == 1:
        return told(cases[0])
    return f"{len(cases)} cases, {counts}; worst {told(ranked[0])}; best {told(ranked[-1])}"


class Claims:
    """The lines of a paper's table, and the cases that decide them."""

    def __init__(self):
        self.lines, self.cases = [], []

    def add(self, dataset, claim, cases, *, paper="", of="all", difference=""):
        """Add a claim, decided by its cases; `paper` is what the paper prints, where that is not the claim."""
        if not cases:
            return
        holds = decide(cases, of)
        bounds = " or ".join(dict.fromkeys(f"{one['relation']} {one['bound']}" for one in cases))
        self.lines.append(
            {"dataset": dataset, "claim": claim, "paper": paper or claim, "decided_by": f"{of} {bounds}"}
            | {"here": worst_and_best(cases), "seeds": min(len(values_of(one)) for one in cases), "holds": holds}
            | {"difference": "" if holds in (YES, FEW) else difference or "not explained"}
        )
        self.cases += [{"dataset": dataset, "claim": claim, **one} for one in cases]

    def note(self, dataset, claim, paper, here, difference):
        """Add a figure beside the paper's that no verdict belongs to."""
        line = {"dataset": dataset, "claim": claim, "paper": paper, "decided_by": "", "here": here, "seeds": ""}
        self.lines.append(line | {"holds": "", "difference": difference})

    def write(self, out, stem):
        """Both tables, and the claims on the terminal."""
        common.write_table(out / f"{stem}.csv", self.lines)
        common.write_table(out / f"{stem}_cases.csv", self.cases)
        for line in self.lines:
            print(f"{line['dataset']}: {line['claim']}: {line['here']}; holds: {line['holds'] or 'no claim'}")


def recomputed(lines, cases):
    """(claim's line, what its cases say) for every line that has a verdict: what the tables must agree on."""
    for line in lines:
        if line["holds"]:
            mine = [one for one in cases if (one["dataset"], one["claim"]) == (line["dataset"], line["claim"])]
            yield line, decide(mine, line["decided_by"].split()[0])


def by_seed(rows, value, **where):
    """{seed: value} of the rows where columns have these values."""
    return {row["seed"]: row[value] for row in rows if all(row[name] == wanted for name, wanted in where.items())}


def paired(ours, theirs, combine):
    """Values of two methods combined seed by seed, for the seeds that both have."""
    return [combine(float(ours[seed]), float(theirs[seed])) for seed in ours if seed in theirs]


def difference(a, b):
    return a - b


def ratio(a, b):
    return a / b
