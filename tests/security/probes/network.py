# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: F821
def probe_interfaces():
    return [name for _, name in socket.if_nameindex()] if hasattr(socket, "if_nameindex") else []


def _connect(address, kind=socket.SOCK_STREAM, port=80):
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family, kind) as sock:
        sock.settimeout(1)
        sock.connect((address, port))


def probe_outside():
    addresses = [
        "192.0.2.1",
        "8.8.8.8",
        "1.1.1.1",
        "10.0.2.2",
        "10.0.2.3",
        "169.254.169.254",
        "172.17.0.1",
        "192.168.1.1",
    ]
    addresses += ["2001:db8::1", "2001:4860:4860::8888", "fd00:ec2::254", "fe80::1"]
    found = {}
    for address in addresses:
        for name, kind in (("tcp", socket.SOCK_STREAM), ("udp", socket.SOCK_DGRAM)):
            found[f"{name} {address}"] = attempt(_connect, address, kind)
    return found


def probe_names_resolve_quickly():
    found = {}
    for name in (
        "example.org",
        "host.containers.internal",
        "metadata.google.internal",
        "printer.local",
    ):
        begin = time.monotonic()
        answer = attempt(socket.getaddrinfo, name, 80)
        found[name] = [answer, time.monotonic() - begin]
    return found


def probe_name_servers():
    return text_of("/etc/resolv.conf")


def probe_odd_protocols():
    found = {}
    for name, kind, protocol in (
        ("ping", 2, 1),
        ("udplite", 2, 136),
        ("sctp", 1, 132),
        ("dccp", 6, 33),
        ("mptcp", 1, 262),
    ):

        def action(kind=kind, protocol=protocol):
            with socket.socket(socket.AF_INET, kind, protocol) as sock:
                sock.settimeout(1)
                sock.connect(("192.0.2.1", 9))

        found[name] = attempt(action)

    def multicast():
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
            sock.setsockopt(0, 35, socket.inet_aton("239.1.2.3") + socket.inet_aton("0.0.0.0"))
            sock.sendto(b"x", ("239.1.2.3", 5353))

    def broadcast():
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_BROADCAST, 1)
            sock.sendto(b"x", ("255.255.255.255", 9))

    found["multicast"] = attempt(multicast)
    found["broadcast"] = attempt(broadcast)
    return found


def probe_netlink():
    """Protocol 0 lists what there is; each change of it needs a capability."""
    requests = {
        "new link": 16,
        "new address": 20,
        "new route": 24,
        "new rule": 32,
        "new nexthop": 104,
    }
    changes = {}
    with socket.socket(16, 3, 0) as sock:
        sock.bind((0, 0))
        for name, kind in requests.items():
            sock.send(struct.pack("=IHHII28x", 44, kind, 0x605, 1, 0))  # REQUEST ACK CREATE EXCL
            answer = sock.recv(4096)
            error = -struct.unpack_from("=i", answer, 16)[0]
            changes[name] = errno.errorcode.get(error, str(error))
    return {
        "interfaces": [name for _, name in socket.if_nameindex()],
        "changes": changes,
        "protocols": {str(other): attempt(socket.socket, 16, 3, other) for other in range(1, 23)},
    }


def probe_interface_changes():
    """SIOCSIFFLAGS on lo, and a new address: both need a capability."""
    import fcntl

    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        down = attempt(fcntl.ioctl, sock, 0x8914, struct.pack("16sh22x", b"lo", 0))
        address = struct.pack(
            "16sH2s4s16x", b"lo:1", socket.AF_INET, b"\0\0", socket.inet_aton("10.9.8.7")
        )
        added = attempt(fcntl.ioctl, sock, 0x8916, address)
    return [down, added]


def probe_loopback():
    """The harmless counterpart: one's own server and client, by both loopbacks and by name."""
    found = {}
    for family, address in (
        (socket.AF_INET, ("127.0.0.1", 0)),
        (socket.AF_INET6, ("::1", 0)),
        (socket.AF_UNIX, "\0mine"),
    ):
        with socket.socket(family) as server:
            server.bind(address)
            server.listen(1)
            with socket.socket(family) as client:
                client.connect(server.getsockname())
                peer, _ = server.accept()
                peer.sendall(b"hello")
                found[str(family)] = client.recv(16).decode()
                peer.close()
    return found


def probe_ports():
    """Everything that listens on our loopback before we do: nothing."""
    found = []
    for port in [*range(1, 1024), 2375, 3000, 5000, 6379, 8000, 8080, 8265, 9000, 9090, 10000]:
        with socket.socket() as sock:
            sock.settimeout(0.05)
            if sock.connect_ex(("127.0.0.1", port)) == 0:
                found.append(port)
    return found
