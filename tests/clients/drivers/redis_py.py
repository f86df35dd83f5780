"""redis-py as tests/clients.rs drives it: python redis_py.py SOCKET PROTOCOL WAY, where PROTOCOL is `default`, 2 or 3.

WAY is `alone`, `pipeline` or `multi`, with `async-` before it for asyncio. A line of stdin is a command, its
arguments in hexadecimal; a line of stdout is an answer."""

import asyncio
import sys

import redis
import redis.asyncio

SOCKET, PROTOCOL, WAY = sys.argv[1:]
COMMANDS = [[bytes.fromhex(word) for word in line.split()] for line in sys.stdin]
# By default what is not answered within 5 s is sent again, and counted again: a machine may be slower than that.
SETTINGS = {"socket_timeout": 300} | ({} if PROTOCOL == "default" else {"protocol": int(PROTOCOL)})


def shown(answer):
    if isinstance(answer, list):
        return "[" + " ".join(map(shown, answer)) + "]"
    if isinstance(answer, Exception):
        return f"-{answer}"
    if isinstance(answer, int):
        return str(int(answer))
    text = answer if isinstance(answer, bytes) else str(answer).encode()
    return '"' + "".join(chr(byte) if 32 <= byte < 127 else f"\\x{byte:02x}" for byte in text) + '"'


def one(client, command):
    try:
        return client.execute_command(*command)
    except redis.ResponseError as error:
        return error


def sync():
    client = redis.Redis(unix_socket_path=SOCKET, single_connection_client=True, **SETTINGS)
    if WAY == "alone":
        answers = [one(client, command) for command in COMMANDS]
    else:
        with client.pipeline(transaction=WAY == "multi") as pipe:
            for command in COMMANDS:
                pipe.execute_command(*command)
            answers = pipe.execute(raise_on_error=False)
    assert client.ping(), "the connection stays in step"
    return answers


async def one_later(client, command):
    try:
        return await client.execute_command(*command)
    except redis.ResponseError as error:
        return error


async def later():
    client = redis.asyncio.Redis(unix_socket_path=SOCKET, single_connection_client=True, **SETTINGS)
    if WAY == "async-alone":
        answers = [await one_later(client, command) for command in COMMANDS]
    else:
        async with client.pipeline(transaction=WAY == "async-multi") as pipe:
            for command in COMMANDS:
                pipe.execute_command(*command)
            answers = await pipe.execute(raise_on_error=False)
    assert await client.ping(), "the connection stays in step"
    await (client.aclose if hasattr(client, "aclose") else client.close)()
    return answers


print("version", redis.__version__)
for answer in asyncio.run(later()) if WAY.startswith("async") else sync():
    print(shown(answer))
