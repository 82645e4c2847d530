#!/bin/bash
# A job with the customary fixed waits: one srun, a role for each task, sleeps in the place of readiness.
#SBATCH --job-name=bench --nodes=3 --ntasks-per-node=1 --cpus-per-task=2 --time=00:10:00 --output=%x-%j.out
echo "began $(date +%s.%N)"
HEAD=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
HEAD_IP=$(getent hosts "$HEAD" | cut -d' ' -f1)
export HEAD_IP RAY_ADDRESS=$HEAD_IP:6379
unset SLURM_CPUS_PER_TASK

role() {
  if [ "$SLURM_PROCID" = 0 ]; then
    python3 "$BENCH/stub_reward.py" --host "$HEAD_IP" --port 8000 &
    sleep 10
    ray start --head --node-ip-address="$HEAD_IP" --port=6379 --num-cpus=32 --num-gpus=2 \
      --object-store-memory=200000000 --include-dashboard=false --disable-usage-stats
    sleep 30
    python3 "$STUB_TRAINER" --step-s 0.05 trainer.total_training_steps=20 trainer.save_freq=20
  else
    sleep 30
    ray start --address="$RAY_ADDRESS" --num-cpus=32 --num-gpus=2 --object-store-memory=200000000 \
      --disable-usage-stats --block
  fi
}
srun --export=ALL bash -c "$(declare -f role); export -f role; singularity -q exec --bind $TESTS,$CHECKPOINT_DIR $IMAGE bash -c role"
