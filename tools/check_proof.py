"""Checks a proof of one message: `python check_proof.py order.proof cluster.policy`.

Needs Python 3.9 or newer, PyNaCl or cryptography, and nothing of chaplain. The formats are described in chaplain's
docs/protocol/proofs.md. Exit code 0 and one line if the proof holds, 3 and the reason if not, 2 for wrong usage.
"""

import base64
import hashlib
import re
import struct
import sys

try:
    from nacl.bindings import crypto_sign_open
    from nacl.exceptions import CryptoError as WrongSignature

    def verify(key, message, signature):
        crypto_sign_open(signature + message, key)

except ImportError:
    from cryptography.exceptions import InvalidSignature as WrongSignature
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    def verify(key, message, signature):
        Ed25519PublicKey.from_public_bytes(key).verify(signature, message)


class NotProven(Exception):
    """The reason why."""


def require(condition, reason):
    if not condition:
        raise NotProven(reason)


def sha256(*parts):
    return hashlib.sha256(b"".join(parts)).digest()


def signature_is_right(key, message, signature):
    try:
        verify(key, message, signature)
    except (WrongSignature, ValueError):
        return False
    return len(signature) == 64


def from_base64(text):
    octets = base64.b64decode(text.encode(), validate=True)
    require(base64.b64encode(octets).decode() == text, "base64 is not in its one spelling")
    return octets


def number(text):
    require(re.fullmatch("0|[1-9][0-9]{0,18}", text) and int(text) < 1 << 63, f"{text[:40]!r} is not a number")
    return int(text)


def root_of_path(leaf, index, size, path):
    """The root of the tree of `size` leaves in which `path` leads from this leaf upwards (RFC 6962, 2.1.1)."""
    require(0 <= index < size, f"a tree of {size} leaves has no leaf {index}")
    if size == 1:
        require(not path, "a path is too long")
        return leaf
    require(path, "a path is too short")
    left = 1 << (size - 1).bit_length() - 1
    if index < left:
        return sha256(b"\1", root_of_path(leaf, index, left, path[:-1]), path[-1])
    return sha256(b"\1", path[-1], root_of_path(leaf, index - left, size - left, path[:-1]))


class Reader:
    def __init__(self, data):
        self.data = data

    def take(self, size):
        taken, self.data = self.data[:size], self.data[size:]
        require(len(taken) == size, "the proof ends too early")
        return taken

    def number(self, size):
        return int.from_bytes(self.take(size), "big")


def read_policy(data):
    """Keys of the log and of the witnesses, groups, and the quorum."""
    require(data.endswith(b"\n") and not re.search(rb"[\x00-\x08\x0b-\x1f\x7f]", data), "the policy has odd octets")
    text = data.decode("utf-8", "surrogateescape")
    logs, witnesses, groups, quorum, grouped = [], {}, {}, None, []
    for line in text.split("\n"):
        words = re.findall(r"[^ \t]+", line)
        if words and words[0].startswith("#"):
            if line.startswith("# seal ") or re.search("[0-9a-f]{64}", line):
                before = data[: len(data) - len(line.encode("utf-8", "surrogateescape")) - 1]
                right = f"# seal {hashlib.sha256(before).hexdigest()}"
                require(line == right and data.endswith(f"\n{line}\n".encode()), "the policy was changed after sealing")
        elif words:
            require(
                len(words) in {"log": (2, 3), "witness": (3, 4), "quorum": (2,)}.get(words[0], range(4, 999)),
                f"the policy has an odd line: {line[:60]!r}",
            )
            if words[0] == "log":
                logs.append(read_key(words[1], (1, 4)))
            elif words[0] == "witness":
                require(words[1] not in {"none", *witnesses, *groups}, f"the policy names {words[1]} twice")
                witnesses[words[1]] = read_key(words[2], (4,))
            elif words[0] == "group":
                name, enough, *members = words[1:]
                require(name not in {"none", *witnesses, *groups}, f"the policy names {name} twice")
                require({*members} <= {*witnesses, *groups}, f"the policy has unknown members in {name}")
                grouped += members
                enough = {"any": 1, "all": len(members)}.get(enough) or number(enough)
                require(1 <= enough <= len(members), f"the policy has an impossible group {name}")
                groups[name] = (enough, members)
            else:
                require(words[0] == "quorum" and quorum is None, f"the policy has an odd line: {line[:60]!r}")
                quorum = words[1]
    require(logs and quorum in {"none", *witnesses, *groups}, "the policy has no log or no quorum")
    for keys in (logs, list(witnesses.values())):
        require(len({key for _, _, _, key in keys}) == len(keys), "the policy lists a key twice")
    require(len({*grouped}) == len(grouped), "the policy has a member in two groups")
    return logs, witnesses, groups, quorum


