"""redis-py with its default settings against a running daemon: python redis_py.py SOCKET.

The daemon holds the policy `api` with the limit 3/1h fixed. Every key is used once only."""

import asyncio
import sys
from concurrent.futures import ThreadPoolExecutor

import redis
import redis.asyncio

SOCKET = sys.argv[1]
FRESH = [0, 16, 15, -1, 2]


def equal(seen, wanted, what):
    assert seen == wanted, f"{what}: {seen!r} instead of {wanted!r}"


def refused(call, part, what):
    try:
        answer = call()
    except redis.ResponseError as error:
        assert part in str(error), f"{what}: {error} does not say {part!r}"
        return
    raise AssertionError(f"{what}: {answer!r} instead of an error")


def throttle(client, key, *args):
    return client.execute_command("CL.THROTTLE", key, *(args or (15, 30, 60)))


def recorded_answers(client):
    key = "recorded"
    equal(throttle(client, key), [0, 16, 15, -1, 2], "first")
    equal(throttle(client, key), [0, 16, 14, -1, 4], "second")
    equal(throttle(client, key, 15, 30, 60, 20), [1, 16, 14, -1, 4], "never passes")
    equal(throttle(client, key, 15, 30, 60, 0), [0, 16, 14, -1, 4], "a peek")
    equal(throttle(client, "full", 15, 30, 60, 0), [0, 16, 16, -1, 0], "a peek at a fresh key")
    equal(throttle(client, "one", 0, 1, 60), [0, 1, 0, -1, 60], "one a minute")
    equal(throttle(client, "one", 0, 1, 60), [1, 1, 0, 60, 60], "one a minute, again")
    equal(throttle(client, "all", 15, 30, 60, 16), [0, 16, 0, -1, 32], "all at once")
    equal(throttle(client, "all"), [1, 16, 0, 2, 32], "after all at once")


def errors(client):
    refused(lambda: throttle(client, "e", "x", 30, 60), "Couldn't parse as integer: x", "not a number")
    refused(lambda: throttle(client, "e", 15, 0, 60), "Zero rates are not supported", "no rate")
    refused(lambda: throttle(client, "e", -1, 30, 60), "", "a negative burst")
    refused(lambda: client.execute_command("CL.THROTTLE", "e"), "Usage: cl.throttle", "too few arguments")
    refused(lambda: client.execute_command("NO.SUCH", "e"), "unknown command", "an unknown command")
    refused(lambda: client.execute_command("RATION.CHECK", "apo", "e"), "api", "a misspelt policy")
    equal(client.ping(), True, "the connection after errors")


