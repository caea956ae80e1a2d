"""The plan of a fit before a row is read: sizes, passes and memory, by arithmetic on known numbers."""