def read_key(text, kinds):
    """Name, id, kind and public key of a verifier key."""
    name, key_id, encoded = text.split("+", 2)
    octets = from_base64(encoded)
    require(
        key_id == sha256(name.encode("utf-8", "surrogateescape"), b"\n", octets)[:4].hex(), f"key {name} is damaged"
    )
    require(octets[0] in kinds and len(octets) == 33, f"key {name} has a type that is not supported")
    return name, bytes.fromhex(key_id), octets[0], octets[1:]


def has_signed(key, text, lines):
    """Whether this key signed the text. A wrong signature under its name is an error."""
    name, key_id, kind, public = key
    mine = [octets[4:] for signer, octets in lines if signer == name and octets[:4] == key_id]
    for octets in mine:
        timed = f"cosignature/v1\ntime {int.from_bytes(octets[:8], 'big')}\n{text}"
        message, signature = (timed, octets[8:]) if kind == 4 else (text, octets)
        require(signature_is_right(public, message.encode(), signature), f"the signature of {name} is wrong")
    return bool(mine)


def check_checkpoint(note, policy):
    """Cluster, size and root of a checkpoint that enough keys of the policy signed, and their names."""
    logs, witnesses, groups, quorum = policy
    require(not re.search("[\x00-\x09\x0b-\x1f]", note), "the checkpoint has control characters")
    text, _, signatures = note.rpartition("\n\n")
    origin, size, root = text.split("\n")
    text += "\n"
    lines = []
    for line in signatures[:-1].split("\n"):
        dash, name, octets = line.split(" ")
        odd = dash != "\u2014" or not name or re.search(r"[\s+]", name) or not signatures.endswith("\n")
        lines.append((name, from_base64(octets)))
        require(not odd and len(lines[-1][1]) > 4, "the checkpoint has an odd signature line")
    require(any(key[0] == origin for key in logs), f"the policy is not for {origin}")
    # All signatures are checked: one that is wrong makes the checkpoint invalid, even if the others are enough.
    by_log = [has_signed(key, text, lines) for key in logs if key[0] == origin]
    require(any(by_log), "no log key of the policy signed the checkpoint")
    reached = {name: has_signed(key, text, lines) for name, key in witnesses.items()}
    signers = [name for name, signed in reached.items() if signed]
    for name, (enough, members) in groups.items():
        reached[name] = sum(reached[member] for member in members) >= enough
    require(quorum == "none" or reached[quorum], f"only {', '.join(signers) or 'nobody'} signed the checkpoint")
    cluster = re.sub("%(25|2B|2F)", lambda found: chr(int(found[1], 16)), origin[len("chaplain/") :])
    require(origin.startswith("chaplain/") and len(from_base64(root)) == 32, "this is not a checkpoint of chaplain")
    return cluster, number(size), from_base64(root), signers


def message_of(group, columns, position):
    """The value of the message at this position of the pack, from the octets of its group."""
    first, count = struct.unpack_from("<II", group)
    cells = count * (1 + (columns & 1) + (columns >> 1 & 1))
    require(1 <= count <= 16 and first <= position < first + count, "the message is not in its group")
    sizes = [0 if size == 0xFFFFFFFF else size for size in struct.unpack_from(f"<{cells}I", group, 8)]
    starts = [8 + 4 * cells + sum(sizes[:cell]) for cell in range(cells + 1)]
    require(starts[-1] == len(group), "the sizes of the group do not add up")
    return group[starts[position - first] :][: sizes[position - first]]


