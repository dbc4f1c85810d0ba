"""A client of rate limit services on grpcio, `rls_client.py SCENARIO ADDRESS`; run by tests/envoy. It writes and reads
messages by their field numbers, apart from the gateway's own code. Fails with a message if a result is wrong."""
import sys

import grpc

LIMIT = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit"
HEALTH = "/grpc.health.v1.Health/Check"
OK, OVER = 1, 2
SECOND, MINUTE, HOUR = 1, 2, 3
TIMEOUT_S = 20


def varint(number):
    out = b""
    while number > 127:
        out += bytes([number & 127 | 128])
        number >>= 7
    return out + bytes([number])


def field(number, value):
    if isinstance(value, int):
        return varint(number << 3) + varint(value)
    value = value.encode() if isinstance(value, str) else value
    return varint(number << 3 | 2) + varint(len(value)) + value


def descriptor(*entries, hits=None, negative=False):
    out = b"".join(field(1, field(1, key) + field(2, value)) for key, value in entries)
    if hits is not None:
        out += field(3, field(1, hits) if hits else b"")
    return out + (field(4, 1) if negative else b"")


def request(domain, *descriptors, hits=0):
    return field(1, domain) + b"".join(field(2, one) for one in descriptors) + (field(3, hits) if hits else b"")


def read(message):
    """Decodes a message. Returns a dict of field number -> list of values."""
    at, out = 0, {}

    def number():
        nonlocal at
        value = shift = 0
        while True:
            byte = message[at]
            at += 1
            value |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return value

    while at < len(message):
        tag = number()
        value = number()
        if tag & 7 == 2:
            value, at = message[at:at + value], at + value
        else:
            assert tag & 7 == 0, tag
        out.setdefault(tag >> 3, []).append(value)
    assert at == len(message)
    return out


def first(fields, number, default=0):
    return fields.get(number, [default])[0]


class RateLimitResponse:
    def __init__(self, message):
        fields = read(message)
        self.code = first(fields, 1)
        self.statuses = [Status(one) for one in fields.get(2, [])]
        headers = [read(one) for one in fields.get(3, [])]
        self.headers = {first(one, 1).decode(): first(one, 2, b"").decode() for one in headers}
        self.body = first(fields, 5, b"")

    def codes(self):
        return [status.code for status in self.statuses]


class Status:
    def __init__(self, message):
        fields = read(message)
        self.code, self.remaining = first(fields, 1), first(fields, 3)
        limit = read(first(fields, 2)) if 2 in fields else None
        self.limit = limit and (first(limit, 1), first(limit, 2), first(limit, 3, b"").decode())
        wait = read(first(fields, 4)) if 4 in fields else None
        self.wait = wait and first(wait, 1) + first(wait, 2) / 1e9


CHECK = "/envoy.service.auth.v3.Authorization/Check"
OPTIONS = [("grpc.enable_http_proxy", 0)]


class Service:
    def __init__(self, address, channel=None):
        self.channel = channel or grpc.insecure_channel(address, OPTIONS)

    def call(self, method, message):
        return self.channel.unary_unary(method)(message, timeout=TIMEOUT_S)

    def decide(self, domain, *descriptors, hits=0):
        return RateLimitResponse(self.call(LIMIT, request(domain, *descriptors, hits=hits)))

    def fails(self, message, method=LIMIT):
        try:
            self.call(method, message)
        except grpc.RpcError as error:
            return error.code().name
        return "OK"


def same(found, expected):
    assert found == expected, f"{found} in place of {expected}"


