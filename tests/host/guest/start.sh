# Runs as root in the machine, once it is up; the second disk is at /opt/hutch. Lines for the tests go to the second
# serial port.
exec </dev/null
usermod -aG dialout alice # the port
stty -F /dev/ttyS1 raw -echo 2>/dev/null
echo /opt/hutch/own >/etc/ld.so.conf.d/own.conf && ldconfig # libraries that this system has not
say() { echo "$@" >/dev/ttyS1; }
say "@up $(cut -d' ' -f1 /proc/uptime)"
for _ in $(seq 60); do
  [ -S /run/user/1000/systemd/private ] && break
  sleep 0.5
done
su - alice -c 'sh /opt/hutch/guest/checks.sh'
say "@end $? $(cut -d' ' -f1 /proc/uptime)"
su - alice -c '/opt/hutch/bin/hutch agent stop' && say "@stopped"
sync
