"""Rows that keep coming, of normal groups that move, are born, die, split and join, with the group of every row."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

NOISE = -1
FIRST_CHANGES = 2  # number of the step before which groups only move
SPREAD, NOISE_SPREAD = 2.5, 10.0  # standard deviations of centers, and of rows of no group
HALVES = (0.6, 0.4)  # of a group's rows, when it splits
APART = 4.0  # centers of halves from the old one, in mean standard deviations of the group


@dataclass(frozen=True, slots=True)
class Group:
    """A normal distribution with independent features."""

    center: NDArray[np.float64]
    deviations: NDArray[np.float64]
    size: float  # relative number of rows


@dataclass(frozen=True, slots=True)
class Step:
    """Rows that come together."""

    X: NDArray[np.float32]
    groups: NDArray[np.int32]  # the group of each row; -1: it belongs to none, and may lie anywhere


@dataclass(frozen=True, slots=True)
class MovingGroups:
    """A stream of rows; it depends on these values only."""

    n_steps: int = 12
    n_rows: int = 50_000  # of a step
    n_features: int = 24
    n_groups: int = 40
    move: float = 0.05  # standard deviation by which a center moves in a step, in those of its group
    n_changes: int = 2  # births, deaths, splits and joins in a step, of each kind
    noise: float = 0.002  # share of rows that belong to no group
    seed: int = 0

    def steps(self) -> Iterator[Step]:
        """All steps, in order."""
        rng = np.random.default_rng(self.seed)
        groups = {number: self._new(rng) for number in range(self.n_groups)}
        n_named = self.n_groups
        for step in range(self.n_steps):
            groups = {number: self._moved(group, rng) for number, group in groups.items()}
            for _ in range(self.n_changes if step >= FIRST_CHANGES else 0):
                self._change(groups, n_named, rng)
                n_named += 2
            yield Step(*self._rows(groups, rng))

    def _new(self, rng: np.random.Generator) -> Group:
        center = SPREAD * rng.normal(size=self.n_features)
        return Group(center, rng.uniform(0.5, 1.0, self.n_features), 0.2 + rng.pareto(1.5))

    def _moved(self, group: Group, rng: np.random.Generator) -> Group:
        center = group.center + self.move * group.deviations * rng.normal(size=self.n_features)
        return replace(group, center=center, size=group.size * np.exp(0.05 * rng.normal()))

    def _change(self, groups: dict[int, Group], name: int, rng: np.random.Generator) -> None:
        """Let a group die, one be born, one split and one join its nearest; new ones are `name` and the next number."""
        dead = int(rng.choice(list(groups)))
        del groups[dead]
        groups[name] = self._new(rng)

        parent, half = int(rng.choice(list(groups))), name + 1
        old, way = groups[parent], rng.normal(size=self.n_features)
        way *= APART * old.deviations.mean() / np.linalg.norm(way)
        groups[parent] = replace(old, center=old.center - way, size=HALVES[0] * old.size)
        groups[half] = replace(old, center=old.center + way, size=HALVES[1] * old.size)

        one = int(rng.choice(list(groups)))
        far = {number: np.square(groups[number].center - groups[one].center).sum() for number in groups}
        nearest = min((number for number in groups if number != one), key=far.__getitem__)
        smaller, larger = sorted((one, nearest), key=lambda number: groups[number].size)
        groups[larger] = replace(groups[larger], size=groups[larger].size + groups.pop(smaller).size)

    def _rows(
        self, groups: dict[int, Group], rng: np.random.Generator
    ) -> tuple[NDArray[np.float32], NDArray[np.int32]]:
        """Rows of a step, and the group of each."""
        numbers, sizes = np.array(list(groups), np.int32), np.array([group.size for group in groups.values()])
        drawn = rng.choice(len(numbers), self.n_rows, p=sizes / sizes.sum())
        centers = np.array([group.center for group in groups.values()])
        deviations = np.array([group.deviations for group in groups.values()])
        X = centers[drawn] + deviations[drawn] * rng.normal(size=(self.n_rows, self.n_features))
        strays = rng.random(self.n_rows) < self.noise
        X[strays] = NOISE_SPREAD * rng.normal(size=(int(strays.sum()), self.n_features))
        return X.astype(np.float32), np.where(strays, NOISE, numbers[drawn]).astype(np.int32)
