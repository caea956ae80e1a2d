"""The command ``streamkm warm``: kernels are compiled by tiny fits of dense and of sparse rows."""

from __future__ import annotations

import os

import click

from streamkm.cli.common import Talk, print_pairs
from streamkm.cli.options import talk_options
from streamkm.core.progress import COMPILING


@click.command()
@talk_options
def warm(*, quiet: bool, verbose: bool) -> None:
    """Compile kernels before the first fit, for all processes that share the cache.

    The cache is where NUMBA_CACHE_DIR says, else beside the package, or in the cache of the user. Use it when an image
    of a container is built, or on each machine before workers of a cluster are started: python -m streamkm warm.
    """
    with Talk(quiet=not verbose, verbose=verbose):  # how these fits go is of no interest
        from streamkm.estimators import fit_tiny
        from streamkm.kernels.centers.nearest import nearest_csr
        from streamkm.kernels.text.svmlight import parse_rows

        list(fit_tiny())
    compiled = f"{COMPILING.done:,.0f} compiled in {COMPILING.seconds:.0f} s"
    folder = os.path.commonpath([each.stats.cache_path for each in (nearest_csr, parse_rows)])
    if not quiet:
        print_pairs([("kernels", compiled if COMPILING.done else "all in the cache before"), ("cache", folder)])
