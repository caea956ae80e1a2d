"""The command line: commands, configuration files and result files.

Commands import what they need inside their functions, so that ``--help`` is quick. Nothing here computes clusters.
"""
