"""Commands, configuration and results; commands import inside their functions, so that ``--help`` is quick."""
