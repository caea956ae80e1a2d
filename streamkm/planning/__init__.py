"""The plan of a fit before a row is read: sizes, passes and memory, by arithmetic on known numbers.

The description of a source, parameters and a limit come in. Nothing here reads rows or starts work.
"""
