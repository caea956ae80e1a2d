"""How long a fit would take on other machines, or on more rows: the cost model, its inputs and its results.

What rows cost is measured by `fitting.benchmark`; nothing here reads rows or starts work.
"""

from streamkm.planning.forecast.cost_model import forecast
from streamkm.planning.forecast.hypothetical import HypotheticalSource
from streamkm.planning.forecast.values import Cluster, Cost, Forecast, Rates, Step, human_seconds

__all__ = ["Cluster", "Cost", "Forecast", "HypotheticalSource", "Rates", "Step", "forecast", "human_seconds"]
