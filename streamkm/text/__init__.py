"""Documents to rows: values that say how, without a vocabulary. Where documents come from is the sources' business."""

from streamkm.text.bad_documents import BadDocumentError
from streamkm.text.feature_hashing import FeatureHashing
from streamkm.text.tfidf import IdfFit, TfIdf
from streamkm.text.words import WordCounts, WordTable

__all__ = ["BadDocumentError", "FeatureHashing", "IdfFit", "TfIdf", "WordCounts", "WordTable"]
