import pytest

from chaplain.errors import Malformed
from chaplain.proofs import cosignature, note
from chaplain.proofs.note import COSIGNATURE, SecretKey, VerifierKey

VKEY = "example.com/foo+530d903a+AekyeRrm56hApGFkyQR4ZCbV54Id2LKaANYcrnKv3U2k"
"""The example of the specification; another implementation made it."""
NOTE = (
    "This is an example message.\n"
    "\n"
    "\u2014 example.com/foo "
    "Uw2QOkn8srV1yJGh2VYRlL1Tnagv1YEq6TfXppzi2ONncAlTgK7Ztg1ERYNZXsYjOBH3mFXmRKuwHjG1Yu72IneyaQM=\n"
)
SEED = b"s" * 32


def test_example_of_the_specification_verifies():
    key = note.parse_key(VKEY)
    found = note.parse(NOTE.encode())
    assert key.text() == VKEY
    assert found.text == "This is an example message.\n"
    assert found.encode() == NOTE
    assert note.holds(key, found.text, found.signatures[0])
    assert not note.holds(key, "This is another message.\n", found.signatures[0])


def test_signed_text_is_checked_by_its_key_only():
    key, signer = note.signer_of(SEED)
    signature = note.sign("text\n", "a.example", key, signer)
    assert note.holds(VerifierKey("a.example", 1, key), "text\n", signature)
    assert not note.holds(VerifierKey("b.example", 1, key), "text\n", signature)
    assert not note.holds(VerifierKey("a.example", 1, note.signer_of(b"t" * 32)[0]), "text\n", signature)


def test_text_may_have_empty_lines():
    signature = note.parse(NOTE.encode()).signatures[0]
    text = "one\n\ntwo\n\n"
    assert note.parse(note.encode(text, [signature]).encode()).text == text


@pytest.mark.parametrize(
    ("wrong", "reason"),
    [
        (b"", "an empty line"),
        (NOTE.encode()[:-1], "each with its line feed"),
        (NOTE.replace("\n\n", "\n").encode(), "an empty line"),
        (NOTE.replace("\u2014", "-").encode(), "is not a signature line"),
        (NOTE.replace("foo U", "foo  U").encode(), "not base64"),
        (NOTE.replace("aQM=", "aQN=").encode(), "one spelling"),
        (NOTE.replace("aQM=", "aQM").encode(), "not base64"),
        (NOTE.replace("/foo", "+foo").encode(), "no spaces and no"),
        (NOTE.replace("message", "mes\tsage").encode(), "control characters"),
        (NOTE.encode() + b"\xff", "not UTF-8"),
        ("text\n\n\u2014 a AAAAAA==\n".encode(), "only 4 octets"),
        (b"text\n\n" + NOTE.encode().split(b"\n", 2)[2] * 301, "1 to 300 signature lines"),
        (b"x" * (128 << 10) + NOTE.encode(), "at most 131072 octets"),
    ],
)
def test_other_notes_are_refused(wrong, reason):
    with pytest.raises(Malformed, match=reason):
        note.parse(wrong)


def test_sixteen_large_signatures_are_accepted():
    lines = "".join(note.Signature(f"w{n}", bytes(4), bytes(4900)).line() for n in range(16))
    assert len(note.parse(f"text\n\n{lines}".encode()).signatures) == 16


@pytest.mark.parametrize(
    ("wrong", "reason"),
    [
        ("", "name.id.key wanted"),
        (VKEY.replace("foo", "fop"), "the id does not belong"),
        (VKEY.replace("530d", "530D"), "the id does not belong"),
        (VKEY.replace("3U2k", "3U2l"), "the id does not belong"),
        (VKEY + "=", "one spelling|not base64"),
        ("+" + VKEY.split("+", 1)[1], "no spaces"),
        (VerifierKey("a", 6, bytes(1312)).text(), "type 6 are not supported"),
        (VerifierKey("a", 1, bytes(31)).text(), "32 octets wanted"),
    ],
)
def test_other_verifier_keys_are_refused(wrong, reason):
    with pytest.raises(Malformed, match=reason):
        note.parse_key(wrong)


def test_secret_key_decodes_to_itself_and_its_repr_shows_no_secret():
    secret = SecretKey("example.com/w", SEED, COSIGNATURE)
    again = SecretKey.parse(secret.text())
    assert again.verifier == secret.verifier == note.parse_key(secret.verifier.text())
    assert again.sign(b"x") == secret.sign(b"x")
    assert repr(secret) == "SecretKey('example.com/w')"
    for wrong in ("", secret.text().replace("/w", "/v"), secret.text().replace("PRIVATE", "SECRET"), VKEY):
        with pytest.raises(Malformed, match="secret key"):
            SecretKey.parse(wrong)


def test_cosignature_covers_its_time_and_its_text():
    key, signer = note.signer_of(SEED)
    name = VerifierKey("w.example", COSIGNATURE, key)
    signature = cosignature.sign("origin\n", name.name, key, signer, 1_679_315_147)
    assert cosignature.signed_octets(1_679_315_147, "origin\n") == b"cosignature/v1\ntime 1679315147\norigin\n"
    assert cosignature.time_of(signature) == 1_679_315_147
    assert cosignature.holds(name, "origin\n", signature)
    assert not cosignature.holds(name, "origim\n", signature)
    octets = bytearray(signature.octets)
    octets[7] ^= 1
    assert not cosignature.holds(name, "origin\n", note.Signature(name.name, name.id, bytes(octets)))
    assert not cosignature.holds(name, "origin\n", note.Signature(name.name, name.id, bytes(octets)[:-1]))
    with pytest.raises(ValueError, match="time of a cosignature"):
        cosignature.sign("origin\n", name.name, key, signer, 0)
