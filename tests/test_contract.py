"""The session server's HTTP contract, held against sessions in front of the local engine with a real model."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from miles_cli.engines.local import LocalEngineConfig, open_engine
from miles_router.serve import ServerThread
from miles_router.sessions.app import create_session_app
from miles_router.sessions.config import SessionServerConfig

SUITE = Path(__file__).parents[1] / "packages" / "miles-router" / "tests" / "contract"


@pytest.fixture
def sessions_url(runs):
    """A session server with a token, before an engine that runs a random tiny model."""
    runs.write_recipe()
    folder = runs.folder / "model"
    core, engine_app = open_engine(LocalEngineConfig(context_length=256, max_running=8), folder)
    with ServerThread(engine_app) as engine:
        app = create_session_app(SessionServerConfig(engine_url=engine.url, model_dir=folder, token="contract"))
        with ServerThread(app) as sessions:
            yield sessions.url
    core.close()


def test_the_contract_holds_before_the_local_engine(sessions_url):
    env = {**os.environ, "MILES_CONTRACT_URL": sessions_url, "MILES_CONTRACT_TOKEN": "contract"}
    command = [sys.executable, "-m", "pytest", str(SUITE), "-q", "-p", "no:cacheprovider"]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
    assert " passed" in done.stdout
    assert "skipped" not in done.stdout
