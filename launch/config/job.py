"""The whole job."""

import hashlib
import json

from pydantic import Field

from launch.config.algorithm import Algorithm
from launch.config.base import JOB_NAME, Section
from launch.config.cluster import Cluster, Container
from launch.config.services import Checkpoint, Logging, Recovery, Rehearsal, Reward
from launch.config.templates import Template
from launch.config.training import Actor, Critic, Data, Engine, Model, Rollout


class Job(Section):
    """Everything that a user says about a training job. `launch.render` turns it into one script."""

    name: str = Field("qwen3-4b-grpo", pattern=JOB_NAME, description="job name, also in squeue")
    template: Template = Field("grpo", description="algorithm template that sets the defaults")
    cluster: Cluster = Cluster()
    container: Container = Container()
    engine: Engine = Engine()
    rollout: Rollout = Rollout()
    actor: Actor = Actor()
    critic: Critic = Critic()
    model: Model = Model()
    data: Data = Data()
    reward: Reward = Reward()
    algorithm: Algorithm = Algorithm()
    checkpoint: Checkpoint = Checkpoint()
    recovery: Recovery = Recovery()
    logging: Logging = Logging()
    rehearsal: Rehearsal = Rehearsal()
    overrides: list[str] = Field([], description="raw Hydra overrides for verl; they have the last word")

    @property
    def output_dir(self) -> str:
        """Folder of checkpoints and run directories, a relative one below the project."""
        return self.checkpoint.dir or f"outputs/{self.name}"

    @property
    def longest_sequence(self) -> int:
        """Tokens of the longest prompt with the longest response."""
        return self.data.max_prompt_length + self.data.max_response_length

    @property
    def reward_length(self) -> int:
        """Tokens of a pair that the reward server takes."""
        return self.reward.max_length or self.longest_sequence

    @property
    def needs_reference(self) -> bool:
        """Whether verl loads the reference model (verl/trainer/ppo/utils.py, need_reference_policy)."""
        return self.algorithm.use_kl_loss or self.algorithm.use_kl_in_reward

    def hash(self) -> str:
        """Twelve hex digits that change when any value of the job changes."""
        text = json.dumps(self.model_dump(mode="json"), sort_keys=True, ensure_ascii=False)
        return hashlib.sha256(text.encode()).hexdigest()[:12]
