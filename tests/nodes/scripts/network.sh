# Process 1 of a cluster: a switch, and the nodes n0, n1, … plugged into it.
#
# Its death ends every process of every node, and with them all namespaces and mounts.
# Variables: NUM_NODES, NETWORK (first three numbers of the addresses), STATE, SCRIPTS, and those
# of node.sh.
set -e
mount --make-rprivate /
ip link add switch type bridge
ip link set switch up
node=0
while [ "$node" -lt "$NUM_NODES" ]; do
  NODE=n$node ADDRESS=$NETWORK.$((node + 1)) unshare --net --mount --uts --ipc --pid --fork \
    --kill-child --mount-proc bash "$SCRIPTS/node.sh" > "$STATE/node.n$node.log" 2>&1 < /dev/null &
  echo $! > "$STATE/unshare.n$node"
  node=$((node + 1))
done
node=0
while [ "$node" -lt "$NUM_NODES" ]; do
  while [ ! -e "$STATE/mounted.n$node" ]; do sleep 0.02; done
  pgrep -P "$(cat "$STATE/unshare.n$node")" > "$STATE/pid.n$node"
  ip link add "port$node" type veth peer name eth0 netns "$(cat "$STATE/pid.n$node")"
  ip link set "port$node" master switch
  ip link set "port$node" up
  node=$((node + 1))
done
node=0
while [ "$node" -lt "$NUM_NODES" ]; do
  while [ ! -e "$STATE/up.n$node" ]; do sleep 0.02; done
  node=$((node + 1))
done
: > "$STATE/up"
while :; do
  wait
  sleep 1000 &
done
