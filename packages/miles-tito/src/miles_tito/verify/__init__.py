"""Is a chat template safe for multi-turn training? Checked, not assumed."""

from miles_tito.verify.check import Settings, check_target, check_template
from miles_tito.verify.report import Failure, Finding, TemplateReport, Unusable, Verdict
from miles_tito.verify.rules import RULES, Rule
from miles_tito.verify.shapes import KINDS, REQUIRED
from miles_tito.verify.targets import Target, targets_in

__all__ = [
    "KINDS",
    "REQUIRED",
    "RULES",
    "Failure",
    "Finding",
    "Rule",
    "Settings",
    "Target",
    "TemplateReport",
    "Unusable",
    "Verdict",
    "check_target",
    "check_template",
    "targets_in",
]
