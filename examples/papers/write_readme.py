"""Tables of README.md, made of the CSVs in `results/`, so that both say the same.

    python examples/papers/write_readme.py

A table stands between `<!-- NAME.csv -->` and `<!-- end -->`. Tables of claims have a line for each claim and a column
for each data set; what does not hold has its reasons below.
"""

import re
from pathlib import Path

import common

HERE = Path(__file__).parent
README, RESULTS = HERE / "README.md", HERE / "results"
PLACE = re.compile(r"<!-- (\w+)\.csv -->\n.*?<!-- end -->", re.DOTALL)
SHORT = {"within the spread": "within spread"}


def table(head, lines):
    """Lines of a table in Markdown."""
    lines = [head, ["---"] * len(head), *lines]
    return "\n".join("| " + " | ".join(str(cell).replace("|", "/") for cell in line) + " |" for line in lines)


def of_claims(lines):
    """A line for each claim, a column for each data set, and the reasons of what does not hold."""
    names, cells, reasons = [], {}, {}
    for line in lines:
        name, _, more = line["dataset"].partition(", ")
        names += [name] if name not in names else []
        claim = f"{line['claim']} ({more})" if more else line["claim"]
        cells.setdefault(claim, {})[name] = SHORT.get(line["holds"], line["holds"]) or line["here"]
        if line["difference"] and line["holds"]:
            reasons.setdefault((claim, line["difference"]), []).append(name)
    told = table(
        ["claim", *names], [[claim, *(found.get(name, "") for name in names)] for claim, found in cells.items()]
    )
    why = [f"- {claim}, on {', '.join(found)}: {reason}." for (claim, reason), found in reasons.items()]
    return told + ("\n\nWhat does not hold, or is not decided:\n\n" + "\n".join(why) if why else "")


def of_lines(lines, names):
    """A line for each line of the CSV, with some of its columns."""
    return table(names, [[line[name] for name in names] for line in lines])


def of_accuracies(lines):
    """Printed accuracy and ours of each data set, a column for each method."""
    methods = list(dict.fromkeys(line["method"] for line in lines))
    told = {}
    for line in lines:
        cells = told.setdefault(line["dataset"], {"largest class": line["largest_class"]})
        printed = line["paper_accuracy"] or "-"
        cells[line["method"]] = line["accuracy"] if line["method"] == "ours" else f"{printed}, {line['accuracy']}"
    head = ["set", "largest class", *(method if method == "ours" else f"{method}: printed, here" for method in methods)]
    names = ["largest class", *methods]
    return table(head, [[name, *(cells.get(column, "") for column in names)] for name, cells in told.items()])


def filled(text):
    """README with its tables made anew."""

    def made(found):
        stem = found[1]
        lines = common.read_table(RESULTS / f"{stem}.csv")
        if stem == "yin2022":
            told = of_accuracies(lines)
        elif stem == "liu2017_ilsvrc":
            told = of_lines(
                lines, ["rows", "method", "sketch_seconds", "cluster_seconds", "seconds", "nmi", "peak_mib", "told"]
            )
        elif stem in ("senuma2011", "boutsidis2015"):
            told = of_lines(lines, ["dataset", "claim", "paper", "here", "holds", "difference"])
        else:
            told = of_claims(lines)
        return f"<!-- {stem}.csv -->\n{told}\n<!-- end -->"

    return PLACE.sub(made, text)


if __name__ == "__main__":
    README.write_text(filled(README.read_text(encoding="utf-8")), encoding="utf-8")
