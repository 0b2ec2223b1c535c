"""What a person may name as data: files, folders, patterns and addresses, in one spelling, and how they are opened.

One reader for a stack's preview, the dataset Job and `trainyard upload`: what the one accepts the others read.
"""

import re
from collections.abc import Callable
from pathlib import PurePosixPath
from typing import Any, TypeVar
from urllib.parse import unquote

Found = TypeVar("Found")

KINDS = {
    **dict.fromkeys((".txt", ".text", ".md", ".markdown", ".mdx", ".rst", ".adoc", ".org", ".tex", ".log"), "text"),
    **dict.fromkeys((".jsonl", ".ndjson", ".json"), "json"),
    ".parquet": "parquet",
}
"""Suffix -> how a file of a folder is read. A file that is named itself is text by default."""
COMPRESSIONS = {".gz": "gzip", ".zst": "zstd", ".bz2": "bz2", ".xz": "xz"}
"""By fsspec's names."""
REFUSED = (".zip", ".tar", ".tgz", ".7z", ".rar", ".pdf", ".docx", ".epub", ".arrow", ".feather", ".orc")
"""Kinds that hold text which nothing here takes out of them."""
LOST = (*REFUSED, ".csv", ".tsv")
"""Kinds for which a folder is refused: to pass over them would lose data. Tables are read as plain text where they are
named themselves."""
SCHEMES = ("s3", "gs", "https", "http")
"""Schemes that a cluster reads."""
SPELLED = {"s3a": "s3", "s3n": "s3", "gcs": "gs"}
NOWHERE = (
    "names nothing; give a file or folder on the shared volume, hf:NAME, or an address with its bucket or server, such "
    "as gs://BUCKET/FOLDER"
)
ANONYMOUS: dict[str, list[dict[str, Any]]] = {"s3": [{"anon": True}], "gs": [{"token": "anon"}]}
"""Options for a public bucket: without them, a pod without credentials fails before its first request."""
_FOREIGN = re.compile(r"[A-Za-z][\w+.-]*:|[^/]*@[^/]*:")
"""What begins as an address does: with a scheme, a drive or a server."""
_SERVERS = re.compile(
    r"(www\.[^/]+|[^/:]+\.(amazonaws|googleapis|google|githubusercontent)\.com|huggingface\.co|hf\.co|github\.com"
    r"|kaggle\.com)(:\d+)?(/|$)",
    re.I,
)
_WEB = re.compile("https?://", re.I)
_PAGES = re.compile(
    r"https?://(?:www\.)?(?:"
    r"(?:huggingface\.co|hf\.co)/datasets/([^/?#]+(?:/(?!viewer|tree)[^/?#]+)?)/?(?:(?:viewer|tree)\b[^?#]*)?"
    r"|((?:huggingface\.co|hf\.co|github\.com)/[^?#]+)/blob/([^?#]+)"
    r"|(?:kaggle\.com|drive\.google\.com/(?:file|drive|open))/.*"
    r")(?:#.*|\?(?!raw=).*)?",
    re.I,
)
"""Pages about a data set or a file, as a browser shows them: their servers answer with markup."""
_HUB = re.compile(
    r"(?:(?://|https?://[^/]+/)?datasets/|//)([^/@?#]+/[^/@?#]+)(?:[/@?#].*)?|([^./~@?#[][^@?#[]*)[@?#[].*"
)
"""Other spellings of a data set of the hub, also with a revision, which is not read."""
_HERE = re.compile(r"https?://(?:[^/@]*@)?(?:localhost|127\.[\d.]+|\[::1\])(?=[:/]|$)", re.I)
_VARIABLE = re.compile(r"\$(\w+|\{\w+\})(/|$)")
_ways: dict[tuple[str, str], list[dict[str, Any]]] = {}


