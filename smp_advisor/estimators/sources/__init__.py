"""The forms of a configuration, each converted to a `Configuration`."""

from smp_advisor.estimators.sources.cell import configurations_of_cell
from smp_advisor.estimators.sources.recipe import configuration_of_recipe

__all__ = ["configuration_of_recipe", "configurations_of_cell"]
