# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: F821
def probe_write():
    """Every kind of change, under every directory that is shared with others."""
    found = {}
    places = [
        "/",
        "/etc",
        "/usr",
        "/usr/bin",
        "/lib",
        "/opt",
        "/opt/env",
        "/opt/hutch",
        "/var",
        "/run",
        sys.prefix,
    ]
    for place in places:
        target = os.path.join(place, "hutch-was-here")
        found[f"create {place}"] = opens(target, os.O_WRONLY | os.O_CREAT)
        found[f"mkdir {place}"] = attempt(os.mkdir, target)
        found[f"chmod {place}"] = attempt(os.chmod, place, 0o777)
        found[f"utime {place}"] = attempt(os.utime, place)
        found[f"rename {place}"] = (
            attempt(os.rename, place, place.rstrip("/") + "2") if place != "/" else "EROFS"
        )
    for name in (
        "/etc/resolv.conf",
        "/etc/hosts",
        "/etc/ld.so.preload",
        "/etc/passwd",
        os.__file__,
    ):
        found[f"write {name}"] = opens(name, os.O_WRONLY | os.O_CREAT)
    return found


def probe_scratch_is_writable():
    """The harmless counterpart: a call may use its own empty scratch."""
    found = {}
    for place in (os.getcwd(), "/tmp", "/dev/shm"):
        path = os.path.join(place, "mine")
        with open(path, "w") as file:
            file.write("x")
        os.rename(path, path + "2")
        os.remove(path + "2")
        found[place] = True
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        found["tempfile"] = os.path.isdir(folder)
    return found


def probe_scratch_is_empty():
    return {place: os.listdir(place) for place in (os.getcwd(), "/tmp", "/dev/shm")}


def probe_host_secrets():
    homes = ["/root", "/home", "/var/lib/hutch", os.path.expanduser("~")]
    names = [
        ".ssh",
        ".aws",
        ".config/gcloud",
        ".netrc",
        ".docker",
        ".kube",
        ".gnupg",
        ".bash_history",
        ".git-credentials",
    ]
    paths = [os.path.join(home, name) for home in homes for name in names]
    paths += [
        "/etc/shadow",
        "/var/lib/containers",
        "/var/log",
        "/run/user",
        "/run/podman",
        "/run/hutch/podman",
    ]
    paths += [
        "/run/secrets",
        "/var/run/docker.sock",
        "/run/dbus",
        "/boot",
        "/srv",
        "/mnt",
        "/media",
    ]
    return [
        path
        for path in paths
        if os.path.lexists(path) and (os.path.isfile(path) or os.listdir(path))
    ]


def probe_homes():
    return {
        home: os.listdir(home)
        for home in ("/home", "/root")
        if os.path.isdir(home) and os.access(home, os.R_OK)
    }


def probe_sockets():
    import stat

    found = []
    for folder, names, files in os.walk("/", followlinks=False):
        if folder == "/":
            names[:] = [name for name in names if name != "proc"]
        for name in files:
            path = os.path.join(folder, name)
            try:
                if stat.S_ISSOCK(os.lstat(path).st_mode):
                    found.append(path)
            except OSError:
                pass
    return found


def probe_mounts():
    found = []
    for line in text_of("/proc/self/mountinfo").splitlines():
        left, _, right = line.partition(" - ")
        fields = left.split()
        found.append(
            [fields[4], fields[5], " ".join(fields[6:]), right.split()[0], right.split()[-1]]
        )
    return found


def probe_devices():
    import stat

    open("/tmp/plain", "w").close()
    return {
        "null": attempt(os.mknod, "/tmp/null", 0o666 | stat.S_IFCHR, os.makedev(1, 3)),
        "mem": attempt(os.mknod, "/tmp/mem", 0o666 | stat.S_IFCHR, os.makedev(1, 1)),
        "disk": attempt(os.mknod, "/tmp/disk", 0o666 | stat.S_IFBLK, os.makedev(8, 0)),
        "capability": attempt(
            os.setxattr,
            "/tmp/plain",
            "security.capability",
            b"\1\0\0\2\xff\xff\xff\xff" + b"\0" * 12,
        ),
        "hardlink": attempt(os.link, "/etc/passwd", "/tmp/passwd"),
        "chown": attempt(os.chown, "/tmp/plain", 0, 0),
    }


def probe_nosuid_mounts():
    return {
        place: bool(os.statvfs(place).f_flag & os.ST_NOSUID)
        for place in ("/tmp", "/dev/shm", os.getcwd(), "/")
    }


def probe_shocker():
    handle = struct.pack("Ii", 8, 1) + struct.pack("Q", 2)
    buffer = ctypes.create_string_buffer(handle, 64)
    fd = os.open("/", os.O_RDONLY)
    try:
        return syscall(304, fd, buffer, 0) if X86 else "EPERM"
    finally:
        os.close(fd)


def probe_roots():
    fd = os.open("/", os.O_RDONLY)
    os.makedirs("/tmp/jail", exist_ok=True)
    found = {"chroot": attempt(os.chroot, "/tmp/jail")}
    if X86:
        found["pivot_root"] = syscall(155, b"/tmp", b"/tmp")
    os.close(fd)
    return found


def probe_mounting():
    found = {}
    for kind in (
        b"tmpfs",
        b"proc",
        b"overlay",
        b"cgroup2",
        b"fuse",
        b"sysfs",
        b"devtmpfs",
        b"mqueue",
    ):
        ctypes.set_errno(0)
        code = libc.mount(b"x", b"/tmp", kind, 0, None)
        found[kind.decode()] = name_of(ctypes.get_errno()) if code else "done"
    for name, flags in (("remount", 32), ("bind", 4096), ("shared", 1 << 20)):
        ctypes.set_errno(0)
        code = libc.mount(b"/", b"/", None, flags, None)
        found[name] = name_of(ctypes.get_errno()) if code else "done"
    for path in ("/proc", "/tmp", "/"):
        ctypes.set_errno(0)
        code = libc.umount2(path.encode(), 2)
        found["umount " + path] = name_of(ctypes.get_errno()) if code else "done"
    if X86:
        calls = {
            "open_tree": 428,
            "move_mount": 429,
            "fsopen": 430,
            "fsmount": 432,
            "fspick": 433,
            "mount_setattr": 442,
        }
        for name, number in calls.items():
            found[name] = syscall(number, -1, b"/", 0, 0, 0)
    return found


def probe_traversal():
    """Every way up from a place of ours ends in the same root as ours."""
    mine = os.stat("/")
    same = {}
    places = [
        "/proc/self/root",
        "/proc/self/cwd/../../../../..",
        "/proc/1/root",
        f"/proc/self/task/{os.getpid()}/root",
    ]
    fd = os.open("/tmp", os.O_RDONLY)
    places.append(f"/dev/fd/{fd}/../../../..")
    for place in places:
        try:
            there = os.stat(place + "/.")
            same[place] = (there.st_dev, there.st_ino) == (mine.st_dev, mine.st_ino)
        except OSError as error:
            same[place] = name_of(error.errno)
    os.close(fd)
    return same


def probe_watching():
    """inotify on what is shared: nothing is ever reported, or it is refused."""
    fd = libc.inotify_init()
    if fd < 0:
        return name_of(ctypes.get_errno())
    for path in (b"/usr", b"/usr/bin", b"/opt/python/bin", os.path.dirname(os.__file__).encode()):
        libc.inotify_add_watch(fd, path, 0xFFF)
    os.set_blocking(fd, False)
    time.sleep(0.5)
    try:
        return len(os.read(fd, 65536))
    except BlockingIOError:
        return 0
