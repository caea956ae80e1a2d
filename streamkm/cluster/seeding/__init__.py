"""Where clustering starts: the rows that starts are searched on, and the centers chosen among them.

Blocks and their sample come in; sources do not.
"""
