#!/bin/bash
# qwen3-30b-a3b-grpo: GRPO with verl 0.9.1 (one_step_off), megatron actor, 4 nodes.
#   sbatch run_grpo.sh     on a cluster
#SBATCH --job-name=qwen3-30b-a3b-grpo
#SBATCH --nodes=4
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=64
#SBATCH --gpus-per-node=h200:8
#SBATCH --partition=gpu
#SBATCH --time=24:00:00
#SBATCH --no-requeue
#SBATCH --output=%x-%j.out
set -euo pipefail
NAME=run_grpo.sh
die() { echo "$NAME: $*" >&2; exit 1; }

# ---- settings
PROJECT=/project # relative paths of the job start here
TOOLKIT=/toolkit
IMAGE=/project/images/verl-0.9.1.sif
OUTPUT=/project/outputs/qwen3-30b-a3b-grpo
if [[ -n ${SLURM_JOB_ID:-} ]]; then
  RUN_DIR=$OUTPUT/run-$SLURM_JOB_ID # logs, verdict, models of this run
else
  RUN_DIR=$(realpath -m -- "${RUN_DIR:-$OUTPUT/run-local-$(date +%Y%m%d-%H%M%S)-$$}")
fi
CHECKPOINT_DIR=$OUTPUT/checkpoints
POLICY=/project/models/Qwen3-30B-A3B

# ---- the container on a cluster, this machine's Python without one
if [[ -n ${SLURM_JOB_ID:-} ]]; then
  for init in /etc/profile.d/modules.sh /etc/profile.d/lmod.sh /usr/share/lmod/lmod/init/bash; do
    # shellcheck disable=SC1090
    type module >/dev/null 2>&1 || { [[ -r $init ]] && set +u && source "$init" && set -u; } || true
  done
  type module >/dev/null 2>&1 || die "no 'module' command on $(hostname); correct cluster.modules"
  set +u
  module load singularitypro || die 'module load singularitypro failed'
  set -u
  [[ -r $IMAGE ]] || die "image $IMAGE is not readable on $(hostname); correct container.image"
  RUNTIME=$(command -v apptainer || command -v singularity) || die "no apptainer or singularity on $(hostname); name a module in cluster.modules"
  # The host's Python stays out of the container, and srun compares the others with its own options.
  unset PYTHONPATH PYTHONHOME PYTHONSTARTUP PYTHONUSERBASE VIRTUAL_ENV LD_LIBRARY_PATH LD_PRELOAD "${!CONDA_@}" \
    BASH_ENV SLURM_CPUS_PER_TASK SRUN_CPUS_PER_TASK SLURM_TRES_PER_TASK
  on_node() { # RUN_DIR PATH... -- COMMAND...: the container program would not say which node lacks a path
    local run_dir=$1 node=${SLURMD_NODENAME:-$(hostname)} cause
    while shift; [[ $1 != -- ]]; do
      [[ -e $1 ]] && continue
      cause="no $1 on this node; have it mounted, or correct the job"
      echo "$node: $cause" >&2
      printf '{"component": "setup", "node": "%s", "cause": "%s", "exit_code": 20}\n' "$node" "${cause//[\"\\]/?}" >"$run_dir/.failed-$node"
      mv "$run_dir/.failed-$node" "$run_dir/failed-$node.json"
      exit 20
    done
    shift
    exec "$@"
  }
  PYTHON=python3
  START=(srun --nodes=4 --ntasks=4 --ntasks-per-node=1 --cpus-per-task=64 --kill-on-bad-exit=1 --wait=0 --export=ALL --mpi=none
    bash -c "$(declare -f on_node); on_node \"\$@\"" on_node "$RUN_DIR" "$IMAGE" /project /toolkit --
    "$RUNTIME" exec --nv --pwd "$PROJECT"
    --bind /project
    --bind /toolkit
    "$IMAGE")
  PREFIX=$(basename "$RUNTIME" | tr '[:lower:]' '[:upper:]')ENV_ # over the image's own values, and only in there
