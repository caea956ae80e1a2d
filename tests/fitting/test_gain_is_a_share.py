"""What could be gained is a share of the objective: never above 1, and none below the rounding of the centers."""

import warnings

import numpy as np
import pytest

from streamkm import StreamKMeans
from streamkm.core.exceptions import StreamkmWarning
from streamkm.fitting.gain import GainEstimate

NANOSECONDS = 1_704_067_200_000_000_000  # of 2024


@pytest.mark.parametrize(("n_each", "width"), [(250, 500), pytest.param(20_000, 4000, marks=pytest.mark.slow)])
def test_times_in_nanoseconds_gain_nothing_by_the_rounding_of_means(n_each, width):
    rng = np.random.default_rng(0)
    groups = np.repeat(np.arange(4), n_each)
    times = NANOSECONDS + groups * 4 * width + rng.integers(0, width, len(groups))
    with pytest.warns(StreamkmWarning, match=r"integers of 64 bits from 2\^53 on") as told:
        found = StreamKMeans(4, random_state=0).fit(times[:, None])
    assert len(told) == 1
    assert found.possible_gain_ == 0
    assert found.n_passes_ == 2
    assert len(set(zip(groups.tolist(), found.labels_.tolist(), strict=True))) == 4


def test_no_gain_is_above_all():
    assert GainEstimate(311.6).gain == 1
    assert GainEstimate(0.0, 0.2).gain == 0.2


@pytest.mark.parametrize(("offset", "metric"), [(10_000, "euclidean"), (100, "cosine"), (10_000, "cosine")])
def test_repeated_float32_rows_gain_nothing_by_their_own_rounding(offset, metric):
    rows = np.repeat(np.random.default_rng(0).normal(size=(4, 5)) + offset, 300, axis=0).astype(np.float32)
    with warnings.catch_warnings():
        warnings.simplefilter("error", StreamkmWarning)
        found = StreamKMeans(4, random_state=0, metric=metric).fit(rows)
    assert found.possible_gain_ == 0
    assert found.n_passes_ == 2
