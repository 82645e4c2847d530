#!/bin/bash
# Ray's own start and nothing else: one srun, the head and the workers at once, polled until all nodes are there.
#SBATCH --job-name=bench --nodes=3 --ntasks-per-node=1 --cpus-per-task=2 --time=00:10:00 --output=%x-%j.out
echo "began $(date +%s.%N)"
HEAD=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
HEAD_IP=$(getent hosts "$HEAD" | cut -d' ' -f1)
export HEAD_IP
unset SLURM_CPUS_PER_TASK
srun --export=ALL singularity -q exec --bind "$TESTS,$CHECKPOINT_DIR" "$IMAGE" python3 "$BENCH/ray_alone.py"
