# What a job's script does beside its one srun: the run directory, the container on each node, the wait for srun, and the
# verdict when no head node lives to write one. Sourced by the script, bash 4.4 and later, with its settings: NAME RUN_DIR
# CHECKPOINT_DIR ATTEMPT NODES MAX_RESTARTS IMAGE IMAGE_SIZE IMAGE_SHA256, and STAGED (empty: the image is used where it is).
# shellcheck shell=bash disable=SC2153
printf -v STARTED '%(%Y-%m-%dT%H:%M:%S%z)T' -1
CANCELLED=false
WAITS_FOR= # a child that works before srun
SUM= # SHA-256 of the image, once it is computed
GOES_ON="the job goes on from its last checkpoint"
STARTS="srun starts the nodes" # what the output has after it is of the container program, or from inside

# ---- failures and verdicts

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
  fields=${fields//"$GOES_ON"/$(goes_on)}
  printf -v now '%(%Y-%m-%dT%H:%M:%S%z)T' -1
  [[ ! -s $marker || ! $(tr -d '\0' <"$marker") =~ ^[0-9]+$ ]] || saved=$(json "$CHECKPOINT_DIR/global_step_$(<"$marker")")
  printf '{"state": "%s", %s, "started": "%s", "ended": "%s", "attempt": %d, "steps_done": null, "last_checkpoint": %s, "hf_model": null,\n"requeue": %s, "requeue_why": "%s"}\n' \
    "$1" "${fields%\}*}" "$STARTED" "$now" "$ATTEMPT" "$saved" "$again" "the head node could not decide" >"$RUN_DIR/.verdict.json.$$"
  mv -T -- "$RUN_DIR/.verdict.json.$$" "$RUN_DIR/verdict.json"
}

