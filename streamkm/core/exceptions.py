"""The exceptions and warnings that streamkm raises on purpose.

Every error derives from `StreamkmError`, every warning from `StreamkmWarning`, and most errors also from the built-in
class that scikit-learn or NumPy would raise. A message gives the value seen, the value needed, the remedy, and the
place (file, dataset, row, byte).
"""


class StreamkmError(Exception):
    """Base of every error that streamkm raises on purpose."""


class InvalidInputError(StreamkmError, ValueError):
    """The data are wrong: malformed text, NaN, shapes that do not fit."""


class InvalidParameterError(StreamkmError, ValueError):
    """A parameter has a value or type that is not accepted."""


class ConfigError(StreamkmError, ValueError):
    """A configuration file or an override is wrong."""


class SourceError(StreamkmError, OSError):
    """A file or store cannot be read: truncated, corrupt, of another format, no permission."""


class SourceNotFoundError(SourceError, FileNotFoundError):
    """A path, dataset or group does not exist."""


class OutputError(StreamkmError, OSError):
    """Results cannot be written to the given path."""


class DiskFullError(OutputError):
    """There is no space for a file; files that were complete before are unchanged."""


class InUseError(OutputError):
    """Another process writes to the same checkpoint or store."""


class CheckpointError(StreamkmError, ValueError):
    """A checkpoint belongs to another run, or to a version that this release does not know."""


class StoreError(StreamkmError, ValueError):
    """Rows or a model do not fit a sketch store: another sketch, metric, width, or a changed input."""


class ModelFileError(StreamkmError, ValueError):
    """A saved model is damaged or of a version that this release does not know."""


class MemoryLimitError(MemoryError, StreamkmError):  # in the other order, Dask cannot bring it from a worker
    """The work does not fit in the available memory; raised before the first read, or by too long a line of text.

    `needed_bytes`: the limit that suffices by the message; None where no limit of this process helps. `remedy`: other
    remedies. `on_workers`: whether the limit is that of a cluster's workers.
    """

    def __init__(
        self, said: str = "", needed_bytes: int | None = None, remedy: str = "", on_workers: bool = False
    ) -> None:
        super().__init__(said, needed_bytes, remedy, on_workers)
        self.said, self.needed_bytes, self.remedy = said, needed_bytes, f", or {remedy}" if remedy else ""
        self.on_workers = on_workers

    def __str__(self) -> str:
        named = -(-(self.needed_bytes or 0) >> 20)
        raising = "start workers with a memory limit of at least" if self.on_workers else "raise memory_limit to"
        return f"{self.said}; {raising} {named:,} MiB{self.remedy}" if named else self.said


class MissingDependencyError(StreamkmError, ImportError):
    """An optional package is needed; the message names the extra that brings it."""


class ClusterError(StreamkmError, RuntimeError):
    """A Dask cluster cannot go on: its scheduler is out of reach, or lost workers held the only copy of some data."""


class StreamkmWarning(UserWarning):
    """Base of every warning of streamkm."""


class IgnoredStartsWarning(StreamkmWarning, RuntimeWarning):
    """`n_init` is ignored, as initial centers were given."""
