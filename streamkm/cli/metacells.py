"""The command ``streamkm metacells``.

Responsible for its options and for the files it writes. The work is done by the estimator and a pass of sums.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import click

from streamkm.cli.common import Talk, check_output, work
from streamkm.cli.options import (
    force_option,
    memory_option,
    overwrite_option,
    preprocess_option,
    set_option,
    talk_options,
)
from streamkm.core.exceptions import OutputError
from streamkm.core.marks import Overwrite, replace_marked

PREPROCESS = ("total", "log1p")


@click.command()
@click.argument("path", metavar="CELLS")
@click.option("-k", "--n-clusters", type=click.IntRange(1), required=True, help="Number of metacells.")
@click.option("-o", "--output", required=True, type=click.Path(), help="Sums of counts: NAME.h5ad.")
@click.option(
    "--labels", type=click.Path(), help="Metacell of each cell: NAME.npy, or CELLS itself, an .h5ad: obs/cluster."
)
@preprocess_option
@click.option("--metric", type=click.Choice(["euclidean", "cosine"]), default="cosine", show_default=True)
@click.option("--seed", type=click.IntRange(0, (1 << 32) - 1), default=0, show_default=True, help="Random seed.")
@click.option("--skip-invalid", is_flag=True, help="Leave cells with NaN or infinity out.")
@memory_option
@set_option
@overwrite_option
@force_option
@talk_options
def metacells(path: str, n_clusters: int, output: str, settings: Sequence[str], **options: Any) -> None:
    """Group cells of raw counts, and sum the counts of each group.

    Cells are prepared as they are read, to find the groups: by --preprocess, by default total,log1p. Then one more pass
    sums their counts as CELLS has them. The output is an AnnData file with a row for each group: sums in X, the number
    of cells in obs/size, names of genes in var, and in obsp/distances how far the 15 nearest groups are.
    """
    with Talk(quiet=options["quiet"], verbose=options["verbose"]) as talk:
        import numpy as np

        from streamkm.cli.results import check_labels_target, put_into_file, write_labels
        from streamkm.cli.summary import rows_text
        from streamkm.estimators.kmeans import StreamKMeans
        from streamkm.fitting.cluster_sums import SumsPlan, nearest_centers, sum_clusters
        from streamkm.passes.labels import count_skipped
        from streamkm.sources.binary.h5ad_sums import most_bytes, write_sums

        overwrite: Overwrite = "any" if options["force"] else options["overwrite"]
        labels_to, limit = options["labels"], options["memory_limit"]
        _check_target(output, overwrite)
        if labels_to is not None:
            if not labels_to.endswith((".npy", ".h5ad")):
                raise OutputError(f"labels are written as .npy, or into the .h5ad file of cells, not as {labels_to}")
            check_labels_target(labels_to, [path], overwrite=overwrite)
        estimator = StreamKMeans(
            n_clusters,
            preprocess=list(options["preprocess"] or PREPROCESS),
            metric=options["metric"],
            on_invalid="skip" if options["skip_invalid"] else "raise",
            memory_limit=limit,
            random_state=options["seed"],
        )
        with work([path], settings, memory_limit=limit) as source:
            SumsPlan.of(source, n_clusters, memory_limit=limit)  # refuses what has no room before the fit
            labels = np.asarray(talk.prepare(estimator).fit(source).labels_)
            distances = nearest_centers(estimator.cluster_centers_, n_clusters)
            plan = SumsPlan.of(source, n_clusters, memory_limit=limit)
            found = sum_clusters(plan, labels, memory_limit=limit, progress=talk.progress())
        sizes = found.counts.astype(np.int64)
        replace_marked(
            output,
            lambda file: write_sums(file, found.sums, sizes, source.feature_names, distances),
            most_bytes(found.sums),
            ready=lambda _: _check_target(output, overwrite),  # once more: the passes may have taken hours
        )
        if labels_to is not None and labels_to.endswith(".h5ad"):
            put_into_file(labels_to, lambda: labels, overwrite=overwrite)
        elif labels_to is not None:
            write_labels(labels_to, labels, overwrite=overwrite)
        talk.say(
            [
                ("cells", rows_text(len(labels), count_skipped(labels))),
                ("metacells", f"{n_clusters:,} of {sizes.min():,} to {sizes.max():,} cells"),
                ("sums", output),
                *([("labels", labels_to)] if labels_to is not None else []),
            ]
        )


def _check_target(target: str, overwrite: Overwrite) -> None:
    check_output(target, ".h5ad", "sums", overwrite)
