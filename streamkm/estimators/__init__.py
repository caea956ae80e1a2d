"""scikit-learn's surface: parameters in, attributes out; `base`, `input_rows` and `model_files` are shared.

`planned` and `described` are parts of `StreamKMeans`, as `incremental` is; `validation` checks what users pass.

Fits, planning and passes come in; nothing here reads files, moves rows or prints.
"""
