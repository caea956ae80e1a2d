"""Documents to rows: hashing of words and tf-idf, without a vocabulary.

Documents come in, sparse rows go out. Nothing here opens files.
"""

from streamkm.text.feature_hashing import BadDocumentError, FeatureHashing
from streamkm.text.tfidf import TfIdf
from streamkm.text.words import WordTable

__all__ = ["BadDocumentError", "FeatureHashing", "TfIdf", "WordTable"]
