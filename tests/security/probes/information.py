# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: F821
def probe_environment():
    return dict(os.environ)


def probe_c_environment():
    """What the C library and the kernel remember is not more than os.environ."""
    entries = ctypes.POINTER(ctypes.c_char_p).in_dll(libc, "environ")
    names, at = [], 0
    while entries and entries[at]:
        names.append(entries[at].decode(errors="replace").partition("=")[0])
        at += 1
    names += [
        item.partition("=")[0] for item in text_of("/proc/self/environ").split("\0") if "=" in item
    ]
    return sorted(set(names))


def probe_proc_files():
    names = [
        "keys",
        "key-users",
        "kallsyms",
        "timer_list",
        "sched_debug",
        "config.gz",
        "kcore",
        "kpagecount",
        "kpageflags",
    ]
    names += [
        "kpagecgroup",
        "latency_stats",
        "cmdline",
        "iomem",
        "ioports",
        "slabinfo",
        "vmallocinfo",
        "interrupts",
        "modules",
    ]
    return {
        name: text_of("/proc/" + name, 4096)[:200]
        for name in names
        if os.path.lexists("/proc/" + name)
    }


def probe_sys():
    found = {}
    for path in (
        "/sys/firmware",
        "/sys/class/dmi/id",
        "/sys/devices/virtual/dmi/id",
        "/sys/class/net",
        "/sys/fs/cgroup",
    ):
        try:
            found[path] = os.listdir(path)
        except OSError as error:
            found[path] = name_of(error.errno)
    return found


def probe_names():
    return {
        "hostname": socket.gethostname(),
        "domain": text_of("/proc/sys/kernel/domainname").strip(),
        "machine-id": text_of("/etc/machine-id") + text_of("/var/lib/dbus/machine-id"),
        "boot_id": text_of("/proc/sys/kernel/random/boot_id").strip(),
        "cmdline": text_of("/proc/cmdline").strip(),
    }


def probe_mountinfo():
    return text_of("/proc/self/mountinfo")


def probe_network_files():
    found = {}
    for name in ("tcp", "tcp6", "udp", "unix", "route", "arp", "dev", "fib_trie"):
        found[name] = text_of("/proc/net/" + name)
    return found


def probe_pressure():
    found = {}
    for path in (
        "/proc/pressure/cpu",
        "/proc/pressure/memory",
        "/sys/fs/cgroup/cpu.pressure",
        "/proc/self/cgroup",
    ):
        found[path] = text_of(path)
    return found


def probe_descriptors():
    found = {}
    for fd in os.listdir("/proc/self/fd"):
        try:
            found[fd] = os.readlink("/proc/self/fd/" + fd)
        except OSError:
            pass
    return found


def probe_command_lines():
    return {pid: text_of(f"/proc/{pid}/cmdline") for pid in os.listdir("/proc") if pid.isdigit()}


def probe_python_paths():
    import sysconfig
    import traceback

    try:
        raise ValueError("x")
    except ValueError:
        text = traceback.format_exc()
    return {
        "path": sys.path,
        "traceback": text,
        "prefix": sys.prefix,
        "config": str(sysconfig.get_config_vars()),
    }


def probe_imprint():
    """Files of the image that could name the host."""
    found = {}
    for path in (
        "/etc/passwd",
        "/etc/group",
        "/etc/hosts",
        "/etc/hostname",
        "/etc/resolv.conf",
        "/etc/os-release",
    ):
        found[path] = text_of(path)
    return found
