"""What a shell user touches: commands, configuration files, result files, reports.

Estimators and everything below come in; click, YAML, pydantic, rich and matplotlib are used here. Nothing imports it.
Commands import what they need inside their functions, so that ``--help`` is quick.
"""
