"""Charts of an advice: what each one shows, as data for the drawings of the room `drawing`."""

from smp_advisor.charts.charts import CHARTS, chart_of

__all__ = ["CHARTS", "chart_of"]
