"""The command ``streamkm warm``: its options, and what it says. The work is done in kernels."""

from __future__ import annotations

import click

from streamkm.cli.common import Talk
from streamkm.cli.options import talk_options


@click.command()
@click.option(
    "--kernels", type=click.Choice(["all", "fits"]), default="all", show_default=True,
    help="fits: only those that large fits of k-means call.",
)  # fmt: skip
@click.option("--threads", type=click.IntRange(1), help="Processes that compile.  [default: one for each processor]")
@talk_options
def warm(kernels: str, threads: int | None, **talking: bool) -> None:
    """Compile kernels before the first fit, for all processes that share the cache.

    The cache is where NUMBA_CACHE_DIR says, else beside the package, or in the cache of the user. Use it when an image
    of a container is built, or on each machine before workers of a cluster are started: python -m streamkm warm.
    """
    with Talk(**talking) as talk:
        from streamkm.engine import local_threads
        from streamkm.kernels.precompile import listed_kernels
        from streamkm.kernels.warming import warm as compile_all

        wanted = listed_kernels(large_fits_only=kernels == "fits")
        with talk.progress().stage("kernels", len(wanted), "kernels") as stage:
            found = compile_all(wanted, threads or local_threads(), stage.advance)
        there = found.n_kernels - found.n_compiled
        made = f"{found.n_compiled:,} compiled in {stage.seconds:.0f} s, {there:,} in the cache before"
        text = f"{found.n_kernels:,}, {'all in the cache before' if not found.n_compiled else made}"
        talk.say([("kernels", text), ("cache", found.folder)])
