#!/bin/bash
# Runs what stands in /host/N.cmd, a folder of the machine outside: its output goes to N.out, then its exit code to N.rc.
# Each start of this machine adds a line to /host/boots.
shared=$(sed -n "s/.* shared=\([^ ]*\).*/\1/p" /proc/cmdline)
if [ -n "$shared" ]; then
	mount -t hostfs none /host -o "hostfs=$shared"
else
	mount -t 9p -o trans=virtio,version=9p2000.L,cache=none shared /host
fi
cat /proc/sys/kernel/random/boot_id >>/host/boots
exec {pause}<> <(:) # nothing ever comes through it: a pause without a process
while :; do
	# shellcheck disable=SC2016  # the shell inside expands it
	for file in /host/*.cmd; do
		[ -e "$file" ] || continue
		name=${file%.cmd}
		mv "$file" "$name.run"
		{
			env -i HOME=/root USER=root LANG=C.UTF-8 SYSTEMD_PAGER= DEBIAN_FRONTEND=noninteractive \
				PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin \
				setsid bash -c 'cd; . "$0"' "$name.run" >"$name.out" 2>&1 </dev/null
			echo $? >"$name.code"
			mv "$name.code" "$name.rc"
		} &
	done
	read -r -t 0.1 -u "$pause"
done
