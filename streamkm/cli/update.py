"""The command ``streamkm update``: it orders the writes of results and the model so that no update is done twice."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from streamkm.cli.common import Talk, counts_of, data_options, labels_format_option, restart_option, work
from streamkm.core.exceptions import ModelFileError, OutputError

if TYPE_CHECKING:
    from streamkm.estimators.incremental import IncrementalKMeans

WORSE_THAN_WANTED = 3  # the exit code if the verdict is that of --fail-on, or a worse one
UPDATE, UPDATE_PAGE = "update.json", "update.html"
# in the order in which they appear: by the first, a call knows what it left when it was interrupted at a later one
RESULTS = (UPDATE, UPDATE_PAGE, "labels.npy", "labels.zarr", "labels.csv", "labels.parquet")
_VERDICTS = ("too few updates", "stable", "shifted", "fit again")


@click.command()
@click.argument("model", type=click.Path(exists=True, dir_okay=False))
@data_options
@click.option(
    "-o", "--output", type=click.Path(), default="streamkm-update", show_default=True, help="Results directory."
)
@click.option("--dry-run", is_flag=True, help="Say how DATA differ from the rows counted before, and write nothing.")
@click.option("--fail-on", type=click.Choice(_VERDICTS[2:]), help="End with exit code 3 at this verdict, or a worse.")
@click.option(
    "-k", "--n-clusters", type=counts_of, metavar="K|FEWEST:MOST",
    help="Clusters from now on; with a range, updates split and join them.  [default: as MODEL says]",
)  # fmt: skip
@labels_format_option
@restart_option
def update(model: str, paths: Sequence[str], output: str, settings: Sequence[str], **options: Any) -> None:
    """Take more rows into a model that goes on.

    MODEL is the incremental.npz of streamkm fit --incremental, or a file that save() of an IncrementalKMeans wrote; it
    is replaced by the updated one when all results are complete. The results directory gets labels, which are ids that
    clusters keep, update.html, and update.json: drift, events, and the lineage of all clusters. DATA are read twice. An
    update that was interrupted goes on where it was when the same command is called again; one that is complete is not
    done twice. The verdict is "stable", "shifted" or "fit again"; before eight updates with figures it is "too few
    updates".
    """
    with Talk(**options) as talk:
        from streamkm.cli import results
        from streamkm.cli.summary import rows_text
        from streamkm.engine.checkpoint import forget
        from streamkm.metrics.cluster_summary import plain
        from streamkm.passes.labels import count_skipped
        from streamkm.reports.report import update_page
        from streamkm.sources.fingerprints import fingerprint
        from streamkm.sources.local import FileVersion

        version, estimator = FileVersion.of(os.stat(model)), _load_incremental(model)
        kept = {name: getattr(estimator, name) for name in ("memory_limit", "progress")}
        talk.prepare(estimator, **{name: options[name] for name in ("executor", "memory_limit")})
        if options["dry_run"]:
            with work(paths, settings, options, model) as source:
                found = estimator.drift(source)
            talk.show(str(found))
            return _judge(found, options["fail_on"])
        if options["n_clusters"] is not None:
            estimator.set_params(n_clusters=options["n_clusters"])
        directory = results.kept_directory(output, restart=options["restart"])
        with work(paths, settings, options, model) as source:
            run = {"data": results.digest_of(fingerprint(source)), "before": _state_digest(estimator)}
            earlier = results.earlier_run(Path(output) / UPDATE)
            if earlier.get("after") == run["before"]:
                forget(directory)  # of that update, whose command was killed at its end
                if earlier.get("data") == run["data"]:
                    known = f"counted already: {output} has their update; choose another -o to count them again"
                    return talk.say([("rows", known)])
            may = options["overwrite"] or run.items() <= earlier.items()  # an interrupted call has written those
            results.check_target(output, overwrite=may, results=RESULTS)
            form = options["labels"]
            with results.staged(Path(output), RESULTS, overwrite=may) as stage:
                labels = stage / f"labels.{form}"
                done = estimator.update(source, checkpoint=directory, labels_to=None if form == "npy" else labels)
                n_skipped = count_skipped(estimator.labels_)
                run["after"] = _state_digest(estimator)
                lineage = [plain(asdict(event)) for event in estimator.lineage_]
                told = results.json_text(done.to_dict() | {"lineage": lineage, results.RUN: run})
                if FileVersion.of(os.stat(model)) != version:
                    raise OutputError(f"{model} was changed while this update ran; nothing was written: call it again")
                if form == "npy":
                    results.write_npy(labels, estimator.labels_)
                results.stage_texts(stage, {UPDATE: told, UPDATE_PAGE: update_page(done)})
        estimator.set_params(**kept).save(model, overwrite=True)
        forget(directory)
        talk.show(f"{done}\n")
        rows = rows_text(done.n_rows + n_skipped, n_skipped)
        talk.say([("rows", rows), talk.time(), ("model", model), ("results", output)])
        return _judge(done.drift, options["fail_on"])


def _judge(drift: Any, fail_on: str | None) -> None:
    """Set the exit code by the verdict on the rows; first rows have none."""
    if drift is not None and fail_on is not None and _VERDICTS.index(drift.verdict) >= _VERDICTS.index(fail_on):
        click.get_current_context().exit(WORSE_THAN_WANTED)


def _load_incremental(path: str) -> IncrementalKMeans:
    """Load a model that can go on; an error says how to make one."""
    from streamkm.estimators.incremental import IncrementalKMeans
    from streamkm.estimators.model_files import load_estimator

    estimator = load_estimator(path)
    if isinstance(estimator, IncrementalKMeans):
        return estimator
    raise ModelFileError(
        f"{path} is a model of {type(estimator).__name__}, which cannot go on with more rows; give the "
        f"incremental.npz that streamkm fit --incremental leaves, or save() of StreamKMeans.incremental()"
    )


def _state_digest(estimator: IncrementalKMeans) -> str:
    """SHA-256 of the state of a model."""
    stream = estimator.stream_
    followed = stream.followed and stream.followed.clusters
    arrays = (followed.ids, followed.centers, followed.counts) if followed else ()
    state = [f"{stream.n_rows} {stream.next_row}".encode(), *(array.tobytes() for array in arrays)]
    return hashlib.sha256(b"".join(state)).hexdigest()
