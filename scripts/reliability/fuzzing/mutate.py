"""Ways to break bytes and text. All draw from the generator that they are given, so that a seed names a case."""

import random
import re

WORDS = [
    "nan", "inf", "-inf", "NaN", "Infinity", "0", "-0", "-1", "1e308", "1e999", "-1e-320", "2147483648", "1" + "0" * 30,
    "9" * 5000, "", "²", "0x10", "true", "null", "text", '"', "[", "{}", "../../etc/passwd", "/dev/zero", "\0",
    "\ud800",
]  # fmt: skip
"""Put where a number or a word was."""
BYTES = [b"\0\0\0\0", b"\xff\xff\xff\xff", b"\x7f\xff\xff\xff", b"\x80\0\0\0", b"\xff\xfe", b"\xc3\x28", b"\n", b"%n"]
MAX_CHANGES = 12


def broken_bytes(data: bytes, draw: random.Random, other: bytes = b"") -> bytes:
    """``data`` with one to a dozen things done to it; ``other`` is what parts may be taken from."""
    result = bytearray(data)
    for _ in range(draw.choice([1, 1, 2, 4, MAX_CHANGES])):
        size = len(result)
        at = draw.randrange(size + 1)
        # Heads decide over all that follows.
        at = min(at, draw.randrange(1, 400)) if draw.random() < 0.5 else at
        length = draw.choice([1, 2, 4, 16, 256, max(1, size // 3)])
        match draw.randrange(8):
            case 0 if size:
                for _ in range(length):
                    place = draw.randrange(len(result))
                    result[place] ^= 1 << draw.randrange(8)
            case 1:
                result[at : at + length] = draw.randbytes(length)
            case 2:
                del result[at : at + length]
            case 3:
                del result[at:]
            case 4:
                result[at:at] = result[at : at + length]
            case 5:
                result[at : at + length] = bytes(length)
            case 6:
                chosen = draw.choice(BYTES)
                result[at : at + len(chosen)] = chosen
            case 7 if other:
                place = draw.randrange(len(other))
                result[at : at + length] = other[place : place + length]
    return bytes(result)


def broken_text(text: str, draw: random.Random) -> bytes:
    """``text`` with odd numbers and words, lines that come twice or not at all, depth without end, or broken bytes."""
    for _ in range(draw.choice([1, 1, 2, 4])):
        lines = text.split("\n")
        match draw.randrange(7):
            case 0 | 1 | 2:
                tokens = list(re.finditer(r"-?[\w.+-]+", text))
                if tokens:
                    token = draw.choice(tokens)
                    text = text[: token.start()] + draw.choice(WORDS) + text[token.end() :]
            case 3:
                del lines[draw.randrange(len(lines))]
                text = "\n".join(lines)
            case 4:
                line = draw.choice(lines)
                lines.insert(draw.randrange(len(lines) + 1), line * draw.choice([1, 2, 50]))
                text = "\n".join(lines)
            case 5:
                at = draw.randrange(len(text) + 1)
                text = (
                    text[:at] + draw.choice(["[", "{", "(", '{"a":', ".a"]) * draw.choice([1, 50, 100_000]) + text[at:]
                )
            case 6:
                return broken_bytes(text.encode(errors="surrogatepass"), draw)
    return text.encode(errors="surrogatepass")
