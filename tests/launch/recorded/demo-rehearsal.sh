#!/bin/bash
# demo-rehearsal: GRPO with verl 0.9.1 (one_step_off), megatron actor, 1 node, a rehearsal on CPU with a tiny model.
#   sbatch run_grpo.sh     on a cluster
#   bash run_grpo.sh       the same job on this one machine, without Slurm
#SBATCH --job-name=demo-rehearsal
#SBATCH --nodes=1
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=2
#SBATCH --time=00:30:00
#SBATCH --no-requeue
#SBATCH --output=%x-%j.out
set -euo pipefail
NAME=run_grpo.sh

# ---- settings
PROJECT=/project # relative paths of the job start here
TOOLKIT=/toolkit
IMAGE=/project/images/verl-cpu.sif
OUTPUT=/project/outputs/demo
ATTEMPT=${SLURM_RESTART_COUNT:-0}
if [[ -n ${SLURM_JOB_ID:-} ]]; then
  RUN_DIR=$OUTPUT/run-$SLURM_JOB_ID # logs, verdict, models of this run
else
  RUN_DIR=$(realpath -m -- "${RUN_DIR:-$OUTPUT/run-local-$(date +%Y%m%d-%H%M%S)-$$}")
fi
CHECKPOINT_DIR=$RUN_DIR/checkpoints
POLICY=$RUN_DIR/rehearsal/policy

