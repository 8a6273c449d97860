#!/bin/bash
# A real Slurm on one machine, for tests. As root.
#   start-slurm.sh up [NODES]           nodes node1 .. nodeN, all this machine; the configuration is Slurm's default one
#   start-slurm.sh hosts PREFIX NODES   nodes host1 .. hostN in the network namespaces PREFIX1 .. of netns-hosts.sh, the
#                                       controller in PREFIX0; prints the configuration file: set SLURM_CONF to it
#   start-slurm.sh down [PREFIX]        end what was started, except munged
# It installs Debian's packages where they are missing, and leaves a Slurm that is there alone.
set -euo pipefail

action=${1:?up, hosts or down}
case $action in
up) prefix="" nodes=${2:-2} ;;
hosts) prefix=${2:?a prefix} nodes=${3:?how many} ;;
down) prefix=${2:-} ;;
*)
    echo "expected up, hosts or down, received $action" >&2
    exit 2
    ;;
esac
folder=/var/lib/slurm-test$prefix
export SLURM_CONF=${prefix:+$folder/slurm.conf}
[[ -n $SLURM_CONF ]] || SLURM_CONF=/etc/slurm/slurm.conf
mark="# made by start-slurm.sh"

# Run something where node K, or the controller (0), is. Not by ip netns exec: slurmd looks for cgroups in /sys, which that
# would hide.
at() {
    local space=$prefix$1
    if [[ -z $prefix ]]; then
        "${@:2}"
    else
        nsenter --net="/run/netns/$space" unshare --mount sh -c \
            'mount --bind "$0" /etc/hosts && exec "$@"' "/etc/netns/$space/hosts" "${@:2}"
    fi
}

if [[ $action == down ]]; then
    for file in "$folder"/*.pid; do
        if [[ ! -s $file ]]; then continue; fi
        pid=$(<"$file")
        kill "$pid" 2>/dev/null || true
        for ((tries = 0; tries < 100; tries++)); do
            if ! kill -0 "$pid" 2>/dev/null || [[ $(awk '{print $3}' "/proc/$pid/stat") == Z ]]; then break; fi
            sleep 0.1
        done
        rm -f "$file"
    done
    if [[ -n $prefix ]]; then rm -rf "$folder" /etc/netns/"$prefix"[0-9]*; fi
    exit
fi

if ! type -P slurmctld slurmd munged >/dev/null; then
    export DEBIAN_FRONTEND=noninteractive
    apt-get -o DPkg::Lock::Timeout=300 update -qq
    apt-get -o DPkg::Lock::Timeout=300 install -y -qq --no-install-recommends slurm-wlm munge >/dev/null
fi
if [[ -z $prefix && -s $SLURM_CONF ]]; then
    if grep -q 'is UP' <(scontrol ping 2>/dev/null); then
        echo "$SLURM_CONF"
        exit
    fi
    if [[ $(head -n 1 "$SLURM_CONF") != "$mark" ]]; then
        echo "$SLURM_CONF belongs to a Slurm that does not answer" >&2
        exit 1
    fi
fi

if ! munge -n </dev/null >/dev/null 2>&1; then
    install -d -o munge -g munge -m 755 /run/munge
    install -d -o munge -g munge -m 700 /var/lib/munge /var/log/munge /etc/munge
    if [[ ! -s /etc/munge/munge.key ]]; then
        (umask 077 && head -c 1024 /dev/urandom >/etc/munge/munge.key)
        chown munge:munge /etc/munge/munge.key
    fi
    setpriv --reuid munge --regid munge --clear-groups munged
fi

host=$(hostname -s)
kind=$([[ -n $prefix ]] && echo host || echo node)
mkdir -p "$folder"/state "$folder"/spool
{
    cat <<END
$mark
ClusterName=test$prefix
SlurmctldHost=$host($([[ -n $prefix ]] && echo 10.78.0.10 || echo 127.0.0.1))
SlurmUser=root
AuthType=auth/munge
MpiDefault=none
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SlurmctldPidFile=$folder/slurmctld.pid
SlurmctldLogFile=$folder/slurmctld.log
SlurmdPidFile=$folder/slurmd.%n.pid
SlurmdLogFile=$folder/slurmd.%n.log
SlurmdSpoolDir=$folder/spool/%n
StateSaveLocation=$folder/state
ReturnToService=2
KillWait=5
END
    memory=$(($(awk '/MemTotal/ {print $2}' /proc/meminfo) / 1024 / nodes))
    for ((node = 1; node <= nodes; node++)); do
        if [[ -n $prefix ]]; then
            place="NodeHostname=$host NodeAddr=10.78.0.$((10 + node))"
        else
            place="NodeHostname=$host NodeAddr=127.0.0.1 Port=$((17000 + node))"
        fi
        echo "NodeName=$kind$node $place CPUs=$(nproc) RealMemory=$memory State=UNKNOWN"
    done
    echo "PartitionName=test Nodes=ALL Default=YES MaxTime=INFINITE OverSubscribe=FORCE:4 State=UP"
} >"$folder/slurm.conf.new"
mv "$folder/slurm.conf.new" "$SLURM_CONF"

for ((node = 0; node <= nodes; node++)); do # each node's name leads to its address
    if [[ -n $prefix ]]; then
        mkdir -p "/etc/netns/$prefix$node"
        echo "127.0.0.1 localhost" >"/etc/netns/$prefix$node/hosts"
        for ((other = 1; other <= nodes; other++)); do echo "10.78.0.$((10 + other)) host$other"; done \
            >>"/etc/netns/$prefix$node/hosts"
    elif ((node)) && ! grep -qw "node$node" /etc/hosts; then
        echo "127.0.1.$node node$node" >>/etc/hosts
    fi
done
at 0 slurmctld
for ((node = 1; node <= nodes; node++)); do at "$node" slurmd -N "$kind$node"; done
for ((tries = 0; tries < 60; tries++)); do
    idle=$(at 0 sinfo -h -t idle -o %D 2>/dev/null | awk '{n += $1} END {print n + 0}')
    if [[ $idle == "$nodes" ]]; then
        echo "$SLURM_CONF"
        exit
    fi
    sleep 0.5
done
echo "the nodes did not come up: see $folder" >&2
exit 1
