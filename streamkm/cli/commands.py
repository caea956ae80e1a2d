"""Commands that take rows alone: ``streamkm sketch``, ``sweep`` and ``dedupe``; other packages do the work."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, cast

import click

from streamkm.cli.common import Talk, data_options, invalid_option, preprocess_option, restart_option, work
from streamkm.core.atomic_io import check_new
from streamkm.core.exceptions import InvalidParameterError, OutputError

SWEEP_RESULTS = ("sweep.csv", "sweep.svg", "sweep.json")  # in the order in which they appear
_OF_STORES = ("output", "sketch", "n_components", "seed", "metric", "preprocess")  # what a store has once it is made


@click.command()
@data_options
@click.option("-o", "--output", type=click.Path(), help="The store, a directory: STORE.zarr.")
@click.option("--append", type=click.Path(exists=True, file_okay=False), metavar="STORE", help="Add rows to STORE.")
@click.option("--sketch", help="auto, countsketch, pca or identity.  [default: auto]")
@click.option("-m", "--n-components", type=int, help="Components.  [default: as fit]")
@click.option("--seed", type=click.IntRange(0, (1 << 64) - 1), help="Of the sketch.  [default: 0]")
@click.option("--metric", type=click.Choice(["euclidean", "cosine"]), help="[default: euclidean]")
@preprocess_option
@invalid_option("raise", "skip", text="skip: keep rows with NaN or infinity as rows of NaN.")
def sketch(paths: Sequence[str], settings: Sequence[str], **options: Any) -> None:
    """Keep sketched rows in a store that fit clusters.

    One pass, and one for each step of --preprocess that must know all rows. A store stays as it is until rows are
    appended to it whole. Document frequencies are kept in STORE.tfidf.npz; documents are appended by --set
    text.tfidf=STORE.tfidf.npz.
    """
    given = [name for name in _OF_STORES if options[name] is not None]
    if options["append"] is None and "output" not in given:
        raise click.UsageError("say where the store goes: -o STORE.zarr, or --append STORE.zarr")
    if options["append"] is not None and given:
        raise click.UsageError(f"--append and --{given[0].replace('_', '-')} exclude each other; the store decides")
    with Talk(**options) as talk, ExitStack() as stack:
        from streamkm.cli.data import write_frequencies
        from streamkm.engine import open_executor, under_limit
        from streamkm.preparation import check_steps
        from streamkm.sketches.options import SketchOptions
        from streamkm.sources.sketch_store import StoreInfo, StoreSource
        from streamkm.stores.planned import choose_store_sketch, prepared_as, prepared_reader, reader_for_store
        from streamkm.stores.writer import append_rows, check_store_place, write_store

        append, overwrite, limit = options["append"], options["overwrite"], options["memory_limit"]
        place, kept, metric = append or options["output"], None, cast("Any", options["metric"] or "euclidean")
        weights = f"{place}.tfidf.npz"
        if append is None:
            check_store_place(place, overwrite=overwrite)
            check_new(weights, overwrite=overwrite)
        stack.enter_context(under_limit(limit))
        source = stack.enter_context(work(paths, settings, options))
        if append is not None:
            metric, source = StoreInfo.read(append).metric, prepared_as(StoreSource(append), source)
        how = SketchOptions(*(options[name] or "auto" for name in ("sketch", "n_components")))
        steps, executor = check_steps(options["preprocess"]), options["executor"]
        limits = {"preprocess": steps, "memory_limit": limit, "executor": executor}
        reader, n_threads = reader_for_store(source, metric, options["invalid"], sketch=how, **limits)
        workers = stack.enter_context(open_executor(executor, n_threads))
        reader, name = prepared_reader(reader, workers, talk.progress), "append" if append else "sketch"
        stage = stack.enter_context(talk.progress.stage(name, len(reader.source.chunks(reader.target_bytes)) or None))
        if append is None:
            found = choose_store_sketch(reader, how, options["seed"] or 0, workers, stage)
            # before the store: a kill leaves no store without what rows to be appended are weighted by
            kept = write_frequencies(weights, source)
            store = write_store(place, reader, found, workers, stage, overwrite=overwrite)
        else:
            store = append_rows(append, reader, workers, stage)
    told = [("rows", f"{store.n_rows:,}"), ("store", place), *store.details().items()]
    talk.say([*told, ("frequencies", kept)] if kept else told)


@click.command()
@data_options
@click.option("-k", "--n-clusters", default="2:50", show_default=True, help="Clusters: 2:50, 10:200:10 or 5,10.")
@click.option("--seed", "--random-state", "random_state", type=int, help="Seed of the sample and the starts.")
@click.option("-o", "--output", type=click.Path(), default="streamkm-sweep", show_default=True, help="Results.")
@click.option("--metric", type=click.Choice(["euclidean", "cosine"]), default="euclidean", show_default=True)
@preprocess_option
@invalid_option("raise", "skip", "mean", text="skip: leave rows with NaN or infinity out; mean: fill NaN.")
def sweep(paths: Sequence[str], n_clusters: str, output: str, settings: Sequence[str], **options: Any) -> None:
    """Cluster a sample into many numbers of clusters and score each.

    DATA, or a sketch store, are read once. Writes sweep.csv, sweep.json and, with matplotlib, the picture sweep.svg.
    """
    with Talk(**options) as talk:
        from streamkm.cli.data import usual_steps
        from streamkm.cli.results import check_target, json_text, stage_texts, staged
        from streamkm.model_selection.sweep import sweep as run_sweep
        from streamkm.reports.report import has_matplotlib

        check_target(output, overwrite=options["overwrite"], results=SWEEP_RESULTS)
        with work(paths, settings, options) as source:
            given = ("metric", "preprocess", "invalid", "random_state", "memory_limit", "executor")
            how = {"progress": False if options["quiet"] else "auto", **{name: options[name] for name in given}}
            if options["preprocess"] is None:
                how["preprocess"] = usual_steps(source, options["metric"])
            result = run_sweep(source, clusters_of(n_clusters), **how)
        texts = {"sweep.csv": result.csv_text(), "sweep.json": json_text(result.to_dict())}
        if has_matplotlib():
            from streamkm.reports.figures import svg_file

            texts["sweep.svg"] = svg_file(result.plot())
        with staged(Path(output), SWEEP_RESULTS, overwrite=options["overwrite"]) as stage:
            stage_texts(stage, texts)
        talk.say([*result.lines(), ("results", output)])


def clusters_of(text: str) -> list[int]:
    """Read numbers of clusters (``50``, ``2,5,10``, ``2:200``, ``10:200:10``); InvalidParameterError for other text."""
    found: list[int] = []
    for part in text.split(","):
        try:
            first, last, *step = map(int, part.split(":") if ":" in part else (part, part))
            numbers = range(first, last + 1, *step) if first > 0 else ()
        except (ValueError, TypeError):
            numbers = ()
        if not numbers:
            raise InvalidParameterError(f"clusters {part!r}; needed: a number (50) or a range (2:200:1)")
        found.extend(numbers)
    return found


@click.command()
@data_options
@click.option("--threshold", type=float, default=0.95, show_default=True, help="Cosine of near-duplicates, at least.")
@click.option("-o", "--output", required=True, type=click.Path(), help="Numbers of the rows that are kept: KEEP.npy.")
@click.option(
    "--keep", type=click.Choice(["nearest", "farthest"]), default="nearest", show_default=True,
    help="Which of near-duplicates: that nearest to the center of its cluster, or farthest from it.",
)  # fmt: skip
@click.option("-k", "--n-clusters", type=click.IntRange(1), help="Clusters to compare in.  [default: sqrt(rows) / 4]")
@click.option("--seed", type=click.IntRange(0, (1 << 32) - 1), default=0, show_default=True, help="Of the clusters.")
@invalid_option("raise", "skip", text="skip: leave rows with NaN or infinity out.")
@restart_option
def dedupe(paths: Sequence[str], output: str, settings: Sequence[str], **options: Any) -> None:
    """Find the rows that are left without near-duplicates.

    Rows are clustered by their angles; within a cluster a row goes if its cosine to one that is kept is THRESHOLD or
    more. Numbers of the others, counted from 0, are written to KEEP.npy, ascending. Pairs in different clusters are not
    compared; the summary says how many these are, about. A run that was interrupted goes on where it was.
    """
    with Talk(**options) as talk:
        from streamkm.cli.results import kept_directory, write_npy
        from streamkm.deduplication import dedupe as find_duplicates
        from streamkm.engine.checkpoint import forget

        place = Path(output)
        if place.suffix != ".npy":
            raise OutputError(f"row numbers are written as .npy, not as {place.name}; choose such a name with -o")
        check_new(place, overwrite=options["overwrite"])
        directory = kept_directory(output, restart=options["restart"])
        with work(paths, settings, options) as source:
            found = find_duplicates(
                source,
                n_clusters=options["n_clusters"] or "auto",
                checkpoint=directory,
                progress=False if options["quiet"] else "auto",
                random_state=options["seed"],
                **{name: options[name] for name in ("threshold", "keep", "memory_limit", "executor", "invalid")},
            )
        write_npy(output, found.rows, overwrite=options["overwrite"])
        forget(directory)
        talk.say([*found.lines()[:-1], talk.time(), ("numbers", output)])  # not that of the stages alone