# ---- the run directory, and what is left in it when no head node lives to do it
json() { # TEXT as a JSON string
  local text=${1//[[:cntrl:]]/ }
  text=${text//\\/\\\\}
  printf '"%s"' "${text//\"/\\\"}"
}
failure() { # COMPONENT KIND CAUSE WHAT_TO_DO EXIT_CODE: the first failure, on this node, as JSON
  printf '{"component": "%s", "node": %s, "kind": "%s", "cause": %s, "what_to_do": %s, "exit_code": %d, "evidence": null}\n' \
    "$1" "$(json "${SLURMD_NODENAME:-$(hostname)}")" "$2" "$(json "$3")" "$(json "$4")" "$5"
}
leave_verdict() { # STATE FAILURE
  local now again=false saved=null marker=$CHECKPOINT_DIR/latest_checkpointed_iteration.txt fields=${2#*\{}
  [[ $1 != requeued ]] || again=true
  printf -v now '%(%Y-%m-%dT%H:%M:%S%z)T' -1
  [[ ! -s $marker || ! $(tr -d '\0' <"$marker") =~ ^[0-9]+$ ]] || saved=$(json "$CHECKPOINT_DIR/global_step_$(<"$marker")")
  printf '{"state": "%s", %s, "started": "%s", "ended": "%s", "attempt": %d, "steps_done": null, "last_checkpoint": %s, "hf_model": null,\n"requeue": %s, "requeue_why": "%s"}\n' \
    "$1" "${fields%\}*}" "$STARTED" "$now" "$ATTEMPT" "$saved" "$again" "the head node could not decide" >"$RUN_DIR/.verdict.json.$$"
  mv -T -- "$RUN_DIR/.verdict.json.$$" "$RUN_DIR/verdict.json"
}
said_by_srun() { # the last line of srun in the job's output about a node that it lost, in this attempt
  local output
  output=$(scontrol show job "$SLURM_JOB_ID" 2>/dev/null | sed -n 's/^ *Std\(Err\|Out\)=\(.\)/\2/p' | head -n 1)
  [[ -r $output ]] || return 0
  tac -- "$output" | sed '/^run directory: /q' | grep -aoE '^srun: error: .*(failed on node|[Nn]ode failure on) .*' | sed -n '1s/^srun: error: //p'
}
leave_verdict_without_head() { # EXIT_CODE of srun; returns the job's
  local code=$1 state=failed note text="" cause="the supervisor of the head node ended without a verdict (exit code $1)" said
  for note in "$RUN_DIR"/failed-*.json; do # what nodes could still say; a cancelled one says nothing of the cause
    [[ ! -e $note || -n $text ]] || text=$(grep -q '"exit_code": 143' "$note" || cat "$note")
  done
  said=$(said_by_srun || true)
  if [[ $said =~ (on\ node|[Ff]ailure\ on)\ ([^ :]+) ]]; then # srun then kills the others at once
    code=24
    text=$(SLURMD_NODENAME=${BASH_REMATCH[2]} failure node node-lost "$said" "look at the node's state (sinfo); submit again" "$code")
  elif [[ -n $text ]]; then
    [[ ! $text =~ \"exit_code\":\ *([0-9]+) ]] || code=${BASH_REMATCH[1]}
  elif [[ $CANCELLED == true ]]; then
    state=cancelled code=143 cause="cancelled, and killed before the head node could say more"
    text=$(failure job cancelled "$cause" "submit again: the job goes on from its last checkpoint" "$code")
  else
    ((code > 0 && code < 128)) || code=28
    text=$(failure head unrecognised "$cause" "look at the output of the job and at logs/ in $RUN_DIR" "$code")
  fi
  echo "$NAME: ${said:-$cause}" >&2
  leave_verdict "$state" "$text"
  return "$code"
}
die() { # KIND CAUSE WHAT_TO_DO: before a node has started anything
  echo "$NAME: $2; $3" >&2
  [[ ! -d $RUN_DIR ]] || leave_verdict failed "$(failure setup "$1" "$2" "$3" 20)"
  exit 20
}
make_run_dir() {
  if [[ -e $RUN_DIR && -n ${SLURM_JOB_ID:-} && $ATTEMPT == 0 ]]; then
    mv -T -- "$RUN_DIR" "$RUN_DIR.before-$(date +%Y%m%d-%H%M%S)" # of an earlier run: job ids come again
  fi
  mkdir -p "$RUN_DIR" "$CHECKPOINT_DIR" || die setup "cannot write to $RUN_DIR" "correct checkpoint.dir"
  rm -f "$RUN_DIR"/rendezvous-*.json "$RUN_DIR"/failed-*.json "$RUN_DIR"/.over-* # of an earlier attempt
  if [[ -e $RUN_DIR/verdict.json ]]; then
    [[ $(<"$RUN_DIR/verdict.json") =~ \"attempt\":\ *([0-9]+) ]] || true
    mv -T -- "$RUN_DIR/verdict.json" "$RUN_DIR/verdict.${BASH_REMATCH[1]:-0}.json"
  fi
  sed -n 's/^#: //p' "$0" >"$RUN_DIR/job.json" || rm -f "$RUN_DIR/job.json" # from the end of this script
  echo "run directory: $RUN_DIR"
}
printf -v STARTED '%(%Y-%m-%dT%H:%M:%S%z)T' -1

# ---- the container on a cluster, this machine's Python without one
if [[ -n ${SLURM_JOB_ID:-} ]]; then
  make_run_dir
  [[ -r $IMAGE ]] || die missing-path "image $IMAGE is not readable on $(hostname)" "correct rehearsal.image"
  RUNTIME=$(command -v apptainer || command -v singularity) || die setup "no apptainer or singularity on $(hostname)" "name a module in cluster.modules"
  # The host's Python stays out of the container, and srun compares the others with its own options.
  unset PYTHONPATH PYTHONHOME PYTHONSTARTUP PYTHONUSERBASE VIRTUAL_ENV LD_LIBRARY_PATH LD_PRELOAD "${!CONDA_@}" \
    BASH_ENV SLURM_CPUS_PER_TASK SRUN_CPUS_PER_TASK SLURM_TRES_PER_TASK
  # shellcheck disable=SC2317 # srun runs it
  give_up() { # RUN_DIR KIND CAUSE WHAT_TO_DO: this node cannot begin
    local node=${SLURMD_NODENAME:-$(hostname)}
    echo "$node: $3; $4" >&2
    failure setup "$2" "$3" "$4" 20 >"$1/.failed-$node"
    mv -T -- "$1/.failed-$node" "$1/failed-$node.json"
    exit 20
  }
  # shellcheck disable=SC2317 # srun runs it
  on_node() { # RUN_DIR PATH... -- COMMAND...: the container program would not say which node lacks a path
    local run_dir=$1
    while shift && [[ $1 != -- ]]; do
      [[ -e $1 ]] || give_up "$run_dir" missing-path "no $1 on this node" "have it mounted, or correct the job"
    done
    shift
    exec "$@"
  }
  PYTHON=python3
  START=(srun --nodes=1 --ntasks=1 --ntasks-per-node=1 --cpus-per-task=2 --kill-on-bad-exit=1 --wait=0 --export=ALL --mpi=none
    bash -c "$(declare -f json failure give_up on_node); on_node \"\$@\"" on_node "$RUN_DIR" "$IMAGE" /project /toolkit --
    "$RUNTIME" exec --pwd "$PROJECT"
    --bind /project
    --bind /toolkit
    "$IMAGE")
  PREFIX=$(basename "$RUNTIME" | tr '[:lower:]' '[:upper:]')ENV_ # over the image's own values, and only in there
  IN_SLURM=(--image "$IMAGE" --note slurm="$(srun --version)" --note runtime="$("$RUNTIME" --version)")
  ends_at() { # of the allocation, in Unix seconds; older Slurms do not tell it in the environment
    local text
    text=" $(scontrol show job "$SLURM_JOB_ID" 2>/dev/null)"
    [[ $text == *" EndTime="* ]] || return
    text=${text##* EndTime=}
    date +%s -d "${text%%[[:space:]]*}" 2>/dev/null
  }
  ENDS_AT=${SLURM_JOB_END_TIME:-$(ends_at || true)}
  [[ ! $ENDS_AT =~ ^[0-9]+$ ]] || IN_SLURM+=(--ends-at "$ENDS_AT")
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
  actor_rollout_ref.actor.clip_ratio_c=3.0
  actor_rollout_ref.actor.clip_ratio_high=0.2
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
  actor_rollout_ref.actor.megatron.pipeline_model_parallel_size=1
  actor_rollout_ref.actor.megatron.sequence_parallel=false
  actor_rollout_ref.actor.megatron.tensor_model_parallel_size=1
  actor_rollout_ref.actor.megatron.use_dist_checkpointing=true
  actor_rollout_ref.actor.optim.lr=0.001
  actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=8
  actor_rollout_ref.actor.ppo_mini_batch_size=8
  actor_rollout_ref.actor.strategy=megatron
  actor_rollout_ref.actor.use_dynamic_bsz=false
  actor_rollout_ref.actor.use_kl_loss=true
  actor_rollout_ref.hybrid_engine=false
  'actor_rollout_ref.model.path=${oc.env:RUN_DIR}/rehearsal/policy'
  actor_rollout_ref.ref.log_prob_micro_batch_size_per_gpu=8
  'actor_rollout_ref.ref.megatron.dist_checkpointing_path=${oc.env:RUN_DIR}/rehearsal/policy_mcore'
  actor_rollout_ref.ref.megatron.use_dist_checkpointing=true
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
  reward.reward_manager.name=naive
  rollout.n_gpus_per_node=1
  rollout.nnodes=1
  'trainer.default_local_dir=${oc.env:CHECKPOINT_DIR}'
  trainer.esi_redundant_time=300.0
  trainer.experiment_name=demo-rehearsal
  'trainer.logger=[console]'
  trainer.n_gpus_per_node=1
  trainer.nnodes=1
  trainer.project_name=verl
  trainer.resume_mode=auto
  trainer.save_freq=40
  trainer.test_freq=-1
  trainer.total_epochs=40
  trainer.total_training_steps=40
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
MERGE=("$PYTHON" -m converters.merge --local_dir "$CHECKPOINT_DIR" --target_dir "$RUN_DIR/hf_model" --base_model "$POLICY" --force)
SUPERVISE=(env "${ENVIRONMENT[@]/#/$PREFIX}" "${START[@]}" "$PYTHON" "$TOOLKIT/launch/node.py" --run-dir "$RUN_DIR" --checkpoint-dir "$CHECKPOINT_DIR"
  --nodes 1 --ray-gpus-head 2 --ray-gpus-other 2 --ray-cpus 24 --reward-unresponsive 60 --join-timeout 300 --ready-timeout 900 --end-margin 300 --stalled-after 3600 --expect-steps --logical-gpus --object-store 200000000
  --job-file "$RUN_DIR/job.json" --data /project/data/train.parquet --data /project/data/test.parquet "${IN_SLURM[@]}"
  ::check "${CHECK[@]}"
  ::resume "$PYTHON" -m converters.resume "$CHECKPOINT_DIR"
  ::prepare "${MODELS[@]}"
  ::reward "${REWARD[@]}"
  ::canary "$PYTHON" -m reward.canary
  ::merge "${MERGE[@]}"
  ::trainer "${TRAINER[@]}")
[[ -n ${SLURM_JOB_ID:-} ]] || exec "${SUPERVISE[@]}"

# ---- wait for srun, pass signals on, and see how it ended
SRUN=
exec {QUIET}<> <(:) # nothing ever comes out of it: a way to wait
to_srun() { [[ -z $SRUN ]] || kill -s "$1" "$SRUN" 2>/dev/null || true; }
# srun answers TERM and HUP by killing its tasks, one INT by showing them; launch/node.py ends the job for any signal.
CANCELLED=false
trap 'CANCELLED=true; to_srun USR1' TERM INT HUP
trap 'to_srun USR1' USR1
trap 'to_srun USR2' USR2
"${SUPERVISE[@]}" &
SRUN=$!
OVER=$RUN_DIR/.over-$ATTEMPT # the last word of the head node: the job's exit code
is_over() { [[ -s $OVER && $(<"$OVER") =~ ^[0-9]{1,3}$ ]]; }
since=
while kill -0 "$SRUN" 2>/dev/null; do
  read -rt 0.5 -u "$QUIET" || true
  is_over || continue
  : "${since:=$SECONDS}" # srun still waits for a node that is gone
  ((SECONDS - since < 5)) || to_srun TERM
  ((SECONDS - since < 7)) || to_srun KILL
done
code=0
wait "$SRUN" || code=$?
if is_over; then
  code=$(<"$OVER") # srun has the highest code of all nodes
else
  # What the supervisor of this node would have removed.
  rm -f -- "$RUN_DIR"/{ray,reward}_token "$RUN_DIR"/rendezvous-*.json
  rm -rf -- "/tmp/rl-$UID-$SLURM_JOB_ID"
  if [[ -e $RUN_DIR/verdict.json ]]; then
    [[ ! $(<"$RUN_DIR/verdict.json") =~ \"exit_code\":\ *([0-9]+) ]] || code=${BASH_REMATCH[1]}
  else
    leave_verdict_without_head "$code" || code=$?
  fi
fi
exit "$code"

# ---- the job with all its values, for RUN_DIR/job.json
#: {
#: "name": "demo-rehearsal",
#: "template": "grpo",
#: "cluster": {"nodes": 1, "gpus_per_node": 2, "gpu": null, "gpu_memory_gb": null, "cpus_per_node": 2, "mem": null, "partition": null, "account": null, "qos": null, "time": "00:30:00", "modules": [], "network_interface": null, "join_timeout_s": 300.0, "extra_sbatch": []},
#: "container": {"image": "images/verl-cpu.sif", "runtime": "auto", "cuda": null, "stage": false, "stage_dir": "/tmp", "binds": [], "env": {}, "env_file": null},
#: "engine": {"verl": "0.9.1", "mode": "one_step_off"},
#: "rollout": {"engine": "sglang", "nodes": 1, "gpus_per_node": 1, "tensor_parallel": 1, "n": 8, "gpu_memory_utilization": 0.7, "temperature": 1.0, "top_p": 1.0, "fp8": false, "max_model_len": null, "max_batched_tokens": null, "chunked_prefill": true, "max_num_seqs": null, "enforce_eager": null, "free_cache": null},
#: "actor": {"strategy": "megatron", "gpus_per_node": null, "tensor_parallel": 1, "pipeline_parallel": 1, "context_parallel": 1, "expert_parallel": 1, "expert_tensor_parallel": null, "sequence_parallel": false, "fp8": null, "lr": 0.001, "mini_batch_size": 8, "micro_batch_size_per_gpu": 8, "dynamic_batch": false, "max_tokens_per_gpu": null, "recompute": null, "offload": []},
#: "critic": {"path": null, "lr": 0.001, "micro_batch_size_per_gpu": null, "warmup_steps": 0, "clip_range": 0.5, "offload": []},
#: "model": {"path": "models/Qwen3-4B-Thinking-2507"},
#: "data": {"train": ["data/train.parquet"], "val": ["data/test.parquet"], "train_batch_size": 8, "max_prompt_length": 256, "max_response_length": 16, "shuffle": true, "seed": null},
#: "reward": {"kind": "server", "model": "models/Unsafe-Reward-Qwen3-1.7B", "function": null, "function_name": "compute_score", "placement": "head", "gpus": 0, "max_length": null, "timeout_s": 30.0, "ready_timeout_s": 900.0, "deadline_s": 120.0, "unresponsive_s": 60.0, "min_score": -40.0, "max_score": 30.0},
#: "algorithm": {"estimator": "grpo", "gamma": 1.0, "lam": 1.0, "norm_by_std": true, "use_kl_loss": true, "kl_loss_coef": 0.001, "kl_loss_type": "low_var_kl", "use_kl_in_reward": false, "kl_coef": 0.001, "clip_ratio_low": 0.2, "clip_ratio_high": 0.2, "clip_ratio_c": 3.0, "loss_agg_mode": "token-mean", "entropy_coeff": 0.0, "overlong_buffer": {"enable": false, "length": 2, "penalty_factor": 1.0, "log": false}, "filter_groups": {"enable": false, "metric": "reward"}, "epochs": 40, "total_steps": 40, "test_every": -1},
#: "checkpoint": {"dir": "outputs/demo", "every": 40, "keep": null, "contents": null, "before_end_s": 300.0, "merge": true},
#: "recovery": {"requeue": false, "max_restarts": 3, "stalled_s": 3600.0},
#: "logging": {"loggers": ["console"], "project": "verl", "experiment": null},
#: "rehearsal": {"image": "images/verl-cpu.sif", "rollout": "hf", "family": "qwen3", "steps": 40, "train_batch_size": 8, "n": 8, "max_prompt_length": 256, "max_response_length": 16, "lr": 0.001, "cpus_per_node": 2, "time": "00:30:00"},
#: "overrides": []
#: }
