# SPDX-License-Identifier: Apache-2.0
# Sourced. apt with directories of its own, so that nothing of the machine's changes: `apt-get $apt …`, after own_apt.

mirror=$(sed -n 's/^URIs: *//p; s/^deb  *\(\[[^]]*\] *\)\{0,1\}\([^ ]*\) .*/\2/p' \
  /etc/apt/sources.list.d/debian.sources /etc/apt/sources.list 2>/dev/null | grep -v security | head -n 1) || true
mirror=${mirror:-http://deb.debian.org/debian}

# own_apt DIRECTORY ARCHITECTURE "deb URL SUITE COMPONENT"...: fetches the lists of packages; what apt says is in its log.
own_apt() {
  place=$1
  apt="-qq -o APT::Architecture=$2 -o APT::Architectures=$2 -o Dir::State=$1 -o Dir::State::Status=$1/status
    -o Dir::Cache=$1/cache -o Dir::Etc::SourceList=$1/sources.list -o Dir::Etc::SourceParts=/dev/null
    -o Acquire::Retries=2 -o APT::Sandbox::User=root"
  shift 2
  mkdir -p "$place/lists/partial" "$place/cache/archives/partial"
  : >"$place/status"
  for line; do
    echo "$line" | sed 's,^\(deb[a-z-]*\) ,\1 [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] ,'
  done >"$place/sources.list"
  apt-get $apt update >"$place/log" 2>&1 || { tail -n 5 "$place/log" >&2; exit 1; }
}
