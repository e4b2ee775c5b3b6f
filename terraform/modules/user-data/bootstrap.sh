#!/bin/bash
# Makes a fresh machine run Tidegate: state disk, artifact, unit. cloud-init writes it to
# /usr/local/sbin/tidegate-bootstrap, and tidegate-bootstrap.service runs it until it succeeds, so
# a disk or a download that comes late is waited for; each step may be done twice.
#
# usage: tidegate-bootstrap URL SHA256 UNIT STATE_DISK_BYTES [CA_URL CA_SHA256]
#        STATE_DISK_BYTES 0: the state lies on the system's disk.
set -euo pipefail

url=$1 sha256=$2 unit=$3 disk_bytes=$4 ca_url=${5:-} ca_sha256=${6:-}
# Tests run it under a folder.
root=${TIDEGATE_ROOT:-}
state=$root/var/lib/tidegate
etc=$root/etc/tidegate
fstab=$root/etc/fstab
label=tidegate

# fetch URL SHA256 FILE: over https alone, kept only if the checksum is the one that was named.
fetch() {
    curl --fail --silent --show-error --location --proto '=https' --proto-redir '=https' \
        --retry 5 --retry-connrefused --max-time 900 --output "$3.part" "$1"
    if ! echo "$2  $3.part" | sha256sum --check --status; then
        echo "checksum of $1 is $(sha256sum "$3.part" | cut -d' ' -f1), not $2: not used" >&2
        rm -f "$3.part"
        return 1
    fi
    mv "$3.part" "$3"
}

# The one whole disk of that size that holds nothing at all. Which name a cloud gives to an attached
# disk depends on machine type and image; its size and its emptiness do not.
empty_disk() {
    local found=() name size type
    while read -r name size type; do
        if [ "$type" != disk ] || [ "$size" != "$disk_bytes" ]; then
            continue
        fi
        # A line more is a partition; blkid finds filesystems, partition tables and the like.
        if [ "$(lsblk --noheadings --output NAME "$name" | wc -l)" != 1 ]; then
            continue
        fi
        # 2: nothing was found. Any other answer is no proof of an empty disk.
        local rc=0
        blkid --probe "$name" >/dev/null || rc=$?
        if [ "$rc" = 2 ]; then
            found+=("$name")
        fi
    done < <(lsblk --noheadings --bytes --nodeps --paths --output NAME,SIZE,TYPE)
    if [ "${#found[@]}" != 1 ]; then
        echo "found ${#found[@]} empty disks of $disk_bytes bytes, not one: ${found[*]:-}" >&2
        return 1
    fi
    echo "${found[0]}"
}

mount_state() {
    mkdir -p "$state"
    if mountpoint --quiet "$state"; then
        return
    fi
    # A disk of an earlier machine is used as it is.
    if ! blkid --label "$label" >/dev/null; then
        local disk
        disk=$(empty_disk)
        mkfs.ext4 -q -L "$label" "$disk"
    fi
    if ! grep -q "^LABEL=$label " "$fstab"; then
        echo "LABEL=$label $state ext4 defaults,nofail,noatime 0 2" >>"$fstab"
    fi
    systemctl daemon-reload
    mount "$state"
}

if [ "$disk_bytes" != 0 ]; then
    mount_state
fi

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
fetch "$url" "$sha256" "$work/tidegate.tar.gz"
mkdir "$work/tidegate"
tar --extract --gzip --file "$work/tidegate.tar.gz" --directory "$work/tidegate" \
    --strip-components 1 --no-same-owner
"$work/tidegate/install"
if [ -n "$ca_url" ]; then
    fetch "$ca_url" "$ca_sha256" "$work/source-ca.pem"
    install -m 0644 "$work/source-ca.pem" "$etc/source-ca.pem"
fi

# systemd gives the state's folder to the unit's user, whoever owned it on an earlier machine.
systemctl enable "$unit"
systemctl start --no-block "$unit"
echo "$sha256" >"$etc/installed"
