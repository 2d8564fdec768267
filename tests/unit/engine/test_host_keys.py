"""host_key: one key for one host, however it is written; nonsense is an error, and tells no secret."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from queue_workflows import host_key
from queue_workflows.errors import PayloadError


@pytest.mark.parametrize(
    ("url", "key"),
    [
        ("https://example.org/page?q=1#top", "host:example.org"),
        ("HTTP://EXAMPLE.ORG", "host:example.org"),
        ("https://example.org./", "host:example.org"),
        ("https://ann:secret@example.org/", "host:example.org"),
        ("https://example.org:443/", "host:example.org"),
        ("http://example.org:80/", "host:example.org"),
        ("http://example.org:443/", "host:example.org:443"),
        ("https://example.org:8443/", "host:example.org:8443"),
        ("https://example.org:/", "host:example.org"),
        ("  https://example.org/  ", "host:example.org"),
        ("//example.org/x", None),
        ("https://Bücher.example/", "host:xn--bcher-kva.example"),
        ("https://xn--bcher-kva.example/", "host:xn--bcher-kva.example"),
        ("https://straße.example/", "host:xn--strae-oqa.example"),
        ("https://\uff45\uff58ample\u3002org/", "host:example.org"),
        ("https://例え.テスト/", "host:xn--r8jz45g.xn--zckzah"),
        ("https://\u0646\u0627\u0645\u0647\u200c\u0627\u06cc.com/", "host:xn--mgba3gch31f060k.com"),
        ("https://a_b.foo-.example/", "host:a_b.foo-.example"),
        ("http://192.0.2.7/", "host:192.0.2.7"),
        ("http://[2001:DB8:0:0::1]/", "host:[2001:db8::1]"),
        ("http://[2001:db8::1]:8080/", "host:[2001:db8::1]:8080"),
        ("ftp://example.org:21/x", "host:example.org"),
        ("example.org", None),
        ("example.org/page", None),
        ("localhost:8080", None),
        ("", None),
        ("https://", None),
        ("https:///page", None),
        ("mailto:ann@example.org", None),
        ("file:///etc/passwd", None),
        ("https://example..org/", None),
        ("https://exa mple.org/", None),
        ("https://exam%70le.org/", None),
        ("https://example.org\\@evil.example/", None),
        ("https://example.org:port/", None),
        ("https://example.org:99999/", None),
        ("https://[::1/", None),
        ("http://2130706433/", None),
        ("http://127.1/", None),
        ("http://0x7f.0x1/", None),
        (f"https://{'a' * 64}.org/", None),
        (f"https://{'a.' * 127}org/", None),
        ("https://*.example.org/", None),
        ("https://exam\u0000ple.org/", None),
    ],
)
def test_a_host_has_one_key(url: str, key: str | None) -> None:
    """However it is written; what names none is refused, with what to give instead."""
    if key is not None:
        assert host_key(url) == key
        return
    with pytest.raises(PayloadError, match="give a whole URL"):
        host_key(url)


@pytest.mark.parametrize("url", [None, 7, b"https://example.org/"])
def test_a_url_is_text(url: object) -> None:
    """Nothing else is taken for one."""
    with pytest.raises(PayloadError, match="takes a URL"):
        host_key(url)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "url", ["https://ann:secret@a..b/", "https://a..b/?token=secret", "x:secret@a#secret"]
)
def test_what_is_refused_tells_no_secret(url: str) -> None:
    """Neither a password nor what follows the path."""
    with pytest.raises(PayloadError) as caught:
        host_key(url)
    assert "secret" not in str(caught.value)


@given(st.text(max_size=40))
def test_a_key_is_its_own_hosts(text: str) -> None:
    """Whatever is given: an error, or a key whose host has that very key."""
    try:
        key = host_key(f"https://{text}")
    except PayloadError:
        return
    assert host_key(f"https://{key.removeprefix('host:')}/") == key
    assert key.isascii()
