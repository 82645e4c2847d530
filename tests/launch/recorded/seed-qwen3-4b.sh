#!/bin/bash
# qwen3-4b-grpo-megatron: GRPO with verl 0.6.1 (sync), megatron actor, 1 node.
#   sbatch run_grpo.sh     on a cluster
#SBATCH --job-name=qwen3-4b-grpo-megatron
#SBATCH --nodes=1
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=40
#SBATCH --gpus-per-node=h200:5
#SBATCH --time=12:00:00
#SBATCH --no-requeue
#SBATCH --output=%x-%j.out
set -euo pipefail
NAME=run_grpo.sh

# ---- settings
PROJECT=/project # relative paths of the job start here
TOOLKIT=/toolkit
IMAGE=/project/images/verl-0.6.1.sif
# shellcheck disable=SC2034 # for batch.sh
IMAGE_SIZE='' IMAGE_SHA256='' # of the image when this was rendered; empty: not known
OUTPUT=/project/outputs/qwen3-4b-grpo-megatron
RUN_DIR=$OUTPUT/run-${SLURM_JOB_ID:-} # logs, verdict, models of this run
CHECKPOINT_DIR=$OUTPUT/checkpoints
POLICY=/project/models/Qwen3-4B-Thinking-2507
# shellcheck disable=SC2034 # for batch.sh
NODES=1 ATTEMPT=${SLURM_RESTART_COUNT:-0} MAX_RESTARTS=0
STAGED=

[[ -r $TOOLKIT/launch/batch.sh ]] || {
  echo "$NAME: no toolkit in $TOOLKIT on $(hostname); render again where the nodes see it" >&2
  exit 20
}
# shellcheck source=/dev/null
source "$TOOLKIT/launch/batch.sh" # what the script calls: make_run_dir, load_modules, on_node, run_in_slurm

# ---- the container on a cluster, this machine's Python without one
if [[ -n ${SLURM_JOB_ID:-} ]]; then
  make_run_dir
  [[ -r $IMAGE ]] || die missing-path "image $IMAGE is not readable on $(hostname)" "correct container.image"
  RUNTIME=$(command -v apptainer || command -v singularity) || die setup "no apptainer or singularity on $(hostname)" "name a module in cluster.modules"
  # The host's Python stays out of the container, and srun compares the others with its own options.
  unset PYTHONPATH PYTHONHOME PYTHONSTARTUP PYTHONUSERBASE VIRTUAL_ENV LD_LIBRARY_PATH LD_PRELOAD "${!CONDA_@}" \
    BASH_ENV SLURM_CPUS_PER_TASK SRUN_CPUS_PER_TASK SLURM_TRES_PER_TASK
  compare_image sum
  PYTHON=python3
  START=(srun --nodes=1 --ntasks=1 --ntasks-per-node=1 --cpus-per-task=40 --kill-on-bad-exit=1 --wait=0 --export=ALL --mpi=none
    bash -c "$(declare -f json failure give_up on_node); on_node \"\$@\"" on_node "$RUN_DIR" "$STAGED" "" "$IMAGE" /project /toolkit --
    "$RUNTIME" exec --nv --pwd "$PROJECT"
    --bind /project
    --bind /toolkit
    --bind "$IMAGE:$IMAGE:ro" # for its hash
    "$IMAGE")
  PREFIX=$(basename "$RUNTIME" | tr '[:lower:]' '[:upper:]')ENV_ # over the image's own values, and only in there
  IN_SLURM=(--image "$IMAGE" --note slurm="$(srun --version)" --note runtime="$("$RUNTIME" --version)")
  [[ -z $SUM ]] || IN_SLURM+=(--note image_sha256="$SUM")
  ENDS_AT=$(ends_at) || true
  [[ -z $ENDS_AT ]] || IN_SLURM+=(--ends-at "$ENDS_AT")
else
  die setup "this job needs Slurm" "sbatch $NAME (a rehearsal, rendered with --rehearse, runs without)"
