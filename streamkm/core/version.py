"""The version of the package: what files and summaries say they were made by."""

VERSION = "0.1.0"