else
  die "this job needs Slurm: sbatch $NAME (a rehearsal, rendered with --rehearse, runs without)"
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
REWARD=("$PYTHON" -m reward.server --model /project/models/Unsafe-Reward-Qwen3-1.7B --device cuda --max-length 10240)
# shellcheck disable=SC2016 # ${oc.env:NAME} is for Hydra, not for bash
TRAINER=("$PYTHON" -m verl.experimental.one_step_off_policy.main_ppo --config-name=one_step_off_ppo_megatron_trainer
  'hydra.searchpath=[pkg://verl.trainer.config]'
  actor_rollout_ref.actor.clip_ratio_c=3.0
  actor_rollout_ref.actor.clip_ratio_high=0.2
  actor_rollout_ref.actor.clip_ratio_low=0.2
  actor_rollout_ref.actor.entropy_coeff=0.0
  actor_rollout_ref.actor.kl_loss_coef=0.001
  actor_rollout_ref.actor.kl_loss_type=low_var_kl
  actor_rollout_ref.actor.loss_agg_mode=token-mean
  actor_rollout_ref.actor.megatron.context_parallel_size=1
  actor_rollout_ref.actor.megatron.expert_model_parallel_size=8
  actor_rollout_ref.actor.megatron.expert_tensor_parallel_size=1
  actor_rollout_ref.actor.megatron.optimizer_offload=true
  actor_rollout_ref.actor.megatron.override_transformer_config.recompute_granularity=full
  actor_rollout_ref.actor.megatron.override_transformer_config.recompute_method=uniform
  actor_rollout_ref.actor.megatron.override_transformer_config.recompute_num_layers=1
  actor_rollout_ref.actor.megatron.param_offload=true
  actor_rollout_ref.actor.megatron.pipeline_model_parallel_size=2
  actor_rollout_ref.actor.megatron.sequence_parallel=true
  actor_rollout_ref.actor.megatron.tensor_model_parallel_size=2
  actor_rollout_ref.actor.optim.lr=1e-06
  actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=2
  actor_rollout_ref.actor.ppo_mini_batch_size=128
  actor_rollout_ref.actor.strategy=megatron
  actor_rollout_ref.actor.use_dynamic_bsz=false
  actor_rollout_ref.actor.use_kl_loss=true
  actor_rollout_ref.hybrid_engine=false
  actor_rollout_ref.model.path=/project/models/Qwen3-30B-A3B
  actor_rollout_ref.ref.log_prob_micro_batch_size_per_gpu=2
  actor_rollout_ref.rollout.enable_chunked_prefill=true
  actor_rollout_ref.rollout.gpu_memory_utilization=0.7
  actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=2
  actor_rollout_ref.rollout.max_model_len=10240
  actor_rollout_ref.rollout.mode=async
  actor_rollout_ref.rollout.n=8
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
  data.filter_overlong_prompts=true
  data.max_prompt_length=2048
  data.max_response_length=8192
  data.return_raw_chat=true
  data.shuffle=true
  data.train_batch_size=256
  'data.train_files=[/project/data/train.parquet]'
  data.truncation=error
  'data.val_files=[/project/data/test.parquet]'
  'hydra.run.dir=${oc.env:RUN_DIR}/hydra'
  reward.custom_reward_function.name=compute_score
  reward.custom_reward_function.path=/toolkit/reward/client.py
  reward.reward_manager.name=naive
  rollout.n_gpus_per_node=7
  rollout.nnodes=2
  'trainer.default_local_dir=${oc.env:CHECKPOINT_DIR}'
  trainer.experiment_name=qwen3-30b-a3b-grpo
  'trainer.logger=[console,wandb]'
  trainer.max_actor_ckpt_to_keep=3
  trainer.n_gpus_per_node=8
  trainer.nnodes=2
  trainer.project_name=verl-moe
  trainer.resume_mode=auto
  trainer.save_freq=20
  trainer.test_freq=5
  trainer.total_epochs=1
  trainer.val_before_train=false
)
CHECK=("$PYTHON" -m launch.engines.verify --verl 0.9.1 -- "${TRAINER[@]:1}") # before Ray starts
MERGE=("$PYTHON" -m converters.merge --local_dir "$CHECKPOINT_DIR" --target_dir "$RUN_DIR/hf_model" --base_model "$POLICY" --force)

mkdir -p "$RUN_DIR" "$CHECKPOINT_DIR" || die "cannot write to $RUN_DIR; correct checkpoint.dir"
rm -f "$RUN_DIR"/rendezvous-*.json "$RUN_DIR"/failed-*.json "$RUN_DIR"/verdict.json # of an earlier attempt
echo "run directory: $RUN_DIR"
exec env "${ENVIRONMENT[@]/#/$PREFIX}" "${START[@]}" "$PYTHON" "$TOOLKIT/launch/node.py" --run-dir "$RUN_DIR" --checkpoint-dir "$CHECKPOINT_DIR" \
  --nodes 4 --ray-gpus-head 7 --ray-gpus-other 8 --ray-cpus "${SLURM_CPUS_ON_NODE:-$(nproc)}" --reward-gpus 1 --min-cpus 24 --join-timeout 300 --ready-timeout 900 --expect-steps \
  ::check "${CHECK[@]}" \
  ::reward "${REWARD[@]}" \
  ::merge "${MERGE[@]}" \
  ::trainer "${TRAINER[@]}"