fi
ENVIRONMENT=(
  PYTHONNOUSERSITE=1
  REWARD_MIN_SCORE=-40.0
  REWARD_MAX_SCORE=30.0
  REWARD_TIMEOUT=30.0
  REWARD_DEADLINE=120.0
)
NAMES=("${ENVIRONMENT[@]%%=*}")
unset "${NAMES[@]/#/APPTAINERENV_}" "${NAMES[@]/#/SINGULARITYENV_}" # another value of the host's would win

# ---- what runs on the head node, in this order; on the others a Ray worker
REWARD=("$PYTHON" -m reward.server --model /project/models/Unsafe-Reward-Qwen3-1.7B --device cuda --max-length 6144)
# shellcheck disable=SC2016 # ${oc.env:NAME} is for Hydra, not for bash
TRAINER=("$PYTHON" -m verl.trainer.main_ppo --config-name=ppo_megatron_trainer
  actor_rollout_ref.actor.clip_ratio_c=3.0
  actor_rollout_ref.actor.clip_ratio_high=0.2
  actor_rollout_ref.actor.clip_ratio_low=0.2
  actor_rollout_ref.actor.entropy_coeff=0.0
  actor_rollout_ref.actor.kl_loss_coef=0.001
  actor_rollout_ref.actor.kl_loss_type=low_var_kl
  actor_rollout_ref.actor.loss_agg_mode=token-mean
  actor_rollout_ref.actor.megatron.context_parallel_size=1
  actor_rollout_ref.actor.megatron.expert_model_parallel_size=1
  actor_rollout_ref.actor.megatron.optimizer_offload=true
  actor_rollout_ref.actor.megatron.param_offload=false
  actor_rollout_ref.actor.megatron.pipeline_model_parallel_size=2
  actor_rollout_ref.actor.megatron.sequence_parallel=true
  actor_rollout_ref.actor.megatron.tensor_model_parallel_size=1
  actor_rollout_ref.actor.optim.lr=1e-06
  actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=4
  actor_rollout_ref.actor.ppo_mini_batch_size=128
  actor_rollout_ref.actor.strategy=megatron
  actor_rollout_ref.actor.use_dynamic_bsz=false
  actor_rollout_ref.actor.use_kl_loss=true
  actor_rollout_ref.model.path=/project/models/Qwen3-4B-Thinking-2507
  actor_rollout_ref.ref.log_prob_micro_batch_size_per_gpu=4
  actor_rollout_ref.ref.megatron.context_parallel_size=1
  actor_rollout_ref.ref.megatron.expert_model_parallel_size=1
  actor_rollout_ref.ref.megatron.pipeline_model_parallel_size=2
  actor_rollout_ref.ref.megatron.sequence_parallel=true
  actor_rollout_ref.ref.megatron.tensor_model_parallel_size=1
  actor_rollout_ref.rollout.enable_chunked_prefill=true
  actor_rollout_ref.rollout.enforce_eager=true
  actor_rollout_ref.rollout.free_cache_engine=true
  actor_rollout_ref.rollout.gpu_memory_utilization=0.4
  actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=4
  actor_rollout_ref.rollout.max_model_len=6144
  actor_rollout_ref.rollout.max_num_seqs=256
  actor_rollout_ref.rollout.mode=async
  actor_rollout_ref.rollout.n=4
  actor_rollout_ref.rollout.name=sglang
  actor_rollout_ref.rollout.temperature=1.0
  actor_rollout_ref.rollout.tensor_model_parallel_size=1
  actor_rollout_ref.rollout.top_p=1.0
  algorithm.adv_estimator=grpo
  algorithm.gamma=1.0
  algorithm.kl_ctrl.kl_coef=0.001
  algorithm.lam=1.0
  algorithm.norm_adv_by_std_in_grpo=true
  algorithm.use_kl_in_reward=false
  custom_reward_function.name=compute_score
  custom_reward_function.path=/toolkit/reward/client.py
  data.filter_overlong_prompts=true
  data.max_prompt_length=2048
  data.max_response_length=4096
  data.return_raw_chat=true
  data.shuffle=true
  data.train_batch_size=256
  'data.train_files=[/project/data/train.parquet]'
  data.truncation=error
  'data.val_files=[/project/data/test.parquet]'
  'hydra.run.dir=${oc.env:RUN_DIR}/hydra'
  reward_model.reward_manager=naive
  'trainer.default_local_dir=${oc.env:CHECKPOINT_DIR}'
  trainer.esi_redundant_time=300.0
  trainer.experiment_name=qwen3_4b_grpo_megatron
  'trainer.logger=[console,wandb]'
  trainer.n_gpus_per_node=4
  trainer.nnodes=1
  trainer.project_name=llm-safety
  trainer.resume_mode=auto
  trainer.save_freq=25
  trainer.test_freq=5
  trainer.total_epochs=1
  trainer.val_before_train=false
)
CHECK=("$PYTHON" -m launch.engines.verify --verl 0.6.1 --stack verl-0.6.1 -- "${TRAINER[@]:1}") # before Ray starts
MERGE=("$PYTHON" -m converters.merge --local_dir "$CHECKPOINT_DIR" --target_dir "$RUN_DIR/hf_model" --base_model "$POLICY" --force --resume)
SUPERVISE=(env "${ENVIRONMENT[@]/#/$PREFIX}" "${START[@]}" "$PYTHON" "$TOOLKIT/launch/node.py" --run-dir "$RUN_DIR" --checkpoint-dir "$CHECKPOINT_DIR"
  --nodes 1 --ray-gpus-head 4 --ray-gpus-other 5 --ray-cpus "${SLURM_CPUS_ON_NODE:-$(nproc)}" --reward-gpus 1 --reward-unresponsive 60 --min-cpus 5 --min-driver 525.60.13 --join-timeout 300 --ready-timeout 900 --end-margin 300 --stalled-after 3600 --expect-steps
  --job-file "$RUN_DIR/resolved.json" --data /project/data/train.parquet --data /project/data/test.parquet "${IN_SLURM[@]}"
  ::check "${CHECK[@]}"
  ::resume "$PYTHON" -m converters.resume "$CHECKPOINT_DIR"
  ::reward "${REWARD[@]}"
  ::canary "$PYTHON" -m reward.canary
  ::merge "${MERGE[@]}"
  ::trainer "${TRAINER[@]}")
