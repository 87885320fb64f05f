#!/bin/bash
# provision.sh CORES CPUS: run in the machine's root, before it becomes a disk. A machine as its administrator has it before
# slurm-share: Slurm with controller and compute node in one, two (simulated) GPUs, two users. CORES: yes where the
# kernel has cpusets, so that Slurm confines the CPUS (else more of them may be configured than there are).
set -euo pipefail
cores=$1 cpus=$2
echo n1 >/etc/hostname
printf '127.0.0.1 localhost\n192.0.2.1 n1\n' >/etc/hosts
: >/etc/resolv.conf
printf '/dev/root / auto defaults 0 0\n' >/etc/fstab
: >/etc/machine-id
passwd -q -d root
rm -f /usr/sbin/policy-rc.d # packages start their daemons here
ldconfig
echo 'Dpkg::Use-Pty "false";' >/etc/apt/apt.conf.d/99no-terminal # no bars of progress in a log
for user in alice bob; do
	install -d -o "$user" -g "$user" "/home/$user"
	cp /etc/skel/.bashrc /etc/skel/.profile "/home/$user/" 2>/dev/null || true
done
cat >/home/alice/job.sh <<-'END'
	#!/bin/bash
	srun simgpu-task --memory 1000M --load 20 --seconds 5
END
chown -R alice: /home/alice
chown -R bob: /home/bob

install -d -o slurm -g slurm /var/lib/slurm /var/lib/slurm/slurmctld /var/log/slurm
install -d /var/spool/slurmd /etc/slurm /etc/slurm-share /host
cat >/etc/slurm/slurm.conf <<-END
	ClusterName=machine
	SlurmctldHost=n1
	SlurmUser=slurm
	AuthType=auth/munge
	CredType=cred/munge
	MpiDefault=none
	StateSaveLocation=/var/lib/slurm/slurmctld
	SlurmdSpoolDir=/var/spool/slurmd
	SlurmctldDebug=info
	SlurmdDebug=verbose
	MailProg=/bin/true
	ReturnToService=2
	SlurmdParameters=config_overrides
	SelectType=select/cons_tres
	SelectTypeParameters=CR_Core_Memory
	SchedulerParameters=batch_sched_delay=0,sched_min_interval=0,sched_interval=1
	ProctrackType=proctrack/cgroup
	TaskPlugin=task/cgroup$([ "$cores" = no ] || echo ,task/affinity)
	JobAcctGatherType=jobacct_gather/cgroup
	JobAcctGatherFrequency=5
	KillWait=2
	GresTypes=gpu
	NodeName=n1 CPUs=$cpus Boards=1 SocketsPerBoard=1 CoresPerSocket=$cpus ThreadsPerCore=1 RealMemory=900 Gres=gpu:simulated:2
	PartitionName=gpu Nodes=n1 Default=YES DefMemPerCPU=100 MaxTime=1-0 State=UP
END
echo 'NodeName=n1 Name=gpu Type=simulated File=/dev/nvidia[0-1]' >/etc/slurm/gres.conf
cat >/etc/slurm/cgroup.conf <<-END
	CgroupPlugin=cgroup/v2
	ConstrainDevices=yes
	ConstrainRAMSpace=yes
	ConstrainSwapSpace=yes
	ConstrainCores=$cores
END
cat >/etc/slurm-share/config.toml <<-'END'
	simulated_gpus = true                                      # this machine has no others
	mps_control = "/usr/local/bin/nvidia-cuda-mps-control"     # the simulated one
END

# A unit for what a real machine has from its hardware and its network: GPUs, and an address beside 127.0.0.1, without
# which Slurm's daemons find none of their own.
cat >/etc/systemd/system/hardware.service <<-'END'
	[Unit]
	Description=Simulated GPUs and the address of this machine
	DefaultDependencies=no
	After=systemd-tmpfiles-setup.service systemd-udevd.service
	Before=network.target munge.service slurmctld.service slurmd.service

	[Service]
	Type=oneshot
	RemainAfterExit=yes
	ExecStart=/bin/sh -ec 'for i in 0 1; do mknod -m 666 /dev/nvidia$i c 195 $i; done; mknod -m 666 /dev/nvidiactl c 195 255'
	ExecStart=/usr/local/bin/simgpu-init 2
	ExecStart=/bin/sh -ec 'ip address add 192.0.2.1/32 dev lo; ip link set lo up'

	[Install]
	WantedBy=multi-user.target
END
cat >/etc/systemd/system/runner.service <<-'END'
	[Unit]
	Description=Commands from outside, through /host
	DefaultDependencies=no
	After=systemd-tmpfiles-setup.service dbus.socket

	[Service]
	ExecStart=/usr/local/sbin/runner
	KillMode=process

	[Install]
	WantedBy=multi-user.target
END
# The packages, from a disk of their own.
install -d /root/packages
cat >/etc/systemd/system/root-packages.mount <<-'END'
	[Unit]
	Description=Packages of slurm-share

	[Mount]
	What=LABEL=packages
	Where=/root/packages
	Options=ro

	[Install]
	WantedBy=multi-user.target
END
# A reboot would wait 90 s for the steps of any running job, with a share or without.
install -d /etc/systemd/system/n1_slurmstepd.scope.d
printf '[Scope]\nTimeoutStopSec=2s\n' >/etc/systemd/system/n1_slurmstepd.scope.d/reboot.conf
install -m 755 /mnt/runner.sh /usr/local/sbin/runner
systemctl enable hardware runner root-packages.mount munge slurmctld slurmd
systemctl mask apt-daily.timer apt-daily-upgrade.timer dpkg-db-backup.timer systemd-firstboot.service \
	systemd-networkd-wait-online.service
systemctl set-default multi-user.target
