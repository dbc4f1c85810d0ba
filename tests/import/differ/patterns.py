"""Random regular expressions of nginx, of constructs that mean the same in other dialects, that do not, and that other dialects lack."""
import ctypes, ctypes.util, urllib.parse

PIECES = ["/", "a", "b", "k", "s", "K", "4", "x", ".", ".*", ".+", ".?", "a+", "b*?", "x??", "[ab]", "[^/]", "[^a]+", "[a-f4]", r"\w", r"\W", r"\d+", r"\s", r"\S*",
          r"\.", r"\-", r"\_", "(a|b)", "(?:a|4)+", "(|a)", "(?<n>a|k)", "(?P<m>b)", "^", "$", r"\A", r"\z", r"\Z", "é", "é+", "é?", "[é]", "[^é]", "(?:é|è)", "è{2}", r"\xC3", r"\xA9",
          r"\x61", ".{2}", "[^/]{2,3}", "a{1,2}", "b{2,}", "[a&&b]", "[&&x]", "[+--]", "[a~~]", "[~~4]", "[a[b]]", "[]a]", "[^]a]", "[a-c-e]", r"[\w-]", r"[\d.]", r"[\]\[]", "[[:alpha:]]",
          "[[:^digit:]]", "[[:punct:]4]", "[[:upper:]]", "[[:word:]]", "&", "~", "-", "@", "]", "}", "ſ", "K"]
# What the import refuses.
LACKING = ["(?!a)", "(?=b)", "(?<!a)", "(?<=/)", "(?>a+)", "a++", ".*+", "[ab]?+", r"(a)\1", r"\b", r"\B", "(?i)", "(?-i)", "(?i:a)", "(?s).", "(?x)a b", "(?#c)", "(?U)a+", "(?|a|b)", "(*UTF8)", r"\h",
           r"\R", r"\Ka", r"\Ga", r"\Qa.\E", r"\x{61}", r"\o{141}", r"\141", r"\N", r"\v", r"\e", "a{,3}", "{4}", r"[\b]", r"[\h4]", "(?(?=a)a|b)", "(?R)?"]
CHARACTERS = ["a", "a", "b", "b", "k", "K", "s", "A", "4", "x", "/", "&", "~", "-", "+", ",", "[", "]", ".", "@", "_", "|", "}", "é", "è", "É", "K", "ſ", " "]


def load_library():
    library = ctypes.CDLL(ctypes.util.find_library("pcre2-8") or "libpcre2-8.so.0")
    library.pcre2_compile_8.restype = ctypes.c_void_p
    library.pcre2_code_free_8.argtypes = [ctypes.c_void_p]
    return library


LIBRARY = load_library()


def is_pattern(text):
    """Returns whether nginx accepts a pattern."""
    code, offset, encoded = ctypes.c_int(), ctypes.c_size_t(), text.encode()
    compiled = LIBRARY.pcre2_compile_8(encoded, ctypes.c_size_t(len(encoded)), 0, ctypes.byref(code), ctypes.byref(offset), None)
    if compiled:
        LIBRARY.pcre2_code_free_8(compiled)
    return bool(compiled)


def random_pattern(rng, start):
    """Returns a pattern that nginx accepts. Most of them begin with `start`."""
    while True:
        pieces = [rng.choice(PIECES) for _ in range(rng.choice([1, 1, 2, 3, 4]))]
        if rng.random() < 0.1:
            pieces.insert(rng.randrange(len(pieces) + 1), rng.choice(LACKING))
        if rng.random() < 0.2:
            pieces.insert(rng.randrange(len(pieces) + 1), "|")
        text = (start if rng.random() < 0.7 else "") + "".join(pieces) + ("$" if rng.random() < 0.3 else "")
        if is_pattern(text):
            return text


def quote(word):
    """Writes a word of a config of nginx."""
    return '"' + word.replace("\\", "\\\\").replace('"', '\\"') + '"'


def random_text(rng, longest):
    return "".join(rng.choice(CHARACTERS) for _ in range(rng.randrange(1, longest)))


def random_path(rng):
    """Returns a path without dot segments and repeated slashes, which the gateway does not forward."""
    while True:
        text = "/" + random_text(rng, 5).lstrip("/")
        if not {".", ".."} & set(text.split("/")) and "//" not in text:
            return urllib.parse.quote(text, safe="/~-._" + rng.choice(["", "&+@,"]))
