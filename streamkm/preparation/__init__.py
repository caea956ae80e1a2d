"""Scaling of rows before they are clustered: `Preparation`, an immutable value, and the statistics that determine it.

`passes.prepare` gathers the statistics from a source. Nothing here knows files, chunks or clusters.
"""

from streamkm.preparation.preparation import DOMAINS, STEPS, Preparation, check_preprocess, check_steps

__all__ = ["DOMAINS", "STEPS", "Preparation", "check_preprocess", "check_steps"]
