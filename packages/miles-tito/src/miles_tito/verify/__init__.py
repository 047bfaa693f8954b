"""Is a chat template safe for multi-turn training? Checked, not assumed."""

from miles_tito.verify.check import KINDS, REQUIRED, check_template
from miles_tito.verify.report import Failure, Finding, TemplateReport, Verdict

__all__ = ["KINDS", "REQUIRED", "Failure", "Finding", "TemplateReport", "Verdict", "check_template"]
