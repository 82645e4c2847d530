#!/bin/bash
# qwen3-4b-dapo-rehearsal: DAPO with verl 0.9.1 (one_step_off), megatron actor, 2 nodes, a rehearsal on CPU with a tiny model.
#   sbatch run_dapo.sh     on a cluster
#   bash run_dapo.sh       the same job on this one machine, without Slurm
#SBATCH --job-name=qwen3-4b-dapo-rehearsal
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=2
#SBATCH --time=00:30:00
#SBATCH --no-requeue
#SBATCH --output=%x-%j.out
set -euo pipefail
NAME=run_dapo.sh

# ---- settings
PROJECT=/project # relative paths of the job start here
TOOLKIT=/toolkit
IMAGE=/project/images/verl-cpu.sif
# shellcheck disable=SC2034 # for batch.sh
IMAGE_SIZE='' IMAGE_SHA256='' # of the image when this was rendered; empty: not known
OUTPUT=/project/outputs/qwen3-4b-dapo
if [[ -n ${SLURM_JOB_ID:-} ]]; then
  RUN_DIR=$OUTPUT/run-$SLURM_JOB_ID # logs, verdict, models of this run
else
  RUN_DIR=$(realpath -m -- "${RUN_DIR:-$OUTPUT/run-local-$(date +%Y%m%d-%H%M%S)-$$}")