def decisions(service):
    login = [("path", "/login"), ("remote_address", "192.0.2.7")]
    for left in (2, 1, 0):
        response = service.decide("edge", descriptor(*login))
        same((response.code, response.codes(), response.body), (OK, [OK], b""))
        status = response.statuses[0]
        same((status.limit, status.remaining), ((3, MINUTE, "logins"), left))
        same(response.headers["ratelimit-policy"], '"logins";q=3;w=60')
    response = service.decide("edge", descriptor(*login))
    same((response.code, response.codes()), (OVER, [OVER]))
    assert 10 < response.statuses[0].wait <= 20, response.statuses[0].wait
    assert 10 < int(response.headers["retry-after"]) <= 20, response.headers
    same((response.headers["content-type"], response.headers["cache-control"]), ("application/problem+json", "no-store"))
    assert b'"violated-policies":["logins"]' in response.body, response.body

    # Entries of the table in another order, another client, and another address of its IPv6 network.
    same(service.decide("edge", descriptor(*reversed(login))).code, OVER)
    same(service.decide("edge", descriptor(login[0], ("remote_address", "192.0.2.8"))).code, OK)
    for left in (2, 1):
        address = ("remote_address", f"2001:db8::{left}")
        same(service.decide("edge", descriptor(login[0], address)).statuses[0].remaining, left)

    # All or none: what another descriptor refuses is not charged. Statuses keep their order.
    tokens = lambda hits: descriptor(("tokens", "a"), hits=hits)
    response = service.decide("edge", tokens(600), descriptor(*login), descriptor(("none", "x")))
    same((response.code, response.codes()), (OVER, [OK, OVER, OK]))
    same(response.statuses[0].remaining, 1000)
    same(response.statuses[2].limit, None)
    response = service.decide("edge", tokens(600))
    same((response.code, response.statuses[0].limit, response.statuses[0].remaining), (OK, (1000, HOUR, "tokens"), 400))
    same(service.decide("edge", tokens(600)).code, OVER)

    # A peek changes nothing; hits of the request apply to descriptors without their own.
    for _ in range(3):
        same(service.decide("edge", tokens(0), hits=9).statuses[0].remaining, 400)
    same(service.decide("edge", descriptor(("tokens", "a")), hits=100).statuses[0].remaining, 300)
    response = service.decide("edge", tokens(300))
    same((response.code, response.statuses[0].remaining), (OK, 0))
    same(service.decide("edge", tokens(0)).code, OVER)

    # A refund is never refused, and never exceeds what was charged.
    back = lambda hits: descriptor(("tokens", "a"), hits=hits, negative=True)
    response = service.decide("edge", back(400))
    same((response.code, response.statuses[0].remaining), (OK, 400))
    response = service.decide("edge", back(1 << 63), descriptor(("tokens", "b"), hits=1000), descriptor(("tokens", "b"), hits=0))
    same((response.code, response.codes()), (OVER, [OK, OK, OVER]))
    same(service.decide("edge", tokens(0)).statuses[0].remaining, 1000)

    # A refund removes the newest entries of a log, or a part of one.
    logged = lambda hits: descriptor(("logged", "a"), hits=abs(hits), negative=hits < 0)
    for hits, code, left in [(4, OK, 6), (3, OK, 3), (4, OVER, 3), (-5, OK, 8), (9, OVER, 8), (8, OK, 0), (-99, OK, 10), (-1, OK, 10), (10, OK, 0)]:
        response = service.decide("edge", logged(hits))
        same((hits, response.code, response.statuses[0].remaining), (hits, code, left))

    # Two descriptors of one budget are one charge of both.
    same(service.decide("edge", tokens(700), tokens(700)).codes(), [OVER, OVER])
    same([status.remaining for status in service.decide("edge", tokens(400), tokens(600)).statuses], [0, 0])
    # Numbers above 32 bits, and more hits than the limit can ever allow.
    same(service.decide("edge", descriptor(("large", "x"))).statuses[0].limit, (2**32 - 1, HOUR, "large"))
    response = service.decide("edge", descriptor(("tokens", "c"), hits=2**64 - 1))
    same((response.code, response.statuses[0].wait, "retry-after" in response.headers), (OVER, None, False))

    # Values that are not UTF-8 have budgets of their own.
    same(service.decide("edge", descriptor(("tokens", b"\xff\xfe"), hits=1000)).code, OK)
    same(service.decide("edge", descriptor(("tokens", b"\xff\xfe"), hits=1)).code, OVER)
    same(service.decide("edge", descriptor(("tokens", b"\xff\xfd"), hits=1)).code, OK)

    same(service.decide("edge", descriptor(("health", "x"))).statuses[0].remaining, 2**32 - 1)
    same(service.decide("other", descriptor(*login)).code, OK)
    # A limit in shadow mode is charged and shown, and never refuses. No header tells the client of it.
    for left in (0, 0, 0):
        response = service.decide("edge", descriptor(("tried", "x")))
        status = response.statuses[0]
        same((response.code, status.limit, status.remaining), (OK, (1, HOUR, "tried"), left))
        same("ratelimit-policy" in response.headers, False)
    # A key that an override blocks has a quota of 0.
    response = service.decide("edge", descriptor(("tokens", "blocked")))
    same((response.code, response.statuses[0].limit, response.statuses[0].wait), (OVER, (0, HOUR, "tokens"), None))


