"""What is inside the binary: every crate it is linked from, for the SBOM and the licence texts.

From `cargo metadata` for one target, along the normal dependencies alone: what tests and build scripts
need is not shipped.
"""

import hashlib
import json
import re
import uuid
from pathlib import Path

import fetching
from fetching import Failed

LICENCE_FILES = re.compile(r"(?i)^(licen[cs]e|copying|notice|unlicense|copyright)([-._].*)?$")
NAMESPACE = uuid.uuid5(uuid.NAMESPACE_URL, "https://cyclonedx.org/tidegate")


def metadata(root, target):
    text = fetching.run(["cargo", "metadata", "--locked", "--format-version", "1",
                         "--filter-platform", target], cwd=root)
    return json.loads(text[text.index("{"):])


def shipped(found):
    """The root package, and every other one that is linked in, by name and version."""
    packages = {p["id"]: p for p in found["packages"]}
    needs = {n["id"]: sorted(d["pkg"] for d in n["deps"]
                             if any(k["kind"] is None for k in d["dep_kinds"]))
             for n in found["resolve"]["nodes"]}
    root = found["resolve"]["root"]
    seen, left = set(), [root]
    while left:
        this = left.pop()
        if this not in seen:
            seen.add(this)
            left += needs[this]
    others = sorted((packages[i] for i in seen if i != root),
                    key=lambda p: (p["name"], p["version"]))
    return packages[root], others, {i: needs[i] for i in seen}


def expression(package):
    """The licence as SPDX writes it; older crates put a slash for OR."""
    if not package["license"]:
        raise Failed(f"{package['name']} {package['version']} names no licence")
    return re.sub(r"\s*/\s*", " OR ", package["license"])


def purl(package):
    return f"pkg:cargo/{package['name']}@{package['version'].replace('+', '%2B')}"


def checksums(lock):
    """SHA-256 of each crate's archive, by name and version, from Cargo.lock."""
    return {(m[1], m[2]): m[3] for m in re.finditer(
        r'name = "([^"]+)"\nversion = "([^"]+)"\nsource = "[^"]+"\nchecksum = "([0-9a-f]{64})"', lock)}


def bill(found, lock, epoch_text, binary_sha256):
    """The CycloneDX 1.5 document. The same inputs give the same bytes."""
    root, others, needs = shipped(found)
    sums = checksums(lock)
    ids = {p["id"]: purl(p) for p in [root, *others]}

    def component(package, kind):
        made = {"type": kind, "bom-ref": purl(package), "name": package["name"],
                "version": package["version"], "purl": purl(package),
                "licenses": [{"expression": expression(package)}]}
        if package["description"]:
            made["description"] = " ".join(package["description"].split())
        checksum = sums.get((package["name"], package["version"]))
        if checksum:
            made["hashes"] = [{"alg": "SHA-256", "content": checksum}]
        return made

    main = component(root, "application")
    main["hashes"] = [{"alg": "SHA-256", "content": binary_sha256}]
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "serialNumber": f"urn:uuid:{uuid.uuid5(NAMESPACE, purl(root) + binary_sha256)}",
        "version": 1,
        "metadata": {"timestamp": epoch_text, "component": main,
                     "tools": {"components": [{"type": "application", "name": "scripts/dist"}]}},
        "components": [component(p, "library") for p in others],
        "dependencies": [{"ref": ids[i], "dependsOn": [ids[n] for n in needs[i]]}
                         for i in sorted(needs, key=ids.get)],
    }


def licence_texts(found):
    """One text with every shipped crate's licence files; equal texts stand once."""
    _, others, _ = shipped(found)
    texts, silent = {}, []
    for package in others:
        folder = Path(package["manifest_path"]).parent
        files = sorted(f for f in folder.iterdir() if f.is_file() and LICENCE_FILES.match(f.name))
        named = package.get("license_file")
        if named and (folder / named).is_file() and folder / named not in files:
            files.append(folder / named)
        if not files:
            silent.append(package)
        for file in files:
            text = file.read_text(errors="replace").replace("\r\n", "\n").strip()
            key = hashlib.sha256(text.encode()).digest()
            texts.setdefault(key, (text, []))[1].append(package)
    rule = "=" * 80
    out = ["Tidegate is one binary with the crates below in it, and Rust's standard library",
           "(Apache-2.0 OR MIT, https://www.rust-lang.org/policies/licenses). Their licences:", ""]
    out += [f"    {p['name']} {p['version']}: {expression(p)}" for p in others]
    if silent:
        out += ["", "Published without a licence file; their authors, for the texts named above:", ""]
        out += [f"    {p['name']} {p['version']}: {', '.join(p['authors']) or 'not named'}"
                for p in silent]
    for text, users in sorted(texts.values(), key=lambda t: (t[1][0]["name"], t[1][0]["version"])):
        out += ["", rule, *sorted({f"{p['name']} {p['version']}" for p in users}), rule, "", text]
    return "\n".join(out) + "\n"
