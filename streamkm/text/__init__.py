"""Documents to sparse rows: hashing of words and tf-idf, without a vocabulary. Opens no files."""

from streamkm.text.feature_hashing import BadDocumentError, FeatureHashing
from streamkm.text.tfidf import TfIdf
from streamkm.text.words import WordTable

__all__ = ["BadDocumentError", "FeatureHashing", "TfIdf", "WordTable"]
