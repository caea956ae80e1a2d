"""What theorems promise of sketches: how many components they need, and which sketch keeps a promise at least cost.

Arithmetic on numbers and small samples; nothing here sketches rows.
"""