def address(text: str) -> str:
    """An input in its one spelling. Raises ValueError with what to write instead."""
    text = text.strip()
    if not text:
        raise ValueError(f"'{text}' {NOWHERE}")
    if found := re.fullmatch(r"arn:aws[a-z-]*:s3:::(.+)", text, re.IGNORECASE):
        text = f"s3://{found[1]}"
    if found := re.fullmatch(r"(s3[an]?|gc?s|https?|file|hf)[^\w:/]?//+(.*)", text, re.IGNORECASE):
        scheme, rest = found[1].lower(), found[2]
        if scheme == "hf":
            return _of_hub(text, f"//{rest}")
        raise ValueError(f"'{text}' lacks the colon of an address; write {_whole(scheme, rest)}")
    if _SERVERS.match(text):
        raise ValueError(f"'{text}' lacks the scheme of an address; write https://{text}, s3:// or gs://BUCKET/NAME")
    if _VARIABLE.match(text):
        raise ValueError(f"'{text}' begins with a variable, and a stack file is no shell; write the path itself")
    scheme, colon, rest = text.partition(":")
    scheme = scheme.lower()
    if scheme == "hf" and colon:
        return _of_hub(text, rest)
    if page := _PAGES.fullmatch(text):
        raw = "raw" if "github" in (page[2] or "") else "resolve"
        instead = f"write hf:{page[1]}" if page[1] else f"write https://{page[2]}/{raw}/{page[3]}"
        instead = instead if page[1] or page[2] else "download them, and `trainyard upload` brings them to the volume"
        raise ValueError(f"'{text}' is a web page about the data; {instead}")
    if (suffix := kind_of(text)[0]) in REFUSED:
        raise ValueError(f"'{text}': {suffix} files are not read; unpack or convert it to .txt or .jsonl")
    scheme = SPELLED.get(scheme, scheme)
    if colon and scheme in (*SCHEMES, "file") and not rest.startswith("//"):
        raise ValueError(f"'{text}' lacks slashes; write {_whole(scheme, rest)}")
    if "://" not in text:
        if _FOREIGN.match(text) and "\\" not in text:
            raise ValueError(
                f"'{text}' is no address that is read, and no file; allowed: {', '.join(SCHEMES)}://, hf:NAME; "
                f"a file or folder of that name is ./{text}"
            )
        return text
    server, slash, path = rest.removeprefix("//").partition("/")
    if scheme == "file":
        if server not in ("", "localhost"):
            raise ValueError(f"'{text}' names the server '{server}', which file:// does not reach; write file:///PATH")
        return f"/{unquote(path)}"
    if not server.strip() or (scheme.startswith("http") and server.startswith("?")):
        raise ValueError(f"'{text}' {NOWHERE}")
    if scheme in ("s3", "gs"):
        if not re.fullmatch(r"(?!.*\.(?:amazonaws|googleapis)\.com$)[A-Za-z0-9][-._A-Za-z0-9]*", server):
            raise ValueError(f"'{text}': '{server}' is no name of a bucket; allowed: letters, digits, '-', '.' and '_'")
        if query := re.search(r"\?\w+=|#\d{16}$", path):  # gsutil's generation of an object
            raise ValueError(f"'{text}' ends in a query, which {scheme}:// has not; leave out {path[query.start() :]}")
    elif scheme.startswith("http"):
        user, at, host = server.rpartition("@")
        server = f"{user}{at}{host.lower()}"
    return f"{scheme}://{server}{slash}{path}"


def _whole(scheme: str, rest: str) -> str:
    """An address with its colon and slashes; that of a file has no server between them."""
    return f"{scheme}://{'/' if scheme == 'file' else ''}{rest.lstrip('/')}"


def _of_hub(text: str, rest: str) -> str:
    if not rest.strip("/ "):
        raise ValueError(f"'{text}' {NOWHERE}")
    if found := _HUB.fullmatch(rest):
        raise ValueError(f"'{text}' is no name on the Hugging Face hub; write hf:{found[1] or found[2]}")
    if rest.startswith("/") and not rest.startswith("//"):
        return f"hf:{rest}"  # a folder of this machine that `datasets` opens
    return f"hf:{rest.strip('/ ')}"


def on_volume(text: str, volume: str) -> str:
    """An input as pods name it: what is no address is on the shared volume. Raises ValueError for what pods cannot see.

    `text` is in its one spelling.
    """
    if text == "sample" or (text.startswith("hf:") and not re.match(r"hf:[./~]", text)):
        return text
    if "://" in text:
        if text.partition(":")[0] not in SCHEMES:
            raise ValueError(
                f"'{text}': {text.partition(':')[0]}:// is not read; allowed: {', '.join(SCHEMES)}, hf:NAME"
            )
        if _HERE.match(text):
            raise ValueError(f"'{text}' names this machine, and a pod takes itself for it; give an address for pods")
        return text
    here = text.removeprefix("hf:")
    whole = PurePosixPath(volume, here)
    if here.startswith("~") or "\\" in here or ".." in whole.parts or not whole.is_relative_to(volume):
        raise ValueError(
            f"'{text}' is not on the shared volume, and pods see no other files; `trainyard upload {here}` brings it "
            "there and says what to give"
        )
    if whole == PurePosixPath(volume):
        raise ValueError(f"'{text}' is the whole volume, with its runs and caches; name a folder or a file of it")
    return f"{text.removesuffix(here)}{whole}"


def on_filesystem(name: str, act: Callable[[Any, str], Found]) -> Found:
    """What `act` returns for the file system of an address and its path there.

    With this machine's credentials, else anonymously, as for a public bucket. Raises what the first way raised.
    """
    import fsspec

    scheme, _, rest = name.partition("://")
    place, first = (scheme, rest.partition("/")[0]), None
    for options in _ways.get(place) or [{}, *ANONYMOUS.get(scheme, [])]:
        system, path = fsspec.core.url_to_fs(name, **options)
        try:
            found = act(system, path)
        except FileNotFoundError:
            raise
        except Exception as error:  # each file system raises its own kinds: no credentials, no route, no bucket
            first = first or error
        else:
            _ways[place] = [options]
            return found
    assert first is not None
    raise first


def kind_of(path: str) -> tuple[str, str]:
    """The suffix that says what a file holds, and its compression; of an address without its query."""
    whole = PurePosixPath(re.split("[?#]", path)[0] if _WEB.match(path) else path)
    compression = COMPRESSIONS.get(whole.suffix.lower(), "")
    return (PurePosixPath(whole.stem).suffix if compression else whole.suffix).lower(), compression


def passed_over(path: str, top: str, size: int | None) -> str:
    """Why a file of a folder is not read; empty if it is. `top`: the folder."""
    inside = path.removeprefix(top)
    suffix, compression = kind_of(path)
    if any(part.startswith(".") for part in PurePosixPath(inside).parts):
        return "hidden"
    if suffix not in KINDS:
        compressed = f" before {PurePosixPath(inside).suffix}" if compression else ""
        return f"of kind {suffix}" if suffix else f"without a suffix{compressed}"
    return "empty" if size == 0 else ""
