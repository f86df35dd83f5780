"""One check with the right headers, in Python: redis-py, any web framework. Try it: python3 check.py

A rationd that has any configuration knows only the policies written there. This asks about one:

    [policy.api]
    limits = ["100/1s burst 200"]
"""

from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

# A check that is not answered in time passes; it is not asked again, as it may have been charged.
LIMITER = redis.Redis(
    unix_socket_path="/run/rationd/rationd.sock",
    decode_responses=True,
    socket_timeout=0.1,
    socket_connect_timeout=0.1,
    retry=Retry(NoBackoff(), 0),
)


def check(policy, key):
    """Whether the request is limited, and the header fields of its response."""
    try:
        limited, *fields = LIMITER.execute_command("RATION.HEADERS", policy, key)
    except redis.RedisError:
        return False, {}
    return limited == 1, dict(zip(fields[::2], fields[1::2]))


class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        limited, headers = check("api", self.client_address[0])
        self.send_response(429 if limited else 200)
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(b"too many requests\n" if limited else b"hello\n")


if __name__ == "__main__":
    ThreadingHTTPServer(("127.0.0.1", 8080), Handler).serve_forever()