def check(proof, policy):
    """Return the line that says what was proven."""
    first, extra, rest = proof.decode().split("\n", 2)
    require(first == "c2sp.org/tlog-proof@v1" and extra.startswith("extra "), "this is not a proof of chaplain")
    octets = from_base64(extra[len("extra ") :])
    require(sha256(b"chaplain proof 1\0", octets[:-8], rest.encode())[:8] == octets[-8:], "the proof is damaged")
    reader = Reader(octets[:-8])
    require(reader.take(1) == b"\1", "the proof has an unknown version")
    leaf = reader.take(reader.number(2))
    offset = reader.number(8)
    head = reader.take(32)
    _, count, client, first_id, requests, protocol, _, kind, columns, _, odd, odder = struct.unpack(
        "<IIIIIBBBBHHI", head
    )
    table = reader.take(32 if columns & 4 else 0)
    signature = reader.take(64 if kind == 1 else 0)
    group_index, groups = reader.number(4), reader.number(4)
    require(group_index < groups, "the proof has an impossible group")
    inner = (group_index ^ groups - 1).bit_length()
    group_path = [reader.take(32) for _ in range(inner + bin(group_index >> inner).count("1"))]
    group = reader.take(reader.number(4))
    require(not reader.data, "the proof is too long")

    pack_leaf = struct.unpack_from(">BBIQQQIII32s32sB", leaf)
    version, leaf_kind, _, _, _, first_offset, messages, leaf_client, leaf_id, author, digest, name_size = pack_leaf
    stream = leaf[107:].decode("ascii")
    require((version, leaf_kind, len(stream)) == (1, 1, name_size) and name_size, "the entry of the log is not a pack")
    require((count, client, first_id) == (messages, leaf_client, leaf_id), "the pack is not that of the log")
    require((protocol, odd, odder) == (2, 0, 0) and columns < 32, "the pack has an unknown form")
    require(columns & 4 or requests == count, "the pack has an unknown form")
    value = message_of(group, columns, offset - first_offset)
    group_root = root_of_path(sha256(b"\0", group), group_index, groups, group_path)
    require(sha256(b"chaplain pack 2\0", head, table, group_root) == digest, "the message is not part of the pack")

    heading, _, note = rest.partition("\n\n")
    index, *path = heading.split("\n")
    require(index.startswith("index "), "the proof has no index")
    cluster, size, root, signers = check_checkpoint(note, policy)
    leaf_root = root_of_path(
        sha256(b"\0", leaf), number(index[len("index ") :]), size, [from_base64(one) for one in path]
    )
    require(leaf_root == root, "the pack is not part of the log")
    if kind == 1:
        names = b"".join(bytes((len(name),)) + name.encode() for name in (cluster, stream))
        right = signature_is_right(author, b"chaplain request 1\0" + names + digest, signature)
        require(right, "the author's signature is wrong")
    by = f"{'signed' if kind == 1 else 'written'} by {author.hex()[:16]}"
    return (
        f"stream {stream} offset {offset}: proven, {len(value)} octets, {by}, "
        f"in the log of {cluster} of {size} entries, signed by {', '.join(signers)}"
    )


def content(name):
    with open(name, "rb") as file:
        return file.read()


def main(arguments):
    if len(arguments) != 2:
        print("usage: check_proof.py PROOF POLICY", file=sys.stderr)
        return 2
    try:
        proof, policy = map(content, arguments)
    except OSError as error:
        print(f"cannot read {error.filename}: {error.strerror}", file=sys.stderr)
        return 2
    try:
        print(check(proof, read_policy(policy)))
    except (NotProven, ValueError, IndexError, struct.error, RecursionError) as reason:
        print(f"not proven: {reason}", file=sys.stderr)
        return 3
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
