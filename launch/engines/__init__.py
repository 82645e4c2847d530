"""Job -> trainer command with Hydra overrides, for one version of verl."""

from launch.engines.command import TrainerCommand, trainer_command

__all__ = ["TrainerCommand", "trainer_command"]
