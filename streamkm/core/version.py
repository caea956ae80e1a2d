"""The version of the package: what files and summaries say they were made by."""

__version__ = "0.1.0"