run_in_slurm "${SUPERVISE[@]}"

# ---- the job as it was given, for RUN_DIR/job.json: launch.render --job makes this script again from it
#: {
#: "template": "grpo",
#: "name": "qwen3-4b-grpo-megatron",
#: "cluster": {"nodes": 1, "gpus_per_node": 5, "gpu": "h200", "cpus_per_node": 40, "time": "12:00:00"},
#: "container": {"image": "images/verl-0.6.1.sif", "stack": "verl-0.6.1"},
#: "engine": {"verl": "0.6.1", "mode": "sync"},
#: "rollout": {"engine": "sglang", "tensor_parallel": 1, "n": 4, "gpu_memory_utilization": 0.4, "max_num_seqs": 256, "enforce_eager": true, "free_cache": true},
#: "actor": {"strategy": "megatron", "tensor_parallel": 1, "pipeline_parallel": 2, "fp8": null, "lr": 1e-06, "mini_batch_size": 128, "micro_batch_size_per_gpu": 4, "offload": ["optimizer"]},
#: "model": {"path": "models/Qwen3-4B-Thinking-2507"},
#: "data": {"train": ["data/train.parquet"], "val": ["data/test.parquet"], "train_batch_size": 256, "max_prompt_length": 2048, "max_response_length": 4096},
#: "reward": {"kind": "server", "model": "models/Unsafe-Reward-Qwen3-1.7B", "gpus": 1, "min_score": -40.0, "max_score": 30.0},
#: "algorithm": {"use_kl_loss": true, "kl_loss_coef": 0.001, "kl_loss_type": "low_var_kl", "entropy_coeff": 0.0, "epochs": 1, "test_every": 5},
#: "checkpoint": {"every": 25},
#: "logging": {"loggers": ["console", "wandb"], "project": "llm-safety", "experiment": "qwen3_4b_grpo_megatron"}
#: }

