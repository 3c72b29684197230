# Process 1 of a virtual node: private folders, then its network, then sshd.
#
# Variables: NODE (its name), ADDRESS, STATE (keys, hosts), KEEP (folders that all nodes see, by
# colons), TEMPORARY (the temporary folder, which each node has for itself).
set -e
hostname "$NODE"
ip link set lo up

private() {
  mkdir -p "$2"
  mount -t tmpfs -o "size=$1" tmpfs "$2"
}

# A kept folder may lie below one that is hidden: bind it aside first, and in its place afterwards.
private 64m /mnt
mkdir /mnt/state
mount --bind "$STATE" /mnt/state
count=0
IFS=:
for folder in $KEEP; do
  mkdir -p "/mnt/keep/$count"
  mount --rbind "$folder" "/mnt/keep/$count"
  count=$((count + 1))
done
private 8g "$TEMPORARY"
chmod 1777 "$TEMPORARY"
count=0
for folder in $KEEP; do
  mkdir -p "$folder"
  mount --rbind "/mnt/keep/$count" "$folder"
  count=$((count + 1))
done
unset IFS
private 1g /dev/shm
chmod 1777 /dev/shm
private 4g /mnt/scratch
for folder in /run /var/spool /var/log /root/.ssh /root/.cache; do
  private 1g "$folder"
done

# Only the hosts file resolves names; a name server would have to be reached first.
mount --bind /mnt/state/hosts /etc/hosts
if [ -e /etc/resolv.conf ]; then
  mount --bind /mnt/state/resolv.conf /etc/resolv.conf
fi
umask 077
cp /mnt/state/user /root/.ssh/id_ed25519
cp /mnt/state/user.pub /root/.ssh/authorized_keys
cp /mnt/state/known_hosts /root/.ssh/known_hosts
cp /mnt/state/ssh_config /root/.ssh/config
cp /mnt/state/host /mnt/hostkey
umask 022

: > "/mnt/state/mounted.$NODE"
while ! ip link show eth0 > /dev/null 2>&1; do sleep 0.02; done
ip address add "$ADDRESS/24" dev eth0
ip link set eth0 up
mkdir -p /run/sshd
"$(command -v sshd)" -D -f /mnt/state/sshd_config -E "/mnt/state/sshd.$NODE.log" &
cd /mnt/scratch
: > "/mnt/state/up.$NODE"
while :; do
  wait
  sleep 1000 &
done
