#!/bin/sh
# Boot systemd over an overlay of this host: `boot.sh FOLDER INSTALLED PYTHON NOTIFY CONSOLE`.
#
# FOLDER is an empty folder for the machine's files, INSTALLED what it is to have at /opt/spl, PYTHON the interpreter for
# that; NOTIFY is a socket that is told when it has booted, CONSOLE a file for what it prints. The caller has made the
# namespaces: process ids, mounts, cgroups, ipc, names and network. Nothing of the host is written: what the machine
# writes lies in a tmpfs, which goes with its mount namespace.
set -eu
folder=$1 installed=$2 python=$3 notify=$4 console=$5
root=$folder/root

mount --make-rprivate /
mount -t tmpfs -o mode=0755,size=1G machine "$folder"
mkdir "$folder/upper" "$folder/work" "$root"
mount -t overlay -o "lowerdir=/,upperdir=$folder/upper,workdir=$folder/work" overlay "$root"

mount -t proc -o nosuid,nodev,noexec proc "$root/proc"
mount -t sysfs -o ro,nosuid,nodev,noexec sysfs "$root/sys"
mount -t cgroup2 -o nosuid,nodev,noexec cgroup2 "$root/sys/fs/cgroup"
mount -t tmpfs -o nosuid,nodev,mode=0755 tmpfs "$root/run"
for name in tmp var/tmp home; do
    mount -t tmpfs -o nosuid,nodev,mode=1777 tmpfs "$root/$name"
done
chmod 0755 "$root/home"

mount -t tmpfs -o nosuid,mode=0755 tmpfs "$root/dev"
for name in null zero full random urandom tty; do
    : >"$root/dev/$name"
    mount --bind "/dev/$name" "$root/dev/$name"
done
mkdir "$root/dev/pts" "$root/dev/shm"
mount -t devpts -o newinstance,ptmxmode=0666,mode=0620 devpts "$root/dev/pts"
mount -t tmpfs -o nosuid,nodev,mode=1777 tmpfs "$root/dev/shm"
ln -s pts/ptmx "$root/dev/ptmx"
ln -s /proc/self/fd "$root/dev/fd"
: >"$root/dev/console"
mount --bind "$console" "$root/dev/console"
: >"$root/run/booted"
mount --bind "$notify" "$root/run/booted"

# No unit of this host's, and of systemd's own none that looks after a host's disks, devices, clock and users.
mount -t tmpfs -o mode=0755 tmpfs "$root/etc/systemd/system"
for unit in dev-hugepages.mount dev-mqueue.mount proc-sys-fs-binfmt_misc.automount sys-fs-fuse-connections.mount \
    sys-kernel-config.mount sys-kernel-debug.mount sys-kernel-tracing.mount systemd-binfmt.service \
    systemd-boot-system-token.service systemd-journal-flush.service systemd-logind.service \
    systemd-modules-load.service systemd-networkd.service systemd-random-seed.service systemd-remount-fs.service \
    systemd-resolved.service systemd-sysctl.service systemd-sysusers.service systemd-timesyncd.service \
    systemd-tmpfiles-clean.service systemd-tmpfiles-clean.timer systemd-tmpfiles-setup-dev.service \
    systemd-tmpfiles-setup.service systemd-udev-trigger.service systemd-udevd-control.socket \
    systemd-udevd-kernel.socket systemd-udevd.service systemd-update-utmp.service; do
    ln -s /dev/null "$root/etc/systemd/system/$unit"
done
mkdir "$root/etc/systemd/system/timers.target.wants"
ln -sf /dev/null "$root/etc/systemd/system/timers.target"
: >"$root/etc/fstab"
mkdir -p "$root/run/systemd/journald.conf.d"
printf '[Journal]\nStorage=volatile\nRateLimitBurst=0\n' >"$root/run/systemd/journald.conf.d/machine.conf"
# What logind would see to: without it a user's manager has no folder for its sockets.
mkdir "$root/etc/systemd/system/user@.service.d"
printf '[Service]\nEnvironment=XDG_RUNTIME_DIR=/run/user/%%i\n' >"$root/etc/systemd/system/user@.service.d/machine.conf"

# A virtual environment as an installation makes it, with all of it in one folder that cannot be written.
mkdir -p "$root/opt/spl/bin" "$root/opt/spl/installed"
mount --bind "$installed" "$root/opt/spl/installed"
mount -o remount,bind,ro "$root/opt/spl/installed"
site=$root/opt/spl/lib/$("$python" -c 'import sys; print("python%d.%d" % sys.version_info[:2])')/site-packages
mkdir -p "$site"
printf '/opt/spl/installed\n/opt/spl/installed/packages\n' >"$site/spl.pth"
printf 'home = %s\n' "${python%/*}" >"$root/opt/spl/pyvenv.cfg"
ln -s "$python" "$root/opt/spl/bin/python"
printf '#!/opt/spl/bin/python\nfrom spl.cli.main import main\nmain()\n' >"$root/opt/spl/bin/spl"
chmod 0755 "$root/opt/spl/bin/spl"

cd "$root"
mkdir -p mnt/host
pivot_root . mnt/host
umount -l /mnt/host
[ "$(stat -f -c %T /)" = overlayfs ] || { echo 'boot.sh: the root is no overlay' >&2; exit 1; }
exec env -i container=spl-test NOTIFY_SOCKET=/run/booted /lib/systemd/systemd --system --unit=basic.target \
    </dev/null >/dev/console 2>&1