# ---- the same with all its values, for RUN_DIR/resolved.json
#= {
#= "name": "qwen3-4b-grpo-megatron",
#= "template": "grpo",
#= "cluster": {"nodes": 1, "gpus_per_node": 5, "gpu": "h200", "gpu_memory_gb": null, "cpus_per_node": 40, "mem": null, "partition": null, "account": null, "qos": null, "time": "12:00:00", "modules": [], "network_interface": null, "join_timeout_s": 300.0, "extra_sbatch": []},
#= "container": {"image": "images/verl-0.6.1.sif", "runtime": "auto", "cuda": null, "stack": "verl-0.6.1", "toolkit": "bind", "verify": true, "stage": false, "stage_dir": "/tmp", "binds": [], "env": {}, "env_file": null},
#= "engine": {"verl": "0.6.1", "mode": "sync"},
#= "rollout": {"engine": "sglang", "nodes": null, "gpus_per_node": null, "tensor_parallel": 1, "n": 4, "gpu_memory_utilization": 0.4, "temperature": 1.0, "top_p": 1.0, "fp8": false, "max_model_len": null, "max_batched_tokens": null, "chunked_prefill": true, "max_num_seqs": 256, "enforce_eager": true, "free_cache": true},
#= "actor": {"strategy": "megatron", "gpus_per_node": null, "tensor_parallel": 1, "pipeline_parallel": 2, "context_parallel": 1, "expert_parallel": 1, "expert_tensor_parallel": null, "sequence_parallel": true, "fp8": null, "lr": 1e-06, "mini_batch_size": 128, "micro_batch_size_per_gpu": 4, "dynamic_batch": false, "max_tokens_per_gpu": null, "recompute": null, "offload": ["optimizer"]},
#= "critic": {"path": null, "lr": 1e-05, "micro_batch_size_per_gpu": null, "warmup_steps": 0, "clip_range": 0.5, "offload": ["optimizer"]},
#= "model": {"path": "models/Qwen3-4B-Thinking-2507"},
#= "data": {"train": ["data/train.parquet"], "val": ["data/test.parquet"], "train_batch_size": 256, "max_prompt_length": 2048, "max_response_length": 4096, "shuffle": true, "seed": null},
#= "reward": {"kind": "server", "model": "models/Unsafe-Reward-Qwen3-1.7B", "function": null, "function_name": "compute_score", "placement": "head", "gpus": 1, "backend": "transformers", "upstream": null, "upstream_key_file": null, "input": "pair", "max_length": null, "truncate": "right", "dtype": "auto", "batch_tokens": null, "trust_remote_code": false, "timeout_s": 30.0, "ready_timeout_s": 900.0, "deadline_s": 120.0, "on_outage": "raise", "unresponsive_s": 60.0, "min_score": -40.0, "max_score": 30.0},
#= "algorithm": {"estimator": "grpo", "gamma": 1.0, "lam": 1.0, "norm_by_std": true, "use_kl_loss": true, "kl_loss_coef": 0.001, "kl_loss_type": "low_var_kl", "use_kl_in_reward": false, "kl_coef": 0.001, "clip_ratio_low": 0.2, "clip_ratio_high": 0.2, "clip_ratio_c": 3.0, "loss_agg_mode": "token-mean", "entropy_coeff": 0.0, "overlong_buffer": {"enable": false, "length": 512, "penalty_factor": 1.0, "log": false}, "filter_groups": {"enable": false, "metric": "reward"}, "epochs": 1, "total_steps": null, "test_every": 5},
#= "checkpoint": {"dir": null, "every": 25, "keep": null, "contents": null, "before_end_s": 300.0, "merge": true},
#= "recovery": {"requeue": false, "max_restarts": 3, "stalled_s": 3600.0},
#= "logging": {"loggers": ["console", "wandb"], "project": "llm-safety", "experiment": "qwen3_4b_grpo_megatron"},
#= "rehearsal": {"image": "images/verl-cpu.sif", "rollout": "hf", "family": "qwen3", "steps": 30, "train_batch_size": 8, "n": 8, "max_prompt_length": 256, "max_response_length": 16, "lr": 0.001, "cpus_per_node": 2, "time": "00:30:00"},
#= "overrides": []
#= }
