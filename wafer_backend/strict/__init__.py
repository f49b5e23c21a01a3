"""Strict mode: what the wafer would refuse is refused here, with the line of the script, the rule
and how to mend it. `rules` has the rules and their sources, `graph` what a step is, and `watch`
looks on while a script runs."""

from wafer_backend.strict.frames import on_host
from wafer_backend.strict.rules import RULES, StrictRule
from wafer_backend.strict.watch import StrictWatch

__all__ = ["RULES", "StrictRule", "StrictWatch", "on_host"]
