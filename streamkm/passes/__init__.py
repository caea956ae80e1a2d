"""Reading every row once: to sketch, to count words, to assign, lazily; with what is kept of a pass that was killed.

A `PassContext` comes in: an executor, how rows are walked, weights and the checkpoint; each module is one kind of pass.
Nothing here searches for centers or knows scikit-learn.
"""
