"""The derived profile kept in a file, and what is derived otherwise later."""

from dataclasses import replace
from pathlib import Path

from miles_core.errors import ConfigError, TokenError
from miles_tito.pinning import differences
from miles_tito.profile import Profile
from miles_tito.verify.report import Finding, TemplateReport


def pinned(report: TemplateReport, file: Path) -> tuple[TemplateReport, str]:
    """The report with an error for each field that differs from the profile in the file; absent, it is written.

    The text says which of these it was.

    ConfigError when the file holds no profile or cannot be written.
    """
    derived = Profile.from_json(report.profile)
    try:
        if not file.exists():
            derived.save(file)
            return report, "the derived profile is written."
        changed = differences(Profile.load(file), derived)
    except TokenError as error:
        raise ConfigError(str(error)) from error
    except OSError as error:
        raise ConfigError(f"cannot use {file} as a pin: {error.strerror or error}.") from error
    findings = [
        Finding(
            rule="pinned-profile",
            severity="error",
            what=f"derived otherwise than pinned in {file.name}: {change}.",
            cure=f"Delete {file} and run again to accept what is derived now.",
        )
        for change in changed
    ]
    said = f"{len(changed)} fields are derived otherwise than pinned." if changed else "derived as pinned."
    return replace(report, findings=(*report.findings, *findings)), said