goes_on() { # what a job that is submitted again begins with
  if [[ $CHECKPOINT_DIR == "$RUN_DIR"/* ]]; then
    echo "it begins at step 1: a rehearsal keeps its checkpoints in its run directory"
  elif [[ -s $CHECKPOINT_DIR/latest_checkpointed_iteration.txt ]]; then
    echo "$GOES_ON"
  else
    echo "it begins at step 1: no checkpoint was written"
  fi
}

die() { # KIND CAUSE WHAT_TO_DO: before a node has started anything
  echo "$NAME: $2; $3" >&2
  [[ ! -d $RUN_DIR ]] || leave_verdict failed "$(failure setup "$1" "$2" "$3" 20)"
  exit 20
}

output_backwards() { # of the job, in this attempt: last line first
  local output
  output=$(scontrol show job "$SLURM_JOB_ID" 2>/dev/null | sed -n 's/^ *Std\(Err\|Out\)=\(.\)/\2/p' | head -n 1)
  [[ -r $output ]] || return 0
  tac -- "$output" | sed '/^run directory: /q' || true # tac may be ended before its first line
}

said_by_srun() { # its last line about a node that it lost
  output_backwards | grep -aoE '^srun: error: .*(failed on node|[Nn]ode failure on) .*' | sed -n '1s/^srun: error: //p'
}

said_by_container() { # the first line by which apptainer or singularity gave up, in the forms of its Go and of its C part
  output_backwards | sed "/: $STARTS\$/q" | grep -aE '^((FATAL|ERROR): {3}|(FATAL|ERROR|ABORT) {2}: )[^ ]' | tail -n 1 | tr -s '[:blank:]' ' '
}

is_cancelled() { # by a person: Slurm ends a job for a lost node, at the time limit, or for another job, in the same way
  [[ $CANCELLED == true ]] && ! output_backwards | grep -aE '^slurmstepd: error: \*\*\* .* DUE TO ' >/dev/null
}

noted() { # the failure that a node noted, as JSON; a cancelled one says nothing of the cause
  local note text damaged=
  for note in "$RUN_DIR"/failed-*.json; do
    [[ -e $note ]] || continue
    text=$(tr -d '\0' <"$note")
    if [[ $text == '{'*@($'\n}'|'"evidence": null}') && $text =~ \"exit_code\":\ *[0-9]+ ]]; then
      [[ $text =~ \"exit_code\":\ *143 ]] || { echo "$text" && return; }
    else # the disk may be full
      damaged=${damaged:-$note}
    fi
  done
  [[ -n $damaged ]] || return 0
  note=${damaged##*/failed-}
  SLURMD_NODENAME=${note%.json} failure node unrecognised "failed; its note $damaged cannot be read" \
    "look at the output of the job" 24
}

leave_verdict_without_head() { # EXIT_CODE of srun; returns the job's
  local code=$1 state=failed text cause="the supervisor of the head node ended without a verdict (exit code $1)" said
  text=$(noted)
  said=$(said_by_srun || true)
  if [[ $said =~ (on\ node|[Ff]ailure\ on)\ ([^ :]+) ]]; then # srun then kills the others at once
    code=24
    ((ATTEMPT >= MAX_RESTARTS)) || is_cancelled || state=requeued
    text=$(SLURMD_NODENAME=${BASH_REMATCH[2]} failure node node-lost "$said" "look at the node's state (sinfo); submit again" "$code")
  elif [[ -n $text ]]; then
    [[ ! $text =~ \"exit_code\":\ *([0-9]+) ]] || code=${BASH_REMATCH[1]}
  elif [[ $CANCELLED == true ]]; then
    state=cancelled code=143 cause="cancelled, and killed before the head node could say more"
    text=$(failure job cancelled "$cause" "submit again: $GOES_ON" "$code")
  elif said=$(said_by_container) && [[ -n $said ]]; then
    code=20 cause="image $IMAGE is damaged or cannot be started by $(basename "$RUNTIME"): $said" said=
    text=$(failure setup image "$cause" "look at it: python -m singularity.inspect $(printf %q "$IMAGE"); copy or build it again" "$code")
  else
    ((code > 0 && code < 128)) || code=28
    text=$(failure head unrecognised "$cause" "look at the output of the job and at logs/ in $RUN_DIR" "$code")
  fi
  echo "$NAME: ${said:-$cause}" >&2
  leave_verdict "$state" "$text"
  return "$code"
}

not_again() { # STATE WHY: Slurm does not start the job again as verdict.json says
  sed -e 's/^\([ {]*"state": \)"requeued"/\1"'"$1"'"/' -e 's/^\( *"requeue": \)true/\1false/' \
    -e 's/\("requeue_why": \)"[^"]*"/\1"'"$2"'"/' "$RUN_DIR/verdict.json" >"$RUN_DIR/.verdict.json.$$" &&
    mv -T -- "$RUN_DIR/.verdict.json.$$" "$RUN_DIR/verdict.json"
}

# ---- before srun

make_run_dir() {
  local number
  if [[ -e $RUN_DIR && -n ${SLURM_JOB_ID:-} && $ATTEMPT == 0 ]]; then
    mv -T -- "$RUN_DIR" "$RUN_DIR.before-$(date +%Y%m%d-%H%M%S)" # of an earlier run: job ids come again
  fi
  mkdir -p "$RUN_DIR" "$CHECKPOINT_DIR" || die setup "cannot write to $RUN_DIR" "correct checkpoint.dir"
  rm -f "$RUN_DIR"/rendezvous-*.json "$RUN_DIR"/failed-*.json "$RUN_DIR"/.over-* # of an earlier attempt
  if [[ -e $RUN_DIR/verdict.json ]]; then
    number=$((ATTEMPT ? ATTEMPT - 1 : 0))
    [[ ! $(tr -d '\0' <"$RUN_DIR/verdict.json") =~ \"attempt\":\ *([0-9]{1,9})[^0-9] ]] || number=$((10#${BASH_REMATCH[1]}))
    while [[ -e $RUN_DIR/verdict.$number.json ]]; do ((++number)); done
    mv -T -- "$RUN_DIR/verdict.json" "$RUN_DIR/verdict.$number.json"
  fi
  # From the end of the script.
  sed -n 's/^#: //p' "$0" >"$RUN_DIR/job.json" || rm -f "$RUN_DIR/job.json"
  sed -n 's/^#= //p' "$0" >"$RUN_DIR/resolved.json" || rm -f "$RUN_DIR/resolved.json"
  [[ -z ${SLURM_JOB_ID:-} ]] || trap end_before_srun TERM INT HUP USR1 USR2
  echo "run directory: $RUN_DIR"
  # Slurm itself starts a job again when its first node fails, and does not count.
  ((MAX_RESTARTS == 0 || ATTEMPT <= MAX_RESTARTS)) ||
    die setup "started again $ATTEMPT times" "look at the earlier verdicts; recovery.max_restarts is $MAX_RESTARTS"
}

end_before_srun() { # the job is cancelled while the image is compared or copied, or before
  local child children="" # the child is there before its name is in WAITS_FOR
  trap '' TERM INT HUP USR1 USR2
  read -r children 2>/dev/null <"/proc/$$/task/$$/children" || true
  for child in ${WAITS_FOR:-$children}; do
    WAITS_FOR=$child
    kill "$child" 2>/dev/null || true
  done
  echo "$NAME: cancelled before its nodes started" >&2
  leave_verdict cancelled "$(failure job cancelled "cancelled before its nodes started" "submit again: $GOES_ON" 143)"
  if [[ -n $STAGED && -n $WAITS_FOR ]]; then
    wait "$WAITS_FOR" || true
    rm -f -- "$STAGED" # Slurm may refuse the step that removes all of them
    remove_copies
  fi
  exit 143
}

load_modules() { # MODULE...
  local init module
  # A submitting shell other than bash exports no function, but tells where its modules come from.
  for init in /etc/profile.d/modules.sh /etc/profile.d/lmod.sh /etc/profile.d/z00_lmod.sh \
    "${MODULESHOME:+$MODULESHOME/init/bash}" "${LMOD_PKG:+$LMOD_PKG/init/bash}" \
    /usr/share/lmod/lmod/init/bash /usr/share/Modules/init/bash /usr/share/modules/init/bash; do
    # shellcheck disable=SC1090
    type module >/dev/null 2>&1 || { [[ -r $init ]] && set +u && source "$init" && set -u; } || true
  done
  type module >/dev/null 2>&1 || die setup "no 'module' command on $(hostname)" "correct cluster.modules"
  set +u
  for module; do
    module load "$module" || die setup "module load $module failed" "correct cluster.modules"
  done
  set -u
}

ends_at() { # end of the allocation in Unix seconds; older Slurms do not tell it in the environment
  local text=${SLURM_JOB_END_TIME:-}
  if [[ -z $text ]]; then
    text=" $(scontrol show job "$SLURM_JOB_ID" 2>/dev/null)"
    [[ $text == *" EndTime="* ]] || return
    text=${text##* EndTime=}
    text=$(date +%s -d "${text%%[[:space:]]*}" 2>/dev/null)
  fi
  [[ ! $text =~ ^[0-9]+$ ]] || echo "$text"
}

compare_image() { # [sum]: the image with what was rendered and with its recorded sum, before a node starts anything
  local size named recorded=$IMAGE_SHA256 again="copy or build it again; if it is meant to be this one, render the job again"
  [[ -f $IMAGE ]] || return 0 # a sandbox
  size=$(stat -L -c %s -- "$IMAGE")
  [[ -z $IMAGE_SIZE || $size == "$IMAGE_SIZE" ]] ||
    die image "image $IMAGE has $size bytes, and had $IMAGE_SIZE when the job was rendered: changed or cut short since" "$again"
  [[ ${1:-} == sum ]] || return 0
  named=$(named_by_record)
  if [[ -z $recorded && (-e $named.sha256 || -L $named.sha256) ]]; then
    recorded=$(recorded_sum) || die image "$named.sha256 has no SHA-256 sum of ${named##*/}" \
      "record it again: python -m singularity.inspect --record $(printf %q "$named")"
  fi
  [[ -n $recorded ]] || return 0
  sum_image
  [[ $SUM == "$recorded" ]] ||
    die image "image $IMAGE has the SHA-256 sum $SUM, recorded is $recorded: changed or damaged" "$again"
}

named_by_record() { # the image that IMAGE.sha256 names; without one, and where IMAGE is a link, its target
  if [[ -L $IMAGE && ! -e $IMAGE.sha256 && ! -L $IMAGE.sha256 ]]; then
    readlink -f -- "$IMAGE" && return
  fi
  printf '%s\n' "$IMAGE"
}

recorded_sum() { # as sha256sum or openssl write it, or a sum alone; as singularity.checksum.recorded reads it
  local LC_ALL=C line hash name image alone=false others=false sum="" own escaped mark=$'\xef\xbb\xbf'
  local tagged='^(\\?)SHA(2-)?256 ?\((.+)\) ?= ([^[:space:]]+)$' plain='^(\\?)([^[:space:]]+)[[:blank:]]+\*?(.+)$'
  image=$(named_by_record) own=${image##*/}
  escaped=${own//\\/\\\\} escaped=${escaped//$'\n'/\\n} escaped=${escaped//$'\r'/\\r}
  [[ -f $image.sha256 && $(stat -L -c %s -- "$image.sha256") -le 1048576 ]] || return 1
  while IFS= read -r line || [[ -n $line ]]; do
    line=${line#"$mark"} mark='' line=${line%$'\r'}
    [[ $line == *[![:space:]]* && $line != '#'* ]] || continue
    if [[ $line =~ $tagged ]]; then
      name=${BASH_REMATCH[3]} hash=${BASH_REMATCH[4]}
    elif [[ $line =~ $plain ]]; then
      name=${BASH_REMATCH[3]} hash=${BASH_REMATCH[2]}
    else
      hash=${line#"${line%%[![:space:]]*}"} hash=${hash%"${hash##*[![:space:]]}"}
      name=$own alone=true
    fi
    [[ $hash =~ ^[[:xdigit:]]{64}$ ]] || return 1
    if [[ ($line != \\* && ${name##*/} == "$own") || ($line == \\* && ${name##*/} == "$escaped") ]]; then
      [[ -z $sum || $sum == "${hash,,}" ]] || return 1 # they contradict each other
      sum=${hash,,}
    else
      others=true
    fi
  done < <(tr '\0' '\1' <"$image.sha256")
  [[ -n $sum && ($alone == false || $others == false) ]] && echo "$sum"
}

sum_image() { # sets SUM
  local sum
  [[ -z $SUM ]] || return 0
  # In the background, since bash does not see a signal before a program in the foreground has ended.
  exec {sum}< <(exec sha256sum <"$IMAGE")
  WAITS_FOR=$!
  wait "$WAITS_FOR" || die missing-path "image $IMAGE cannot be read" "look at its disk"
  read -ru "$sum" SUM _
  exec {sum}<&-
  WAITS_FOR=
}

copy_image() { # to STAGED on each node
  local folder=${STAGED%/*}
  case $(stat -f -c %T -- "$folder" 2>/dev/null) in
    nfs* | lustre | gpfs | fhgfs | ceph | cifs | smb* | panfs | afs)
      die setup "$folder is on a shared file system" "set container.stage_dir to a folder on the nodes' own disks"
      ;;
  esac
  echo "copying the image to $STAGED on each node"
  sum_image
  sbcast --force -- "$IMAGE" "$STAGED" &
  WAITS_FOR=$!
  wait "$WAITS_FOR" && return
  remove_copies
  die setup "sbcast could not copy $IMAGE ($(stat -L -c %s -- "$IMAGE") bytes) to $folder of each node" \
    "see the lines of sbcast in the job's output; make room there, or set container.stage_dir or container.stage=false"
}

remove_copies() { # what launch/node.py on each node does as soon as it runs
  timeout 15 srun --nodes="$NODES" --ntasks="$NODES" --ntasks-per-node=1 --mpi=none rm -f -- "$STAGED" || true
}

# ---- on each node, by srun

give_up() { # RUN_DIR KIND CAUSE WHAT_TO_DO: this node cannot begin
  local node=${SLURMD_NODENAME:-$(hostname)}
  echo "$node: $3; $4" >&2
  failure setup "$2" "$3" "$4" 20 >"$1/.failed-$node"
  mv -T -- "$1/.failed-$node" "$1/failed-$node.json"
  exit 20
}

on_node() { # RUN_DIR STAGED SHA256 PATH... -- COMMAND...: the container program would not say which node lacks a path
  local run_dir=$1 sum=$3 remedy="look at the disk of this node, or set container.stage=false" here
  staged=$2
  if [[ -n $staged ]]; then
    trap 'rm -f -- "$staged"' EXIT # launch/node.py does it as soon as it runs
    trap : TERM INT HUP USR1 USR2  # for launch/node.py; this waits for its end
  fi
  shift 2
  while shift && [[ $1 != -- ]]; do
    [[ -e $1 ]] || give_up "$run_dir" missing-path "no $1 on this node" "have it mounted, or correct the job"
  done
  shift
  [[ -n $staged ]] || exec "$@"
  [[ -f $staged ]] || give_up "$run_dir" setup "no copy $staged of the image on this node" "$remedy"
  chmod 600 -- "$staged"
  here=$(sha256sum <"$staged")
  here=${here%% *}
  [[ $here == "$sum" ]] || give_up "$run_dir" setup "$staged has the SHA-256 sum $here, the image has $sum" "$remedy"
  "$@"
}

# ---- srun, its end, and another start

run_in_slurm() { # COMMAND...: srun and what it runs; exits with the job's code
  local over=$RUN_DIR/.over-$ATTEMPT since="" code=0 quiet # over: the last word of the head node, the job's exit code
  SRUN=
  exec {quiet}<> <(:) # nothing ever comes out of it: a way to wait
  # srun answers TERM and HUP by killing its tasks, one INT by showing them; launch/node.py ends the job for any signal.
  trap 'CANCELLED=true; to_srun USR1' TERM INT HUP
  trap 'to_srun USR1' USR1
  trap 'to_srun USR2' USR2
  echo "$NAME: $STARTS" >&2
  "$@" &
  SRUN=$!
  [[ $CANCELLED == false ]] || to_srun USR1 # it came just before
  while kill -0 "$SRUN" 2>/dev/null; do
    read -rt 0.5 -u "$quiet" || true
    is_over || continue
    : "${since:=$SECONDS}" # srun still waits for a node that is gone
    ((SECONDS - since < 3)) || to_srun TERM
    ((SECONDS - since < 5)) || kill_srun
  done
  wait "$SRUN" || code=$?
  if is_over; then
    code=$(<"$over") # srun has the highest code of all nodes
  else
    clean_up_without_head
    # A node that could not be started is the cause, whatever the head still said of those that srun killed for it.
    if [[ -e $RUN_DIR/verdict.json && $(said_by_srun) != "Task launch"* ]]; then
      [[ ! $(<"$RUN_DIR/verdict.json") =~ \"exit_code\":\ *([0-9]+) ]] || code=${BASH_REMATCH[1]}
    else
      leave_verdict_without_head "$code" || code=$?
    fi
  fi
  if ((MAX_RESTARTS)) && grep -q '^ *"requeue": true' "$RUN_DIR/verdict.json"; then
    if is_cancelled; then
      not_again cancelled "the job was cancelled"
      exit "$code"
    fi
    trap - TERM INT HUP USR1 USR2
    if scontrol requeue "$SLURM_JOB_ID"; then
      echo "$NAME: Slurm starts the job again"
      read -rt 120 -u "$quiet" || true # to be ended
    fi
    not_again failed "Slurm did not start the job again"
    echo "$NAME: the job was not started again (scontrol requeue $SLURM_JOB_ID); submit again: $(goes_on)" >&2
  fi
  exit "$code"
}

to_srun() { [[ -z $SRUN ]] || kill -s "$1" "$SRUN" 2>/dev/null || true; }

kill_srun() { # and its child, which outlives it to end the step, and may wait for the node that is gone as long as it did
  local child children=""
  children=$(cat "/proc/$SRUN/task/"*/children 2>/dev/null) || true
  for child in $children; do
    kill -s KILL "$child" 2>/dev/null || true
  done
  to_srun KILL
}

is_over() { [[ -s $over && $(<"$over") =~ ^[0-9]{1,3}$ ]]; }

clean_up_without_head() { # what the supervisor of this node would have removed
  rm -f -- "$RUN_DIR"/{ray,reward}_token "$RUN_DIR"/rendezvous-*.json
  [[ -z $STAGED ]] || remove_copies &
  # srun may have killed all nodes at once. Those that live do it in no time; for one that does not srun would wait.
  timeout 15 srun --overlap --nodes="$NODES" --ntasks="$NODES" --ntasks-per-node=1 --mpi=none \
    rm -rf -- "/tmp/rl-$UID-$SLURM_JOB_ID" >/dev/null 2>&1 || true
  rm -rf -- "/tmp/rl-$UID-$SLURM_JOB_ID"
  wait $!
}
