"""Reading every row once: to sketch, to count words, to assign, lazily; with what is kept of a pass that was killed.

An executor, a reader of rows and a plan come in; each module is one kind of pass. Nothing here searches for centers or
knows scikit-learn.
"""
