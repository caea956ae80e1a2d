"""The interface of a pass, which reads all rows once, and the only loops over rows. Knows no centers or files."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any, ClassVar, Generic, Protocol, TypeVar

from streamkm.core.progress import Stage
from streamkm.engine.checkpoint import CheckpointWriter
from streamkm.engine.executor import Executor, Folded, Large, Listener

State = TypeVar("State")
Output = TypeVar("Output")
Taken_contra = TypeVar("Taken_contra", contravariant=True)
Result = TypeVar("Result")


class Readable(Protocol):
    """Rows in items, each of which is read at once: the chunks of a source, or held blocks."""

    @property
    def n_items(self) -> int:
        """The number of items; 1 if it is not known beforehand."""

    def items(self, executor: Executor) -> Iterator[Any]:
        """Items that calls read, in order."""

    def reader(self, executor: Executor) -> Any:
        """The argument of `Pass.read` by which calls read an item."""

    def large(self, state_bytes: float) -> Large:
        """Whether states or items take the memory of a fold with states of this size; see `Executor.fold`."""

    def reading(self, stage: Stage) -> AbstractContextManager[None]:
        """Check that the source did not change since it was opened; tell a stage how many rows and bytes were read."""
        return nullcontext()


class Map(ABC, Generic[Output]):
    """A function of the rows of each item alone, sent to workers once, before the first item."""

    @abstractmethod
    def output(self, rows: Any) -> Output:
        """The output for the rows of one item; for a sink that holds outputs, the pair of large and small part."""

    def read(self, reader: Any, item: Any) -> Any:
        """Read the rows of one item."""
        return reader.read(item)


class HeldMap(Map[tuple[Any, Output]]):
    """A map whose outputs are pairs: a large part, which stays where it was made, and a small part, which is sent."""

    @abstractmethod
    def join(self, first: Output, second: Output) -> Output:
        """Join the small parts of consecutive items; the first may be changed, the second may not."""


class Pass(ABC, Generic[State, Output, Result]):
    """A state that is gathered while all rows are read once. Sent to workers once, before the first item."""

    saved_as: ClassVar[Any] = Any  # type of a state, for checkpoints

    @property
    def state_bytes(self) -> float:
        """Approximate bytes of a state."""
        return 0.0

    def start(self) -> State:
        """An empty state, to which the first rows of a run are added."""
        return None  # type: ignore[return-value]

    @abstractmethod
    def step(self, state: State, rows: Any) -> tuple[State, Output]:
        """Add the rows of one item to a state, which may be changed; return it and the item's output or None."""

    @abstractmethod
    def join(self, first: State, second: State) -> State:
        """Join the states of consecutive rows; the first may be changed, the second may not."""

    def finish(self, state: State) -> Result:
        """Make the result of the joined state."""
        return state  # type: ignore[return-value]

    def read(self, reader: Any, item: Any) -> Any:
        """Read the rows of one item."""
        return reader.read(item)


class Sink(Protocol[Taken_contra]):
    """Takes outputs in the order of the rows."""

    held: ClassVar[bool]  # whether outputs stay where they were made, and the sink takes their handles

    def take(self, output: Taken_contra) -> None:
        """Take the next output, or its handle."""

    def restore(self, n_items: int) -> bool:
        """Continue after `n_items` items of an earlier run; False, unless overridden: their outputs are not saved."""
        return False

    def save(self, name: str, folded: Folded[Any]) -> None:
        """Save the outputs of the folded items, then the progress of the fold under a name; nothing by default."""
        return


def run(
    pass_: Pass[State, Output, Result],
    rows: Readable,
    executor: Executor,
    stage: Stage,
    *,
    sink: Sink[Output] | None = None,
    writer: CheckpointWriter | None = None,
    record: str = "",
) -> Result:
    """Read all rows once; return the result of the pass, with the same bits for any workers and interruptions.

    `stage` advances by one for each item. Without a `sink`, outputs are dropped. `writer` saves the state as it grows,
    under the name `record`, from which it is restored.
    """
    shared = executor.share((rows.reader(executor), pass_))
    begun: Folded[State] | None = None
    if writer is not None:
        begun = writer.load(record, Folded[pass_.saved_as])  # type: ignore[name-defined]
    if begun is not None and sink is not None and not sink.restore(begun.n_items):
        begun = None
    if begun is not None:
        stage.advance(begun.n_items)
    watched = sink is not None or stage.on_advance is not None or stage.after_advance is not None

    def take(output: Any) -> None:
        if sink is not None:
            sink.take(output)
        stage.advance()

    def save(folded: Callable[[], Folded[State]], is_last: bool) -> None:
        if writer is not None:
            write = writer.save if sink is None else sink.save
            writer.when_due(lambda: write(record, folded()), is_due=is_last)

    held = sink is not None and sink.held
    listener = Listener(take if watched else None, held, begun, save if writer else None)
    with rows.reading(stage):
        state = executor.fold(
            stage.name,
            _step,
            _join,
            rows.items(executor),
            rows.n_items,
            shared,
            large=rows.large(pass_.state_bytes),
            listener=listener,
        )
    return pass_.finish(pass_.start() if state is None else state)


def outputs(
    map_: Map[Output], rows: Readable, executor: Executor, stage: Stage, *, large: bool = False
) -> Iterator[Output]:
    """Read all rows once; yield the output for each item, in order; few wait if they are as `large` as the rows."""
    shared = executor.share((rows.reader(executor), map_))
    with rows.reading(stage):
        for output in executor.map(stage.name, _output, rows.items(executor), shared, large=large):
            yield output
            stage.advance()


def held_outputs(
    map_: Map[tuple[Any, Any]], rows: Readable, executor: Executor, stage: Stage, *, once: bool = False
) -> Iterator[tuple[Any, Any]]:
    """Read all rows once; yield for each item the handle of the large part of its output, and the small part.

    The small parts of a `HeldMap` may be joined: a joined one comes with the last of its items, None with the others.
    `once`: a cluster joins all of them.
    """
    shared = executor.share((rows.reader(executor), map_))
    join = _join if isinstance(map_, HeldMap) else None
    with rows.reading(stage):
        for pair in executor.hold(stage.name, _output, rows.items(executor), shared, join=join, once=once):
            yield pair
            stage.advance()


def _step(state: Any, item: Any, shared: tuple[Any, Pass[Any, Any, Any]]) -> tuple[Any, Any]:
    reader, pass_ = shared
    return pass_.step(pass_.start() if state is None else state, pass_.read(reader, item))


def _output(item: Any, shared: tuple[Any, Map[Any]]) -> Any:
    reader, map_ = shared
    return map_.output(map_.read(reader, item))


def _join(first: Any, second: Any, shared: tuple[Any, Pass[Any, Any, Any] | HeldMap[Any]]) -> Any:
    return shared[1].join(first, second)
