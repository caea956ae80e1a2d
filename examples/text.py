"""Cluster documents without a vocabulary: JSON lines, hashed words, tf-idf; show the titles nearest to each center.

    python text.py                                                # a small file made on the spot
    python text.py --data news.jsonl --field text --title subject -k 20

Compressed files (.jsonl.gz), lines of text, CSV and Parquet are read the same way.
"""

import argparse
import json
import tempfile
from pathlib import Path

import numpy as np

from streamkm import FeatureHashing, StreamKMeans, open_documents

TOPICS = {
    "Space": "orbit rocket shuttle moon launch probe lunar payload telescope",
    "Hockey": "goal puck league season player coach ice playoff team",
    "Medicine": "doctor patient disease drug symptom treatment virus clinic dose",
}


def make(path: Path, seed: int = 0, n: int = 900) -> None:
    """Documents of three topics; every title names the topic and two words of the text."""
    rng = np.random.default_rng(seed)
    with path.open("w", encoding="utf-8") as file:
        for i in range(n):
            topic = list(TOPICS)[i % 3]
            words = rng.choice(TOPICS[topic].split(), 8)
            text = " ".join([*words, *rng.choice(["the", "of", "and", "with"], 8)])
            file.write(json.dumps({"title": f"{topic}: {words[0]} {words[1]}", "text": text}) + "\n")


def titles(path: Path, field: str, rows: list[int]) -> list[str]:
    """Read the titles of a few rows."""
    wanted = set(rows)
    with path.open(encoding="utf-8") as file:
        found = {i: json.loads(line)[field] for i, line in enumerate(file) if i in wanted}
    return [found[row] for row in rows]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path)
    parser.add_argument("--field", default="text")
    parser.add_argument("--title", default="title")
    parser.add_argument("-k", type=int, default=3)
    parser.add_argument("--picture", type=Path, help="write a picture of the clusters there, .png or .svg")
    args = parser.parse_args()
    hashing = FeatureHashing(n_features=2**18, stop_words="english")
    with tempfile.TemporaryDirectory() as folder:
        path = args.data or Path(folder) / "texts.jsonl"
        if args.data is None:
            make(path)
        source = open_documents(path, field=args.field, hashing=hashing)  # one pass, for document frequencies
        kmeans = StreamKMeans(args.k, random_state=0).fit(source)
        print(f"{kmeans.n_samples_:,} documents in {kmeans.n_passes_} passes")

        distances = kmeans.transform(source)
        for cluster in np.argsort(-kmeans.counts_):
            nearest = np.argsort(distances[:, cluster], kind="stable")[:3]
            print(f"{kmeans.counts_[cluster]:8,.0f}: {' | '.join(titles(path, args.title, nearest.tolist()))}")
        if args.picture:
            kmeans.plot().savefig(args.picture, dpi=60)

        if args.data is None:  # documents that come later, weighted by the same frequencies
            later = Path(folder) / "later.jsonl"
            make(later, seed=1, n=3)
            labels = kmeans.predict(open_documents(later, field="text", hashing=hashing, tfidf=source.tfidf))
            print(f"later: {np.sum(labels == kmeans.labels_[:3])} of 3 in the clusters of their topics")


if __name__ == "__main__":
    main()
