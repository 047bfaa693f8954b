"""What a contributor runs: `uv run nox`. Sessions that need a project environment reuse the one uv made.

`tests` and `isolated` build environments of their own, one per package, so that a package that leans on a package above
it, or on a dependency that it does not declare, fails here.
"""

import os
import re
import shutil
import sys
from pathlib import Path

import nox

nox.options.sessions = ["lint", "types", "layers", "tests", "isolated", "examples", "integration"]
nox.options.error_on_external_run = False
nox.options.default_venv_backend = "uv"

ROOT = Path(__file__).parent
BELOW = {  # package -> the packages it depends on, as the diamond in docs/architecture.md says
    "core": [],
    "tito": ["core"],
    "sync": ["core"],
    "router": ["core", "tito"],
    "megatron": ["core", "sync"],
    "cli": ["core", "tito", "sync", "router", "megatron"],
}
TEST_TOOLS = ["pytest>=9", "hypothesis>=6.130", "pytest-xdist>=3.8"]
SIDE_BY_SIDE = {"tito", "router"}  # large suites, run in two processes
EXTRA_TOOLS = {"router": ["openai>=2"], "core": ["math-verify>=0.8"], "cli": ["openai>=2"]}
CLIENTS = [
    "openai>=2",
    "anthropic>=0.80",
    "litellm>=1.80",
    "pydantic-ai-slim[openai,anthropic]>=1.20",
    "openai-agents>=0.6",
    "smolagents[openai]>=1.23",
    "langchain-openai>=1",
    "langchain-anthropic>=1",
]
MAX_LINES = 400
CHILD = {
    "OMP_NUM_THREADS": "1",
    "OMP_WAIT_POLICY": "PASSIVE",
    "TOKENIZERS_PARALLELISM": "false",
    "HF_HUB_OFFLINE": "1",
    "PYTHONDONTWRITEBYTECODE": "",  # a test that starts ten processes compiles torch once, not ten times
}

os.environ["UV_COMPILE_BYTECODE"] = "0"  # environments of one session are not worth it
if os.environ.get("PIP_FIND_LINKS"):  # wheels that pip is told about serve uv too
    os.environ.setdefault("UV_FIND_LINKS", os.environ["PIP_FIND_LINKS"])


def constraints(session: nox.Session) -> str:
    """The workspace's pins as a constraints file for `uv pip install`."""
    pins = nox.project.load_toml(ROOT / "pyproject.toml")["tool"]["uv"]["constraint-dependencies"]
    target = Path(session.create_tmp()) / "constraints.txt"
    target.write_text("\n".join(pins) + "\n")
    return str(target.resolve())


def source_files() -> list[Path]:
    """Python files of the repository that git does not ignore."""
    folders = [*ROOT.glob("packages/*"), *(ROOT / name for name in ("tests", "examples", "bench"))]
    found = [path for folder in folders for path in folder.rglob("*.py")]
    return sorted(path for path in found if not {".venv", ".nox", "build", "dist"} & set(path.relative_to(ROOT).parts))


@nox.session(venv_backend="none")
def lint(session: nox.Session) -> None:
    """Ruff, formatting and the length of every file."""
    session.run("ruff", "check", ".")
    session.run("ruff", "format", "--check", ".")
    long = [(len(path.read_text().splitlines()), path.relative_to(ROOT)) for path in source_files()]
    long = [(lines, path) for lines, path in long if lines > MAX_LINES]
    if long:
        session.error(f"files over {MAX_LINES} lines: " + ", ".join(f"{path} ({lines})" for lines, path in long))


@nox.session(venv_backend="none")
def types(session: nox.Session) -> None:
    """Mypy over every package."""
    session.run("mypy")


@nox.session(venv_backend="none")
def layers(session: nox.Session) -> None:
    """Imports only point down, and heavy libraries stay where they belong."""
    session.run("lint-imports")


@nox.session
@nox.parametrize("package", list(BELOW))
def tests(session: nox.Session, package: str) -> None:
    """A package's own tests with only that package, and what it depends on, installed."""
    needed = [f"packages/miles-{name}" for name in [*BELOW[package], package]]
    session.install("-c", constraints(session), *needed, *TEST_TOOLS, *EXTRA_TOOLS.get(package, []))
    split = ["-n", "2"] if package in SIDE_BY_SIDE else ["-p", "no:xdist"]
    command = ["pytest", f"packages/miles-{package}/tests", "-m", "not slow and not gpu", *split]
    session.run(*command, *session.posargs, env=CHILD)


