# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: F821
def probe_refused_calls():
    """System calls that no honest call needs, by name; in a child, as some of them may kill."""
    if not X86:
        return {}
    calls = {
        "io_uring_setup": 425, "io_uring_enter": 426, "io_uring_register": 427, "bpf": 321,
        "perf_event_open": 298, "userfaultfd": 323, "kcmp": 312, "process_madvise": 440,
        "pidfd_getfd": 438, "add_key": 248, "request_key": 249, "keyctl": 250, "syslog": 103,
        "init_module": 175, "finit_module": 313, "delete_module": 176, "kexec_load": 246,
        "kexec_file_load": 320, "reboot": 169, "swapon": 167, "swapoff": 168, "acct": 163,
        "quotactl": 179, "iopl": 172, "ioperm": 173, "modify_ldt": 154, "settimeofday": 164,
        "clock_settime": 227, "memfd_secret": 447, "setns": 308, "unshare": 272,
        "name_to_handle_at": 303, "open_by_handle_at": 304, "listmount": 458, "statmount": 457,
        "fanotify_init": 300, "vhangup": 153, "clone3": 435, "nfsservctl": 180, "lookup_dcookie":
        212,
    }  # fmt: skip
    arguments = {
        "unshare": (0x10000000,),
        "iopl": (3,),
        "ioperm": (0, 8, 1),
        "syslog": (3, b"x" * 64, 64),
    }
    return {
        name: in_child(functools.partial(syscall, number, *arguments.get(name, (0, 0, 0, 0, 0))))
        for name, number in calls.items()
    }


def probe_namespaces():
    """clone with each flag that makes a namespace."""
    flags = {"mount": 0x20000, "cgroup": 0x2000000, "uts": 0x4000000, "ipc": 0x8000000}
    flags |= {"user": 0x10000000, "pid": 0x20000000, "net": 0x40000000}
    found = {}
    for name, flag in flags.items():
        ctypes.set_errno(0)
        pid = (
            libc.syscall(ctypes.c_long(56), ctypes.c_long(flag | 17), None, None, None, None)
            if X86
            else -1
        )
        if pid == 0:
            os._exit(0)
        found[name] = (
            name_of(ctypes.get_errno()) if pid == -1 and X86 else ("EPERM" if not X86 else "done")
        )
        if pid > 0:
            os.waitpid(pid, 0)
    return found


def probe_enter_namespaces():
    found = {}
    for who in ("self", "1"):
        for kind in ("user", "mnt", "pid", "net", "ipc", "uts", "cgroup", "time"):
            try:
                fd = os.open(f"/proc/{who}/ns/{kind}", os.O_RDONLY)
            except OSError as error:
                found[f"{who}/{kind}"] = name_of(error.errno)
                continue
            ctypes.set_errno(0)
            found[f"{who}/{kind}"] = (
                "done" if libc.setns(fd, 0) == 0 else name_of(ctypes.get_errno())
            )
            os.close(fd)
    return found


def probe_socket_families():
    """By number: the four that are allowed are done, the others refused."""
    found = {}
    for family in range(46):
        for kind in (1, 2, 3, 5):
            try:
                socket.socket(family, kind, 0).close()
                found.setdefault(str(family), []).append(kind)
            except OSError:
                pass
    return found


def probe_raw_sockets():
    found = {}
    for family in (2, 10):
        for protocol in (1, 58, 255):
            found[f"{family}/{protocol}"] = attempt(socket.socket, family, 3, protocol)
    return found


def probe_personality():
    found = {}
    for name, value in (
        ("no randomize", 0x0040000),
        ("read implies exec", 0x0400000),
        ("both", 0x0440000),
    ):
        found[name] = in_child(lambda v=value: syscall(135, v) if X86 else "EPERM")
    found["ask"] = syscall(135, 0xFFFFFFFF) if X86 else "done"
    return found


def probe_foreign_architecture():
    """int 0x80 with number 20 (getpid): the process must die or be refused."""
    if not X86:
        return "signal 31"

    def action():
        import mmap

        code = mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
        code.write(b"\xb8\x14\x00\x00\x00\xcd\x80\xc3")
        address = ctypes.addressof(ctypes.c_char.from_buffer(code))
        return "answered" if ctypes.CFUNCTYPE(ctypes.c_int)(address)() > 0 else "refused"

    return in_child(action)


def probe_x32():
    return in_child(lambda: syscall(0x40000000 + 39)) if X86 else "ENOSYS"


