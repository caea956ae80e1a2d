"""What a fit will do and take, before a row is read: sizes, passes, memory, seconds. Arithmetic on what is known.

A source's description, parameters and a limit come in; nothing here reads rows or starts work.
"""
