// ioredis with its default settings against a running daemon: node ioredis.js SOCKET.
// The daemon holds the policy `api` with the limit 3/1h fixed. Every key is used once only.
"use strict";

const assert = require("node:assert/strict");
const Redis = require("ioredis");

const path = process.argv[2];
const fresh = [0, 16, 15, -1, 2];
const again = [0, 16, 14, -1, 4];
const throttle = (client, key, ...args) => client.call("CL.THROTTLE", key, ...(args.length ? args : [15, 30, 60]));

async function defaults() {
  const redis = new Redis({ path });
  redis.on("error", (error) => { throw error; });
  assert.equal(await redis.ping(), "PONG");
  assert.equal(redis.status, "ready");
  assert.deepEqual(await throttle(redis, "js"), fresh);
  assert.deepEqual(await throttle(redis, "js"), again);
  assert.deepEqual(await throttle(redis, "js one", 0, 1, 60), [0, 1, 0, -1, 60]);
  assert.deepEqual(await throttle(redis, "js one", 0, 1, 60), [1, 1, 0, 60, 60]);
  await assert.rejects(throttle(redis, "js", "x", 30, 60), /^ReplyError: ERR Couldn't parse as integer: x$/);
  await assert.rejects(throttle(redis, "js", 15, 0, 60), /Zero rates are not supported/);
  await assert.rejects(redis.call("NO.SUCH"), /unknown command/);
  const decision = await redis.call("RATION.CHECK", "api", "js decision");
  assert.deepEqual(decision.slice(0, 4), [0, 3, 2, -1]);
  assert.equal(decision.length, 10);
  assert.equal(decision[7], "ok");
  assert.equal(await redis.call("RATION.RESET", "api", "js decision"), "OK");
  await redis.quit();
}

async function pipelines() {
  const redis = new Redis({ path });
  const pipeline = redis.pipeline();
  for (let count = 0; count < 20; count++) pipeline.call("CL.THROTTLE", "js piped", 15, 30, 60);
  const answers = await pipeline.exec();
  assert.ok(answers.every(([error]) => error === null));
  assert.deepEqual(answers.map(([, answer]) => answer[0]), [...Array(16).fill(0), ...Array(4).fill(1)]);
  const results = await redis.multi().call("CL.THROTTLE", "js multi", 15, 30, 60).ping()
    .call("CL.THROTTLE", "js multi", 15, 30, 60).exec();
  assert.deepEqual(results, [[null, fresh], [null, "PONG"], [null, again]]);
  redis.disconnect();
}

async function scripts() {
  const redis = new Redis({ path });
  redis.defineCommand("limit", {
    numberOfKeys: 1,
    lua: "return redis.call('cl.throttle', KEYS[1], ARGV[1], ARGV[2], ARGV[3])",
  });
  assert.deepEqual(await redis.limit("js scripted", 15, 30, 60), fresh);
  assert.deepEqual(await redis.limit("js scripted", 15, 30, 60), again);
  redis.disconnect();
}

async function automatic_pipelines() {
  const redis = new Redis({ path, enableAutoPipelining: true });
  const answers = await Promise.all(Array.from({ length: 40 }, () => throttle(redis, "js auto", 9, 1, 86400)));
  assert.equal(answers.filter(([limited]) => limited === 0).length, 10);
  redis.disconnect();
}

async function keys_are_bytes() {
  const redis = new Redis({ path });
  const key = Buffer.from(Array.from({ length: 256 }, (_, byte) => byte));
  assert.deepEqual(await redis.callBuffer("CL.THROTTLE", key, 15, 30, 60), fresh);
  assert.deepEqual(await redis.call("CL.THROTTLE", key, 15, 30, 60), again);
  redis.disconnect();
}

async function other_protocol() {
  const redis = new Redis({ path, protocol: 2 });
  assert.deepEqual(await throttle(redis, "js resp2"), fresh);
  redis.disconnect();
}

async function main() {
  for (const part of [defaults, pipelines, scripts, automatic_pipelines, keys_are_bytes, other_protocol]) {
    await part();
    console.log("ok", part.name);
  }
  console.log("ioredis", require("ioredis/package.json").version, "passed");
}

main().catch((error) => {
  console.error(error);
  process.exit(1);
});
