"""Facts about the repository itself."""

import re
import subprocess
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGES = sorted(path.name for path in (ROOT / "packages").iterdir() if (path / "pyproject.toml").exists())


def tracked(pattern: str) -> list[Path]:
    listed = subprocess.run(
        ["git", "ls-files", pattern], cwd=ROOT, capture_output=True, text=True, check=True, timeout=60
    )
    return [ROOT / line for line in listed.stdout.splitlines()]


@pytest.mark.parametrize("package", PACKAGES)
def test_every_package_carries_readme_licence_version_and_types(package):
    folder = ROOT / "packages" / package
    module = package.replace("-", "_")
    project = tomllib.loads((folder / "pyproject.toml").read_text())["project"]
    source = (folder / "src" / module / "__init__.py").read_text()
    assert f'__version__ = "{project["version"]}"' in source
    assert (folder / "LICENSE").read_text() == (ROOT / "LICENSE").read_text()
    assert (folder / "src" / module / "py.typed").exists()
    assert "```python\n" in (folder / "README.md").read_text()


def test_no_index_host_is_named():
    names = [b"py" + b"pi.org", b"python" + b"hosted", b"registry." + b"npmjs"]
    guilty = [str(path) for path in tracked("*") if path.is_file() and any(n in path.read_bytes() for n in names)]
    assert guilty == []


def test_the_lock_file_is_not_committed():
    assert tracked("uv.lock") == []


def test_every_relative_link_in_the_documents_leads_somewhere():
    broken = []
    for page in tracked("*.md"):
        for target in re.findall(r"\]\(([^)#]+)", page.read_text()):
            if not target.startswith(("http:", "https:", "mailto:")) and not (page.parent / target).exists():
                broken.append(f"{page.relative_to(ROOT)} -> {target}")
    assert broken == []