def bounds(service):
    entry = ("tokens", "a")
    for message, code in [
        (request("edge"), "INVALID_ARGUMENT"),
        (request("", descriptor(entry)), "INVALID_ARGUMENT"),
        (request("d" * 256, descriptor(entry)), "INVALID_ARGUMENT"),
        (request("d" * 255, descriptor(entry)), "OK"),
        (request("edge", descriptor()), "INVALID_ARGUMENT"),
        (request("edge", *[descriptor(("x", str(at))) for at in range(16)]), "OK"),
        (request("edge", descriptor(*[entry] * 16)), "OK"),
        (request("edge", descriptor(("k" * 1024, "v" * 1024))), "OK"),
        (request("edge", descriptor(("k" * 1025, "v"))), "INVALID_ARGUMENT"),
        (request("edge", descriptor(("", "v"))), "INVALID_ARGUMENT"),
        (request("edge", *[descriptor(("two", str(at))) for at in range(8)]), "OK"),
        (b"\x0a\x05edge", "INTERNAL"),
        (b"\xff" * 20, "INTERNAL"),
    ]:
        same((service.fails(message), message[:40]), (code, message[:40]))
    # Clients choose values, and which descriptors there are. Nothing of it may end in an error, which Envoy may let pass.
    same(service.decide("edge", descriptor(("k", "v" * 1024))).code, OK)
    for why, descriptors in [
        (b"16 descriptors", [descriptor(("x", str(at))) for at in range(17)]),
        (b"16 entries", [descriptor(*[entry] * 17), descriptor(entry)]),
        (b"1024 bytes", [descriptor(("k", "v" * 1025)), descriptor(("two", "x"))]),
        (b"16 limits", [descriptor(("two", str(at))) for at in range(9)]),
        (b"not an IP address", [descriptor(("path", "/login"), ("remote_address", "nowhere"))]),
    ]:
        answer = service.decide("edge", *descriptors)
        same((why, answer.code, answer.codes()), (why, OVER, [OVER] * len(descriptors)))
        assert why in answer.body, answer.body
        same(answer.headers, {"cache-control": "no-store", "content-type": "text/plain; charset=utf-8"})
    same(RateLimitResponse(service.call(LIMIT, field(1, "edge") + field(99, b"x" * 70000))).code, OVER)
    for name in ("", "ratelimit", "envoy.service.auth.v3.Authorization"):
        same(service.call(HEALTH, field(1, name) if name else b""), b"\x08\x01")
    same(service.fails(field(1, "other"), HEALTH), "NOT_FOUND")
    same(service.fails(b"", "/envoy.service.ratelimit.v3.RateLimitService/Other"), "UNIMPLEMENTED")


def tenants(service):
    one, other = descriptor(("tenant", "a")), descriptor(("tenant", "b"))
    # One tenant leaves the reserve for others.
    same([service.decide("edge", one).code for _ in range(62)], [OK] * 60 + [OVER] * 2)
    same(service.decide("edge", other).codes(), [OK])
    back = service.decide("edge", descriptor(("tenant", "a"), hits=20, negative=True))
    same(back.codes(), [OK])
    same(service.decide("edge", one).codes(), [OK])
    # A decision charges a budget for one tenant.
    answer = service.decide("edge", one, other)
    same(answer.codes(), [OVER, OVER])
    assert b"two tenants" in answer.body, answer.body
    same(service.decide("edge", other, other).codes(), [OK, OK])


def chains(service):
    user, account, other = [lambda value, key=key: descriptor((key, value)) for key in ("user", "account", "other")]
    # Clients choose whether two descriptors have one value. Then the whole chain is one budget, charged with the sum:
    # 4 of the free ones, and 4 per hour after them.
    both = lambda: service.decide("edge", user("a"), account("a"))
    same([both().codes() for _ in range(5)], [[OK, OK]] * 4 + [[OVER, OVER]])
    same([service.decide("edge", one).code for one in (user("a"), account("a"), user("b"))], [OVER, OVER, OK])
    # Two values are two budgets.
    same(service.decide("edge", user("c"), account("d")).codes(), [OK, OK])
    # The blocked one goes on to the limit after it, from the start.
    same([service.decide("edge", user("blocked"), account("blocked")).code for _ in range(3)], [OK, OK, OVER])
    # A chain that shares a part only is refused, in either order, and charges nothing.
    for descriptors in ((user("x"), other("x")), (other("x"), user("x"))):
        answer = service.decide("edge", *descriptors)
        same(answer.codes(), [OVER, OVER])
        assert b"not of the whole chain" in answer.body, answer.body
    same([service.decide("edge", other("x")).code for _ in range(5)], [OK] * 4 + [OVER])