fi
CHECKPOINT_DIR=$RUN_DIR/checkpoints
POLICY=$RUN_DIR/rehearsal/policy
# shellcheck disable=SC2034 # for batch.sh
NODES=2 ATTEMPT=${SLURM_RESTART_COUNT:-0} MAX_RESTARTS=0
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
  [[ -r $IMAGE ]] || die missing-path "image $IMAGE is not readable on $(hostname)" "correct rehearsal.image"
  RUNTIME=$(command -v apptainer || command -v singularity) || die setup "no apptainer or singularity on $(hostname)" "name a module in cluster.modules"
  # The host's Python stays out of the container, and srun compares the others with its own options.
  unset PYTHONPATH PYTHONHOME PYTHONSTARTUP PYTHONUSERBASE VIRTUAL_ENV LD_LIBRARY_PATH LD_PRELOAD "${!CONDA_@}" \
    BASH_ENV SLURM_CPUS_PER_TASK SRUN_CPUS_PER_TASK SLURM_TRES_PER_TASK
  compare_image sum
  PYTHON=python3
  START=(srun --nodes=2 --ntasks=2 --ntasks-per-node=1 --cpus-per-task=2 --kill-on-bad-exit=1 --wait=0 --export=ALL --mpi=none
    bash -c "$(declare -f json failure give_up on_node); on_node \"\$@\"" on_node "$RUN_DIR" "$STAGED" "" "$IMAGE" /project /toolkit --
    "$RUNTIME" exec --pwd "$PROJECT"
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
  PYTHON=${LAUNCH_PYTHON:-/venv/bin/python}
  "$PYTHON" -sc 'import importlib.util as u, sys; sys.exit(not all(map(u.find_spec, ("ray", "verl"))))' ||
    die setup "$PYTHON has no ray and verl" "set LAUNCH_PYTHON to one that has, as make setup makes it in .venv"
  make_run_dir
  START=()
  PREFIX=
  IN_SLURM=()
fi
ENVIRONMENT=(
  PYTHONNOUSERSITE=1
  REWARD_MIN_SCORE=-40.0
  REWARD_MAX_SCORE=30.0
  REWARD_TIMEOUT=30.0
  REWARD_DEADLINE=120.0
  VERL_USE_EXTERNAL_MODULES=launch.rehearsal.backend
  OMP_NUM_THREADS=1
  TOKENIZERS_PARALLELISM=false
  TORCH_COMPILE_DISABLE=1
  HF_HUB_OFFLINE=1
  'PYTHONWARNINGS=ignore::UserWarning,ignore::FutureWarning,ignore::DeprecationWarning'
  RAY_prestart_worker_first_driver=0
  RAY_DEDUP_LOGS=1
  RAY_USAGE_STATS_ENABLED=0
  RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO=0
  VERL_PLATFORM=cpu
  CUDA_DEVICE_MAX_CONNECTIONS=1
)
NAMES=("${ENVIRONMENT[@]%%=*}")
unset "${NAMES[@]/#/APPTAINERENV_}" "${NAMES[@]/#/SINGULARITYENV_}" # another value of the host's would win

# ---- what runs on the head node, in this order; on the others a Ray worker
MODELS=("$PYTHON" -m launch.rehearsal.prepare --out "$RUN_DIR/rehearsal" --verl 0.9.1 --actor megatron --rollout hf --family qwen3)
REWARD=("$PYTHON" -m reward.server --model "$RUN_DIR/rehearsal/reward_model" --device cpu --max-length 272)
# shellcheck disable=SC2016 # ${oc.env:NAME} is for Hydra, not for bash
TRAINER=("$PYTHON" -m verl.experimental.one_step_off_policy.main_ppo --config-name=one_step_off_ppo_megatron_trainer
  'hydra.searchpath=[pkg://verl.trainer.config]'
  +reward.reward_kwargs.max_resp_len=16
  +reward.reward_kwargs.overlong_buffer_cfg.enable=true
  +reward.reward_kwargs.overlong_buffer_cfg.len=4
  +reward.reward_kwargs.overlong_buffer_cfg.log=true
  +reward.reward_kwargs.overlong_buffer_cfg.penalty_factor=1.0
  actor_rollout_ref.actor.clip_ratio_c=10.0
  actor_rollout_ref.actor.clip_ratio_high=0.28
  actor_rollout_ref.actor.clip_ratio_low=0.2
  actor_rollout_ref.actor.entropy_coeff=0.0
  actor_rollout_ref.actor.kl_loss_coef=0.001
  actor_rollout_ref.actor.kl_loss_type=low_var_kl
  actor_rollout_ref.actor.loss_agg_mode=token-mean
  actor_rollout_ref.actor.megatron.context_parallel_size=1
  'actor_rollout_ref.actor.megatron.dist_checkpointing_path=${oc.env:RUN_DIR}/rehearsal/policy_mcore'
  actor_rollout_ref.actor.megatron.expert_model_parallel_size=1
  actor_rollout_ref.actor.megatron.optimizer_offload=false
  actor_rollout_ref.actor.megatron.param_offload=false
  actor_rollout_ref.actor.megatron.pipeline_model_parallel_size=2
  actor_rollout_ref.actor.megatron.sequence_parallel=false
  actor_rollout_ref.actor.megatron.tensor_model_parallel_size=1
  actor_rollout_ref.actor.megatron.use_dist_checkpointing=true
  actor_rollout_ref.actor.optim.lr=0.001
  actor_rollout_ref.actor.ppo_max_token_len_per_gpu=2176
  actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=8
  actor_rollout_ref.actor.ppo_mini_batch_size=8
  actor_rollout_ref.actor.strategy=megatron
  actor_rollout_ref.actor.use_dynamic_bsz=true
  actor_rollout_ref.actor.use_kl_loss=false
  actor_rollout_ref.hybrid_engine=false
  'actor_rollout_ref.model.path=${oc.env:RUN_DIR}/rehearsal/policy'
  actor_rollout_ref.ref.log_prob_micro_batch_size_per_gpu=8
  actor_rollout_ref.rollout.enable_chunked_prefill=true
  actor_rollout_ref.rollout.gpu_memory_utilization=0.7
  actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=8
  actor_rollout_ref.rollout.max_model_len=272
  actor_rollout_ref.rollout.mode=async
  actor_rollout_ref.rollout.n=8
  actor_rollout_ref.rollout.name=hf
  actor_rollout_ref.rollout.temperature=1.0
  actor_rollout_ref.rollout.tensor_model_parallel_size=1
  actor_rollout_ref.rollout.top_p=1.0
  algorithm.adv_estimator=grpo
  algorithm.gamma=1.0
  algorithm.kl_ctrl.kl_coef=0.001
  algorithm.lam=1.0
  algorithm.norm_adv_by_std_in_grpo=true
  algorithm.use_kl_in_reward=false
  data.filter_overlong_prompts=true
  data.max_prompt_length=256
  data.max_response_length=16
  data.return_raw_chat=true
  data.shuffle=true
  data.train_batch_size=8
  'data.train_files=[/project/data/train.parquet]'
  data.truncation=error
  'data.val_files=[/project/data/test.parquet]'
  'hydra.run.dir=${oc.env:RUN_DIR}/hydra'
  reward.custom_reward_function.name=compute_score
  reward.custom_reward_function.path=/toolkit/reward/client.py
  reward.reward_manager.name=dapo
  rollout.n_gpus_per_node=1
  rollout.nnodes=1
  'trainer.default_local_dir=${oc.env:CHECKPOINT_DIR}'
  trainer.esi_redundant_time=300.0
  trainer.experiment_name=qwen3-4b-dapo-rehearsal
  'trainer.logger=[console]'
  trainer.n_gpus_per_node=2
  trainer.nnodes=1
  trainer.project_name=verl-dapo
  trainer.resume_mode=auto
  trainer.save_freq=25
  trainer.test_freq=-1
  trainer.total_epochs=30
  trainer.total_training_steps=30
  trainer.val_before_train=false
  data.dataloader_num_workers=0
  actor_rollout_ref.actor.use_torch_compile=False
  actor_rollout_ref.rollout.agent.num_workers=1
  reward.num_workers=1
  actor_rollout_ref.rollout.checkpoint_engine.backend=ray_object_store
  actor_rollout_ref.actor.megatron.vanilla_mbridge=True
  actor_rollout_ref.rollout.load_format=auto
)
CHECK=("$PYTHON" -m launch.engines.verify --verl 0.9.1 -- "${TRAINER[@]:1}") # before Ray starts
MERGE=("$PYTHON" -m converters.merge --local_dir "$CHECKPOINT_DIR" --target_dir "$RUN_DIR/hf_model" --base_model "$POLICY" --force --resume)
SUPERVISE=(env "${ENVIRONMENT[@]/#/$PREFIX}" "${START[@]}" "$PYTHON" "$TOOLKIT/launch/node.py" --run-dir "$RUN_DIR" --checkpoint-dir "$CHECKPOINT_DIR"
  --nodes 2 --ray-gpus-head 2 --ray-gpus-other 2 --ray-cpus 32 --reward-unresponsive 60 --join-timeout 300 --ready-timeout 900 --end-margin 300 --stalled-after 3600 --expect-steps --logical-gpus --object-store 200000000
  --job-file "$RUN_DIR/resolved.json" --data /project/data/train.parquet --data /project/data/test.parquet "${IN_SLURM[@]}"
  ::check "${CHECK[@]}"
  ::resume "$PYTHON" -m converters.resume "$CHECKPOINT_DIR"
  ::prepare "${MODELS[@]}"
  ::reward "${REWARD[@]}"
  ::canary "$PYTHON" -m reward.canary
  ::merge "${MERGE[@]}"
  ::trainer "${TRAINER[@]}")
[[ -n ${SLURM_JOB_ID:-} ]] || exec "${SUPERVISE[@]}"
run_in_slurm "${SUPERVISE[@]}"

# ---- the job as it was given, for RUN_DIR/job.json: launch.render --job makes this script again from it
#: {
#: "template": "dapo",
#: "name": "qwen3-4b-dapo",
#: "cluster": {"nodes": 2, "gpus_per_node": 8, "gpu": "h200", "cpus_per_node": 64, "time": "24:00:00"},
#: "container": {"image": "images/verl-0.9.1.sif", "stack": "verl-0.9.1"},
#: "engine": {"verl": "0.9.1", "mode": "one_step_off"},
#: "rollout": {"engine": "sglang", "n": 16},
#: "actor": {"pipeline_parallel": 2, "fp8": "blockwise", "lr": 1e-06, "mini_batch_size": 64, "dynamic_batch": true, "max_tokens_per_gpu": 20480, "offload": ["optimizer"]},
#: "model": {"path": "models/Qwen3-4B-Thinking-2507"},
#: "data": {"train": ["data/train.parquet"], "val": ["data/test.parquet"], "train_batch_size": 256, "max_prompt_length": 2048, "max_response_length": 16384},
#: "reward": {"kind": "server", "model": "models/Unsafe-Reward-Qwen3-1.7B", "gpus": 1},
#: "algorithm": {"use_kl_loss": false, "clip_ratio_low": 0.2, "clip_ratio_high": 0.28, "clip_ratio_c": 10.0, "loss_agg_mode": "token-mean", "overlong_buffer": {"enable": true, "length": 4096, "penalty_factor": 1.0, "log": true}},
#: "checkpoint": {"every": 25},
#: "logging": {"loggers": ["console", "wandb"], "project": "verl-dapo"}
#: }

# ---- the same with all its values, for RUN_DIR/resolved.json
#= {
#= "name": "qwen3-4b-dapo-rehearsal",
#= "template": "dapo",
#= "cluster": {"nodes": 2, "gpus_per_node": 2, "gpu": null, "gpu_memory_gb": null, "cpus_per_node": 2, "mem": null, "partition": null, "account": null, "qos": null, "time": "00:30:00", "modules": [], "network_interface": null, "join_timeout_s": 300.0, "extra_sbatch": []},
#= "container": {"image": "images/verl-cpu.sif", "runtime": "auto", "cuda": null, "stack": null, "toolkit": "bind", "verify": true, "stage": false, "stage_dir": "/tmp", "binds": [], "env": {}, "env_file": null},
#= "engine": {"verl": "0.9.1", "mode": "one_step_off"},
#= "rollout": {"engine": "sglang", "nodes": 1, "gpus_per_node": 1, "tensor_parallel": 1, "n": 8, "gpu_memory_utilization": 0.7, "temperature": 1.0, "top_p": 1.0, "fp8": false, "max_model_len": null, "max_batched_tokens": null, "chunked_prefill": true, "max_num_seqs": null, "enforce_eager": null, "free_cache": null},
#= "actor": {"strategy": "megatron", "gpus_per_node": null, "tensor_parallel": 1, "pipeline_parallel": 2, "context_parallel": 1, "expert_parallel": 1, "expert_tensor_parallel": null, "sequence_parallel": false, "fp8": null, "lr": 0.001, "mini_batch_size": 8, "micro_batch_size_per_gpu": 8, "dynamic_batch": true, "max_tokens_per_gpu": 2176, "recompute": null, "offload": []},
#= "critic": {"path": null, "lr": 0.001, "micro_batch_size_per_gpu": null, "warmup_steps": 0, "clip_range": 0.5, "offload": []},
#= "model": {"path": "models/Qwen3-4B-Thinking-2507"},
#= "data": {"train": ["data/train.parquet"], "val": ["data/test.parquet"], "train_batch_size": 8, "max_prompt_length": 256, "max_response_length": 16, "shuffle": true, "seed": null},
#= "reward": {"kind": "server", "model": "models/Unsafe-Reward-Qwen3-1.7B", "function": null, "function_name": "compute_score", "placement": "head", "gpus": 0, "backend": "transformers", "upstream": null, "upstream_key_file": null, "input": "pair", "max_length": null, "truncate": "right", "dtype": "auto", "batch_tokens": null, "trust_remote_code": false, "timeout_s": 30.0, "ready_timeout_s": 900.0, "deadline_s": 120.0, "on_outage": "raise", "unresponsive_s": 60.0, "min_score": -40.0, "max_score": 30.0},
#= "algorithm": {"estimator": "grpo", "gamma": 1.0, "lam": 1.0, "norm_by_std": true, "use_kl_loss": false, "kl_loss_coef": 0.001, "kl_loss_type": "low_var_kl", "use_kl_in_reward": false, "kl_coef": 0.001, "clip_ratio_low": 0.2, "clip_ratio_high": 0.28, "clip_ratio_c": 10.0, "loss_agg_mode": "token-mean", "entropy_coeff": 0.0, "overlong_buffer": {"enable": true, "length": 4, "penalty_factor": 1.0, "log": true}, "filter_groups": {"enable": false, "metric": "reward"}, "epochs": 30, "total_steps": 30, "test_every": -1},
#= "checkpoint": {"dir": "outputs/qwen3-4b-dapo", "every": 25, "keep": null, "contents": null, "before_end_s": 300.0, "merge": true},
#= "recovery": {"requeue": false, "max_restarts": 3, "stalled_s": 3600.0},
#= "logging": {"loggers": ["console"], "project": "verl-dapo", "experiment": null},
#= "rehearsal": {"image": "images/verl-cpu.sif", "rollout": "hf", "family": "qwen3", "steps": 30, "train_batch_size": 8, "n": 8, "max_prompt_length": 256, "max_response_length": 16, "lr": 0.001, "cpus_per_node": 2, "time": "00:30:00"},
#= "overrides": []
#= }
