"""Charts of an advice: what each one shows, and its drawing as SVG text."""

from smp_advisor.charts.charts import CHARTS, chart_of

__all__ = ["CHARTS", "chart_of"]
