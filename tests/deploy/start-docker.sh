#!/bin/bash
# Docker for the tests, on a Debian machine whose user is root: installs what is missing, starts dockerd unless one
# answers, and makes a local stand-in for python:3.11-slim where that is not here and cannot be pulled.
# The stand-in has this machine's certificate authorities, so that a plain `RUN pip install` works: never publish it.
# Debian's own client (20.10) has BuildKit built in; a newer one without buildx may come first in PATH.
set -euo pipefail
export DEBIAN_FRONTEND=noninteractive
BASE=${BASE:-local/python:3.11-slim}
ALIAS=${ALIAS:-python:3.11-slim}
LOG=${LOG:-/var/log/dockerd.log}
docker() { /usr/bin/docker "$@"; }

need=()
[ -x /usr/sbin/dockerd ] && [ -x /usr/bin/docker ] || need+=(docker.io)
command -v docker-compose >/dev/null || need+=(docker-compose)
command -v debootstrap >/dev/null || need+=(debootstrap)
command -v iptables >/dev/null || need+=(iptables)
if [ ${#need[@]} -gt 0 ]; then
    apt-get update -qq
    apt-get install -y -qq --no-install-recommends "${need[@]}" >/dev/null
fi

if ! docker info >/dev/null 2>&1; then
    if ! { [ -s /run/docker.pid ] && kill -0 "$(cat /run/docker.pid)" 2>/dev/null; }; then
        rm -f /run/docker.sock /run/docker.pid    # of one that was killed
        setsid /usr/sbin/dockerd >>"$LOG" 2>&1 </dev/null &
    fi
    for _ in $(seq 60); do docker info >/dev/null 2>&1 && break; sleep 0.5; done
    docker info >/dev/null || { tail -20 "$LOG" >&2; exit 1; }
fi

if ! docker image inspect "$BASE" >/dev/null 2>&1 && ! docker image inspect "$ALIAS" >/dev/null 2>&1 &&
        ! timeout 60 docker pull --quiet "$ALIAS" >/dev/null 2>&1; then
    root=$(mktemp -d /var/tmp/base.XXXXXX)
    trap 'rm -rf "$root"' EXIT
    mirror=$(apt-get indextargets --format '$(REPO_URI) $(CODENAME)' 'Created-By: Packages' |
             awk '$2 == "bookworm" {print $1; exit}')
    [ -n "$mirror" ] || { apt-get update -qq
        mirror=$(apt-get indextargets --format '$(REPO_URI) $(CODENAME)' 'Created-By: Packages' |
                 awk '$2 == "bookworm" {print $1; exit}'); }
    debootstrap --variant=minbase --include=ca-certificates,python3,python3-venv,python3-pip \
        bookworm "$root" "$mirror" >"$LOG.debootstrap" 2>&1 || { tail -20 "$LOG.debootstrap" >&2; exit 1; }
    rm -f "$root"/usr/lib/python3*/EXTERNALLY-MANAGED          # as in the real image: plain pip install works
    ln -sf python3 "$root/usr/bin/python"
    # The machine's own certificate authorities, so that RUN pip install needs no secret, argument or host name.
    cp -r /usr/local/share/ca-certificates/. "$root/usr/local/share/ca-certificates/" 2>/dev/null || true
    chroot "$root" update-ca-certificates >/dev/null 2>&1
    : >"$root/etc/apt/sources.list"                            # and no mirror's name inside the image
    rm -rf "$root"/var/cache/apt/* "$root"/var/lib/apt/lists/* "$root"/usr/share/{doc,man,locale,info}/* \
           "$root"/var/log/* "$root"/debootstrap
    tar -C "$root" -c . | docker import --change 'CMD ["python3"]' \
        --change 'ENV LANG=C.UTF-8' - "$BASE" >/dev/null
fi
docker image inspect "$ALIAS" >/dev/null 2>&1 || docker tag "$BASE" "$ALIAS"
echo "docker ready: $(docker version --format '{{.Server.Version}}'), $ALIAS $(docker image inspect --format '{{.Size}}' "$ALIAS" | awk '{printf "%.0f MB", $1/1e6}')"