@nox.session
def clients(session: nox.Session) -> None:
    """Agents' own client libraries, unmodified, against the session server; each run's samples token by token."""
    needed = [f"packages/miles-{name}" for name in ("core", "tito", "router")]
    session.install("-c", constraints(session), *needed, *TEST_TOOLS, *CLIENTS)
    # What the libraries warn about is theirs; LiteLLM would look for prices on the network.
    quiet = {**CHILD, "LITELLM_LOCAL_MODEL_COST_MAP": "True", "DO_NOT_TRACK": "1"}
    session.run("pytest", "packages/miles-router/tests/clients", "-W", "default", *session.posargs, env=quiet)


@nox.session(venv_backend="none")
def contract(session: nox.Session) -> None:
    """The session server's HTTP contract: before a scripted and the local engine, or at MILES_CONTRACT_URL."""
    elsewhere = os.environ.get("MILES_CONTRACT_URL")
    more = [] if elsewhere else ["tests/test_contract.py"]
    session.run("pytest", "packages/miles-router/tests/contract", *more, *session.posargs, env=CHILD)


@nox.session
@nox.parametrize("package", list(BELOW))
def isolated(session: nox.Session, package: str) -> None:
    """The package's wheel alone in an empty environment: it imports and its README example runs."""
    wheels = Path(session.create_tmp()) / "wheels"
    shutil.rmtree(wheels, ignore_errors=True)
    for name in [*BELOW[package], package]:
        session.run("uv", "build", "--quiet", "--wheel", f"packages/miles-{name}", "-o", str(wheels), external=True)
    wheel = next(wheels.glob(f"miles_{package}-*.whl"))
    session.install("-c", constraints(session), "--find-links", str(wheels), str(wheel.resolve()))
    example = Path(session.create_tmp()) / f"readme_{package}.py"
    example.write_text(readme_example(ROOT / f"packages/miles-{package}/README.md"))
    away = session.create_tmp()
    with session.chdir(away):
        session.run("python", "-W", "error", "-c", f"import miles_{package} as m; print(m.__version__, m.__file__)")
        session.run("python", example.name, env=CHILD)


def readme_example(readme: Path) -> str:
    """The first python block of a README."""
    block = re.search(r"^```python\n(.*?)^```", readme.read_text(), re.DOTALL | re.MULTILINE)
    if block is None:
        raise ValueError(f"{readme}: expected an example in a ```python block, found none.")
    return block.group(1)


@nox.session(venv_backend="none")
def examples(session: nox.Session) -> None:
    """Each example's test."""
    session.run("pytest", "examples", *session.posargs, env=CHILD)


@nox.session(venv_backend="none")
def integration(session: nox.Session) -> None:
    """Whole runs across packages."""
    session.run("pytest", "tests", "-m", "not slow and not gpu", *session.posargs, env=CHILD)


@nox.session(python="3.11")
def sglang(session: nox.Session) -> None:
    """The real SGLang server on this machine's CPU: sessions, streams, limits, a whole run. Its environment is 3 GB."""
    pins = ROOT / "tests" / "sglang_cpu"
    session.install("-r", str(pins / "with_dependencies.txt"))
    session.install("--no-deps", "-r", str(pins / "without_dependencies.txt"))
    python = str(Path(session.bin) / "python")
    ours = {**CHILD, "MILES_SGLANG_PYTHON": python}
    session.run(sys.executable, "-m", "pytest", str(pins), *session.posargs, env=ours, external=True)


@nox.session(venv_backend="none")
def slow(session: nox.Session) -> None:
    """What takes minutes: whole quickstarts, resume at many points, chaos."""
    folders = ["tests", *(f"packages/miles-{name}/tests" for name in BELOW)]
    for folder in folders:
        session.run("pytest", folder, "-m", "slow", *session.posargs, env=CHILD, success_codes=[0, 5])


@nox.session(venv_backend="none")
def gpu(session: nox.Session) -> None:
    """Tests that need a CUDA device; they skip, and say so, where there is none."""
    folders = ["tests", *(f"packages/miles-{name}/tests" for name in BELOW)]
    for folder in folders:
        session.run("pytest", folder, "-m", "gpu", *session.posargs, success_codes=[0, 5])


@nox.session(venv_backend="none")
def bench(session: nox.Session) -> None:
    """The tables of docs/benchmarks.md, as ratios against a peer in the same run."""
    chosen = session.posargs or sorted(path.stem for path in (ROOT / "bench").glob("*.py"))
    for name in chosen:
        session.run(sys.executable, f"bench/{name}.py", env=CHILD)
