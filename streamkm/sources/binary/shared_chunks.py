"""Storage chunks that neighbouring reads share: decoded by whoever comes first, held for those who have not come.

Responsible for what is held and for how long. What the values mean is none of its business.
"""

from __future__ import annotations

import threading
from collections import Counter, OrderedDict
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any
from weakref import WeakSet

from numpy.typing import NDArray

from streamkm.sources.stored import StoredArray

Interval = tuple[int, int]


@dataclass(slots=True, eq=False)
class _Held:
    """Values of a storage chunk, or the part of them that is left for others."""

    # which values of the array
    start: int
    stop: int
    left: tuple[Interval, ...]  # of these, those that will be asked for
    once: set[int] = field(default_factory=set)  # of those, the ones that two ask for, and one has
    values: Future[NDArray[Any]] = field(default_factory=Future)  # Future of ndarray of shape (stop - start,)

    def take(self, start: int, stop: int, twice: Sequence[int]) -> None:
        """Note that values were asked for; of these, `twice` are for two."""
        kept = []
        for at in twice:
            if not start <= at < stop:
                continue
            if at in self.once:
                self.once.remove(at)
            else:
                self.once.add(at)
                kept.append((at, at + 1))
        pieces = [piece for low, high in self.left for piece in ((low, min(high, start)), (max(low, stop), high))]
        self.left = tuple(sorted(piece for piece in (*pieces, *kept) if piece[0] < piece[1]))


class SharedChunks:
    """Decoded storage chunks of which some reads had their part, and others will come for theirs.

    A storage chunk that one thread decodes is waited for by the others. Of one that most values were read of, the rest
    is held as a copy, and nothing of one that was read whole: so threads that walk runs of reads in order hold one
    storage chunk of each array, and the small pieces where runs meet.

    `most_bytes`: held besides the newest that does not fit in of each array, for each thread that reads. Where there is
    more, the least recently used goes, and is decoded again.
    """

    def __init__(self, most_bytes: int) -> None:
        self._most_bytes = most_bytes
        self._lock = threading.Lock()
        self._held: OrderedDict[tuple[str, int], _Held] = OrderedDict()
        self._threads: WeakSet[threading.Thread] = WeakSet()

    def get(self, array: StoredArray, start: int, stop: int, twice: Sequence[int] = ()) -> NDArray[Any]:
        """Give values `start` to `stop` of an array, all of one storage chunk; not to be changed.

        Those numbered `twice`, if they are among them, are asked for by two; all others by one.

        Raises SourceError as the array; whoever waited for the same storage chunk gets it too, and it is tried again
        next time.
        """
        key = (array.name, start // array.unit_rows)
        with self._lock:
            self._threads.add(threading.current_thread())
            found = self._held.get(key)
            new = found is None or start < found.start or found.stop < stop
            held = self._begin(key, array, found) if found is None or new else found
            held.take(start, stop, twice)
            self._held.move_to_end(key)
        if new:
            try:
                held.values.set_result(array.read(held.start, held.stop))
            except BaseException as error:
                with self._lock:
                    if self._held.get(key) is held:
                        del self._held[key]
                held.values.set_exception(error)
                raise
        values = held.values.result()[start - held.start : stop - held.start]
        with self._lock:
            if self._held.get(key) is held:
                self._trim(key, held)
            self._make_room()
        return values

    def _begin(self, key: tuple[str, int], array: StoredArray, found: _Held | None) -> _Held:
        first = key[1] * array.unit_rows
        last = min(first + array.unit_rows, array.shape[0])
        held = _Held(first, last, ((first, last),)) if found is None else _Held(first, last, found.left, found.once)
        self._held[key] = held
        return held

    def _trim(self, key: tuple[str, int], held: _Held) -> None:
        """Drop what was read whole; of what was mostly read, copy the rest."""
        if not held.left:
            del self._held[key]
            return
        start, stop = held.left[0][0], held.left[-1][1]
        if 2 * (stop - start) < held.stop - held.start:
            rest = self._held[key] = _Held(start, stop, held.left, held.once)
            rest.values.set_result(held.values.result()[start - held.start : stop - held.start].copy())

    def _make_room(self) -> None:
        room = self._most_bytes
        large: Counter[str] = Counter()
        for key, held in reversed(list(self._held.items())):
            if not held.values.done():
                continue
            n_bytes = held.values.result().nbytes
            if n_bytes <= room:
                room -= n_bytes
            elif large[key[0]] < len(self._threads):
                large[key[0]] += 1
            else:
                del self._held[key]
