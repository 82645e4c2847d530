#!/bin/bash
# Pid 1 inside a node: munged, then slurmctld with its database (login) or slurmd (the others).
# usage: node-init NODE ADDRESS
set -u
NODE=$1
ADDRESS=$2
unset TMPDIR LAB CLUSTER CHECKOUT SUBNET ALICE
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LANG=C.UTF-8

poll() { # DEADLINE_S WHAT COMMAND...: runs the command each tenth of a second until it succeeds
  local tries=$(($1 * 10)) what=$2
  shift 2
  until "$@" >/dev/null 2>&1; do
    tries=$((tries - 1))
    if [ $tries -le 0 ]; then
      echo "node $NODE: gave up waiting for $what" >&2
      return 1
    fi
    sleep 0.1
  done
}

as() { # USER COMMAND...
  local user=$1
  shift
  setpriv --reuid "$user" --regid "$user" --clear-groups "$@"
}

has_address() { ip -4 -o addr show | grep -qF " $ADDRESS/"; }

start_accounting() {
  install -d -o mysql -g mysql /run/mysqld /run/mariadbd # one of them holds the socket, by version
  as mysql mariadbd --skip-networking --innodb-buffer-pool-size=32M >/var/log/mariadbd.log 2>&1 &
  poll 120 mariadb mariadb -e 'select 1' || return 1
  mariadb -e "create database slurm_acct_db; create user slurm@localhost identified via unix_socket;
              grant all on slurm_acct_db.* to slurm@localhost"
  as slurm slurmdbd -D >/var/log/slurm/slurmdbd.out 2>&1 &
  poll 120 slurmdbd sacctmgr -n show cluster || return 1
  sacctmgr -i add cluster lab >/dev/null
}

ip link set lo up
install -d -o munge -g munge -m 755 /run/munge /var/log/munge /var/lib/munge
install -d -o slurm -g slurm /run/slurm /var/log/slurm /var/lib/slurm/slurmctld
mkdir -p /var/lib/slurm/slurmd /run/lock /run/user
poll 60 "the address $ADDRESS" has_address || exit 1
as munge munged
if [ "$NODE" = login ]; then
  if command -v slurmdbd >/dev/null; then start_accounting || exit 1; fi # the end of the node: up.sh shows its console
  as slurm slurmctld -D >/var/log/slurm/slurmctld.out 2>&1 &
else
  slurmd -D >/var/log/slurm/slurmd.out 2>&1 &
fi

touch /run/node-ready
trap 'exit 0' TERM
while :; do # bash reaps what the node's processes leave behind
  sleep 3600 &
  wait $!
done
