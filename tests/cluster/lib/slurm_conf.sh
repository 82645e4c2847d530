#!/bin/bash
# Writes the configuration of the cluster into $LAB/etc.
# usage: slurm_conf.sh NODES CPUS MEMORY_MB GPUS ROOTFS      ($MORE_SLURM_CONF: more lines of slurm.conf)
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"
NODES=$1
CPUS=$2
MEMORY=$3
GPUS=$4
ROOTFS=$5

mkdir -p "$LAB/etc/slurm"
cd "$LAB/etc" || exit
[ -e munge.key ] || (umask 077 && head -c 1024 /dev/urandom >munge.key)

{
  echo "127.0.0.1 localhost"
  echo "$(node_address login) login"
  for ((i = 1; i <= NODES; i++)); do echo "$(node_address "n$i") n$i"; done
} >hosts

# The short times let a test see a dead node (20 s) and a requeue (9 s) without waiting for minutes.
cat >slurm/slurm.conf <<CONF
ClusterName=lab
SlurmctldHost=login($(node_address login))
AuthType=auth/munge
CredType=cred/munge
AuthInfo=cred_expire=5
MpiDefault=none
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/linux
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU_Memory
DefMemPerCPU=1000
GresTypes=gpu
SlurmUser=slurm
StateSaveLocation=/var/lib/slurm/slurmctld
SlurmdSpoolDir=/var/lib/slurm/slurmd
SlurmctldPidFile=/run/slurm/slurmctld.pid
SlurmdPidFile=/run/slurm/slurmd.pid
SlurmctldLogFile=/var/log/slurm/slurmctld.log
SlurmdLogFile=/var/log/slurm/slurmd.log
SlurmdParameters=config_overrides
ReturnToService=2
SlurmctldTimeout=30
SlurmdTimeout=20
MessageTimeout=10
KillWait=5
MinJobAge=600
JobRequeue=1
SchedulerParameters=batch_sched_delay=0,bf_interval=5
NodeName=n[1-$NODES] CPUs=$CPUS Sockets=1 CoresPerSocket=$CPUS ThreadsPerCore=1 RealMemory=$MEMORY Gres=gpu:h200:$GPUS State=UNKNOWN
PartitionName=gpu Nodes=ALL Default=YES MaxTime=1-0 DefaultTime=30 State=UP
${MORE_SLURM_CONF:-}
CONF

accounting() {
  cat >>slurm/slurm.conf <<CONF
AccountingStorageType=accounting_storage/slurmdbd
AccountingStorageHost=login
AccountingStorageTRES=gres/gpu
CONF
  cat >slurm/slurmdbd.conf <<CONF
DbdHost=login
AuthType=auth/munge
SlurmUser=slurm
StorageType=accounting_storage/mysql
StorageHost=localhost
StorageUser=slurm
StorageLoc=slurm_acct_db
PidFile=/run/slurm/slurmdbd.pid
LogFile=/var/log/slurm/slurmdbd.log
CONF
  chown "$(chroot "$ROOTFS" id -u slurm)" slurm/slurmdbd.conf
  chmod 600 slurm/slurmdbd.conf
}
[ ! -e "$ROOTFS/usr/sbin/slurmdbd" ] || accounting

case $(chroot "$ROOTFS" slurmctld -V) in
*" 22."*) printf 'CgroupPlugin=cgroup/v1\nCgroupAutomount=no\n' ;;
*) echo "CgroupPlugin=disabled" ;;
esac >slurm/cgroup.conf

cat >slurm/gres.conf <<CONF
AutoDetect=off
NodeName=n[1-$NODES] Name=gpu Type=h200 File=/dev/nvidia[0-$((GPUS - 1))]
CONF
