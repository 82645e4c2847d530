#!/bin/bash
# A job in the manner of verl's sample for Slurm: a step for the head, one for each worker, one for the driver.
#SBATCH --job-name=bench --nodes=3 --ntasks-per-node=1 --cpus-per-task=2 --time=00:10:00 --output=%x-%j.out
echo "began $(date +%s.%N)"
mapfile -t NODES < <(scontrol show hostnames "$SLURM_JOB_NODELIST")
HEAD=${NODES[0]}
HEAD_IP=$(srun --nodes=1 --ntasks=1 -w "$HEAD" hostname -I | cut -d' ' -f1)
export RAY_ADDRESS=$HEAD_IP:6379
unset SLURM_CPUS_PER_TASK
RUN=(singularity -q exec --bind "$TESTS,$CHECKPOINT_DIR" "$IMAGE")
RAY=(--num-cpus=32 --num-gpus=2 --object-store-memory=200000000 --disable-usage-stats --block)

srun --overlap --nodes=1 --ntasks=1 -w "$HEAD" "${RUN[@]}" \
  ray start --head --node-ip-address="$HEAD_IP" --port=6379 --include-dashboard=false "${RAY[@]}" &
sleep 10
for node in "${NODES[@]:1}"; do
  srun --overlap --nodes=1 --ntasks=1 -w "$node" "${RUN[@]}" ray start --address="$RAY_ADDRESS" "${RAY[@]}" &
  sleep 5
done
srun --overlap --nodes=1 --ntasks=1 -w "$HEAD" "${RUN[@]}" \
  python3 "$STUB_TRAINER" --step-s 0.05 trainer.total_training_steps=20 trainer.save_freq=20