def candidates(service):
    # 16 limits are decided; their candidates are not.
    many = [descriptor(("two", str(at))) for at in range(8)]
    same(service.decide("edge", *many).codes(), [OK] * 8)
    # Only a candidate reads the address, and only candidates have tenants.
    same(service.decide("edge", descriptor(("page", "a"), ("remote_address", "nowhere"))).codes(), [OK])
    tenants = [descriptor(("plain", "x"), ("tenant", tenant)) for tenant in "ab"]
    same(service.decide("edge", *tenants).codes(), [OK, OK])
    # One comparison for each request. The second descriptor makes the difference.
    same([service.decide("edge", descriptor(("two", "x"))).code for _ in range(2)], [OK] * 2)
    same(service.decide("edge", descriptor(("two", "y")), descriptor(("two", "x"))).codes(), [OK, OK])


def tiers(service):
    of = lambda key, *addresses: [descriptor((key, "x"), ("remote_address", address)) for address in addresses]
    # Each address has a limit with three networks and another one: 16 limits, whatever the client's address.
    for address in ("192.0.2.%d", "2001:db8:%d::1"):
        addresses = [address % number for number in range(9)]
        same(service.decide("edge", *of("nets", *addresses[:8])).codes(), [OK] * 8)
        same(service.decide("edge", *of("nets", *addresses)).codes(), [OVER] * 9)
    same(service.decide("edge", *of("nets", *["2001:db8:1::1"] * 5)).codes(), [OVER] * 5)
    # Two clients in one /48, which a request charges together.
    for _ in range(2):
        same(service.decide("edge", *of("seen", "2001:db8:1:1::1", "2001:db8:1:2::1")).codes(), [OK, OK])
    # In shadow mode, the /48 is over for the third and fourth, but not for a client elsewhere.
    same(service.decide("edge", *of("seen", "2001:db8:1:3::1", "2001:db8:1:4::1", "2001:db8:2:1::1")).codes(), [OK] * 3)


def stranger(service):
    same(service.fails(request("edge", descriptor(("tokens", "a")))), "PERMISSION_DENIED")
    same(service.call(HEALTH, b""), b"\x08\x01")


def secure_channel(address, *files):
    ca, cert, key = [open(file, "rb").read() for file in files]
    return grpc.secure_channel(address, grpc.ssl_channel_credentials(ca, key, cert), OPTIONS)


def one(service):
    for left in (2, 1):
        same(service.decide("edge", descriptor(("a", "x"))).statuses[0].remaining, left)


def secure(_, *files):
    one(Service(None, secure_channel(sys.argv[2], *files)))


def refused(_, *files):
    same(Service(None, secure_channel(sys.argv[2], *files)).fails(request("edge", descriptor(("a", "x")))), "UNAVAILABLE")


def unreachable(service):
    same(service.fails(request("edge", descriptor(("a", "x")))), "UNAVAILABLE")


def socket(_):
    # The path of the socket, which grpcio sends by default, is no valid host.
    service = Service(None, grpc.insecure_channel(sys.argv[2], [*OPTIONS, ("grpc.default_authority", "localhost")]))
    same(service.decide("edge", descriptor(("a", "x"))).statuses[0].remaining, 0)
    same(service.decide("edge", descriptor(("a", "x"))).code, OVER)


class Verdict:
    """The response to an authorization check."""

    def __init__(self, message):
        fields = read(message)
        self.code = first(read(first(fields, 1, b"")), 1)
        denied = read(first(fields, 2, b""))
        self.status = first(read(first(denied, 1, b"")), 1)
        given = denied.get(2, []) + read(first(fields, 3, b"")).get(6, [])
        headers = [read(first(read(option), 1)) for option in given]
        self.headers = {first(header, 1).decode(): first(header, 2, b"").decode() for header in headers}


def check(service, name, client, path="/", host="a.test", headers=(), method="GET"):
    pair = lambda key, value: field(1, key) + field(2, value)
    lines = b"".join(field(1, field(1, key) + field(3, value)) for key, value in headers)
    http = field(2, method) + field(4, path) + field(5, host) + field(13, lines)
    source = field(1, field(1, field(2, client)))
    attributes = field(1, source) + field(4, field(2, http)) + field(10, pair("decide", name))
    return Verdict(service.call(CHECK, field(1, attributes)))


