# In a node: munge, slurmd, and on n0 slurmctld. The settings are those of the state folder.
set -e
mount --bind /mnt/state/slurm /etc/slurm
mkdir -p /run/munge /var/log/munge /var/lib/munge /mnt/munge /var/spool/slurmctld /var/spool/slurmd
mount -t tmpfs tmpfs /var/lib/munge
cp /mnt/state/munge.key /mnt/munge/key
chown -R munge /run/munge /var/log/munge /var/lib/munge /mnt/munge
chmod 755 /run/munge
chmod 711 /var/lib/munge
chmod 700 /var/log/munge /mnt/munge
chmod 400 /mnt/munge/key
runuser -u munge -- "$(command -v munged)" --key-file=/mnt/munge/key
if [ "$(hostname)" = n0 ]; then
  slurmctld
fi
slurmd -N "$(hostname)"
