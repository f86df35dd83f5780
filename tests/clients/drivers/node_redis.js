// node-redis as tests/clients.rs drives it: node node_redis.js SOCKET PROTOCOL WAY, where PROTOCOL is `default`, 2 or 3,
// and WAY `alone`, `pipeline` or `multi`. A line of stdin is a command, its arguments in hexadecimal; a line of stdout
// an answer.
"use strict";

const assert = require("node:assert/strict");
const { createClient } = require("redis");
const { commands, shown } = require("./lines.js");

const [path, protocol, way] = process.argv.slice(2);

async function ask(client) {
  if (way === "multi") {
    const multi = client.multi();
    for (const command of commands()) multi.addCommand(command);
    // Without replies that were errors it would be another call.
    return await multi.exec().catch((error) => error.replies ?? [error]);
  }
  if (way === "pipeline") {
    return await Promise.all(commands().map((command) => client.sendCommand(command).catch((error) => error)));
  }
  const answers = [];
  for (const command of commands()) answers.push(await client.sendCommand(command).catch((error) => error));
  return answers;
}

async function main() {
  // It gives up what it could not write within 5 s: of many at once on a busy machine that may be some.
  const patient = { commandOptions: { timeout: 120_000 } };
  const settings = protocol === "default" ? {} : { RESP: Number(protocol) };
  const client = createClient({ socket: { path }, ...patient, ...settings });
  client.on("error", (error) => { throw error; });
  await client.connect();
  const answers = await ask(client);
  assert.equal(await client.ping(), "PONG");
  await client.close();
  console.log("version", require("redis/package.json").version);
  console.log(answers.map(shown).join("\n"));
}

main();