def probe_kernel_log():
    return {path: opens(path) for path in ("/dev/kmsg", "/proc/kmsg")}


def probe_clocks():
    found = {"clock_settime": attempt(time.clock_settime, time.CLOCK_REALTIME, 1.0)}

    def shift():
        with open("/proc/self/timens_offsets", "wb", buffering=0) as file:
            file.write(b"monotonic 1000 0")

    found["timens"] = attempt(shift)
    return found


def probe_loosen_filter():
    """A filter of one's own that allows everything: installing it may work, and loosens nothing."""

    def action():
        allow = struct.pack("HBBI", 0x06, 0, 0, 0x7FFF0000)
        program = ctypes.create_string_buffer(allow)
        head = struct.pack("HxxxxxxQ", 1, ctypes.addressof(program))
        libc.prctl(38, 1, 0, 0, 0)
        libc.prctl(22, 2, ctypes.create_string_buffer(head), 0, 0)
        ctypes.set_errno(0)
        return "loosened" if libc.unshare(0x10000000) == 0 else "kept"

    return in_child(action)


def probe_signals():
    child = os.fork()
    if child == 0:
        time.sleep(30)
    found = {
        "init": attempt(os.kill, 1, 0),
        "own child": attempt(os.kill, child, 0),
        "own group": attempt(os.killpg, 0, 0),
    }
    os.kill(child, 9)
    os.waitpid(child, 0)
    return found


def probe_mount_by_itself():
    """In a child, for the tests that come after."""

    def action():
        os.mkdir("/tmp/mounted")
        ctypes.set_errno(0)
        done = libc.mount(b"x", b"/tmp/mounted", b"tmpfs", 0, None) == 0
        return "done" if done else name_of(ctypes.get_errno())

    return in_child(action)


def probe_posture():
    found = []
    import threading

    stay = threading.Event()
    thread = threading.Thread(target=stay.wait)
    thread.start()
    for task in os.listdir("/proc/self/task"):
        fields = {}
        for line in text_of(f"/proc/self/task/{task}/status").splitlines():
            key, _, value = line.partition(":")
            if key.startswith("Cap") or key in (
                "NoNewPrivs",
                "Seccomp",
                "Seccomp_filters",
                "Groups",
                "Uid",
                "Gid",
            ):
                fields[key] = value.split()
        found.append(fields)
    stay.set()
    thread.join()
    return found


def probe_devices():
    found = {}
    for folder, _, names in os.walk("/dev"):
        for name in names:
            path = os.path.join(folder, name)
            if not path.startswith(("/dev/fd", "/dev/shm")):
                found[path] = opens(path)
    return found


def probe_dangerous_devices():
    names = [
        "kvm",
        "fuse",
        "net/tun",
        "mem",
        "port",
        "kmsg",
        "userfaultfd",
        "vhost-net",
        "vhost-vsock",
        "sda",
        "vda",
    ]
    names += [
        "loop0",
        "loop-control",
        "dri/card0",
        "nvidia0",
        "console",
        "mapper/control",
        "hpet",
        "rtc0",
        "uinput",
    ]
    return {name: opens("/dev/" + name, os.O_RDWR) for name in names}


def rewrites(path):
    """Whether what is in the file can be written to it; opening alone is no harm."""
    if opens(path, os.O_WRONLY) != "done":
        return False

    def action():
        with open(path, "rb", buffering=0) as file:
            text = file.read(4096)
        with open(path, "wb", buffering=0) as file:
            file.write(text or b"0")

    return attempt(action) == "done"


def probe_writable_proc():
    """Files of /proc and /sys that can be written, but those of this very process."""
    found = []
    for top in ("/proc/sys", "/proc/irq", "/proc/bus", "/proc/fs", "/sys"):
        for folder, _, names in os.walk(top):
            for name in names:
                path = os.path.join(folder, name)
                if rewrites(path):
                    found.append(path)
    for name in os.listdir("/proc"):
        path = "/proc/" + name
        if os.path.isfile(path) and rewrites(path):
            found.append(path)
    return found


def probe_others_settings():
    paths = ["/proc/1/oom_score_adj", "/proc/1/setgroups", "/proc/1/uid_map", "/proc/sysrq-trigger"]
    paths += [
        "/proc/sys/kernel/core_pattern",
        "/sys/kernel/uevent_helper",
        "/proc/sys/kernel/modprobe",
    ]
    return {path: opens(path, os.O_WRONLY) for path in paths}


def probe_namespace_limit():
    return text_of("/proc/sys/user/max_user_namespaces").strip()
