"""Shrink a job to what a machine without GPUs can run, keeping its way: engine, mode, actor, node layout."""

from launch.config import Job

MAX_TRAIN_RANKS = 2
MAX_NODES = 3


def rehearse(job: Job) -> Job:
    """The rehearsal of `job`: the same verl version, mode, actor strategy and reward path, with a tiny model.

    - nodes: as in the job, at most 3, and 3 where the job does not say (head with the rollout, two training
      ranks on two other nodes); "GPUs" are slots that Ray counts, not hardware;
    - parallel sizes: tensor and pipeline size are kept while their product is at most 2;
    - precision: FP8 needs a GPU, so the actor trains in bf16;
    - batch sizes, lengths and learning rate: from the `rehearsal` section.
    """
    small = job.rehearsal
    tensor = min(job.actor.tensor_parallel, MAX_TRAIN_RANKS)
    pipeline = min(job.actor.pipeline_parallel, MAX_TRAIN_RANKS // tensor)
    if job.actor.strategy == "fsdp2":
        tensor = pipeline = 1
    nodes = min(job.cluster.nodes, MAX_NODES) if "nodes" in job.cluster.model_fields_set else MAX_NODES
    ranks = tensor * pipeline
    if job.engine.mode == "sync":
        # 0.6.1 shares one pool; the HF rollout holds one copy for each rank, so one or two ranks.
        nodes = min(nodes, ranks)
        slots = ranks // nodes
    elif nodes == 1:
        slots = 1 + ranks
    else:
        slots = ranks if (nodes - 1) % ranks else 1
    cluster = job.cluster.model_copy(
        update={
            "nodes": nodes,
            "gpus_per_node": slots,
            "gpu": None,
            "mem": None,
            "extra_sbatch": [option for option in job.cluster.extra_sbatch if not option.startswith("--gres")],
            "cpus_per_node": small.cpus_per_node,
            "time": small.time,
        }
    )
    return job.model_copy(
        update={
            "name": f"{job.name}-rehearsal",
            "cluster": cluster,
            "container": job.container.model_copy(update={"image": small.image}),
            "rollout": job.rollout.model_copy(
                update={"nodes": 1, "gpus_per_node": 1, "tensor_parallel": 1, "n": small.n, "fp8": False}
            ),
            "actor": job.actor.model_copy(
                update={
                    "tensor_parallel": tensor,
                    "pipeline_parallel": pipeline,
                    "context_parallel": 1,
                    "expert_parallel": 1,
                    "fp8": None,
                    "lr": small.lr,
                    "mini_batch_size": small.train_batch_size,
                    "micro_batch_size_per_gpu": small.train_batch_size,
                    "offload": [],
                }
            ),
            "data": job.data.model_copy(
                update={
                    "train_batch_size": small.train_batch_size,
                    "max_prompt_length": small.max_prompt_length,
                    "max_response_length": small.max_response_length,
                }
            ),
            "reward": job.reward.model_copy(update={"gpus": 0}),
            "algorithm": job.algorithm.model_copy(
                update={"total_steps": small.steps, "test_every": -1, "epochs": small.steps}
            ),
            "checkpoint": job.checkpoint.model_copy(update={"every": small.steps, "dir": job.output_dir}),
            "logging": job.logging.model_copy(update={"loggers": ["console"]}),
        }
    )
