"""Senuma, "K-means clustering with feature hashing", ACL student session 2011: F_5 against hash size.

    python feature_hashing.py DATA OUT [--quick]

Six groups of 20 Newsgroups, 100 documents of each, as unigrams and as bigrams; words hashed to 2^6 ... 2^16 columns;
50 seeds of k-means. The straight line is k-means on the vocabulary, without hashing.

What differs from the paper. Which six groups, what rows were scaled by and how words were split we chose: groups from
six different subjects, counts scaled to unit length, scikit-learn's words. So the level of F_5 is ours; what is
compared is how fast it nears that of the vocabulary. The hash is one; seeds are those of k-means.

F_5 counts recall 25 times: all documents in one cluster get 0.84, more than most clusterings by words do, so a high F_5
may mean that most documents lie together. The dotted line shows that, and the lower panels the adjusted Rand index, for
which such a clustering is worth 0.
"""

import common
import numpy as np
import scipy.sparse as sp
from sklearn.feature_extraction.text import CountVectorizer
from sklearn.preprocessing import normalize

from streamkm import FeatureHashing
from streamkm.metrics import adjusted_rand, contingency, pairwise_f_beta

GROUPS = ("comp.graphics", "misc.forsale", "rec.autos", "sci.space", "soc.religion.christian", "talk.politics.guns")
BITS, N_SEEDS, PER_GROUP = (6, 8, 10, 12, 14, 16), 50, 100
GRAMS = {"unigrams": (1, 1), "bigrams": (2, 2)}


def clustered(X, classes, n_seeds, **described):
    """A row of the table for each seed."""
    rows = []
    for seed in range(n_seeds):
        found = contingency(classes, common.cluster(X, len(GROUPS), seed))
        scores = {"f5": pairwise_f_beta(found, beta=5), "ari": adjusted_rand(found)}
        rows.append({**described, "seed": seed, **scores, "largest_cluster": int(found.table.sum(axis=0).max())})
    return rows


def plot(path, rows, together):
    """F_5 above, the adjusted Rand index below; unigrams left, bigrams right."""
    figure, axes = common.panels(2, 2, "K-means with feature hashing: means over seeds, and 10 % to 90 % of them")
    for column, grams in enumerate(GRAMS):
        whole = [row for row in rows if row["grams"] == grams and row["vocabulary"]]
        hashed = [row for row in rows if row["grams"] == grams and not row["vocabulary"]]
        for line, (value, name) in enumerate((("f5", "F_5"), ("ari", "adjusted Rand index"))):
            panel, sizes = axes[line, column], sorted({row["m"] for row in hashed})
            values = [[row[value] for row in hashed if row["m"] == m] for m in sizes]
            low, high = np.percentile(values, (10, 90), axis=1)
            common.draw(panel, "hashed", 0, (sizes, np.mean(values, axis=1), low, high))
            panel.axhline(np.mean([row[value] for row in whole]), color=common.COLOURS[3], label="vocabulary")
            if value == "f5":
                panel.axhline(together, color=common.COLOURS[-1], linestyle=":", label="all documents in one cluster")
            panel.set_xscale("log", base=2)
            panel.set(xlabel="hash size, m", title=f"{grams} ({whole[0]['m']:,} in the vocabulary): {name}")
    common.finish(figure, axes, path)


def main():
    data, out, quick = common.arguments(__doc__)
    n_seeds, bits = (2, BITS[::3]) if quick else (N_SEEDS, BITS)
    texts, classes, _ = common.news(data, 20 if quick else PER_GROUP, GROUPS)
    rows = []
    for grams, ngram_range in GRAMS.items():
        counts = CountVectorizer(ngram_range=ngram_range, dtype=np.float32).fit_transform(texts)
        X = sp.csr_array(normalize(counts))
        rows += clustered(X, classes, n_seeds, grams=grams, vocabulary=True, m=X.shape[1])
        for m in (1 << b for b in bits):
            X = FeatureHashing(n_features=m, ngram_range=ngram_range).apply(texts)
            rows += clustered(X, classes, n_seeds, grams=grams, vocabulary=False, m=m)
    common.write_table(out / "feature_hashing.csv", rows)
    together = pairwise_f_beta(classes, np.zeros_like(classes), beta=5)
    plot(out / "feature_hashing.png", rows, together)
    print(f"F_5 of all documents in one cluster: {together:.3f}")
    for grams in GRAMS:
        for vocabulary in (True, False):
            kept = [row for row in rows if (row["grams"], row["vocabulary"]) == (grams, vocabulary)]
            for m in sorted({row["m"] for row in kept}):
                f5, ari, most = (
                    np.mean([row[v] for row in kept if row["m"] == m]) for v in ("f5", "ari", "largest_cluster")
                )
                name = f"{grams}, {'vocabulary' if vocabulary else 'hashed'} m = {m:,}"
                print(f"{name}: F_5 {f5:.3f}, ARI {ari:.3f}, largest cluster {most:.0f} of {len(texts)}")


if __name__ == "__main__":
    main()
