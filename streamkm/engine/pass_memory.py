"""Memory of a pass: the sizes that it declares, and the formula that adds them up, with measured constants."""

from __future__ import annotations

from dataclasses import dataclass

from streamkm.engine.executor import STATES_AHEAD
from streamkm.engine.reduction import FEW_RUNS, RUNS, count_levels, count_runs, run_length

MIB = 1 << 20
READ_BYTES = 8 * MIB  # of a reading thread: kernels, buffers and decoders' threads, beyond its chunk
STREAM_PIECES = 2  # of a source that streams, beside those that wait for threads: one being made of another
IN_FLIGHT = 4  # states joined, being joined and being returned, beyond those that threads work on and ahead
TOLD_COPIES = 3  # of a message to the client: one arriving, one being taken, and the next


def waiting_calls(n_threads: int) -> int:
    """Calls that have been started and whose results have not been taken yet; see `engine.executor`."""
    return n_threads + max(2, n_threads // 2)


@dataclass(frozen=True, slots=True, kw_only=True)
class PassMemory:
    """Bytes that a pass takes beside the rows that its calls read."""

    # held from the beginning to the end of the pass: tables that it needs, and outputs of it and of earlier passes
    kept: int = 0
    state: int = 0  # of a state of a fold
    # states that exist at a time; None: one for each call in flight, and those that wait to be joined
    n_states: int | None = None
    call: int = 0  # of a call, beside its chunk, which has been read then
    output: int = 0  # of a call's output, which waits to be taken
    told: float = 0.0  # of the message that a call on a cluster sends to the client
    end: int = 0  # while a state is finished, when no rows are read
    reads: bool = True  # whether the pass reads rows of the source; else it runs over held blocks


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadingMemory:
    """Sizes that decide how much memory reading takes; see `RowSource` for those of the source."""

    n_threads: int
    read_factor: float  # bytes that reading takes for each byte of a chunk
    largest_chunk: int  # decoded bytes of the largest chunk
    n_chunks: int = 1
    producer_bytes: int = 0  # of the source
    shared_bytes: int = 0
    streams: bool = False  # of the source. Pieces of one that streams wait in memory for threads
    sequential: bool = False
    # whether the work is done by workers of a Dask cluster, which send their results to this process
    on_cluster: bool = False
    sent: bool = False  # whether this process reads the rows and sends them to workers, as they cannot read the source

    def resident_bytes(self, call: int = 0) -> int:
        """Bytes of reading in this process, or of calls that take `call` bytes beside the chunks that they have read.

        This process reads nothing if workers read the source themselves.
        """
        if self.on_cluster and not self.sent:
            return READ_BYTES
        pieces = (waiting_calls(self.n_threads) + STREAM_PIECES) * self.largest_chunk if self.streams else 0
        each = max(int(self.read_factor * self.largest_chunk), self.largest_chunk + call) + READ_BYTES
        return self.n_threads * each + pieces + self.producer_bytes

    @property
    def usual_states(self) -> int:
        """States of a fold at a time, for states of any size."""
        return waiting_calls(self.n_threads) + IN_FLIGHT

    def large_states(self, state_bytes: int) -> int:
        """States of `state_bytes` at a time: those of calls in flight, and those that wait to be joined."""
        is_large = state_bytes > self.largest_chunk
        each = self.streams or (self.sequential and not is_large)
        n_runs = self.n_chunks if each else count_runs(self.n_chunks, FEW_RUNS if is_large else RUNS)
        return self.n_threads + STATES_AHEAD + count_levels(n_runs)

    def peak(self, memory: PassMemory) -> int:
        """Bytes of a pass at its peak, beside what the process holds."""
        n_states = self.usual_states if memory.n_states is None else memory.n_states
        calls = self.n_threads * memory.call * (not memory.reads) + waiting_calls(self.n_threads) * memory.output
        told = int(TOLD_COPIES * run_length(self.n_chunks, RUNS) * memory.told) if self.on_cluster else 0
        passing = self.resident_bytes(memory.call) * memory.reads + n_states * memory.state + calls + told
        return memory.kept + max(passing, memory.end)