def checks(service, token, forged):
    # Lists of the route, by the address that Envoy determined, also if it is that of a trusted proxy.
    same(check(service, "lists", "192.0.2.66").status, 403)
    forwarded = [("x-forwarded-for", "192.0.2.66, 10.0.0.1")]
    verdicts = [check(service, "lists", "10.0.0.1", headers=forwarded) for _ in range(2)]
    same([verdict.status for verdict in verdicts], [0, 429])
    same([verdict.headers.get("cache-control") for verdict in verdicts], [None, "no-store"])
    same(check(service, "lists", "::ffff:192.0.2.66").status, 403)
    for _ in range(3):
        same(check(service, "lists", "192.0.2.77").code, 0)
    # Nobody else's forwarding headers help into the list.
    forwarded = [("x-forwarded-for", "192.0.2.77")]
    same([check(service, "lists", "192.0.2.1", headers=forwarded).status for _ in range(2)], [0, 429])
    # Verified tokens alone have budgets.
    bearer = lambda text: [("authorization", f"Bearer {text}")]
    same([check(service, "tokens", "192.0.2.1", headers=bearer(token)).status for _ in range(3)], [0, 0, 429])
    same(check(service, "tokens", "192.0.2.1", headers=bearer(forged)).status, 403)
    same(check(service, "tokens", "192.0.2.1").status, 403)
    same(check(service, "tokens", "192.0.2.1", headers=bearer(token) * 2).status, 400)
    # What servers could read differently, by the strictness of the route. A budget is not multiplied by other spellings.
    for path in ("/a%2fb", "/a\\b", "/a%00"):
        same((path, check(service, "lists", "192.0.2.2", path=path).status), (path, 400))
    same(check(service, "lenient", "192.0.2.2", path="/a\\b").status, 0)
    same(check(service, "lenient", "192.0.2.2", path="/a/../a\\b").status, 429)
    for host in ("", "a b", "a.test:x", "a.test, b.test"):
        same((host, check(service, "lists", "192.0.2.3", host=host).status), (host, 400))
    same(service.fails(b"", CHECK), "INVALID_ARGUMENT")
    # What a client sends is never an error, which Envoy may let pass. That of a lenient route is repaired.
    for wrong in (dict(method="G T"), dict(method=""), dict(path="a b"), dict(path=""), dict(path="/" + "a" * 70000)):
        same((wrong, check(service, "lenient", "192.0.2.3", **wrong).status), (wrong, 400))
    for byte in range(256):
        byte = bytes([byte])
        for part in (dict(path=b"/a" + byte), dict(path=b"/?a" + byte), dict(method=b"GET" + byte), dict(host=b"a" + byte)):
            assert check(service, "free", "192.0.2.3", **part).status in (0, 400, 501), part
        for header in ((b"x-a", b"b" + byte), (b"x-a" + byte, b"b")):
            status = check(service, "free", "192.0.2.3", headers=[header]).status
            assert status in (0, 400), header
    same(check(service, "lenient", "192.0.2.4", path="/a?<b>").status, 0)
    # It is read as if it were proxied: with the same spelling, so with the same budget.
    same([check(service, "lists", "192.0.2.4", path=path).status for path in ("/a?<b>\"`", "/a?%3Cb%3E%22`")], [0, 429])
    same(check(service, "lists", "192.0.2.4", path="/a b").status, 400)
    # Only the gateway states identities. What clients claim in such a header is no key.
    claimed = [check(service, "claims", "192.0.2.1", headers=[("x-user", name)]) for name in ("anna", "ben")]
    same([(verdict.status, verdict.headers["cache-control"]) for verdict in claimed], [(403, "no-store")] * 2)
    same(check(service, "free", "192.0.2.3", headers=[("x-a", "b" * 300000)]).status, 431)
    same(check(service, "free", "192.0.2.3", headers=[(f"x-{n}", "b") for n in range(9000)]).status in (0, 431), True)
    pseudo = [(":method", "GET"), (":path", "/"), (":authority", "a.test")]
    same(check(service, "free", "192.0.2.3", headers=pseudo).status, 0)
    # A source that is no address: the peer counts, which is trusted, so that its headers name the client.
    same(check(service, "lists", "nowhere", headers=[("x-forwarded-for", "192.0.2.66")]).status, 403)


if __name__ == "__main__":
    scenario = globals()[sys.argv[1]]
    scenario(Service(sys.argv[2]), *sys.argv[3:])
