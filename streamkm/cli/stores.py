"""The commands that write sketch stores: ``streamkm sketch`` and ``append``.

Responsible for their options and for what they say. The work is done elsewhere.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any

import click

from streamkm.cli.common import Talk, work
from streamkm.cli.options import (
    invalid_option,
    memory_option,
    overwrite_option,
    preprocess_option,
    set_option,
    table_options,
    talk_options,
    threads_option,
)


@click.command()
@click.argument("paths", nargs=-1, required=True, metavar="DATA...")
@click.option("-o", "--output", required=True, type=click.Path(), help="The store, a directory: STORE.zarr.")
@click.option("--sketch", default="auto", show_default=True, help="auto, countsketch, pca or identity.")
@click.option("-m", "--n-components", type=int, help="Components.  [default: as fit]")
@click.option("--seed", type=click.IntRange(0, (1 << 64) - 1), default=0, show_default=True, help="Of the sketch.")
@click.option("--metric", type=click.Choice(["euclidean", "cosine"]), default="euclidean", show_default=True)
@preprocess_option
@invalid_option("raise", "skip", text="skip: keep rows with NaN or infinity as rows of NaN.")
@memory_option
@threads_option
@set_option
@table_options
@overwrite_option
@talk_options
def sketch(paths: Sequence[str], output: str, settings: Sequence[str], **options: Any) -> None:
    """Sketch DATA... into a store that can be clustered.

    One pass, and one for each step of --preprocess that must know all rows. Cluster the store with streamkm fit.
    Document frequencies are kept in STORE.tfidf.npz, for streamkm append --set text.tfidf=STORE.tfidf.npz.
    """
    with Talk(quiet=options["quiet"], verbose=options["verbose"]) as talk:
        from streamkm.cli.data import check_frequencies_target, write_frequencies
        from streamkm.engine import open_executor, under_limit
        from streamkm.preparation import check_steps
        from streamkm.sketches import SketchOptions
        from streamkm.stores.operations import check_store_place, write_store
        from streamkm.stores.planned import choose_store_sketch, prepared_reader, reader_for_store

        weights = f"{output}.tfidf.npz"
        check_store_place(output, overwrite=options["overwrite"])
        check_frequencies_target(weights)
        with ExitStack() as stack:
            stack.enter_context(under_limit(options["memory_limit"]))
            limit, executor = options["memory_limit"], options["executor"]
            source = stack.enter_context(work(paths, settings, memory_limit=limit, executor=executor))
            # before the store: a kill leaves no store without what rows to be appended are weighted by
            frequencies = write_frequencies(weights, source)
            sketch = SketchOptions(options["sketch"], options["n_components"] or "auto")
            reader, n_threads = reader_for_store(
                source,
                options["metric"],
                options["invalid"],
                sketch=sketch,
                preprocess=check_steps(options["preprocess"]),
                memory_limit=limit,
                executor=executor,
            )
            workers = stack.enter_context(open_executor(executor, n_threads))
            reader = prepared_reader(reader, workers, talk.progress())
            stage = stack.enter_context(talk.stage("sketch", reader))
            found = choose_store_sketch(reader, sketch, options["seed"], workers, stage)
            store = write_store(output, reader, found, workers, stage, overwrite=options["overwrite"])
        kept = [("frequencies", frequencies)] if frequencies else []
        talk.say([("rows", f"{store.n_rows:,}"), ("store", output), *store.details().items(), *kept])


@click.command()
@click.argument("store", type=click.Path(exists=True, file_okay=False))
@click.argument("paths", nargs=-1, required=True, metavar="MORE...")
@invalid_option("raise", "skip", text="skip: keep rows with NaN or infinity as rows of NaN.")
@memory_option
@threads_option
@set_option
@talk_options
def append(store: str, paths: Sequence[str], settings: Sequence[str], **options: Any) -> None:
    """Add rows of MORE... to STORE, which stays as it is until the end."""
    with Talk(quiet=options["quiet"], verbose=options["verbose"]) as talk:
        from streamkm.engine import open_executor, under_limit
        from streamkm.sources.sketch_store import StoreInfo, StoreSource
        from streamkm.stores.compatibility import prepared_as
        from streamkm.stores.operations import append_rows
        from streamkm.stores.planned import reader_for_store

        with ExitStack() as stack:
            stack.enter_context(under_limit(options["memory_limit"]))
            limit, executor = options["memory_limit"], options["executor"]
            source = stack.enter_context(work(paths, settings, append_to=store, memory_limit=limit, executor=executor))
            source = prepared_as(StoreSource(store), source)
            metric = StoreInfo.read(store).metric
            reader, n_threads = reader_for_store(
                source, metric, options["invalid"], memory_limit=limit, executor=executor
            )
            workers = stack.enter_context(open_executor(executor, n_threads))
            stage = stack.enter_context(talk.stage("append", reader))
            found = append_rows(store, reader, workers, stage)
        talk.say([("rows", f"{found.n_rows:,}"), ("store", store), *found.details().items()])