def decisions(client):
    for number, (limited, remaining) in enumerate([(0, 2), (0, 1), (0, 0), (1, 0)]):
        decision = client.execute_command("RATION.CHECK", "api", "decisions")
        equal(len(decision), 10, "fields of a decision")
        equal(decision[:3], [limited, 3, remaining], f"check {number}")
        retry_s, reset_s, retry_ms, reset_at_ms = decision[3:7]
        assert 0 < reset_s <= 3600 and reset_at_ms % 3_600_000 == 0, decision
        if limited:
            assert retry_s == -(-retry_ms // 1000) and 0 < retry_ms <= 3_600_000, decision
            equal(decision[7], b"rate", "reason")
        else:
            equal([retry_s, retry_ms, decision[7]], [-1, -1, b"ok"], "an admitted check")
        assert decision[9] in (b"lease", b"store"), decision
    peek = client.execute_command("RATION.CHECK", "api", "peeked", "PEEK")
    equal(peek[:3], [0, 3, 3], "a peek")
    equal(client.execute_command("RATION.CHECK", "api", "cost", "COST", 3)[:3], [0, 3, 0], "a cost of three")
    assert client.execute_command("RATION.REFUND", "api", "cost", 2) in (b"OK", "OK", True)
    equal(client.execute_command("RATION.CHECK", "api", "cost", "PEEK")[2], 2, "remaining after a refund")
    assert client.execute_command("RATION.RESET", "api", "cost") in (b"OK", "OK", True)
    equal(client.execute_command("RATION.CHECK", "api", "cost", "PEEK")[2], 3, "remaining after a reset")
    equal(client.execute_command("RATION.CHECK", "api", "cost", "COST", 4)[7], b"cost", "more than the limit holds")


def pipelines(client):
    with client.pipeline(transaction=False) as pipe:
        for _ in range(20):
            throttle(pipe, "piped")
        answers = pipe.execute()
    equal([answer[0] for answer in answers], [0] * 16 + [1] * 4, "twenty in a pipeline")
    equal([answer[2] for answer in answers[:16]], list(range(15, -1, -1)), "what remains")
    with client.pipeline(transaction=True) as pipe:
        throttle(pipe, "transacted")
        pipe.ping()
        throttle(pipe, "transacted")
        equal(pipe.execute(), [FRESH, True, [0, 16, 14, -1, 4]], "a transaction")
    with client.pipeline(transaction=False) as pipe:
        throttle(pipe, "mixed")
        pipe.execute_command("NO.SUCH")
        throttle(pipe, "mixed")
        first, error, second = pipe.execute(raise_on_error=False)
    equal([first, second], [FRESH, [0, 16, 14, -1, 4]], "beside an error")
    assert isinstance(error, redis.ResponseError), error


def scripts(client):
    script = client.register_script("return redis.call('cl.throttle', KEYS[1], ARGV[1], ARGV[2], ARGV[3])")
    equal(script(keys=["scripted"], args=[15, 30, 60]), FRESH, "a script that is not known yet")
    with client.pipeline() as pipe:
        script(keys=["scripted"], args=[15, 30, 60], client=pipe)
        equal(pipe.execute(), [[0, 16, 14, -1, 4]], "a script in a pipeline")


def keys_are_bytes(client):
    for name, key in [("all bytes", bytes(range(256))), ("not UTF-8", b"\xff\xfe"), ("CRLF", b"a\r\nb"), ("empty", b"")]:
        equal(throttle(client, key), FRESH, name)
        equal(throttle(client, key)[2], 14, name + " again")
    equal(throttle(client, "k" * 65536), FRESH, "the longest key")
    refused(lambda: throttle(client, "k" * 65537), "", "a key that is too long")


def connection_commands(client):
    equal(client.ping(), True, "PING")
    equal(client.echo("hello"), b"hello", "ECHO")
    assert "redis_version" in client.info() or client.info(), "INFO"
    assert client.client_id() > 0
    client.client_setname("proof")
    client.config_get("save")
    assert client.command_count() > 0


def pooled(client):
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda _: throttle(client, "pooled", 99, 1, 86400), range(400)))
    equal(sum(answer[0] == 0 for answer in answers), 100, "admitted over eight threads")


async def asynchronous():
    client = redis.asyncio.Redis(unix_socket_path=SOCKET)
    answers = await asyncio.gather(*(throttle(client, "async", 9, 1, 86400) for _ in range(50)))
    equal(sum(answer[0] == 0 for answer in answers), 10, "admitted by tasks")
    await client.aclose()


def main():
    client = redis.Redis(unix_socket_path=SOCKET)
    for part in (connection_commands, recorded_answers, errors, decisions, pipelines, scripts, keys_are_bytes, pooled):
        part(client)
        print("ok", part.__name__)
    asyncio.run(asynchronous())
    print("ok asynchronous")
    text = redis.Redis(unix_socket_path=SOCKET, decode_responses=True)
    equal(text.execute_command("RATION.CHECK", "api", "text")[7], "ok", "text with decode_responses")
    old = redis.Redis(unix_socket_path=SOCKET, protocol=2)
    equal(throttle(old, "resp2"), FRESH, "RESP2")
    by_url = redis.from_url(f"unix://{SOCKET}", health_check_interval=1)
    equal(throttle(by_url, "url"), FRESH, "from_url")
    print("ok other settings")
    print("redis-py", redis.__version__, "passed")


main()
