#!/bin/bash
# Hosts on one machine, for tests: network namespaces with an address each, on a switch in a namespace of its own.
#   netns-hosts.sh up PREFIX N        hosts PREFIX0 .. PREFIX(N-1) at 10.78.0.10, .11, ...
#   netns-hosts.sh cut PREFIX K       pull host K's cable: packets vanish, its own link stays up
#   netns-hosts.sh join PREFIX K      plug it back
#   netns-hosts.sh down PREFIX        remove them all
# Run something on host K with: ip netns exec PREFIXK COMMAND. Needs root and iproute2.
set -euo pipefail

action=${1:?up, cut, join or down} prefix=${2:?a prefix of letters} number=${3:-}
switch=${prefix}sw

case $action in
up)
    ip netns add "$switch"
    ip -n "$switch" link add bridge0 type bridge
    ip -n "$switch" link set bridge0 up
    for ((host = 0; host < ${number:?how many}; host++)); do
        ip netns add "$prefix$host"
        ip -n "$prefix$host" link set lo up
        ip -n "$switch" link add "port$host" type veth peer name eth0 netns "$prefix$host"
        ip -n "$switch" link set "port$host" master bridge0 up
        ip -n "$prefix$host" addr add "10.78.0.$((10 + host))/24" dev eth0
        ip -n "$prefix$host" link set eth0 up
    done
    ;;
# Out of the bridge instead of down: a link that is down would be told to the host, a cut further away is not.
cut) ip -n "$switch" link set "port${number:?which host}" nomaster ;;
join) ip -n "$switch" link set "port${number:?which host}" master bridge0 ;;
down)
    for name in $(ip netns list | awk '{print $1}'); do
        if [[ $name == "$switch" || $name =~ ^${prefix}[0-9]+$ ]]; then ip netns del "$name"; fi
    done
    ;;
*)
    echo "expected up, cut, join or down, received $action" >&2
    exit 2
    ;;
esac
