"""Rows before they are clustered: `Preparation`, an immutable value that scales, and what finds it on rows.

Arrays and kernels come in; files, chunks and clusters never do. Which pass finds it is `passes.prepare`'s business.
"""

from streamkm.preparation.preparation import STEPS, Preparation, check_steps

__all__ = ["STEPS", "Preparation", "check_steps"]
