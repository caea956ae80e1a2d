"""scikit-learn's surface: parameters in, attributes out; `base` is shared, `validation` checks what users pass.

Fits, planning and passes come in; nothing here reads files, moves rows or prints.
"""
