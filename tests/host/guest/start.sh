# Runs as root in the machine, once it is up; the second disk is at /opt/hutch. Lines for the tests go to the second
# serial port.
exec </dev/null
usermod -aG dialout alice # the port
stty -F /dev/ttyS1 raw -echo 2>/dev/null
echo /opt/hutch/own >/etc/ld.so.conf.d/own.conf && ldconfig # libraries that this system has not
# What Debian's installer writes, debootstrap alone need not.
[ -s /etc/hosts ] || printf '127.0.0.1\tlocalhost\n::1\tlocalhost ip6-localhost ip6-loopback\n' >/etc/hosts
say() { echo "$@" >/dev/ttyS1; }
say "@up $(cut -d' ' -f1 /proc/uptime)"
# qemu's user network, which lets nothing out of it: an address other than loopback's. (Its own choice, 10.0.2.0/24, is also
# what slirp4netns gives to containers.)
ip link set eth0 up && ip address add 198.51.100.15/24 dev eth0 && ip route add default via 198.51.100.2
say "@at the wait for alice's user manager"
for _ in $(seq 600); do
  [ -S /run/user/1000/systemd/private ] && break
  sleep 0.5
done
if ! [ -S /run/user/1000/systemd/private ]; then
  systemctl --no-pager status systemd-logind user@1000.service # to the console
  say "@manager none within 300 s"
  exit 1
fi
su - alice -c 'sh /opt/hutch/guest/checks.sh'
say "@end $? $(cut -d' ' -f1 /proc/uptime)"
say "@at the agent's stop"
if su - alice -c 'timeout -k 10 300 /opt/hutch/bin/hutch agent stop'; then
  say "@stopped"
else # to the console
  uptime
  free -m
  ps axo pid,ppid,stat,wchan:24,time,args | cut -c1-160 | grep -v ' \['
  journalctl --no-pager -n 60
fi
# Where only programs that AppArmor knows may make user namespaces: a Podman that it does not know, and what
# `hutch doctor --fix` runs then.
if [ -e /opt/hutch/guest/uninstall ] && [ "$(sysctl -n kernel.apparmor_restrict_unprivileged_userns)" = 1 ]; then
  say "@at AppArmor"
  su - alice -c 'podman system migrate' # ends the process that keeps its user namespace
  apparmor_parser --remove /etc/apparmor.d/podman
  doctor() { su - alice -c "/opt/hutch/bin/python3 /opt/hutch/guest/apparmor.py"; }
  doctor >/tmp/commands 2>/tmp/found
  say "@bound $(tr '\n' ' ' </tmp/found)"
  su - alice -c "/opt/hutch/bin/hutch stop; podman system migrate"
  su - alice -c "/opt/hutch/bin/hutch run -c 'print(6 * 7)'" # which fails, and leaves a service without rights
  sh -eux /tmp/commands # to the console
  su - alice -c "/opt/hutch/bin/hutch stop" # those commands are root's, who stops an agent of its own
  doctor 2>/tmp/found
  say "@unbound $(tr '\n' ' ' </tmp/found) $(su - alice -c "/opt/hutch/bin/hutch run -c 'print(6 * 7)'" 2>&1 | tail -n 1)"
  apparmor_parser --replace /etc/apparmor.d/podman
  su - alice -c "/opt/hutch/bin/python3 -c 'from hutch import _apparmor; print(_apparmor.removal(True))'" | sh -eux
fi
if [ -e /opt/hutch/guest/uninstall ]; then
  say "@at the uninstallation"
  su - alice -c '/opt/hutch/bin/hutch uninstall --yes' >/tmp/said 2>&1
  say "@uninstalled $? $(tail -n 3 /tmp/said | tr '\n' ' ')"
  cat /tmp/said # to the console
  left=$(
    find /run/user/1000 /tmp /dev/shm -user alice \( -name '*hutch*' -o -name '*podman*' \) 2>/dev/null
    ls -d /home/alice/.local/share/* /run/user/1000/crun /run/user/1000/libpod /run/user/1000/containers 2>/dev/null
    ps -u alice -o args= | grep -E 'podman|conmon|catatonit|hutch'
    su - alice -c "systemctl --user list-units --plain --no-legend 'hutch-*' 'libpod-*'"
  )
  say "@left $(echo "$left" | tr '\n' ' ')"
fi
sync
